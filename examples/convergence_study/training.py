"""Trains an arm on a seed, and measures it on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples.convergence_study.arms import CLIP, Arm, ByPart, make_optimizer
from examples.convergence_study.network import Network
from examples.seq2seq_price.batches import NUM_BUCKETS, Examples, Vectorizers, training_batches
from examples.seq2seq_price.ranges import NO_LABEL
from examples.seq2seq_price.tables import InputError
from multihead import MultiHeadTrainer, clipping, losses

EXACT_EVERY = 5
"""Replies are written at every so many measurements, and at the last: that takes longer than a loss."""
Curve = list[dict[str, float]]


def make_batches(
    examples: Examples, vectorizers: Vectorizers, *, batch_size: int, updates: int, seed: int
) -> tf.data.Dataset:
    """Whole batches for so many updates, the same and in the same order whenever they are read.

    Raises:
        InputError: There may be no whole batch.
    """
    if len(examples.texts) < NUM_BUCKETS * batch_size:
        raise InputError(
            f"`--batch-size` must be at most an eighth of the training rows. Received: {batch_size}, with "
            f"{len(examples.texts)} rows. Lower it, or bring more rows."
        )
    keras.utils.set_random_seed(seed)
    batches, _ = training_batches(examples, vectorizers, batch_size, seed=seed)
    whole = batches.filter(lambda ids, targets: tf.shape(ids)[0] == batch_size)
    kept = whole.repeat().take(updates).cache()
    for _ in kept:  # fills the cache
        pass
    return kept


class Measurements(keras.callbacks.Callback):
    """Measures at the start and at the end of every epoch, while the clock stands still.

    Args:
        network: What is trained.
        every: Updates in an epoch.
        epochs: How many epochs there are.
        batch_size: Examples in an update.
        advance: To be called at every update.
    """

    def __init__(self, network: Network, every: int, epochs: int, batch_size: int, advance: Callable[[], None]) -> None:
        super().__init__()
        self.curve: Curve = []
        self._network, self._every, self._epochs, self._batch_size = network, every, epochs, batch_size
        self._advance = advance
        self._seconds, self._since = 0.0, 0.0

    def on_train_begin(self, logs: Any = None) -> None:
        self.measure()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._advance()
        if len(self.curve) == 1 and batch == 0:  # the first update may compile, so it does not count
            self._since = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._seconds += time.perf_counter() - self._since
        self.measure()

    def measure(self) -> None:
        """Adds a point to the curve and starts the clock."""
        number = len(self.curve)
        figures = self._network.evaluate(exact=number % EXACT_EVERY == 0 or number == self._epochs)
        updates = number * self._every
        point = {"updates": updates, "examples": updates * self._batch_size, "seconds": self._seconds}
        self.curve.append({**point, **figures})
        self._since = time.perf_counter()


def make_trainer(network: Network, arm: Arm, batch_size: int) -> MultiHeadTrainer:
    """A compiled trainer on the network's own modules."""
    trainer = MultiHeadTrainer(network.encoder)
    modules: list[Any] = []
    if "reply" in arm.heads:
        modules.append(network.reply)
        trainer.add_head("reply", network.reply, losses.SequenceCrossentropy(), teacher_forcing=True)
    if "price" in arm.heads:
        modules.append(network.price)
        # A batch's sum is its mean times its rows.
        weight = float(batch_size) if arm.unreduced else arm.price_weight
        loss = "sparse_categorical_crossentropy"
        trainer.add_head("price", network.price, loss, weight=weight, ignore_label=NO_LABEL)
    sizes = [len(module.trainable_variables) for module in (network.encoder, *modules)]
    trainer.compile(
        make_optimizer(arm),
        balancer=None if arm.balancer is None else arm.balancer(),
        schedule=None if arm.schedule is None else arm.schedule(),
        clip=ByPart(CLIP, sizes) if arm.by_part else clipping.ByGlobalNorm(CLIP),
    )
    return trainer


