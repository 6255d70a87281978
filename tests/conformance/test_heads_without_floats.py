"""A head that reads only integers of the representation trains as in Keras; the encoder learns nothing from it."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 9, (8, 3))
X = {"ids": IDS, "size": RNG.normal(size=(8, 2)).astype("float32")}
Y = {name: RNG.normal(size=(8, 1)).astype("float32") for name in ("price", "tag", "other")}


class Encoder(keras.layers.Layer):
    """A hidden layer of the sizes, and the numbers of the words as they are."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3, activation="tanh", name="of_sizes")

    def build(self, shape=None):
        self.dense.build((None, 2))
        self.built = True

    def call(self, inputs):
        hidden = self.dense(inputs["size"])
        return {"hidden": hidden, "also": 2 * hidden, "ids": inputs["ids"]}


def lookup():
    """A head with an embedding of its own."""
    embedding = keras.layers.Embedding(9, 4)
    return keras.Sequential([keras.Input((3,), dtype="int64"), embedding, keras.layers.Flatten(), keras.layers.Dense(1)])


def modules():
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(1) for _ in range(2)]
    [layer.build((None, 3)) for layer in dense]
    encoder = Encoder()
    encoder.build()
    return encoder, dict(zip(("price", "other", "tag"), (*dense, lookup())))


READS = {"price": "hidden", "other": "also", "tag": "ids"}
WARNING = "The encoder learns nothing from head 'tag', which reads none of its floating-point outputs"


def trainer(names=("price", "tag"), **options):
    encoder, heads = modules()
    result = MultiHeadTrainer(encoder)
    for name in names:
        result.add_head(name, heads[name], "mse", reads=READS[name])
    result.compile(keras.optimizers.SGD(0.1), **options)
    return result


def fit(model, names, **options):
    labels = {name: Y[name] for name in names}
    return model.fit(X, labels, batch_size=4, shuffle=False, verbose=0, **options).history


class Model(keras.Model):
    """The same layers, as Keras trains them."""

    def __init__(self, names):
        super().__init__()
        self.encoder, heads = modules()
        self.modules = {name: heads[name] for name in names}

    def call(self, inputs, training=None):
        hidden = self.encoder(inputs)
        return {name: module(hidden[READS[name]]) for name, module in self.modules.items()}


NAMES = [("price", "tag"), ("price", "other", "tag")]
OPTIONS = [{"run_eagerly": False}, {"balancer": "UPGrad", "balance_at": "parameters", "micro_batches": 2}]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("names", "options"), list(zip(NAMES, OPTIONS)))
def test_it_trains_as_in_keras_and_its_user_is_told_once(names, options):
    model = trainer(names, **options)
    with pytest.warns(UserWarning, match=WARNING) as told:
        history = fit(model, names, epochs=2)
    fit(model, names)
    assert [str(each.message)[:20] for each in told] == [WARNING[:20]]
    oracle = Model(names)
    oracle(X)
    oracle.compile(keras.optimizers.SGD(0.1), dict.fromkeys(names, "mse"), run_eagerly=True)
    expected = fit(oracle, names, epochs=2)
    fit(oracle, names)
    np.testing.assert_allclose(history["tag_loss"], expected["tag_loss"], rtol=1e-5)
    assert history["tag_norm"] == [0, 0] and history["tag_share"] == [0, 0]
    head, other = model.heads["tag"].module, oracle.modules["tag"]
    for found, wanted in zip(tiny.values(head.weights), tiny.values(other.weights), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    if "balancer" not in options:
        for found, wanted in zip(tiny.values(model.encoder.weights), tiny.values(oracle.encoder.weights), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_diagnose_says_so():
    model = trainer()
    with pytest.warns(UserWarning, match=WARNING):
        found = model.diagnose(X, {name: Y[name] for name in ("price", "tag")}, batch_size=4)
    assert [(each.kind, each.heads) for each in found.findings if "learns by itself" in str(each)] == [
        ("unreached", ("tag",))
    ]
    assert not {"zero gradient", "different tensors"} & {each.kind for each in found.findings}
