"""`to_keras`: a functional Keras model with the trainer's predictions, weights and units, and nothing of the library."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, scaling

pytestmark = pytest.mark.usefixtures("eager_updates")

L = keras.layers
X = np.random.default_rng(0).normal(size=(48, 6)).astype("float32")
TARGETS = {
    "kind": (X[:, 0] > 0).astype("int64"),
    "price": np.exp(5 + X[:, 1:2]),
    "sizes": 300 + 20 * np.concatenate([X[:, 2:3], 4 * X[:, 3:4]], axis=1),
}
HOW = {"price": scaling.Log(shift=1.0), "sizes": "standardize"}


@keras.saving.register_keras_serializable(package="to_keras")
class Noisy(keras.layers.Layer):
    """A layer with code of its own."""

    def __init__(self, **options):
        super().__init__(**options)
        self.dense = L.Dense(8, "tanh")

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, x, training=None):
        hidden = self.dense(x)
        return hidden + 1.0 if training else hidden


def sequence():
    return keras.Sequential([L.Dense(8, "tanh"), L.BatchNormalization(), L.Dropout(0.5), L.Dense(8, "relu", name="last")])


def functional(**options):
    inputs = keras.Input((6,), name="features")
    return keras.Model(inputs, L.Dense(8, "tanh", name="last")(L.Dense(8)(inputs)), **options)


def parts():
    inputs = keras.Input((6,), name="features")
    hidden = L.Dense(8, "tanh")(inputs)
    return keras.Model(inputs, {"wide": hidden, "narrow": L.Dense(3, "tanh")(hidden)})


def two_inputs():
    one, other = keras.Input((2,), name="one"), keras.Input((4,), name="other")
    return keras.Model({"one": one, "other": other}, L.Dense(8, "tanh")(L.Concatenate()([one, other])))


ENCODERS = {
    "sequence": (sequence, None),
    "own layer": (Noisy, None),
    "parts": (parts, "wide"),
    "two inputs": (two_inputs, None),
    "functional": (functional, None),
    "layer": (lambda: L.Dense(8, "tanh"), None),
}


def inputs_of(name):
    return {"one": X[:, :2], "other": X[:, 2:]} if name == "two inputs" else X


def trained(name="functional", **compiled):
    keras.utils.set_random_seed(0)
    make, reads = ENCODERS[name]
    trainer = MultiHeadTrainer(make())
    trainer.add_head("kind", L.Dense(2, "softmax", name="out"), "sparse_categorical_crossentropy", reads=reads)
    module = keras.Sequential([L.Dense(4, "relu"), L.Dense(1)])
    trainer.add_head("price", module, "mse", reads=reads, target_scaling=HOW["price"])
    trainer.add_head("sizes", L.Dense(2), "mse", reads=reads, target_scaling=HOW["sizes"])
    trainer.compile(keras.optimizers.Adam(0.02), **compiled)
    trainer.fit(inputs_of(name), TARGETS, epochs=2, batch_size=16, verbose=0)
    return trainer


def assert_same(one, other):
    assert set(one) == set(other)
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=2e-5, atol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", ENCODERS)
def test_it_predicts_what_the_trainer_does_before_and_after_more_training(name):
    trainer = trained(name)
    model, x = trainer.to_keras(), inputs_of(name)
    assert isinstance(model, keras.Model) and type(model).__module__.startswith("keras.")
    assert not any(type(layer).__module__.startswith("multihead") for layer in model._flatten_layers())
    first = model.predict(x, verbose=0)
    assert_same(first, trainer.predict(x, verbose=0))
    assert 250 < first["sizes"].mean() < 350
    trainer.fit(x, TARGETS, epochs=1, batch_size=16, verbose=0)
    second = model.predict(x, verbose=0)
    assert_same(second, trainer.predict(x, verbose=0))
    assert not np.allclose(second["kind"], first["kind"])
    own = {id(each) for each in [*trainer.encoder.weights, *(w for h in trainer.heads.values() for w in h.module.weights)]}
    assert {id(each) for each in model.weights} <= own and len(model.weights) >= len(own) - 2 * (name == "parts")


LOADING = """
import sys, numpy as np
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "multihead":
            raise ImportError("multihead must not be imported")
