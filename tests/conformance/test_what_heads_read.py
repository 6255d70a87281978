"""Every head is trained on what it reads, or refused: parts of the representation, hidden variables, nothing in common."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


@keras.saving.register_keras_serializable("tests")
class Outputs(keras.layers.Layer):
    """Gives two tensors that have nothing in common, the second in a tuple."""

    def __init__(self, **options):
        super().__init__(**options)
        self.first, self.second = keras.layers.Dense(4), keras.layers.Dense(5)

    def build(self, shape):
        for layer in (self.first, self.second):
            layer.build(shape)
        super().build(shape)

    def call(self, inputs):
        return {"pooled": self.first(inputs), "states": (inputs, self.second(inputs))}


def two_heads(encoder=None, **compiled):
    trainer = MultiHeadTrainer(Outputs() if encoder is None else encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse", reads="pooled")
    trainer.add_head("b", keras.layers.Dense(1), "mse", reads=("states", 1))
    trainer.compile("sgd", **compiled)
    return trainer


def one_head(module, encoder=None, **options):
    trainer = MultiHeadTrainer(keras.layers.Dense(1) if encoder is None else encoder)
    trainer.add_head("a", module, "mse", **options)
    trainer.compile("sgd")
    return trainer.compute_gradients((X, {"a": Y["a"]}))


def test_heads_on_parts_train_as_by_a_tape():
    trainer = two_heads()
    pairs = trainer.compute_gradients((X, Y))
    encoder, modules = trainer.encoder, [head.module for head in trainer.heads.values()]
    variables = [tiny.tensor_variable(variable) for _, variable in pairs]
    with tf.GradientTape() as tape:
        given = encoder(X)
        parts = given["pooled"], given["states"][1]
        loss = tf.add_n([tf.reduce_mean((module(part) - y) ** 2) for module, part, y in zip(modules, parts, Y.values())])
    for (got, _), wanted in zip(pairs, tape.gradient(loss, variables), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_reads_are_saved_and_exported(tmp_path):
    trainer = two_heads(run_eagerly=True)
    trainer.fit(X, Y, verbose=0)
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    assert [head.reads for head in loaded.heads.values()] == ["pooled", ("states", 1)]
    wanted = trainer.predict(X, verbose=0)
    for name, got in loaded.predict(X, verbose=0).items():
        np.testing.assert_allclose(got, wanted[name], rtol=1e-6)
    trainer.export(tmp_path / "b", "b")
    exported = tf.saved_model.load(str(tmp_path / "b")).signatures["serving_default"]
    np.testing.assert_allclose(exported(inputs=tf.constant(X))["b"], wanted["b"], rtol=1e-5)


def test_a_module_that_cannot_take_the_whole_representation_is_told_of_reads():
    message = r"head 'a' must take the whole representation.*'pooled': a float32 tensor of shape \(None, 4\).*reads='pooled'"
    with pytest.raises(ValueError, match=f"(?s){message}"):
        one_head(keras.layers.Dense(1), Outputs())
    with pytest.raises(ValueError, match="`reads` of head 'a' must name.*'states': a tuple.*Did you mean 'pooled'"):
        one_head(keras.layers.Dense(1), Outputs(), reads="poled")


class Holder:
    def __init__(self):
        self.layer = keras.layers.Dense(1)

    def __call__(self, representation):
        return self.layer(representation)


def hidden_modules():
    dense, shared = keras.layers.Dense(1), keras.layers.Dense(1)
    return {
        "a function around a layer": (lambda r: dense(r), None),
        "a function that makes layers": (lambda r: keras.layers.Dense(1)(r), None),
        "a plain class": (Holder(), None),
        "the encoder's own variables": (lambda r: r * tf.reduce_sum(tf.convert_to_tensor(shared.kernel)), shared),
    }


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("case", hidden_modules())
def test_a_head_with_hidden_variables_is_refused(case):
    module, encoder = hidden_modules()[case]
    with pytest.raises(ValueError, match="The module of head 'a' must hold the variables.*kernel.*keras.Model"):
        one_head(module, encoder)


class Holding(tf.Module):
    """Keras layers in a module that is none: on Keras 3 it has no variables, on Keras 2 no losses, metrics and modes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __call__(self, x):
        return self.inner(x)


