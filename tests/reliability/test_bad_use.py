"""Bad use: the earliest possible error, which names the argument, the rule, what was received and what to do."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator
from multihead.testing._report import Report

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


def made(encoder=None, optimizer="sgd"):
    trainer = MultiHeadTrainer(keras.layers.Dense(4) if encoder is None else encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    trainer.compile(optimizer, run_eagerly=True)
    return trainer


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
        trainer.fit(X, Y, verbose=0, callbacks=[Calls(call)])
    trainer.fit(X, Y, verbose=0)
    call(trainer)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch"])
def test_arguments_that_keras_does_not_have(method):
    trainer = made()
    first = {"x": X} if method == "predict" else {"x": X, "y": Y}
    with pytest.raises((TypeError, ValueError), match="(?i)verbos"):
        getattr(trainer, method)(**first, verbos=0)
    with pytest.raises(TypeError, match=rf"{method}\(\) takes"):
        getattr(trainer, method)(*first.values(), *range(20))


def test_a_head_added_after_training_began_needs_compile():
    trainer = made()
    trainer.fit(X, Y, verbose=0)
    trainer.add_head("c", keras.layers.Dense(1), "mse")
    with pytest.raises(ValueError, match="`fit` requires a compiled trainer"):
        trainer.fit(X, {**Y, "c": Y["a"]}, verbose=0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("used_by", ["model", "trainer"])
def test_an_optimizer_belongs_to_one_model(used_by):
    optimizer = keras.optimizers.Adam()
    if used_by == "trainer":
        made(optimizer=optimizer).compute_gradients((X, Y))
    else:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer, "mse", run_eagerly=True)
        model.fit(X, Y["a"], verbose=0)
    with pytest.raises(ValueError, match="`optimizer` must not be in use by another model"):
        made(optimizer=optimizer).fit(X, Y, verbose=0)


def test_the_same_trainer_may_compile_again_with_its_optimizer():
    trainer = made(optimizer=keras.optimizers.Adam())
    trainer.fit(X, Y, verbose=0)
    trainer.compile(trainer.optimizer, run_eagerly=True)
    trainer.fit(X, Y, verbose=0)
    assert int(trainer.update_count) == 2


@pytest.mark.parametrize("kind", ["arrays", "dataset", "generator"])
def test_empty_data_are_refused(kind):
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4)
    arguments = {
        "arrays": {"x": X[:0], "y": {name: values[:0] for name, values in Y.items()}},
        "dataset": {"x": dataset.take(0)},
        "generator": {"x": iter([])},
    }[kind]
    with pytest.raises(ValueError, match="`x` must yield at least one batch"):
        made().fit(**arguments, verbose=0)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_a_data_set_that_turns_out_to_be_empty_is_refused():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4).filter(lambda *batch: False)
    with pytest.raises(ValueError, match="must yield at least one batch in every epoch|empty dataset"):
        made().fit(dataset, verbose=0)


def test_a_generator_that_raises_is_quoted_and_what_was_trained_stays():
    def batches():
        for place in range(3):
            if place == 2:
                raise RuntimeError("the disk is gone")
            yield X, Y

    trainer = made()
    with pytest.raises(RuntimeError, match="`x` raised an error while it made a batch. Received: RuntimeError: the disk"):
        trainer.fit(batches(), verbose=0, steps_per_epoch=5)
    assert int(trainer.update_count) == 2


def test_sizes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"Received: rows 8 in `x`, 5 in `y\['a'\]`"):
        made().fit(X, {"a": Y["a"][:5], "b": Y["b"]}, verbose=0)
    with pytest.raises(ValueError, match="must have the shape of the predictions"):
        made().fit(X, {"a": np.zeros([8, 1, 2], "float32"), "b": Y["b"]}, verbose=0)


def test_in_a_custom_loop_sizes_are_compared_for_idle_heads_too():
    trainer = made()
    trainer.set_weight("b", 0.0)
    with pytest.raises(ValueError, match="one row for each example. Received: 5 for 8 in the inputs"):
        trainer.compute_gradients((X, {"a": Y["a"], "b": Y["b"][:5]}))


def test_a_representation_needs_a_floating_leaf():
    class Whole(keras.layers.Layer):
        def call(self, inputs):
            return tf.cast(inputs, tf.int32)

    with pytest.raises(ValueError, match="at least one floating-point tensor"):
        made(Whole()).fit(X, Y, verbose=0)


@pytest.mark.parametrize("count", [-1.0, float("nan"), float("inf")])
def test_an_accumulator_takes_no_negative_count(count):
    with pytest.raises(ValueError, match="`count` must be a finite number of at least 0"):
        GradientAccumulator([tf.Variable(1.0)]).add([tf.constant(1.0)], count)


def test_formats_that_cannot_hold_a_trainer_are_refused_in_a_line(tmp_path):
    trainer = made()
    trainer.fit(X, Y, verbose=0)
    for name in ("trainer.h5", "trainer"):
        with pytest.raises(ValueError, match="`filepath` must end in '.keras'"):
            trainer.save(tmp_path / name)
    if keras.__version__[0] == "2":
        with pytest.raises(NotImplementedError, match="`to_json` does not work on Keras 2"):
            trainer.to_json()


def test_a_check_of_a_method_names_it():
    report = Report(keras.layers.Dense(1), "the losses [4, 0.5]")
    with pytest.raises(AssertionError, match="`Dense` must keep its size.*See docs/extending.md"):
        report.require(False, "keep its size", "")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("call", ["fit", "evaluate", "predict", "compute_gradients"])
def test_inputs_that_the_encoder_cannot_take(call):
    trainer = made()
    trainer.compute_gradients((X, Y))
    given = ((X[:, :2], Y),) if call == "compute_gradients" else (X[:, :2],) if call == "predict" else (X[:, :2], Y)
    with pytest.raises(ValueError, match=r"`encoder` must take the inputs of the data. Received: Dense, and inputs .*2"):
        getattr(trainer, call)(*given)
    trainer.fit(X, Y, verbose=0)


def test_without_an_optimizer_it_is_that_of_keras():
    assert isinstance(made(optimizer=None).optimizer, keras.optimizers.RMSprop)
