"""A loss or gradient that is not finite: the update is skipped or training ends; with names."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping
from multihead._update import faults
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = {name: np.random.default_rng(k).normal(size=(16, 1)).astype("float32") for k, name in enumerate("ab", 1)}
BAD = {"a": Y["a"], "b": np.where(np.arange(16)[:, None] == 9, 99, Y["b"])}
MESSAGE = r"from head 'b', in the gradients of '.*kernel.*', at update 3, batch 2 of the epoch"


def loss(y_true, y_pred):
    return tf.square(y_true[:, 0] - y_pred[:, 0]) * tf.where(y_true[:, 0] > 50, np.inf, 1.0)


def made(optimizer="sgd", missing=None, is_built=True, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(1), loss, ignore_label=missing, couples_rows=False)
    trainer.compile(optimizer, **options)
    if is_built:  # creates the variables, so that they are the same at every call
        trainer.compute_gradients([(X, Y)])
    return trainer


def fit(trainer, targets=BAD, **options):
    return trainer.fit(X, targets, batch_size=4, shuffle=False, verbose=0, **options)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"run_eagerly": True},
        {"jit_compile": True},
        {"run_eagerly": True, "balancer": "UPGrad", "balance_at": "parameters"},
    ],
    ids=str,
)
def test_raise_names_head_variable_update_and_batch(options):
    trainer = made(on_nonfinite="raise", **options)
    with pytest.raises(ValueError, match=MESSAGE):
        fit(trainer)
    assert int(trainer.update_count) == 2
    for value in tiny.weights_of(trainer):
        assert np.isfinite(value).all()


def test_the_batches_of_a_window_are_named():
    with pytest.raises(ValueError, match="at update 2, batches 2 to 3 of the epoch"):
        fit(made(on_nonfinite="raise", gradient_accumulation_steps=2, run_eagerly=True))


def test_skip_leaves_one_update_out_and_names_it():
    trainer = made(run_eagerly=True)
    with pytest.warns(RuntimeWarning, match=r"1 of the epoch's updates was skipped .* from head 'b', in .* batch 2"):
        history = fit(trainer)
    assert history.history["skipped_updates"] == [1] and int(trainer.update_count) == 3


def test_an_infinite_gradient_is_not_hidden_by_clipping():
    trainer = made(run_eagerly=True, clip=clipping.ByValue(1.0))
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates"):
        fit(trainer)
    assert int(trainer.update_count) == 3


class Passes(keras.layers.Layer):
    """An encoder with two outputs, one of which none of its variables reaches."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        return {"hidden": self.dense(x), "inputs": x}


