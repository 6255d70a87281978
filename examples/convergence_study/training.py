"""Trains a variant on a seed, with measurements during training."""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from examples._command_line import InputError
from examples.convergence_study.network import Network
from examples.convergence_study.variants import CLIP, ByPart, Variant, make_optimizer
from examples.seq2seq_price.batches import Examples, Vectorizers, buckets_by_length
from examples.seq2seq_price.model import NO_LABEL
from multihead import MultiHeadTrainer, clipping, losses

EXACT_EVERY = 5
"""Replies are generated only at every `EXACT_EVERY`-th measurement and at the last, since this is slower than a loss."""
NUM_BUCKETS = (8, 3)
"""Number of buckets by source length, and by target length."""
Curve = list[dict[str, float]]
Batch = tuple[tf.Tensor, dict[str, tf.Tensor]]
Batches = list[Batch]


def make_batches(examples: Examples, vectorizers: Vectorizers, *, batch_size: int, updates: int, seed: int) -> Batches:
    """Full batches of rows of similar lengths for the given number of updates, reshuffled in every epoch.

    Rows are put into buckets by source length, and each of these into buckets by target length. The same seed gives the
    same batches.

    Raises:
        InputError: There may be no full batch.
    """
    rows = len(examples.texts)
    if rows < NUM_BUCKETS[0] * batch_size:
        raise InputError(
            f"`--batch-size` must be at most an eighth of the number of training rows. Received: {batch_size}, with "
            f"{rows} rows. Lower it, or provide more rows."
        )
    generator = np.random.default_rng(seed)
    sources, targets = vectorizers(examples.texts, examples.targets)
    numbers = buckets_by_length(sources.row_lengths().numpy(), targets.row_lengths().numpy(), NUM_BUCKETS)
    batches: Batches = []
    while len(batches) < updates:
        order = generator.permutation(rows)[: rows - rows % batch_size]  # different rows are left over in each epoch
        order = order[np.argsort(numbers[order], kind="stable")].reshape(-1, batch_size)
        for place in generator.permutation(len(order))[: updates - len(batches)]:
            chosen = order[place]
            ids, reply = (tf.cast(tf.gather(ragged, chosen).to_tensor(), tf.int32) for ragged in (sources, targets))
            batches.append((ids, {"reply": reply, "price": tf.constant(examples.labels[chosen], tf.int32)}))
    return batches


def make_trainer(network: Network, variant: Variant, batch_size: int) -> MultiHeadTrainer:
    """A compiled trainer for the network's modules."""
    trainer = MultiHeadTrainer(network.encoder)
    modules: list[Any] = []
    if "reply" in variant.heads:
        modules.append(network.reply)
        trainer.add_head("reply", network.reply, losses.SequenceCrossentropy(), teacher_forcing=True)
    if "price" in variant.heads:
        modules.append(network.price)
        # The sum over a batch is its mean times the number of rows.
        weight = float(batch_size) if variant.unreduced else variant.price_weight
        loss = "sparse_categorical_crossentropy"
        trainer.add_head("price", network.price, loss, weight=weight, ignore_label=NO_LABEL)
    sizes = [len(module.trainable_variables) for module in (network.encoder, *modules)]
    with warnings.catch_warnings():
        # That a weight has no effect with `EqualNorms` is what two variants show.
        warnings.filterwarnings("ignore", "The weights of heads do not change the direction")
        trainer.compile(
            make_optimizer(variant),
            balancer=None if variant.balancer is None else variant.balancer(),
            head_schedule=None if variant.schedule is None else variant.schedule(),
            clip=ByPart(CLIP, sizes) if variant.by_part else clipping.ByGlobalNorm(CLIP),
        )
    return trainer


