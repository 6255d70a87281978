"""Promise 8: a wrong name, option or batch raises early, and says what to do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, schedules


def empty_trainer():
    return MultiHeadTrainer(keras.layers.Dense(2))


def add(trainer, name="a", **options):
    trainer.add_head(name, keras.layers.Dense(1), options.pop("loss", "mse"), **options)
    return trainer


ERRORS = {
    "no head": (lambda: empty_trainer().compile("sgd"), r"`compile` needs at least one head.*add_head"),
    "twice": (lambda: add(add(empty_trainer())), r"`name` must be new. Received: name='a'; the heads are 'a'"),
    "encoder": (lambda: MultiHeadTrainer(3), r"`encoder` must be a Keras layer or model. Received: encoder=3"),
    "weight": (lambda: add(empty_trainer(), weight=-1), r"`weight` must be a finite number of at least 0.*weight=-1"),
    "loss": (lambda: add(empty_trainer(), loss="mze"), r"`loss` must be a Keras loss. Received: loss='mze'"),
    "reduction": (
        lambda: add(empty_trainer(), loss=keras.losses.MeanSquaredError(reduction="sum")),
        r"`loss` must leave its reduction to the trainer.*reduction='sum'.*weight=",
    ),
    "metrics": (lambda: add(empty_trainer(), metrics="mae"), r"`metrics` must be a list"),
    "balancer": (lambda: add(empty_trainer()).compile("sgd", balancer="UBGrad"), r"UPGrad"),
    "level": (lambda: add(empty_trainer()).compile("sgd", balance_at="parameter"), r"Did you mean 'parameters'\?"),
    "micro-batches": (
        lambda: add(empty_trainer()).compile("sgd", micro_batches=0),
        r"`micro_batches` must be a whole number",
    ),
    "steps": (
        lambda: add(empty_trainer()).compile("sgd", gradient_accumulation_steps=1.5),
        r"`gradient_accumulation_steps` must be a whole",
    ),
    "clip": (
        lambda: add(empty_trainer()).compile("sgd", clip=5.0),
        r"`clip` must be one of multihead.clipping.*clip=5.0",
    ),
    "limit": (lambda: clipping.ByNorm(0), r"`limit` must be a finite number above 0. Received: limit=0"),
    "own clip": (
        lambda: add(empty_trainer()).compile(keras.optimizers.SGD(0.1, global_clipnorm=2.0)),
        r"`optimizer` must leave clipping.*global_clipnorm=2.0.*clip=clipping.ByGlobalNorm\(2.0\)",
    ),
    "optimizer": (
        lambda: add(empty_trainer()).compile("adamm"),
        r"`optimizer` must be a Keras optimizer, its name or its configuration",
    ),
    "schedule": (
        lambda: add(empty_trainer()).compile("sgd", head_schedule=schedules.Alternate({"b": 1})),
        r"`turns` must name every head, and nothing else: 'b' is not a head; the head 'a' is missing",
    ),
    "turns": (lambda: schedules.Alternate({"a": 0}), r"`turns\['a'\]` must be a whole number of at least 1"),
    "uncompiled": (
        lambda: add(empty_trainer()).fit(np.ones((2, 2)), np.ones((2, 1))),
        r"`fit` requires a compiled trainer",
    ),
    "budget": (
        lambda: add(empty_trainer()).compile("sgd", balancer=balancing.NormBudget({"b": 0.5})),
        r"'b'.*'a'",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_argument_rule_and_what_was_received(case):
    action, message = ERRORS[case]
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        action()


def ready():
    trainer = add(add(empty_trainer()), "b")
    trainer.compile("sgd")
    return trainer


ONES = np.ones((4, 2), "float32")

DATA_ERRORS = {
    "unknown": ({"a": ONES, "c": ONES}, r"`targets` must name only heads: 'c' is not a head.*the heads are 'a', 'b'"),
    "absent": ({"a": ONES}, r"head 'b' has none in the data.*targets for 'a'; the heads are 'a', 'b'"),
    "no dict": (ONES, r"`targets` must be a dict by head name"),
}


@pytest.mark.parametrize("case", DATA_ERRORS)
def test_errors_about_data_come_before_training(case):
    targets, message = DATA_ERRORS[case]
    with pytest.raises(ValueError, match=f"(?s){message}"):
        ready().fit(ONES, targets, verbose=0)


def test_a_head_that_trains_nothing_is_an_error():
    trainer = empty_trainer()
    body = keras.Sequential([keras.layers.Dense(1), keras.layers.Lambda(lambda x: tf.round(x))])
    trainer.add_head("a", body, "mse")
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="Head 'a' must have a loss that trains something"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))


def test_a_representation_without_floats_and_a_loss_that_reduces_are_errors():
    trainer = MultiHeadTrainer(lambda x: tf.cast(x, tf.int32))
    add(trainer).compile("sgd")
    with pytest.raises(ValueError, match="The encoder must return at least one floating-point tensor"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))
    trainer = empty_trainer()
    trainer.add_head("a", keras.layers.Dense(1), lambda t, p: tf.reduce_mean((t - p) ** 2))
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="must give one value per element.*Do not reduce"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1]}))


def test_negative_sample_weights_are_an_error():
    trainer = ready()
    with pytest.raises(ValueError, match=r"`sample_weights\['a'\]` must be finite and at least 0"):
        trainer.compute_gradients((ONES, {"a": ONES[:, :1], "b": ONES[:, :1]}, {"a": -ONES[:, 0]}))
