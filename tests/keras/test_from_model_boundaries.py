"""`from_model(representation=...)`: what several heads call behind the boundary has no effects, or an error is raised."""

from __future__ import annotations

import ast
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.calls import InMode
from tests.helpers import every_layer
from tests.keras.test_from_model import assert_same, generated_graph, normal

layers = keras.layers
CASES = every_layer.cases()
OFTEN = ("BatchNormalization", "Dropout", "ActivityRegularization", "Dense", "TimeDistributed(BatchNormalization)")
"""In every run; the others are thorough."""
NAMES = [*OFTEN, *(name for name in CASES if name not in OFTEN), "SpectralNormalization(Conv2D)"]
REJECTED = (
    r"`representation` must lie behind layers.*Received: representation=.*, before layer .*\. Pass `representation=(\[.*\])`"
)


def suggested(model, representation):
    """What the error says to pass instead; None if there is none."""
    try:
        MultiHeadTrainer.from_model(model, representation=representation)
    except ValueError as error:
        found = re.search(REJECTED, str(error), re.DOTALL)
        assert found is not None, error
        return ast.literal_eval(found[1])
    return None


def network(case, layer, nested):
    """A layer, perhaps inside of a model, that two outputs depend on, and the layer 'h', which comes before it."""
    inputs = {kind: every_layer.symbol(kind) for kind in {case.kind, "vector"}}
    h = layers.Dense(every_layer.SHAPES["vector"][-1], name="h")(inputs["vector"])
    source = inputs[case.kind]
    if case.kind not in every_layer.DTYPES and not case.stops_gradients:
        source = layers.Multiply()([source, layers.Dense(1)(h)] if case.kind == "vector" else [source, source])
    if nested:
        inner = keras.Input(tuple(source.shape[1:]), dtype=source.dtype)
        inside = keras.Model(inner, every_layer.Pooled()(case.on(layer, inner)))(source)
    else:
        inside = every_layer.Pooled()(case.on(layer, source))
    joint = layers.Concatenate()([inside, h])
    return keras.Model(inputs, {name: layers.Dense(1, name=name)(joint) for name in "ab"})


def has_effects(case, layer):
    """Whether calls of a layer in training mode are not all alike, from some calls outside of graphs."""
    given = tf.constant(every_layer.data(case.kind), every_layer.DTYPES.get(case.kind, "float32"))
    found, numbers = [], np.random.get_state()[1].tolist()  # noqa: NPY002 - what layers draw from
    for _ in range(4):
        output = InMode(lambda: every_layer.Pooled()(case.on(layer, given)))((), training=True)
        if isinstance(layer, keras.layers.Layer) and layer.losses:
            return True
        found.append([np.asarray(output), *(np.array(tf.convert_to_tensor(v)) for v in every_layer.variables_of(layer))])
    same = all(np.array_equal(one, other) for row in found[1:] for one, other in zip(found[0], row, strict=True))
    return not same or numbers != np.random.get_state()[1].tolist()  # noqa: NPY002


@pytest.mark.first_cases(2 * len(OFTEN))
@pytest.mark.parametrize(("name", "nested"), [(name, nested) for name in NAMES for nested in (False, True)])
def test_a_boundary_is_rejected_where_calls_of_a_shared_layer_are_not_alike(name, nested):
    case = every_layer.find(name)
    if name == "Equalization" and not nested:
        pytest.skip("Keras 3 cannot put it into a functional model: it returns the tensor that it is given")
    layer = case.make()
    model = network(case, layer, nested)
    suggestion = suggested(model, "h")
    assert (suggestion is not None) == has_effects(case, layer)
    if suggestion is not None:
        assert suggested(model, suggestion) is None


class Penalized(layers.Layer):
    """Adds a loss of its own, of what it returns unchanged."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(inputs**2))
        return inputs


KINDS = {
    "a regularizer of what it returns": lambda: layers.Dense(5, activity_regularizer=keras.regularizers.L2(0.1)),
    "a loss": Penalized,
    "moving averages": lambda: layers.BatchNormalization(momentum=0.9),
    "inside": lambda: keras.Sequential([layers.Dense(5), layers.BatchNormalization(momentum=0.9), Penalized()]),
    "nothing": lambda: layers.Dense(5, kernel_regularizer="l2"),
}


@pytest.mark.first_cases(len(KINDS))
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_taken_trains_as_keras_does(kind):
    """With several of the layers behind each other, and a boundary of several layers."""
    inputs = keras.Input((6,))
    h, other = (layers.Dense(5, activation="tanh", name=name)(inputs) for name in ("h", "other"))
    shared = KINDS[kind]()(layers.Activation("tanh")(KINDS[kind]()(h)))
    ends = [layers.Dense(1, name="a")(layers.Add()([shared, other])), layers.Dense(2, name="b")(shared)]
    model = keras.Model(inputs, ends)
    suggestion = suggested(model, ["h", "other"])
    assert (suggestion is None) == (kind == "nothing")
    if suggestion is not None:
        assert len(suggestion) == 2 and suggestion[0] == "other"  # `h` lies before the last of the layers
    assert_same(model, normal(6), representation=suggestion or ["h", "other"], tolerance=2e-6)


@pytest.mark.first_cases(2)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # Keras: some layers of nested models have no successor
@pytest.mark.parametrize("seed", range(20))
def test_every_boundary_of_generated_graphs_is_rejected_or_trains_as_keras_does(seed):
    keras.utils.set_random_seed(seed)
    model = generated_graph(seed)
    names = [layer.name for layer in model.layers if layer.weights and not layer.name.startswith(("out", "reads"))]
    name = names[np.random.default_rng(seed).integers(len(names))]
    suggestion = suggested(model, name)
    given = [normal(4, seed=k) for k in range(len(model.inputs))]
    assert_same(model, given if len(given) > 1 else given[0], representation=suggestion or name, tolerance=2e-6)