class AbstractRun:
    """A variant that can be trained on one seed after another; it is compiled once.

    Args:
        network: The network to train.
        variant: The variant.
        state: The variables that an update changes besides the network's weights; they are reset for every seed.
        update: Applies one update, given a batch's ids, reply ids and prices.
        batch: A batch to compile for.
    """

    def __init__(
        self,
        network: Network,
        variant: Variant,
        state: list[Any],
        update: Callable[[tf.Tensor, tf.Tensor, tf.Tensor], Any],
        batch: Batch,
    ) -> None:
        self._network, self._variant, self._state = network, variant, state
        self._start = [tf.convert_to_tensor(variable).numpy() for variable in state]
        self._rows = int(batch[0].shape[0])
        ids = tf.TensorSpec([self._rows, None], tf.int32)
        # Without AutoGraph, which takes longer than tracing: no update has Python control flow that depends on a tensor.
        self._step = tf.function(update, input_signature=[ids, ids, tf.TensorSpec([self._rows], tf.int32)], autograph=False)
        self._train(batch)

    def run(self, seed: int, batches: Batches, every: int, epochs: int, advance: Callable[[], None]) -> Curve:
        """Trains from the seed's weights and measures at the start and after each epoch; measuring is not timed."""
        for variable, value in zip(self._state, self._start):
            variable.assign(value)
        self._network.set(self._network.draw(seed, self._variant.deviation))
        seconds = 0.0
        curve = [{"updates": 0, "examples": 0, "seconds": seconds, **self._network.evaluate(exact=False)}]
        endless = itertools.cycle(batches)
        for epoch in range(1, epochs + 1):
            since = time.perf_counter()
            for batch in itertools.islice(endless, every):
                self._train(batch)
                advance()
            seconds += time.perf_counter() - since
            updates = epoch * every
            point = {"updates": updates, "examples": updates * self._rows, "seconds": seconds}
            figures = self._network.evaluate(exact=epoch % EXACT_EVERY == 0 or epoch == epochs)
            curve.append({**point, **figures})
        return curve

    def _train(self, batch: Batch) -> None:
        ids, targets = batch
        self._step(ids, targets["reply"], targets["price"])


class LibraryRun(AbstractRun):
    """A variant that uses the library: it calls the `train_step` that `fit` calls, without the rest of `fit`.

    Args:
        network: The network to train.
        variant: The variant.
        batches: The batches to train on.
    """

    def __init__(self, network: Network, variant: Variant, batches: Batches) -> None:
        self.trainer = make_trainer(network, variant, int(batches[0][0].shape[0]))
        ids, targets = batches[0]
        # Creates the variables of the trainer and its optimizer.
        self.trainer.compute_gradients((ids, {head: targets[head] for head in variant.heads}))
        state = [*self.trainer.variables, *self.trainer.optimizer.variables]
        super().__init__(network, variant, state, self._update, batches[0])

    def _update(self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor) -> None:
        targets = {"reply": reply, "price": price}
        self.trainer.train_step((ids, {head: targets[head] for head in self._variant.heads}))


class HandWrittenRun(AbstractRun):
    """A variant without the library: two optimizers for the shared variables.

    One minimizes the decoder's loss, averaged over tokens, with gradients clipped by global norm; the other minimizes the
    price loss, averaged or summed over the batch, without clipping.

    Args:
        network: The network to train.
        variant: The variant.
        batches: The batches to train on.
    """

    def __init__(self, network: Network, variant: Variant, batches: Batches) -> None:
        encoder = network.encoder.trainable_variables
        self._variables = [[*encoder, *module.trainable_variables] for module in (network.reply, network.price)]
        self._optimizers = [make_optimizer(variant) for _ in self._variables]
        for optimizer, variables in zip(self._optimizers, self._variables):
            optimizer.build(variables)
        state = [variable for optimizer in self._optimizers for variable in optimizer.variables]
        super().__init__(network, variant, state, self._update, batches[0])

    def _update(self, ids: tf.Tensor, reply: tf.Tensor, price: tf.Tensor) -> None:
        with tf.GradientTape(persistent=True) as tape:
            _, reply_sum, tokens, price_sum, labels = self._network.losses(ids, reply, price, training=True)
            price_loss = price_sum if self._variant.unreduced else price_sum / tf.maximum(labels, 1.0)
            both = (reply_sum / tokens, price_loss)
        of_reply, of_price = (tape.gradient(loss, variables) for loss, variables in zip(both, self._variables))
        clipped, _ = tf.clip_by_global_norm(of_reply, CLIP)
        for optimizer, gradients, variables in zip(self._optimizers, (clipped, of_price), self._variables):
            optimizer.apply_gradients(zip(gradients, variables))


def make_run(network: Network, variant: Variant, batches: Batches) -> AbstractRun:
    """Creates the run of a variant."""
    return (HandWrittenRun if variant.by_hand else LibraryRun)(network, variant, batches)


def final(curve: Curve, figure: str) -> float:
    """The final value of a metric."""
    return float(curve[-1][figure])


def updates_until(curve: Curve, figure: str, target: float, *, falling: bool) -> float | None:
    """The number of updates until a metric reaches a target, interpolated linearly; None if it does not."""
    sign = 1.0 if falling else -1.0
    gaps = np.array([sign * (point[figure] - target) for point in curve])
    reached = np.flatnonzero(gaps <= 0)
    if not len(reached):
        return None
    after = int(reached[0])
    if after == 0:
        return 0.0
    fraction = gaps[after - 1] / (gaps[after - 1] - gaps[after])
    before = curve[after - 1]["updates"]
    return float(before + fraction * (curve[after]["updates"] - before))
