"""What a module can predict, and which losses can be those of scaled targets: tables that are held against all of Keras."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, losses, scaling
from multihead._ground.layers import ends_in_scaling
from multihead._ground.reach import BY_NAME, EVERYTHING, Reach, reach_of, reach_of_operation
from multihead.heads._scaled import ADDONS, depends_on
from multihead.losses._known import DIFFERENCES, RATIOS
from tests.helpers import every_layer
from tests.helpers.addons import addons
from tests.helpers.cases import quick

L = keras.layers
KERAS_3 = hasattr(keras, "ops")
POINTS = np.concatenate([np.linspace(-60, 60, 4801), [-1e4, 1e4]]).astype("float32")[:, None]


def activations():
    """The names of all activations of Keras, each once."""
    known = {name: each for name, each in vars(keras.activations).items() if inspect.isfunction(each)}
    others = {"get", "serialize", "deserialize", "linear", "threshold"}  # `threshold` has no defaults
    return sorted({id(each): name for name, each in known.items() if name not in others}.values())


@pytest.mark.parametrize("name", activations())
def test_the_reach_of_an_activation_is_that_of_its_values_on_a_fine_grid(name):
    halves = (POINTS, np.ones_like(POINTS)) if name == "glu" else (POINTS, -POINTS)
    wide = np.concatenate(halves, axis=1)
    values = np.asarray(tf.identity(getattr(keras.activations, name)(tf.constant(wide))))
    values = values[np.isfinite(values)]
    reach = BY_NAME[name]
    assert values.min() >= reach.low - 1e-6 and values.max() <= reach.high + 1e-6
    ends = [values.min() if np.isfinite(reach.low) else None, values.max() if np.isfinite(reach.high) else None]
    np.testing.assert_allclose([e for e in ends if e is not None], [e for e in reach[:2] if np.isfinite(e)], atol=2e-3)
    if not np.isfinite(reach.low) and name not in ("log_sigmoid", "log_softmax"):
        assert values.min() < -50
    if not np.isfinite(reach.high):
        assert values.max() > 50
    for module in (L.Dense(1, name), L.Activation(name), keras.Sequential([L.Dense(3), L.Activation(name)])):
        assert reach_of(module) == (None if name == "linear" else reach)


NUMERIC = [name for name in every_layer.cases() if every_layer.case(name).kind not in ("text", "ids", "id")]


@pytest.mark.parametrize("name", quick(12, NUMERIC[:: 1 if KERAS_3 else -1]))
def test_no_layer_returns_what_is_out_of_its_reach(name):
    case = every_layer.case(name)
    if case.given in ("apart", "by name"):
        pytest.skip("takes its inputs apart")
    symbol = every_layer.symbol(case.kind)
    below, layer = L.Activation("tanh")(symbol), case.make()
    below = L.Rescaling(3.0, 1.0)(below)  # from -2 to 4
    try:
        model = keras.Model(symbol, case.on(layer, below))
        values = np.asarray(model(100 * every_layer.data(case.kind, batch=8)))
    except (ValueError, TypeError, AttributeError):
        pytest.skip("is no part of a functional model")
    reach = reach_of(model)
    if reach is not None:
        assert values.min() >= reach.low - 1e-5 and values.max() <= reach.high + 1e-5
        if reach.sums_to_one:
            np.testing.assert_allclose(values.sum(axis=-1), 1, atol=1e-5)


class Softplus(keras.layers.Layer):
    """A module with code of its own, of which nothing is known."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, x):
        return tf.nn.softplus(self.dense(x))


def functional(end):
    inputs = keras.Input((4,))
    return keras.Model(inputs, end(L.Dense(1)(inputs)))


