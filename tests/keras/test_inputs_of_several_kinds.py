"""Batches whose inputs differ in structure: `train_on_batch` takes them, and everything else says so."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, mix_datasets
from tests.helpers import tiny
from tests.helpers.keras_twin import Batches

IMAGES = np.random.default_rng(0).normal(size=(8, 10)).astype("float32")
TEXTS = np.arange(40).reshape(8, 5) % 9
LABELS = IMAGES[:, :1].copy()
PAIRS = {
    "other keys": ({"image": IMAGES}, {"text": TEXTS}),
    "more keys": ({"image": IMAGES}, {"image": IMAGES, "text": TEXTS}),
    "an array and a dict": (IMAGES, {"image": IMAGES}),
    "an array and a pair": (IMAGES, (IMAGES, TEXTS)),
    "other dtypes": (IMAGES, TEXTS),
}
WAY_OUT = "(?s)Received: .*train_on_batch"


class Trunk(keras.layers.Layer):
    """An encoder of any of the inputs above."""

    def __init__(self):
        super().__init__()
        self.of_image, self.of_text = keras.layers.Dense(4), keras.layers.Embedding(9, 4)

    def build(self, shape=None):
        self.of_image.build((None, 10))
        self.of_text.build((None, 5))
        self.built = True

    def call(self, inputs):
        parts = tf.nest.flatten(inputs)
        found = [self.of_image(tf.reshape(x, [-1, 10])) if x.dtype.is_floating else self.of_text(x)[:, 0] for x in parts]
        return tf.add_n(found)


def made():
    trainer = MultiHeadTrainer(Trunk())
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", run_eagerly=True)
    return trainer


def batches(pair, late=0):
    first, second = pair
    return [*[(first, {"a": LABELS, "b": LABELS})] * (1 + late), (second, {"b": LABELS})]


def of_dataset(inputs):
    return tf.data.Dataset.from_tensors((inputs, LABELS))


WAYS = {
    "a generator": lambda pair: made().fit((batch for batch in batches(pair)), verbose=0),
    "a sequence": lambda pair: made().fit(Batches(batches(pair)), verbose=0),
    "an evaluation": lambda pair: made().evaluate((batch for batch in batches(pair)), verbose=0),
    "validation": lambda pair: made().fit(
        IMAGES, {"a": LABELS, "b": LABELS}, validation_data=Batches(batches(pair)), verbose=0
    ),
    "mixed datasets": lambda pair: mix_datasets(dict(zip("ab", map(of_dataset, pair)))),
}


@pytest.mark.parametrize(("way", "pair"), list(zip(WAYS, PAIRS)))
def test_inputs_of_several_structures_are_refused_with_a_way_out(pair, way):
    with pytest.raises(ValueError, match=WAY_OUT):
        WAYS[way](PAIRS[pair])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("pair", PAIRS)
def test_single_batches_may_have_inputs_of_any_structure(pair):
    trainer = made()
    for inputs, targets in batches(PAIRS[pair]) * 2:
        before = tiny.weights_of(trainer) if trainer.built else []
        trainer.train_on_batch(inputs, targets)
        trainer.test_on_batch(inputs, targets)
        assert not before or any((a != b).any() for a, b in zip(before, tiny.weights_of(trainer)))