class Root(keras.layers.Layer):
    """A head that is finite at 0, where its gradient is not."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def build(self, shapes):
        self.dense.build((None, 4))

    def call(self, representation):
        return self.dense(representation["hidden"]) + tf.sqrt(tf.abs(representation["inputs"][:, :1]))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options",
    [
        {"telemetry": None},
        {"balancer": "UPGrad"},
        {"telemetry": None, "weighting": "LogLoss"},
        {"balancer": "UPGrad", "micro_batches": 2},
        {"balancer": "UPGrad", "balance_at": "parameters", "telemetry": None},
    ],
    ids=str,
)
def test_a_gradient_that_reaches_no_variable_is_noticed(options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(Passes())
    trainer.add_head("a", keras.layers.Dense(1), "mse", reads="hidden")
    trainer.add_head("b", Root(), "mse")
    trainer.compile("sgd", **options)
    x = X + 5.0
    x[9, 0] = 0.0
    with pytest.warns(
        RuntimeWarning, match=r"1 of the epoch's updates was skipped .* from head 'b', .* at update 3, batch 2"
    ):
        trainer.fit(x, Y, batch_size=4, shuffle=False, verbose=0)
    assert all(np.isfinite(each).all() for each in tiny.weights_of(trainer))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_run_of_skipped_updates_ends_training(run_eagerly):
    trainer = made(max_skipped_updates=3, run_eagerly=run_eagerly)
    with pytest.raises(ValueError, match="Received: 3 such updates, the last one from head 'b'.* batch 2"):
        fit(trainer, {"a": Y["a"], "b": np.full_like(Y["b"], 99)}, epochs=9)
    fit(trainer, Y)  # the error has ended the run: another `fit` begins to count again
    assert int(trainer.update_count) == 4


def test_the_default_limit_is_25_and_an_applied_update_ends_a_run():
    trainer = made()
    bad, good = (trainer.compute_gradients((X[8:10], {k: v[8:10] for k, v in y.items()})) for y in (BAD, Y))
    for _ in range(24):
        trainer.apply_gradients(bad)
    trainer.apply_gradients(good)
    for _ in range(24):
        trainer.apply_gradients(bad)
    with pytest.raises(ValueError, match="Received: 25 such updates"):
        trainer.apply_gradients(bad)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("mode", ["raise", "skip"])
def test_loss_scaling_lowers_its_scale_without_a_fault(mode):
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.001), initial_scale=2.0**127)
    options = {} if mode == "raise" else {"max_skipped_updates": 1}
    trainer = made(optimizer, on_nonfinite=mode, run_eagerly=True, **options)
    history = fit(trainer, {name: 10 * values for name, values in Y.items()}, epochs=3)
    skipped = sum(history.history["skipped_updates"])
    assert 0 < skipped < 12 and int(trainer.update_count) == 12 - skipped


def test_losses_count_while_loss_scaling_lowers_its_scale_as_in_keras():
    def fitted(is_keras):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((3,))
        encoded = keras.layers.Dense(4, activation="tanh")(inputs)
        model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(encoded) for name in "ab"})
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.001), initial_scale=2.0**127)
        model.compile(optimizer, loss={"a": "mse", "b": "mae"}, metrics={"b": ["mse"]})
        trainer = model if is_keras else MultiHeadTrainer.from_model(model)
        if not is_keras:
            trainer.compile()
        targets = {name: 100 * values for name, values in Y.items()}
        logs = trainer.fit(X, targets, batch_size=8, epochs=5, shuffle=False, verbose=0).history
        return logs, model.get_weights()

    (logs, weights), (wanted, wanted_weights) = fitted(False), fitted(True)
    assert logs["skipped_updates"][0] == 2
    for name, values in wanted.items():
        np.testing.assert_allclose(logs[name], values, rtol=1e-5, err_msg=name)
    for own, value in zip(weights, wanted_weights):
        np.testing.assert_allclose(own, value, rtol=1e-5, atol=1e-6)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("options", [{}, {"micro_batches": 2}, {"jit_compile": True}], ids=str)
def test_metrics_of_a_skipped_update_count_where_they_are_sound(options):
    """Of three batches, one has a label of `b` whose loss is infinite, and another a row of NaN without any label.

    XLA leaves that row out of the metrics.
    """
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse", metrics=["mae"])
    trainer.add_head("b", keras.layers.Dense(1), loss, metrics=["mae"], couples_rows=False)
    trainer.add_head("only measured", keras.layers.Dense(1), None, metrics=["mae"])
    trainer.compile(keras.optimizers.SGD(0.0), check_labels=False, **options)
    x, y = X[:12].copy(), {name: values[:12].copy() for name, values in {**Y, "only measured": Y["a"]}.items()}

    def means(rows):
        return trainer.evaluate(x[rows], {name: values[rows] for name, values in y.items()}, verbose=0, return_dict=True)

    with_row = [8, 10, 11] if "jit_compile" in options else []
    good, both = means([*range(4), *with_row]), means([*range(8), *with_row])
    y["b"][5] = 99
    x[9] = np.nan
    for values in y.values():
        values[9] = np.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        logs = trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0).history
    assert logs["skipped_updates"] == [2.0]
    np.testing.assert_allclose(logs["a_mae"], both["a_mae"], rtol=1e-5)  # the infinite loss is another head's
    for name in ("b_mae", "only measured_mae"):
        np.testing.assert_allclose(logs[name], good[name], rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("broken", ["inputs", "one head"])
def test_the_total_of_an_epoch_without_any_sound_update_is_nan(broken):
    """0 would be the best value that a callback can see, and `TerminateOnNaN` would go on."""
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh", kernel_regularizer="l2"))
    for name in "ab":
        trainer.add_head(name, keras.layers.Dense(1), loss, couples_rows=False)
    trainer.compile("sgd", max_skipped_updates=None)
    x, b = (X * np.nan, Y["b"]) if broken == "inputs" else (X, np.full_like(Y["b"], 99))
    callbacks = [keras.callbacks.TerminateOnNaN()]
    with pytest.warns(RuntimeWarning, match="not finite"):
        logs = trainer.fit(x, {"a": Y["a"], "b": b}, batch_size=8, epochs=2, verbose=0, callbacks=callbacks).history
    assert len(logs["loss"]) == 1 and np.isnan(logs["loss"][0])


@keras.saving.register_keras_serializable(package="tests")
class Overflowing(keras.layers.Dense):
    """A layer whose gradient is infinite, and whose output is not."""

    def call(self, inputs):
        return super().call(inputs) + tf.sqrt(tf.maximum(tf.reduce_sum(self.kernel * 0.0), 0.0))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("initial", [2.0**110, 2.0**2], ids=["does not recover", "reaches 1"])
def test_loss_scaling_that_goes_on_lowering_its_scale_warns(initial):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", Overflowing(1), "mse")
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=initial)
    trainer.compile(optimizer, run_eagerly=True, telemetry=None)
    message = "does not recover" if initial > 2.0**15 else "a loss or gradient was not finite"
    with pytest.warns(RuntimeWarning, match=message):
        history = trainer.fit(X, {"a": Y["a"]}, batch_size=1, verbose=0)
    assert history.history["skipped_updates"] == [16.0]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_custom_loop_is_told(in_graph):
    trainer = made(on_nonfinite="raise")

    def step():
        return trainer.apply_gradients(trainer.compute_gradients((X, BAD)))

    wanted = (ValueError, "from head 'b', in the gradients of .* at update 1")
    if in_graph:
        step, wanted = (
            tf.function(step, autograph=False),
            (tf.errors.InvalidArgumentError, r"in the update after \] \[0\] .*in a row: \] \[1\]"),
        )
    with pytest.raises(wanted[0], match=wanted[1]):
        step()
    assert int(trainer.update_count) == 0


class Spoils(clipping.ByNorm):
    """A limit of a user's own whose result is not finite."""

    def _clip(self, gradients):
        return [each * np.inf for each in gradients]


