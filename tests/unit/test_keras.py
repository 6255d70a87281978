"""The one place where Keras 2 and Keras 3 differ, and the private names of Keras that it relies on."""

from __future__ import annotations

import ast
import inspect
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead._ground import keras as keras_2_and_3
from tests.helpers.private_names import PRIVATE_NAMES, PRIVATE_NAMES_OF_TENSORFLOW
from tests.helpers.sources import sources


def averaging():
    optimizer = keras.optimizers.SGD(use_ema=True)
    optimizer.build(keras.layers.Dense(1).weights)
    return optimizer


def seeded():
    layer = keras.layers.Dropout(0.5)
    keras_2_and_3.use_seed_variables(layer)
    return layer._random_generator


USED = PRIVATE_NAMES[int(keras.__version__[0])]


def functional():
    """A compiled functional model."""
    inputs = keras.Input((1,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


OWNERS = {
    "Layer": lambda: keras.layers.Dense(1),
    "Model": keras.Model,
    "Dropout": lambda: keras.layers.Dropout(0.5),
    "Functional": functional,
    "Symbolic": lambda: keras.Input((1,)),
    "RandomGenerator": seeded,
    "Tensor": lambda: keras.layers.Masking()(np.ones((2, 3, 1), "float32")),
    "Probabilities": lambda: keras.activations.sigmoid(tf.ones([1])),
    "Loss": keras.losses.MeanSquaredError,
    "Metric": lambda: keras.metrics.MeanMetricWrapper(keras.losses.mean_squared_error),
    "EarlyStopping": keras.callbacks.EarlyStopping,
    "Optimizer": averaging,
    "LossScaleOptimizer": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD()),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("owner", "name"), [(owner, name) for owner, names in USED.items() for name in names])
def test_every_private_name_of_keras_that_is_used_still_exists(owner, name):
    if owner == "evaluate":  # an argument that `fit` passes to it
        found = name in inspect.getsource(keras.Model.evaluate)
    else:
        found = hasattr(OWNERS[owner](), name)
    assert found, f"Keras {keras.__version__} dropped `{name}` of {owner}: find its successor in multihead/_ground/keras.py"


@pytest.mark.parametrize("name", PRIVATE_NAMES_OF_TENSORFLOW)
def test_every_private_name_of_tensorflow_that_is_used_still_exists(name, two_replicas):
    per_replica = two_replicas.experimental_distribute_dataset(tf.data.Dataset.range(4).batch(2)).element_spec
    owners = [
        two_replicas.extended,
        per_replica,
        tf.data.Dataset.range(2),
        tf.Variable(0.0),
        tf.function(lambda: 0).get_concrete_function().graph,
    ]
    if name == "_read_only_resource_inputs":  # of an operation that calls a function
        variable = tf.Variable(0.0)
        graph = tf.function(lambda: tf.function(lambda: variable + 1.0)()).get_concrete_function().graph
        assert any(list(operation.get_attr(name)) == [0] for operation in graph.get_operations() if "Call" in operation.type)
        return
    is_attribute = name == "_noinline"  # of a function's definition, which TensorFlow does not check
    assert is_attribute or any(hasattr(owner, name) for owner in owners), f"TensorFlow {tf.__version__} dropped `{name}`"


def private_names(path):
    """The private names that a file uses (as attributes, or in strings) and those that it defines."""
    used, defined = set(), {"_replace", "_fields", "_asdict"}  # of named tuples
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            defined.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            (defined if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" else used).add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[a-z]\w+[a-z]", node.value):
            used.add(node.value)
    return {name for name in used if re.match(r"_[a-z]", name)}, defined


def test_private_names_of_others_are_listed_and_those_of_keras_stand_where_keras_2_and_3_differ():
    files = {path: private_names(path) for path in sources("multihead")}
    ours = set().union(*(defined for _, defined in files.values()))
    of_keras = {name for owners in PRIVATE_NAMES.values() for names in owners.values() for name in names}
    of_tensorflow = set(PRIVATE_NAMES_OF_TENSORFLOW)
    no_names = {
        "_counted",
        "_every_",
        "_loss",
        "_loss_average",
        "_plots",
        "_update_cosine",
    }  # parts of the names of layers, logs and folders
    for path, (used, _) in files.items():
        in_keras_file = path.parent.name == "_ground" and path.name in ("keras.py", "calls.py", "layers.py", "optimizers.py")
        foreign = used - ours - of_tensorflow - no_names
        assert foreign - of_keras == set(), f"{path}: list these in tests/helpers/private_names.py: {foreign - of_keras}"
        assert in_keras_file or foreign == set(), f"{path}: use these through `_ground`: {foreign}"
