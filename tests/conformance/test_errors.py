"""Promise 8: wrong use raises as early as possible, and names the argument, the rule, what was received and what to do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, schedules
from multihead.accumulation import GradientAccumulator
from multihead.testing._report import Case, Report

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


def made(names="ab", encoder=None, optimizer="sgd", loss="mse", module=None, compiled=None, **options):
    """A compiled trainer with some heads."""
    trainer = MultiHeadTrainer(keras.layers.Dense(4) if encoder is None else encoder)
    for name in names:
        trainer.add_head(name, module or keras.layers.Dense(1), loss, **options)
    trainer.compile(optimizer, run_eagerly=True, **(compiled or {}))
    return trainer


def fit(trainer, x=X, y=Y, **options):
    return trainer.fit(x, y, verbose=0, **options)


def compute(y=Y, weights=None, **options):
    return made(y, **options).compute_gradients((X, y) if weights is None else (X, y, weights))


def of_head(**options):
    return made("a", **options)


def compile_with(**options):
    return made("a", compiled=options)


def rounded():
    return keras.Sequential([keras.layers.Dense(1), keras.layers.Lambda(lambda x: tf.round(x))])


def weight_set(name, value):
    trainer = made()
    trainer.set_weight(name, value)
    return trainer


def added_later():
    trainer = made()
    fit(trainer)
    trainer.add_head("c", keras.layers.Dense(1), "mse")
    return trainer


EMPTY = {name: values[:0] for name, values in Y.items()}
DATASET = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
REDUCED = keras.losses.MeanSquaredError(reduction="sum")
ERRORS = [
    (lambda: MultiHeadTrainer(3), r"`encoder` must be a Keras layer or model. Received: encoder=3"),
    (lambda: made("aa"), r"`name` must be new. Received: name='a'; the heads are 'a'"),
    (lambda: of_head(weight=-1), r"`weight` must be a finite number of at least 0.*weight=-1"),
    (lambda: of_head(loss="mze"), r"`loss` must be a Keras loss. Received: 'mze'"),
    (lambda: of_head(loss=REDUCED), r"`loss` must leave its reduction to the trainer.*reduction='sum'.*weight="),
    (lambda: of_head(metrics="mae"), r"`metrics` must be a list"),
    (lambda: made(""), r"`compile` needs at least one head.*add_head"),
    (lambda: compile_with(micro_batches=0), "`micro_batches` must be a whole number"),
    (lambda: compile_with(gradient_accumulation_steps=1.5), "`gradient_accumulation_steps` must be a whole"),
    (lambda: compile_with(clip=5.0), "`clip` must be an instance of one of .*clip=5.0"),
    (
        lambda: compile_with(head_schedule=schedules.Alternate({"b": 1})),
        "`turns` must name every head, and nothing else: 'b' is not a head; the head 'a' is missing",
    ),
    (lambda: compile_with(balancer=balancing.NormBudget({"b": 0.5})), "'b'.*'a'"),
    (lambda: made(optimizer="adamm"), "`optimizer` must be a Keras optimizer, its name or its configuration"),
    (
        lambda: made(optimizer=keras.optimizers.SGD(0.1, global_clipnorm=2.0)),
        r"`optimizer` must leave clipping.*global_clipnorm=2.0.*clip=clipping.ByGlobalNorm\(2.0\)",
    ),
    (lambda: clipping.ByNorm(0), "`limit` must be a finite number above 0. Received: limit=0"),
    (lambda: schedules.Alternate({"a": 0}), r"`turns\['a'\]` must be a whole number of at least 1"),
    (lambda: GradientAccumulator([tf.Variable(1.0)]).add([tf.constant(1.0)], -1), "`count` must be a finite number of at"),
    (lambda: GradientAccumulator([tf.Variable(1.0)]).add([tf.constant(1.0)], np.nan), "`count` must be a finite number of"),
    (
        lambda: Case(keras.layers.Dense(1), Report("Dense", [4]), "[4]", (4,)).require(False, "keep its size"),
        "`Dense` must keep its size.*See docs",
    ),
    # Data
    (lambda: fit(MultiHeadTrainer(keras.layers.Dense(2))), "`fit` requires a compiled trainer"),
    (lambda: fit(added_later(), y={**Y, "c": Y["a"]}), "`fit` requires a compiled trainer"),
    (lambda: fit(made(), y={**Y, "c": X}), "`targets` must name only heads: 'c' is not a head.*the heads are 'a', 'b'"),
    (lambda: fit(made(), y={"a": X}), "head 'b' has none in the data.*targets for 'a'; the heads are 'a', 'b'"),
    (lambda: fit(made(), y=X), "`targets` must be a dict by head name"),
    (lambda: fit(made(), y={**Y, "a": Y["a"][:5]}), r"Received: rows 8 in `x`, 5 in `y\['a'\]`"),
    (lambda: fit(made(), y={**Y, "a": np.zeros([8, 1, 2])}), "must have the shape of the predictions"),
    (lambda: fit(made(), X[:0], EMPTY), "`x` must yield at least one batch"),
    (lambda: fit(made(), DATASET.take(0), None), "`x` must yield at least one batch"),
    (lambda: fit(made(), iter([]), None), "`x` must yield at least one batch"),
    (lambda: fit(made(), validation_data=DATASET.take(0)), "In `validation_data`: `x` must yield at least one batch"),
    (
        lambda: weight_set("b", 0.0).compute_gradients((X, {"a": Y["a"], "b": Y["b"][:5]})),
        "one row per example. Received: 5 for 8 in `inputs`",
    ),
    (lambda: compute(weights={"a": -np.ones(8)}), r"`sample_weights\['a'\]` must be finite and at least 0"),
    # What cannot be trained
    (lambda: compute({"a": Y["a"]}, module=rounded()), "Head 'a' must have a loss that trains something"),
    (lambda: compute(encoder=lambda x: tf.cast(x, tf.int32)), "The encoder must return at least one floating-point tensor"),
    (lambda: compute(loss=lambda t, p: tf.reduce_mean((t - p) ** 2)), "must give one value per element.*Do not reduce"),
]


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(("action", "message"), ERRORS)
def test_errors_name_argument_rule_and_what_was_received(action, message):
    with pytest.raises((ValueError, TypeError, AssertionError, RuntimeError), match=f"(?s){message}"):
        action()


class Calls(keras.callbacks.Callback):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def on_train_batch_end(self, batch, logs=None):
        self.call(self.model)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("compile", lambda trainer: trainer.compile("adam")),
        ("add_head", lambda trainer: trainer.add_head("c", keras.layers.Dense(1), "mse")),
        ("remove_head", lambda trainer: trainer.remove_head("a")),
    ],
)
def test_nothing_is_rebuilt_in_the_middle_of_fit(method, call):
    trainer = made()
    with pytest.raises(ValueError, match=f"`{method}` must not be called during `fit`"):
        fit(trainer, callbacks=[Calls(call)])
    fit(trainer)
    call(trainer)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch"])
def test_arguments_that_keras_does_not_have(method):
    first = {"x": X} if method == "predict" else {"x": X, "y": Y}
    with pytest.raises((TypeError, ValueError), match="(?i)verbos"):
        getattr(made(), method)(**first, verbos=0)
    with pytest.raises(TypeError, match=rf"{method}\(\) takes"):
        getattr(made(), method)(*first.values(), *range(20))


@pytest.mark.parametrize("used_by", ["model", "trainer"])
def test_an_optimizer_belongs_to_one_model(used_by):
    optimizer = keras.optimizers.Adam()
    if used_by == "trainer":
        first = made(optimizer=optimizer)
        fit(first)
        first.compile(optimizer, run_eagerly=True)  # the same trainer may use it again
        fit(first)
    else:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer, "mse", run_eagerly=True)
        model.fit(X, Y["a"], verbose=0)
    with pytest.raises(ValueError, match="`optimizer` must not be in use by another model"):
        fit(made(optimizer=optimizer))
    assert isinstance(made(optimizer=None).optimizer, keras.optimizers.RMSprop)  # as in Keras


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_data_set_that_turns_out_to_be_empty_is_refused():
    with pytest.raises(ValueError, match="must yield at least one batch in every epoch|empty dataset"):
        fit(made(), DATASET.filter(lambda *batch: False), None)


def test_formats_that_cannot_hold_a_trainer_are_refused_in_a_line(tmp_path):
    trainer = made()
    fit(trainer)
    for name in ("trainer.h5", "trainer", "trainer.tf"):
        with pytest.raises(ValueError, match="`filepath` must end in '.keras'"):
            trainer.save(tmp_path / name)
    if keras.__version__[0] == "2":
        with pytest.raises(NotImplementedError, match="`to_json` does not work on Keras 2.*Use `save`"):
            trainer.to_json()
    else:
        assert list(keras.models.model_from_json(trainer.to_json()).heads) == ["a", "b"]


@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "compute_gradients"])
def test_inputs_that_the_encoder_cannot_take(call):
    trainer = made()
    trainer.compute_gradients((X, Y))
    given = ((X[:, :2], Y),) if call == "compute_gradients" else (X[:, :2],) if call == "predict" else (X[:, :2], Y)
    with pytest.raises(ValueError, match=r"`encoder` must take the inputs of the data. Received: Dense, and inputs .*2"):
        getattr(trainer, call)(*given)
    fit(trainer)
