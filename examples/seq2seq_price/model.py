"""The model: an encoder reads an order, a decoder writes its normal form, and a classifier estimates its price range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, balancing, clipping, losses
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder, TransformerDecoder, TransformerEncoder

PADDING_ID, UNKNOWN_ID, START_ID, END_ID = range(4)
CAPITALIZED_ID, NUMBER_ID = START_ID, END_ID  # of unknown words in sources, which do not start or end
NO_LABEL = -1  # of an order without a price, from which the price head does not learn


@dataclass(frozen=True)
class Sizes:
    """The hyperparameters; without attention the decoder reads only the encoder's final state.

    The words of sources and targets are those of their vocabularies; so many as `copy_ids` more stand for unknown words of
    targets, by their places in the source, which the decoder can copy. None: it does not copy.
    """

    source_words: int
    target_words: int
    maximum_length: int
    copy_ids: int | None = None
    units: int = 64
    embedding: int = 32
    layers: int = 1
    cell: str = "gru"
    attention: str | None = None
    dropout: float = 0.0

    @property
    def common(self) -> dict[str, Any]:
        """What encoder and decoder have in common."""
        return {"embedding_size": self.embedding, "units": self.units, "num_layers": self.layers, "dropout": self.dropout}


def encoder(sizes: Sizes) -> keras.layers.Layer:
    """From ids to a dict: `outputs` for each word, the final `state`, and `mask`."""
    if sizes.cell == "transformer":
        return TransformerEncoder(sizes.source_words, **sizes.common)
    return Seq2SeqEncoder(sizes.source_words, cell=sizes.cell, bidirectional=True, **sizes.common)


def reply_head(sizes: Sizes) -> Head:
    """The decoder: called with the targets in training, it generates in `predict`."""
    ids = {"start_id": START_ID, "end_id": END_ID, "maximum_length": sizes.maximum_length, "name": "reply"}
    if sizes.cell == "transformer":
        decoder = TransformerDecoder(sizes.target_words, **sizes.common, **ids)
    else:
        words, copying = (
            sizes.target_words + (sizes.copy_ids or 0),
            {"attention": sizes.attention, "copy_ids": sizes.copy_ids},
        )
        decoder = Seq2SeqDecoder(words, cell=sizes.cell, **copying, **sizes.common, **ids)
    token_accuracy = keras.metrics.SparseCategoricalAccuracy(name="token_accuracy")
    return Head(decoder, losses.SequenceCrossentropy(), metrics=[token_accuracy], teacher_forcing=True)


def price_head(ranges: int, units: int) -> Head:
    """The classifier of the price range, which reads the mean of the encoder's outputs."""
    classifier = PriceClassifier(ranges, hidden_units=units, pool=True)
    return Head(classifier, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=NO_LABEL)


def compile_trainer(
    trainer: MultiHeadTrainer,
    updates: int,
    *,
    balancer: Any = None,
    learning_rate: float = 0.01,
    weight_decay: float = 0.0,
    **options: Any,
) -> None:
    """Compiles with a learning rate that falls to 0 over so many updates, and gradients of a global norm of at most 1."""
    rate = keras.optimizers.schedules.CosineDecay(learning_rate, updates)
    optimizer = keras.optimizers.AdamW(rate, weight_decay=weight_decay)
    trainer.compile(optimizer, balancer=balancer, clip=clipping.ByGlobalNorm(1.0), **options)


class Way(NamedTuple):
    """A way to train the heads, with what makes the balancer; two models of a `share` of 2/3 cost as much as one of 1."""

    name: str
    heads: tuple[str, ...]
    balancer: Callable[[], balancing.Balancer] | None = None
    share: float = 1.0

    def epochs(self, of_joint: int) -> int:
        """The number of epochs, where a joint model has so many."""
        return max(1, round(of_joint * self.share))


WAYS = (
    Way("reply alone", ("reply",), share=2 / 3),
    Way("price alone", ("price",), share=2 / 3),
    Way("plain sum", ("reply", "price")),
    Way("balanced", ("reply", "price"), lambda: balancing.NormFloor(1.0)),
)


class Trained(NamedTuple):
    """What became of a way; `scores` are the fractions of exact replies and of right price ranges."""

    way: Way
    scores: Mapping[str, float]
    updates: int
    seconds: float


def ways(
    chosen: Sequence[Way],
    build: Callable[[Way], MultiHeadTrainer],
    batches: tf.data.Dataset,
    held_out: tuple[np.ndarray, Mapping[str, np.ndarray]],
    *,
    epochs: int,
    seed: int = 0,
    callbacks: Callable[[Way], list[keras.callbacks.Callback]] = lambda way: [],
    **options: Any,
) -> Iterator[Trained]:
    """Trains in each way, from the same initial encoder and on the same batches, and measures on what is held out.

    `build` makes the trainer of a way; `batches` and the ids and targets in `held_out` are those of all heads; `epochs` is
    the number of a joint model. `options` are those of `compile_trainer`.
    """
    for way in chosen:
        keras.utils.set_random_seed(seed)
        trainer, number = build(way), way.epochs(epochs)
        own = batches.map(lambda ids, targets, heads=way.heads: (ids, {head: targets[head] for head in heads}))
        balancer = way.balancer and way.balancer()
        compile_trainer(trainer, number * int(own.cardinality()), balancer=balancer, **options)
        begun = time.perf_counter()
        trainer.fit(own, epochs=number, callbacks=callbacks(way), verbose=0)
        seconds = time.perf_counter() - begun
        yield Trained(way, scores(trainer, *held_out), int(trainer.update_count), seconds)


def scores(trainer: MultiHeadTrainer, ids: np.ndarray, targets: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The fraction of replies that are right to the last id, and of price ranges."""
    answers, heads, found = trainer.predict(ids, batch_size=256, verbose=0), list(trainer.heads), {}
    answers = answers if isinstance(answers, dict) else {heads[0]: answers}
    if "reply" in heads:
        wanted = targets["reply"]
        written = np.pad(answers["reply"], [(0, 0), (0, wanted.shape[1])])[:, : wanted.shape[1]]
        found["reply"] = float(np.mean(np.all((written == wanted) | (wanted == PADDING_ID), axis=1)))
    if "price" in heads:
        found["price"] = float(np.mean(np.argmax(answers["price"], axis=1) == targets["price"]))
    return found
