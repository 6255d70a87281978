"""Every method that Keras lets people override: called where plain Keras calls it, or refused with what to do instead."""

from __future__ import annotations

import inspect
import types

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3

X = np.random.default_rng(0).normal(size=[8, 3]).astype("float32")
Y = X[:, :1]
pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(1)]  # the other cases are thorough


def methods(kind, *others):
    """The public methods of a class."""
    names = [name for name in dir(kind) if not name.startswith("_")]
    return [*(name for name in names if isinstance(inspect.getattr_static(kind, name), types.FunctionType)), *others]


def counting(kind, name, calls):
    """A class that counts the calls of one of its methods."""

    def method(self, *args, **kwargs):
        calls.append(name)
        return getattr(super(made, self), name)(*args, **kwargs)

    if issubclass(kind, keras.layers.Layer) and name in (
        "build",
        "call",
        "compute_output_shape",
    ):  # Keras looks at the names of their arguments
        argument = "inputs" if name == "call" else "input_shape"
        found = {"method": method}
        exec(f"def named(self, {argument}): return method(self, {argument})", found)
        method = found["named"]
    made = type("Counting", (kind,), {name: method})
    return made


class Plain(keras.Model):
    def __init__(self, encoder):
        super().__init__()
        self.encoder, self.head = encoder, keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.encoder(inputs))


def of_keras(optimizer=None, loss="mse", metric="mae", layer=None, kind=Plain):
    model = kind(layer or keras.layers.Dense(2))
    model.compile(optimizer or "sgd", loss, metrics=[metric])
    return model, Y


def of_ours(optimizer=None, loss="mse", metric="mae", layer=None, kind=MultiHeadTrainer):
    trainer = kind(layer or keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), loss, metrics=[metric])
    trainer.compile(optimizer or "sgd")
    return trainer, {"a": Y}


def called(build, calls, callbacks=()):
    """How often a method is called in `fit`, `evaluate` and `predict`; None if it is rejected."""
    model, y = build()
    calls.clear()
    model.fit(X, y, batch_size=4, validation_data=(X, y), verbose=0, callbacks=list(callbacks))
    model.evaluate(X, y, verbose=0, callbacks=list(callbacks))
    model.predict(X, verbose=0, callbacks=list(callbacks))
    return len(calls)


def assert_called_or_refused(made, name):
    """Args: what the two models are made of, as a function of the list of calls; the method's name."""
    calls = []
    expected = called(lambda: of_keras(**made(calls)), calls)
    try:
        found = called(lambda: of_ours(**made(calls)), calls)
    except ValueError as error:
        assert expected, f"{name} is rejected, though Keras does not call it: {error}"
        assert f"{name}`" in str(error) or repr(name) in str(error)
        return "refused"
    assert bool(found) >= bool(expected), f"{name}: Keras calls it {expected} times, the trainer {found} times"
    return "called" if found else "by neither"


def optimizer(calls, name):
    return {"optimizer": counting(keras.optimizers.SGD, name, calls)(0.1, momentum=0.9, weight_decay=0.1, use_ema=True)}


@pytest.mark.parametrize("name", methods(keras.optimizers.Optimizer))
def test_optimizers(name):
    found = assert_called_or_refused(lambda calls: optimizer(calls, name), name)
    refused = ("scale_loss",) if KERAS_3 else ("compute_gradients", "minimize")
    assert (found == "refused") == (name in refused)
    if name in ("apply_gradients", "update_step", "build", *(("apply",) if KERAS_3 else ())):
        assert found == "called"


@pytest.mark.parametrize("name", methods(keras.losses.Loss, "__call__"))
def test_losses(name):
    found = assert_called_or_refused(lambda calls: {"loss": counting(keras.losses.MeanSquaredError, name, calls)()}, name)
    assert (found == "refused") == (name == "__call__")


@pytest.mark.parametrize("name", ["result", "reset_state", "update_state", "__call__", "add_weight"])
def test_metrics(name):
    kind = keras.metrics.MeanAbsoluteError
    assert_called_or_refused(lambda calls: {"metric": counting(kind, name, calls)(name="own")}, name)


@pytest.mark.parametrize("name", ["call", "build", "compute_mask", "__call__", "add_weight", "compute_output_shape"])
def test_layers(name):
    assert_called_or_refused(lambda calls: {"layer": counting(keras.layers.Dense, name, calls)(2)}, name)


CALLED_IN_STEPS = ("call", "build", "compute_loss", "compute_mask", "compute_metrics", "get_metrics_result")


@pytest.mark.parametrize("name", [*CALLED_IN_STEPS, "train_step", "test_step", "predict_step"])
def test_methods_of_the_model(name):
    calls = []
    kind = counting(MultiHeadTrainer, name, calls)
    if name in CALLED_IN_STEPS:
        with pytest.raises(ValueError, match=f"`{name}` must not be overridden.*Counting.*Instead, "):
            of_ours(kind=kind)
        return
    assert called(lambda: of_keras(kind=counting(Plain, name, calls)), calls)
    assert called(lambda: of_ours(kind=kind), calls)


@pytest.mark.parametrize("name", ["compute_gradients", "apply_gradients"])
def test_the_halves_of_an_update_need_a_step_that_calls_them(name):
    calls = []
    kind = counting(MultiHeadTrainer, name, calls)
    with pytest.raises(ValueError, match=f"`{name}` must be called by a `train_step` of your own.*Received: .*Counting"):
        of_ours(kind=kind)

    class WithStep(kind):
        def train_step(self, data):
            pairs = self.compute_gradients(data)
            self.apply_gradients(pairs)
            return {"loss": pairs.loss}

    assert called(lambda: of_ours(kind=WithStep), calls)


@pytest.mark.parametrize("name", [name for name in methods(keras.callbacks.Callback) if name.startswith("on_")])
def test_hooks_of_callbacks_are_called_as_often(name):
    calls = []
    callback = counting(keras.callbacks.Callback, name, calls)()
    assert called(of_ours, calls, [callback]) == called(of_keras, calls, [callback])


class Halving(keras.optimizers.SGD):
    """Halves each gradient where it is applied."""

    def apply_gradients(self, grads_and_vars, *args, **kwargs):
        return super().apply_gradients([(gradient / 2, variable) for gradient, variable in grads_and_vars], *args, **kwargs)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_gradients_that_an_optimizer_changes_are_applied(rate):
    weights = []
    for made, factor in ((Halving, 1.0), (keras.optimizers.SGD, 0.5)):
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(2))
        trainer.add_head("a", keras.layers.Dense(1), "mse", learning_rate_multiplier=rate)
        trainer.compile(made(0.1 * factor))
        trainer.fit(X, {"a": Y}, verbose=0)
        weights.append([*trainer.encoder.get_weights(), *trainer.heads["a"].module.get_weights()])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.skipif(not KERAS_3, reason="Keras 2 cannot create such an optimizer")
def test_a_loss_scaling_optimizer_of_the_users_is_refused():
    class Own(keras.mixed_precision.LossScaleOptimizer):
        def apply_gradients(self, *args, **kwargs):
            return None

    with pytest.raises(ValueError, match="`optimizer` must be Keras's own LossScaleOptimizer.*Received: Own"):
        of_ours(Own(keras.optimizers.SGD()))