MODULES = {
    "relu layer": (lambda: keras.Sequential([L.Dense(1), L.ReLU()]), Reach(0)),
    "relu up to 6": (lambda: keras.Sequential([L.Dense(1), L.ReLU(6.0)]), Reach(0, 6)),
    "leaky": (lambda: keras.Sequential([L.Dense(1), L.LeakyReLU()]), EVERYTHING),
    "fractions of 600": (lambda: keras.Sequential([L.Dense(1, "sigmoid"), L.Rescaling(600.0, -100.0)]), Reach(-100, 500)),
    "reshaped": (lambda: keras.Sequential([L.Dense(2, "softplus"), L.Reshape((2, 1)), L.Flatten()]), Reach(0)),
    "nested": (lambda: keras.Sequential([keras.Sequential([L.Dense(3), L.Dense(1, "exponential")])]), Reach(0)),
    "dropout": (lambda: keras.Sequential([L.Dense(1, tf.nn.relu), L.Dropout(0.5)]), Reach(0)),
    "each step": (lambda: L.TimeDistributed(L.Dense(1, "sigmoid")), Reach(0, 1)),
    "recurrent": (lambda: L.LSTM(1), Reach(-1, 1)),
    "both ways": (lambda: L.Bidirectional(L.GRU(1, "relu")), Reach(0)),
    "function": (lambda: functional(keras.activations.softplus), Reach(0)),
    "layer as activation": (lambda: L.Dense(1, L.ReLU()), Reach(0)),
    "two ways": (lambda: functional(lambda z: L.Concatenate()([L.Activation("tanh")(z), L.ReLU()(z)])), Reach(-1)),
    "product": (lambda: functional(lambda z: L.Multiply()([L.Activation("tanh")(z), L.ReLU(2.0)(z)])), Reach(-2, 2)),
    "residual": (lambda: functional(lambda z: L.Add()([z, L.ReLU()(z)])), EVERYTHING),
    "linear": (lambda: L.Dense(1), EVERYTHING),
    "own": (Softplus, None),
    "own function": (lambda: L.Dense(1, lambda z: tf.nn.relu(z) - 3), None),
    "identity": (lambda: L.Activation("linear"), None),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_reach_of_modules(name):
    make, reach = MODULES[name]
    assert reach_of(make()) == reach


def test_operations_of_graphs():
    found = {kind: reach_of_operation(kind) for kind in ("Relu", "Softplus", "Exp", "Sigmoid", "Softmax", "MatMul", "Other")}
    assert found["Relu"] == found["Softplus"] == found["Exp"] == Reach(0) and found["Sigmoid"] == Reach(0, 1)
    assert found["Softmax"].sums_to_one and found["MatMul"] == EVERYTHING and found["Other"] is None


GIVEN = scaling.Standardize(mean=300.0, deviation=100.0)
REFUSED = [
    *((L.Dense(1, end), how) for end in ("relu", "softplus", "exponential", "sigmoid", "tanh", "softmax", "silu") for how in ("standardize", "log")),
    (keras.Sequential([L.Dense(1), L.ReLU()]), GIVEN),
    (L.Dense(1, "softplus"), keras.layers.Normalization(mean=3.0, variance=4.0, axis=None)),
    (L.LSTM(1), "standardize"),
]  # fmt: skip
ACCEPTED = [
    (L.Dense(1), "standardize"),
    (L.Dense(1, "elu"), "standardize"),
    (Softplus(), "standardize"),
    (L.Dense(1, "relu"), scaling.Standardize(mean=0.0, deviation=346.0)),
    (L.Dense(1, "sigmoid"), keras.layers.Rescaling(1 / 500, -0.2)),
    (keras.Sequential([L.Dense(1, "tanh"), L.Rescaling(5.0)]), "standardize"),
]


@pytest.mark.parametrize(("module", "how"), REFUSED)
def test_a_scaling_that_the_module_cannot_follow_is_refused(module, how):
    match = "`target_scaling` of head 'price' must make targets that its module can predict"
    trainer = MultiHeadTrainer(L.Dense(4))
    with pytest.raises(ValueError, match=match):
        trainer.add_head("price", module, "mse", target_scaling=how)
    trainer.add_head("price", module, "mse")
    with pytest.raises(ValueError, match=match):
        trainer.compile("sgd", target_scaling={"price": how})


@pytest.mark.parametrize(("module", "how"), ACCEPTED)
def test_a_scaling_that_the_module_can_follow_is_not(module, how):
    head = Head(module, "mse", target_scaling=how)
    assert head.target_scaling is how


# ---------------------------------------------------------------------------------------------------------------- losses


def of_keras():
    """All losses of Keras, classes and functions, that take numbers or classes of one row, by name."""
    found = {}
    for name, each in vars(keras.losses).items():
        is_class = inspect.isclass(each) and issubclass(each, keras.losses.Loss) and each is not keras.losses.Loss
        if is_class or (inspect.isfunction(each) and name not in ("get", "serialize", "deserialize")):
            found.setdefault(each, name)
    return {name: each for each, name in found.items()}


def values(loss, labels, predictions):
    """The losses of rows of one column, by themselves, float64; None if they cannot be computed."""
    y, p = (tf.constant(each[:, None], "float64") for each in (labels, predictions))
    try:
        made = loss() if inspect.isclass(loss) else loss
        rows = [tf.reduce_mean(tf.cast(made(y[i : i + 1], p[i : i + 1]), tf.float64)) for i in range(len(labels))]
        return np.array([float(each) for each in rows])
    except Exception:  # noqa: BLE001 - whatever a loss raises for such labels
        return None


def is_of_differences(loss, y, p):
    """Whether moving labels and predictions together leaves the loss as it is, and the loss depends on the predictions."""
    first, moved, other = values(loss, y, p), values(loss, y + 7.0, p + 7.0), values(loss, y, p + 0.9)
    if first is None or moved is None or not np.isfinite([first, moved]).all():
        return False
    return np.allclose(first, moved, rtol=1e-3, atol=1e-5) and not np.allclose(first, other, rtol=1e-3, atol=1e-5)


def is_of_ratios(loss, y, p):
    """Whether dividing both leaves the direction of the gradient of all rows, and it is not one of differences."""
    slopes = []
    for factor in (1.0, 0.25):
        above, below = (values(loss, y * factor, (p + step) * factor) for step in (1e-2, -1e-2))
        if above is None or below is None or not np.isfinite([above, below]).all():
            return False
        slopes.append(above - below)
    one, other = (each / max(np.abs(each).max(), 1e-12) for each in slopes)
    return bool(np.abs(slopes[0]).max() > 1e-4) and np.allclose(one, other, atol=2e-2)


Y, P = np.array([1.5, 3.0, 12.0, 5.0, 40.0]), np.array([1.1, 4.5, 9.0, 30.0, 44.0])


@pytest.mark.parametrize("name", of_keras())
def test_the_table_of_losses_is_what_the_losses_of_keras_compute(name):
    loss = of_keras()[name]
    known = losses.get(loss)
    depends = depends_on(known) if known.known is None or known.known.low is None else None
    if is_of_differences(loss, Y, P):
        assert depends == DIFFERENCES
    elif depends is not None:
        assert depends == RATIOS and is_of_ratios(loss, Y, P)
    for how in ("standardize", scaling.Standardize(mean=0.0, deviation=4.0)):
        accepts = depends == DIFFERENCES or (depends == RATIOS and how != "standardize")
        try:
            Head(L.Dense(1), loss, target_scaling=how)
        except ValueError as error:
            assert not accepts and "`target_scaling` of head" in str(error)
        else:
            assert accepts


@pytest.mark.skipif(addons() is None, reason="TensorFlow Addons is not installed")
def test_the_table_of_losses_is_what_the_losses_of_addons_compute():
    tensorflow_addons = addons()
    everything = vars(tensorflow_addons.losses)
    tried = [each for each in everything.values() if hasattr(each, "__name__") and not inspect.isclass(each)]
    tried = [each for each in tried if callable(each)]
    assert len(tried) > 8
    for loss in tried:
        expected = DIFFERENCES if is_of_differences(loss, Y, P) else None
        assert depends_on(losses.get(loss)) == expected == ADDONS["tensorflow_addons"].get(loss.__name__)
    assert depends_on(losses.get(tensorflow_addons.losses.PinballLoss())) == DIFFERENCES


class Rooted(L.Rescaling):
    def call(self, inputs):
        return tf.sqrt(inputs)


class Fitted(L.Normalization):
    def call(self, inputs):
        return tf.tanh(inputs)


class Doubled(keras.Model):
    def __call__(self, *args, **kwargs):
        return 2 * super().__call__(*args, **kwargs)


def last(layer):
    return keras.Sequential([L.Dense(1), layer])


@pytest.mark.parametrize("wrap", [lambda layer: layer, last], ids=["alone", "last"])
def test_only_what_computes_as_the_class_of_keras_ends_in_scaling(wrap):
    inverted = {"axis": None, "mean": 1.0, "variance": 4.0, "invert": True}
    kept = type("Kept", (L.Rescaling,), {})(2.0)
    replaced = L.Rescaling(2.0)
    replaced.call = tf.sqrt
    assert [ends_in_scaling(wrap(layer)) for layer in (L.Rescaling(2.0), kept, L.Normalization(**inverted))] == [True] * 3
    others = (Rooted(2.0), replaced, Fitted(**inverted), L.Normalization(**{**inverted, "invert": False}))
    assert [ends_in_scaling(wrap(layer)) for layer in others] == [False] * 4


def test_a_graph_of_layers_whose_model_has_its_own_call_tells_nothing():
    symbol = keras.Input((2,))
    outputs = L.Dense(1, "sigmoid")(symbol)
    assert reach_of(keras.Model(symbol, outputs)) == Reach(0, 1)
    assert reach_of(Doubled(symbol, outputs)) is None