HELD = {
    "a regularizer": lambda: Holding(keras.layers.Dense(3, kernel_regularizer="l2")),
    "batch normalization": lambda: Holding(keras.layers.BatchNormalization()),
    "a module in a module": lambda: Holding(Holding(keras.layers.Dense(3))),
    "a model": lambda: Holding(keras.Sequential([keras.layers.Dense(3), keras.layers.BatchNormalization()])),
}


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("whose", ["encoder", "head"])
@pytest.mark.parametrize("case", HELD)
def test_a_module_of_tensorflow_with_keras_layers_is_refused(case, whose):
    encoder, module = keras.layers.Dense(4), HELD[case]()
    with pytest.raises(ValueError, match="(must be a Keras layer if it has|must hold the variables).*Received: a? ?Holding"):
        one_head(encoder, module) if whose == "encoder" else one_head(module, encoder)


def test_an_encoder_with_hidden_variables_is_refused():
    dense = keras.layers.Dense(1)
    with pytest.raises(ValueError, match="`encoder` must hold the variables.*<lambda>.*kernel.*keras.Model"):
        one_head(keras.layers.Dense(1), lambda x: dense(x))


SPARSE = {
    "ragged": lambda h: tf.RaggedTensor.from_tensor(h, padding=0.0),
    "sparse": tf.sparse.from_dense,
    "one of two": lambda h: {"dense": h, "sparse": tf.sparse.from_dense(h)},
}


@pytest.mark.parametrize("kind", SPARSE)
def test_a_representation_that_is_not_dense_is_refused(kind):
    with pytest.raises(
        ValueError, match=r"^`encoder` must return dense tensors.*Received: .* a (Ragged|Sparse)Tensor of float32"
    ):
        one_head(keras.layers.Dense(1), SPARSE[kind])


@pytest.mark.parametrize("output", [{"x": 0}, (0, 0)], ids=["dict", "tuple"])
def test_predictions_that_are_no_tensor_are_refused(output):
    with pytest.raises(ValueError, match="The module of head 'a' must give one tensor.*add one head per tensor"):
        one_head(lambda representation: tf.nest.map_structure(lambda _: representation, output))


@pytest.mark.thorough
def test_heads_without_a_common_tensor_are_told_once_to_balance_at_the_parameters():
    trainer = two_heads(balancer="UPGrad")
    with pytest.warns(UserWarning, match="no common tensor.*'a' and 'b'.*`compile`") as caught:
        trainer.fit(X, Y, verbose=0)
        trainer.fit(X, Y, verbose=0)
        trainer.evaluate(X, Y, verbose=0)
    assert sum("no common tensor" in str(warning.message) for warning in caught) == 1
    findings = trainer.diagnose([(X, Y)]).findings
    assert any("'a' and 'b' read no common tensor" in finding and "parameters" in finding for finding in findings)


def test_a_functional_head_takes_the_entries_that_it_has_inputs_for():
    symbol = keras.Input((4,), name="pooled")
    kernel = keras.layers.Dense(1)
    outputs = kernel(symbol)
    made = []
    for inputs in ({"pooled": symbol}, [symbol], symbol):
        trainer = MultiHeadTrainer(lambda x: {"pooled": x, "sequence": x[:, None]})
        trainer.add_head("a", keras.Model(inputs, outputs), "mse")
        trainer.compile("sgd")
        made.append(trainer.predict(np.ones((2, 4), "float32"), verbose=0)["a"])
    for predictions in made:
        np.testing.assert_allclose(predictions, kernel(np.ones((2, 4), "float32")), rtol=1e-6)