class LibraryRun:
    """An arm by the library; one trainer, set back to its start for every seed, so that it is compiled once.

    Args:
        network: What to train.
        arm: How.
        batches: A data set to build the trainer for.
        batch_size: Rows in a batch.
    """

    def __init__(self, network: Network, arm: Arm, batches: tf.data.Dataset, batch_size: int) -> None:
        self._network, self._heads, self._batch_size = network, arm.heads, batch_size
        self.trainer = make_trainer(network, arm, batch_size)
        batches = self._own(batches)
        self.trainer.compute_gradients(next(iter(batches)))
        self._state = [*self.trainer.variables, *self.trainer.optimizer.variables]
        self._start = [tf.convert_to_tensor(variable).numpy() for variable in self._state]
        self.trainer.fit(batches.repeat(), steps_per_epoch=2, epochs=1, verbose=0, shuffle=False)  # compiles

    def run(self, seed: int, batches: tf.data.Dataset, every: int, epochs: int, advance: Callable[[], None]) -> Curve:
        """Trains from the seed's weights and gives what was measured, at the start and after each of the epochs."""
        for variable, value in zip(self._state, self._start):
            variable.assign(value)
        self._network.set(self._network.draw(seed))
        measurements = Measurements(self._network, every, epochs, self._batch_size, advance)
        self.trainer.fit(
            self._own(batches).repeat().prefetch(4),
            steps_per_epoch=every,
            epochs=epochs,
            verbose=0,
            shuffle=False,
            callbacks=[measurements],
        )
        return measurements.curve

    def _own(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        return batches.map(lambda ids, targets: (ids, {head: targets[head] for head in self._heads}))


class HandWrittenRun:
    """An arm without the library: two optimizers over shared variables.

    One takes the decoder's loss, averaged over tokens, with its gradients clipped by their global norm; the other takes the
    price's, averaged or summed over the batch, not clipped.

    Args:
        network: What to train.
        arm: How.
        batches: A data set to compile the loop for.
        batch_size: Rows in a batch.
    """

    def __init__(self, network: Network, arm: Arm, batches: tf.data.Dataset, batch_size: int) -> None:
        self._network, self._arm, self._batch_size = network, arm, batch_size
        encoder = network.encoder.trainable_variables
        self._variables = [[*encoder, *module.trainable_variables] for module in (network.reply, network.price)]
        self._optimizers = [make_optimizer(arm) for _ in self._variables]
        for optimizer, variables in zip(self._optimizers, self._variables):
            optimizer.build(variables)
        self._state = [variable for optimizer in self._optimizers for variable in optimizer.variables]
        self._start = [tf.convert_to_tensor(variable).numpy() for variable in self._state]
        ids = tf.TensorSpec([None, None], tf.int32)
        self._step = tf.function(self._update, input_signature=[ids, ids, tf.TensorSpec([None], tf.int32)])
        ids, targets = next(iter(batches))
        self._step(ids, targets["reply"], targets["price"])  # compiles

    def run(self, seed: int, batches: tf.data.Dataset, every: int, epochs: int, advance: Callable[[], None]) -> Curve:
        """Trains from the seed's weights and gives what was measured, at the start and after each of the epochs."""
        for variable, value in zip(self._state, self._start):
            variable.assign(value)
        self._network.set(self._network.draw(seed, self._arm.deviation))
        measurements = Measurements(self._network, every, epochs, self._batch_size, advance)
        measurements.on_train_begin()
        for number, (ids, targets) in enumerate(batches.repeat().take(every * epochs).prefetch(4)):
            self._step(ids, targets["reply"], targets["price"])
            measurements.on_train_batch_end(number)
            if (number + 1) % every == 0:
                measurements.on_epoch_end(number // every)
        return measurements.curve

    def _update(self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor) -> None:
        with tf.GradientTape(persistent=True) as tape:
            _, reply_sum, tokens, price_sum, labels = self._network.losses(ids, reply, price, training=True)
            price_loss = price_sum if self._arm.unreduced else price_sum / tf.maximum(labels, 1.0)
            both = (reply_sum / tokens, price_loss)
        of_reply, of_price = (tape.gradient(loss, variables) for loss, variables in zip(both, self._variables))
        clipped, _ = tf.clip_by_global_norm(of_reply, CLIP)
        for optimizer, gradients, variables in zip(self._optimizers, (clipped, of_price), self._variables):
            optimizer.apply_gradients(zip(gradients, variables))


def make_run(network: Network, arm: Arm, batches: tf.data.Dataset, batch_size: int) -> LibraryRun | HandWrittenRun:
    """What trains an arm."""
    return (HandWrittenRun if arm.by_hand else LibraryRun)(network, arm, batches, batch_size)


def final(curve: Curve, figure: str) -> float:
    """A figure at the end of a curve."""
    return float(curve[-1][figure])


def updates_until(curve: Curve, figure: str, target: float, *, falling: bool) -> float | None:
    """How many updates it took a figure to reach a target, by straight lines between measurements; None if it did not."""
    sign = 1.0 if falling else -1.0
    gaps = np.array([sign * (point[figure] - target) for point in curve])
    reached = np.flatnonzero(gaps <= 0)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0:
        return 0.0
    part = gaps[after - 1] / (gaps[after - 1] - gaps[after])
    before = curve[after - 1]["updates"]
    return float(before + part * (curve[after]["updates"] - before))