def test_clipping_that_spoils_gradients_is_noticed():
    trainer = made(run_eagerly=True, clip=Spoils(1.0), max_skipped_updates=None)
    before = tiny.weights_of(trainer)
    with pytest.warns(RuntimeWarning, match="4 of the epoch's updates"):
        fit(trainer, Y)
    assert all(np.array_equal(one, other) for one, other in zip(before, tiny.weights_of(trainer)))


def test_loss_scaling_does_not_hide_a_loss_that_is_not_finite():
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    with pytest.raises(ValueError, match=MESSAGE):
        fit(made(optimizer, on_nonfinite="raise", run_eagerly=True))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("limit", "reads"), [(3, 3), (None, 0), (1, 8)])
def test_a_compiled_step_is_asked_whether_to_stop_only_when_it_may_have_to(limit, reads, monkeypatch):
    """To ask it waits for the device."""
    asked = []
    now = faults._now
    monkeypatch.setattr(faults, "_now", lambda variable: asked.append(variable) or now(variable))
    trainer = made(jit_compile=True, max_skipped_updates=limit)
    fit(trainer, Y, epochs=2)
    assert sum(each is trainer.update_spec.running.faults.numbers for each in asked) == reads
    if limit == 3:
        with pytest.raises(ValueError, match="Received: 3 such updates, the last one from head 'b'.* batch 2"):
            fit(trainer, {"a": Y["a"], "b": np.full_like(Y["b"], 99)})