sys.meta_path.insert(0, Refused())
import keras
model = keras.models.load_model(sys.argv[1])
found = model.predict(np.load(sys.argv[2]), verbose=0)
np.savez(sys.argv[3], **found)
assert "multihead" not in sys.modules
"""


@pytest.mark.programs
def test_it_is_loaded_in_a_process_without_the_library(tmp_path):
    trainer = trained("sequence")
    trainer.to_keras().save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", X)
    program = tmp_path / "load.py"
    program.write_text(LOADING, encoding="utf-8")
    arguments = [str(tmp_path / each) for each in ("model.keras", "x.npy", "found.npz")]
    done = subprocess.run(
        [sys.executable, str(program), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same(dict(np.load(tmp_path / "found.npz")), trainer.predict(X, verbose=0))


def test_some_heads_and_one_head_alone():
    trainer = trained()
    expected = trainer.predict(X, verbose=0)
    assert_same(trainer.to_keras(["price", "kind"]).predict(X, verbose=0), {n: expected[n] for n in ("price", "kind")})
    alone = trainer.to_keras("price")
    np.testing.assert_allclose(alone.predict(X, verbose=0), expected["price"], rtol=2e-5)
    assert [each.name for each in alone.inputs] == ["features"]


def test_layers_can_be_taken_out_as_for_a_map_of_gradients():
    """As Grad-CAM does: a model up to a layer inside of the encoder, and the gradient of an output with respect to it."""
    model = trained().to_keras("price")
    both = keras.Model(model.input, [model.get_layer("last").output, model.output])
    with tf.GradientTape() as tape:
        hidden, price = both(X)
        tape.watch(hidden)
    assert hidden.shape == (48, 8) and price.shape == (48, 1)


def test_heads_whose_layers_have_the_same_name():
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(functional())
    for name in ("a", "b"):
        trainer.add_head(name, keras.Sequential([L.Dense(4, name="same"), L.Dense(1, name="out")]), "mse")
    trainer.compile("sgd")
    trainer.fit(X, {"a": X[:, :1], "b": X[:, 1:2]}, verbose=0)
    assert_same(trainer.to_keras().predict(X, verbose=0), trainer.predict(X, verbose=0))


def test_the_model_of_from_model_is_in_scaled_units_and_compile_says_so():
    inputs = keras.Input((6,))
    hidden = L.Dense(16, "relu")(inputs)
    outputs = {"kind": L.Dense(2, "softmax", name="kind")(hidden), "price": L.Dense(1, name="price")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", loss={"kind": "sparse_categorical_crossentropy", "price": "mse"})
    trainer = MultiHeadTrainer.from_model(model)
    trainer.compile()  # warnings are errors
    with pytest.warns(UserWarning, match=r"model .* now predicts scaled values of head 'price'.*`trainer.to_keras\(\)`"):
        trainer.compile(target_scaling={"price": "standardize"})
    y = {"kind": TARGETS["kind"], "price": 30_000 + 8_000 * X[:, 2:3]}
    trainer.fit(X, y, epochs=3, verbose=0)
    expected = trainer.predict(X, verbose=0)
    assert_same(trainer.to_keras().predict(X, verbose=0), expected)
    scaled = (expected["price"] - 30_000) / 8_000
    assert np.corrcoef(model.predict(X, verbose=0)["price"][:, 0], scaled[:, 0])[0, 1] > 0.999


class Generating(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = L.Dense(1)

    def call(self, features, targets):
        return self.dense(features)

    def generate(self, features):
        return self.dense(features)


class Cubes(keras.layers.Layer):
    def call(self, y):
        return tf.sign(y) * tf.abs(y) ** (1 / 3)

    def inverse(self, z):
        return z**3


def refused(**of_price):
    trainer = MultiHeadTrainer(functional())
    trainer.add_head("size", L.Dense(1), "mse")
    trainer.add_head("price", of_price.pop("module", None) or L.Dense(1), "mse", **of_price)
    trainer.compile("sgd")
    return trainer


def test_what_cannot_be_a_keras_model_is_refused_with_a_way_out():
    y = {"size": X[:, :1], "price": X[:, 1:2]}
    trainer = refused(module=Generating(), teacher_forcing=True)
    with pytest.raises(ValueError, match="`heads` must be built before `to_keras`, .* Received: heads='size'"):
        trainer.to_keras()
    trainer.fit(X, y, verbose=0)
    match = r"Received: 'price', which generates its output.*`trainer.export\(path, 'price'\)`, and pass the others: heads=\['size'\]"
    with pytest.raises(ValueError, match=match):
        trainer.to_keras()
    assert trainer.to_keras(["size"]).predict(X, verbose=0)["size"].shape == (48, 1)
    trainer = refused(target_scaling=Cubes())
    trainer.fit(X, y, verbose=0)
    with pytest.raises(ValueError, match="a scaling that layers of Keras can undo. Received: 'price', .*Export the head"):
        trainer.to_keras()
    trainer = refused(target_scaling="standardize")
    with pytest.raises(ValueError, match="`heads` must be one of 'size', 'price'. Received: heads='prise'"):
        trainer.to_keras("prise")


@pytest.mark.parametrize("structure", [list, dict])
def test_a_module_gets_parts_of_a_representation_by_name(structure):
    """A functional module whose inputs are in another order than the representation's keys, or only some of them."""
    inputs = keras.Input((4,))
    parts = {name: keras.layers.Dense(3, "tanh")(inputs) for name in ("c", "b", "a")}
    by_name = {name: keras.Input((3,), name=name) for name in ("c", "a")}
    joined = keras.layers.Dense(1)(keras.layers.Subtract()(list(by_name.values())))
    module = keras.Model(by_name if structure is dict else list(by_name.values()), joined)
    trainer = MultiHeadTrainer(keras.Model(inputs, parts))
    trainer.add_head("p", module, "mse", reads=None if structure is dict else ["c", "a"])
    trainer.compile("sgd")
    x = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    trainer.fit(x, {"p": x[:, :1]}, verbose=0)
    np.testing.assert_allclose(trainer.to_keras("p").predict(x, verbose=0), trainer.predict(x, verbose=0)["p"], rtol=1e-5)
