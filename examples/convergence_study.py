"""A price classifier and a sequence decoder share the encoder's final hidden state: what lets both learn at full speed?

This is the problem from which the library started. `multihead.compare` trains the same network from the same weights on the
same batches, with a rate that decays to zero: each head alone, the plain sum, a price loss that is summed over the batch,
alternating updates, a tuned weight, and several balancers. The size of the gradients decides, not their direction.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples._shared import Session, run_program
from examples.seq2seq_price import batches
from examples.seq2seq_price.data import workshop_data
from examples.seq2seq_price.model import END_ID, NO_LABEL, START_ID, UNKNOWN_ID
from multihead import MultiHeadTrainer, balancing, clipping, compare, losses, plots, schedules
from multihead.models import PriceClassifier, Seq2SeqDecoder, Seq2SeqEncoder

BATCH, RATE = 64, 12e-3
LONGEST = 24
"""Orders with more tokens are left out: batches are as long as the longest, and nine of ten have fewer."""
METRICS = {"reply": ("reply_loss", "min"), "price": ("price_accuracy", "max")}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain sum": {},
    "price loss summed": {"weights": {"price": float(BATCH)}},  # the sum over a batch is its mean times the number of rows
    "price weight 0.3": {"weights": {"price": 0.3}},
    "one price, nine replies": {"head_schedule": schedules.Alternate({"price": 1, "reply": 9})},
    "alternating in conflicts": {"head_schedule": schedules.WhileConflicting()},
    "EqualNorms": {"balancer": balancing.EqualNorms()},
    "NormFloor(1.0)": {"balancer": balancing.NormFloor(1.0)},
    "NashMTL": {"balancer": balancing.NashMTL()},
    "UPGrad": {"balancer": balancing.UPGrad()},
}
QUICK = ("plain sum", "price loss summed", "EqualNorms")


class FinalState(keras.layers.Layer):
    """The encoder up to its final hidden state, so that both heads read the same tensor."""

    def __init__(self, encoder: Seq2SeqEncoder) -> None:
        super().__init__(name="encoder")
        self.encoder = encoder

    def call(self, ids: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.encoder(ids, training=training)["final"]


class Reply(keras.layers.Layer):
    """The decoder, applied to a hidden state."""

    def __init__(self, decoder: Seq2SeqDecoder) -> None:
        super().__init__(name="reply")
        self.decoder = decoder

    def call(self, hidden: tf.Tensor, targets: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.decoder(_representation(hidden), targets, training=training)

    def generate(self, hidden: tf.Tensor) -> tf.Tensor:
        return self.decoder.generate(_representation(hidden))


class Price(keras.layers.Layer):
    """The classifier, applied to a hidden state."""

    def __init__(self, classifier: PriceClassifier) -> None:
        super().__init__(name="price")
        self.classifier = classifier

    def call(self, hidden: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        return self.classifier({"final": hidden}, training=training)


def _representation(hidden: tf.Tensor) -> dict[str, Any]:
    """The parts of a representation that a decoder without attention reads."""
    step = hidden[:, tf.newaxis]
    return {"outputs": step, "state": (hidden,), "final": hidden, "mask": tf.ones(tf.shape(step)[:2], tf.bool)}


class Study:
    """The workshop's orders as token ids, and trainers for them.

    Args:
        orders: Orders to train on.
        held_out: Further orders.
    """

    def __init__(self, orders: int, held_out: int) -> None:
        self._data = workshop_data(orders, held_out, seed=0)
        train = self._data.splits["train"]
        vocabularies = batches.vocabularies(train)
        self._sizes = [len(vocabulary) + 2 for vocabulary in vocabularies]
        self._ids = batches.Vectorizers(*vocabularies)
        replies = self._ids(train.texts, train.targets).target
        self._reply_length = min(LONGEST, int(tf.reduce_max(replies.row_lengths())))

    def trainer(self, units: int = 64) -> MultiHeadTrainer:
        """A new trainer: a GRU, a decoder without attention, and a classifier, all with `units` units."""
        source, target = self._sizes
        ends: dict[str, Any] = {"start_id": START_ID, "end_id": END_ID, "maximum_length": LONGEST}
        decoder = Seq2SeqDecoder(target, 32, units, cell="gru", attention=None, **ends)
        encoder = FinalState(Seq2SeqEncoder(source, 32, units, cell="gru"))
        reply, price = Reply(decoder), Price(PriceClassifier(len(self._data.heads["price"].names), hidden_units=units))
        ids = tf.ones([1, 1], tf.int32)
        hidden = encoder(ids)
        reply(hidden, ids)
        price(hidden)
        trainer = MultiHeadTrainer(encoder)
        trainer.add_head("reply", reply, losses.SequenceCrossentropy(), teacher_forcing=True)
        trainer.add_head("price", price, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=NO_LABEL)
        return trainer

    def part(self, split: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The ids and targets of the orders of at most `LONGEST` tokens in `"train"` or `"dev"`."""
        found = self._data.splits[split]
        ids, _, reply = self._ids(found.texts, found.targets)
        known = tf.where(reply.flat_values < self._ids.size, reply.flat_values, tf.constant(UNKNOWN_ID, tf.int64))
        reply = reply.with_flat_values(known)
        short = ((ids.row_lengths() <= LONGEST) & (reply.row_lengths() <= LONGEST)).numpy()
        arrays = (
            ids.to_tensor(shape=[None, LONGEST]),
            reply.to_tensor(shape=[None, self._reply_length]),
            found.labels["price"],
        )
        x, replies, prices = (np.asarray(each)[short].astype(np.int32) for each in arrays)
        return x, {"reply": replies, "price": prices}


def run(session: Session) -> None:
    """Diagnoses the summed price loss, trains every variant and shows the results."""
    orders, seeds, updates = (600, 1, 20) if session.quick else (6000, 3, 400)
    study = Study(orders, orders // 2)
    train, (x, y) = study.part("train"), study.part("dev")
    halves = ((x[first::2], {head: each[first::2] for head, each in y.items()}) for first in range(2))
    clip = clipping.ByGlobalNorm(1.0)

    trainer = study.trainer()
    trainer.set_weight("price", float(BATCH))
    trainer.compile(keras.optimizers.Adam(RATE), clip=clip)
    session.say("`diagnose` of a price loss that is summed over the batch, before training:")
    for finding in trainer.diagnose(*train, batch_size=BATCH).findings:
        session.say(f"- {finding}")
    found = compare(
        study.trainer,
        {"train": train, **dict(zip(("validation", "test"), halves))},
        {name: VARIANTS[name] for name in (QUICK if session.quick else VARIANTS)},
        seeds=range(session.seed, session.seed + seeds),
        budget=updates,
        metrics=METRICS,
        rates=RATE,
        batch_size=BATCH,
        options={"clip": clip},
        equal_cost=False,
        file=None if session.quick else session.folder / "runs.jsonl",
    )
    session.say(str(found))
    session.save(plots.front(found))


main = partial(run_program, "convergence_study", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
