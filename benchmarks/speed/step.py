"""Time of the trainer's training step, relative to a custom training loop.

Two workloads have a sequence head and a classifier: a GRU encoder (computation dominates) and a small dense encoder (the
trainer's overhead dominates). The last one, eight dense heads, shows what `balance_every` saves, relative to the plain sum.
Each ratio is the median over rounds, of which the small workloads have five times as many.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Row, Table, finish, relative_table, rows_of
from benchmarks.speed._shared import in_turns, parsed, parser_of
from multihead import MultiHeadTrainer, clipping, losses, schedules


class Encoder(keras.layers.Layer):
    def __init__(self, vocabulary: int, units: int) -> None:
        super().__init__()
        self.embed = keras.layers.Embedding(vocabulary, units // 2)
        self.gru = keras.layers.GRU(units, return_sequences=True, return_state=True)

    def call(self, tokens: Any) -> Any:
        outputs, state = self.gru(self.embed(tokens))
        return {"outputs": outputs, "state": state}


class On(keras.layers.Layer):
    def __init__(self, key: str, units: int, activation: str | None = None) -> None:
        super().__init__()
        self.key = key
        self.dense = keras.layers.Dense(units, activation=activation)

    def call(self, representation: Any) -> Any:
        return self.dense(representation[self.key])


def sequence_workload() -> tuple[Any, dict[str, Any], Any, Any]:
    rng = np.random.default_rng(0)
    tokens, labels = rng.integers(1, 500, (128, 25)), rng.integers(0, 8, 128)
    heads = {"reply": On("outputs", 500), "price": On("state", 8, "softmax")}
    targets = {"reply": tf.constant(tokens % 499 + 1), "price": tf.constant(labels)}
    return Encoder(500, 128), heads, tf.constant(tokens), targets


class Hidden(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(32, activation="relu")

    def call(self, x: Any) -> Any:
        x = self.dense(x)
        return {"outputs": x[:, None], "state": x}


def small_workload() -> tuple[Any, dict[str, Any], Any, Any]:
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 16)).astype("float32"))
    targets = {"reply": tf.constant(rng.integers(1, 8, (32, 1))), "price": tf.constant(rng.integers(0, 8, 32))}
    return Hidden(), {"reply": On("outputs", 8), "price": On("state", 8, "softmax")}, x, targets


def by_hand(workload: Callable[[], Any]) -> Callable[[], Any]:
    """A custom training loop: one tape, one optimizer, clipping by global norm, and the same loss as the trainer."""
    encoder, heads, x, targets = workload()
    optimizer = keras.optimizers.Adam(1e-3)
    representation = encoder(x)
    for head in heads.values():
        head(representation)
    variables = [v for module in (encoder, *heads.values()) for v in module.trainable_variables]
    optimizer.build(variables)
    tensors = [v if not hasattr(v, "value") or callable(v.value) else v.value for v in variables]

    @tf.function
    def step(x: tf.Tensor, targets: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            representation = encoder(x, training=True)
            logits = heads["reply"](representation, training=True)
            mask = tf.cast(targets["reply"] != 0, tf.float32)
            tokens = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets["reply"], logits=logits)
            reply = tf.reduce_sum(tokens * mask) / tf.reduce_sum(mask)
            classes = heads["price"](representation, training=True)
            price = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(targets["price"], classes))
            loss = reply + price
        gradients, _ = tf.clip_by_global_norm(tape.gradient(loss, tensors), 5.0)
        optimizer.apply_gradients(zip(gradients, variables))
        return loss

    return lambda: step(x, targets)


def with_trainer(workload: Callable[[], Any], **options: Any) -> Callable[[], Any]:
    step, batch = step_of_trainer(workload, **options)
    return lambda: step(batch)


def step_of_trainer(workload: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    """The training step of a trainer, a `tf.function`, and its batch."""
    encoder, heads, x, targets = workload()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("reply", heads["reply"], losses.SequenceCrossentropy())
    trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy")
    trainer.compile(keras.optimizers.Adam(1e-3), clip=clipping.ByGlobalNorm(5.0), **options)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0, shuffle=False)
    return tf.function(trainer.train_step), (x, targets)


LEFT_OUT = {"price": 10**9, "reply": 1}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain sum, losses only in the logs": {"telemetry": None},
    "plain sum": {},
    "UPGrad at the representation": {"balancer": "UPGrad"},
    "UPGrad at the parameters": {"balancer": "UPGrad", "balance_at": "parameters"},
    "UPGrad at the parameters, balance_every=10": {
        "balancer": "UPGrad",
        "balance_at": "parameters",
        "balance_every": 10,
    },
    "the sequence head left out by a schedule": {"head_schedule": schedules.Alternate(LEFT_OUT)},
}

GRU = "GRU encoder, sequence and class"
SMALL = "two small dense heads"
EIGHT = "eight small dense heads"


class Eight(keras.layers.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(64, activation="relu")

    def call(self, x: Any) -> Any:
        return self.dense(x)


def with_eight_heads(**options: Any) -> Callable[[], Any]:
    """The training step of a trainer with eight small regression heads."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(64, 16)).astype("float32"))
    targets = {f"head_{k}": tf.constant(rng.normal(size=(64, 1)).astype("float32")) for k in range(8)}
    trainer = MultiHeadTrainer(Eight())
    for name in targets:
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(1e-3), **options)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0, shuffle=False)
    step = tf.function(trainer.train_step)
    return lambda: step((x, targets))


SOLVES: dict[str, dict[str, Any]] = {
    "CAGrad, balance_every=1": {"balancer": "CAGrad"},
    "CAGrad, balance_every=10": {"balancer": "CAGrad", "balance_every": 10},
}


def of_workload(workload: Callable[[], Any]) -> dict[str, Callable[[], Any]]:
    """The custom training loop, then the variants of the trainer."""
    variants = {name: with_trainer(workload, **options) for name, options in VARIANTS.items()}
    return {"custom training loop": by_hand(workload), **variants}


def of_eight_heads() -> dict[str, Callable[[], Any]]:
    """The plain sum, then the balancer with and without reuse of its coefficients."""
    return {"plain sum": with_eight_heads(), **{name: with_eight_heads(**options) for name, options in SOLVES.items()}}


def tables(lines: Sequence[Line]) -> list[Table]:
    often = "in five times as many rounds"
    titles = {GRU: GRU, SMALL: f"Two small dense heads, {often}", EIGHT: f"Eight small dense heads, {often}"}
    return [relative_table(lines, title, workload=workload) for workload, title in titles.items()]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(parser_of("step", __doc__, rounds=15, steps=10), arguments)
    workloads: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {
        GRU: lambda: of_workload(sequence_workload),
        SMALL: lambda: of_workload(small_workload),
        EIGHT: of_eight_heads,
    }
    rows: list[Row] = []
    for title in [SMALL] if options.quick else workloads:
        rounds = options.rounds if title == GRU else 5 * options.rounds  # a step of the others takes a millisecond
        rows += rows_of(in_turns(workloads[title](), rounds, options.steps), workload=title)
    finish(options, rows, tables)
