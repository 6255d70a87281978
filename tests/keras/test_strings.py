"""Texts as inputs, with the layers that read them in the encoder: every form of data trains alike."""

from __future__ import annotations

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

pytestmark = pytest.mark.usefixtures("eager_updates")

TEXTS = ["red wine", "wine", "old house", "red house by the sea", "sea", "old wine"]
CITY = ["Rome", "Oslo", "Rome", "Lima", "Oslo", "Rome"]
Y = np.arange(6, dtype="float32")[:, None] / 6


class Encoder(keras.layers.Layer):
    """Texts through `TextVectorization`, names through `StringLookup`, each with an embedding."""

    def __init__(self):
        super().__init__()
        self.words = keras.layers.TextVectorization(output_sequence_length=4)
        self.cities = keras.layers.StringLookup()
        for layer, values in ((self.words, TEXTS), (self.cities, CITY)):
            if not hasattr(keras, "ops"):
                layer.compile(run_eagerly=True)
            layer.adapt(np.array(values))
        uniform = keras.initializers.RandomUniform(seed=1)
        self.of_words = keras.layers.Embedding(12, 3, embeddings_initializer=uniform)
        self.of_cities = keras.layers.Embedding(5, 3, embeddings_initializer=uniform)

    def call(self, inputs):
        texts, cities = inputs["text"], inputs["city"]
        of_words = tf.reduce_mean(self.of_words(self.words(tf.reshape(texts, [-1]))), axis=1)
        return tf.concat([of_words, self.of_cities(self.cities(tf.reshape(cities, [-1])))], axis=-1)


def head():
    return keras.layers.Dense(1, kernel_initializer=keras.initializers.RandomUniform(seed=2))


def trainer(**options):
    result = MultiHeadTrainer(Encoder())
    result.add_head("price", head(), "mse")
    result.compile(keras.optimizers.SGD(0.5), **options)
    return result


@pytest.fixture(scope="module")
def by_keras():
    """The weights after an epoch of Keras's own `fit`."""

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.head = Encoder(), head()

        def call(self, inputs, training=None):
            return self.head(self.encoder(inputs))

    model = Model()
    model.compile(keras.optimizers.SGD(0.5), "mse", run_eagerly=True)
    model.fit(tf.data.Dataset.from_tensor_slices((each(np.array), Y)).batch(3), verbose=0)
    return learned(model.encoder, model.head)


def learned(encoder, head):
    return [each.numpy() for part in (encoder, head) for each in part.trainable_variables]


def each(form):
    return {"text": form(TEXTS), "city": form(CITY)}


def batches(form):
    whole = each(form)
    return [({key: value[i : i + 3] for key, value in whole.items()}, {"price": Y[i : i + 3]}) for i in (0, 3)]


ARRAYS = {
    "arrays of characters": lambda: each(np.array),
    "arrays of bytes": lambda: each(lambda texts: np.array(texts, "S")),
    "arrays of objects": lambda: each(lambda texts: np.array(texts, object)),
    "lists": lambda: each(list),
    "a data frame's columns": lambda: dict(pd.DataFrame(each(list))),
}
BATCHES = {
    "tf.data": lambda: tf.data.Dataset.from_tensor_slices((each(np.array), {"price": Y})).batch(3),
    "generator": lambda: iter(batches(np.array)),
}


@pytest.fixture(scope="module")
def shared(eager_updates):
    """One trainer for all forms of data, with its initial weights."""
    model = trainer()
    model.compute_gradients((each(np.array), {"price": Y}))
    variables = [*model.encoder.trainable_variables, *model.heads["price"].module.trainable_variables]
    return model, [(variable, variable.numpy()) for variable in variables]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("form", [*ARRAYS, *BATCHES])
def test_texts_train_as_in_keras(form, by_keras, shared):
    model, start = shared
    for variable, value in start:
        variable.assign(value)
    if form in ARRAYS:
        model.fit(ARRAYS[form](), {"price": Y}, batch_size=3, shuffle=False, verbose=0)
    else:
        model.fit(BATCHES[form](), steps_per_epoch=2, shuffle=False, verbose=0)
    for found, expected in zip(learned(model.encoder, model.heads["price"].module), by_keras, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_texts_go_everywhere_that_inputs_go(by_keras, tmp_path):
    model, texts = trainer(run_eagerly=False), each(np.array)
    model.fit(texts, {"price": Y}, batch_size=3, shuffle=False, verbose=0)
    for found, expected in zip(learned(model.encoder, model.heads["price"].module), by_keras, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    predicted = model.predict(texts, verbose=0)["price"]
    loss = model.evaluate(texts, {"price": Y}, verbose=0, return_dict=True)["loss"]
    np.testing.assert_allclose(loss, np.mean((predicted - Y) ** 2), rtol=1e-5)
    assert model.diagnose(texts, {"price": Y}, batch_size=3).heads == ("price",)
    model.train_on_batch(texts, {"price": Y})
    model.export(str(tmp_path))
    served = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    np.testing.assert_allclose(
        served(**{key: tf.constant(value) for key, value in texts.items()})["price"],
        model.predict(texts, verbose=0)["price"],
        rtol=1e-5,
    )
