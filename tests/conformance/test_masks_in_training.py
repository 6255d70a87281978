"""Keras masks that decide what counts: one that training changes is an error; Keras itself shows which these are."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from multihead import MultiHeadTrainer
from tests.helpers.cases import by_turns

IDS = np.random.default_rng(0).integers(0, 3, (8, 5))
X = np.random.default_rng(1).normal(size=(8, 5, 3)).astype("float32") * (IDS > 0)[..., None]
Y = np.zeros((8, 5, 1), "float32")


class Chain(keras.Model):
    """Layers one after another; as in a model of one's own, nothing is symbolic."""

    def __init__(self, *parts):
        super().__init__()
        self.parts = list(parts)

    def call(self, x):
        for part in self.parts:
            x = part(x)
        return x


class Drawn(layers.Layer):
    """Its mask draws random numbers, in both modes."""

    supports_masking = True

    def call(self, x):
        return x

    def compute_mask(self, x, mask=None):
        return tf.random.uniform(tf.shape(x)[:2]) > 0.5


class Counted(layers.Layer):
    """Its mask depends on how often it was called in training."""

    supports_masking = True

    def build(self, shape):
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, x, training=None):
        if training:
            self.calls.assign(self.calls + 1.0)
        return x

    def compute_mask(self, x, mask=None):
        return tf.range(tf.shape(x)[1])[tf.newaxis] >= tf.cast(self.calls, tf.int32) + tf.zeros(
            [tf.shape(x)[0], 1], tf.int32
        )


class Words(layers.Layer):
    """Replaces some ids by 0 in training, before they are embedded with `mask_zero`."""

    def call(self, ids, training=None):
        return tf.where(tf.random.uniform(tf.shape(ids)) < 0.5, tf.zeros_like(ids), ids) if training else ids


class By(layers.Layer):
    """Its mask is `mask(x, training)`."""

    supports_masking = True

    def __init__(self, mask):
        super().__init__()
        self.mask, self.training = mask, None

    def call(self, x, training=None):
        self.training = bool(training)
        return x + 0.0

    def compute_mask(self, x, mask=None):
        return self.mask(x, self.training)


class Step(layers.Layer):
    """Needs a step in training."""

    def __init__(self):
        super().__init__()
        self.dropout, self.masking = layers.Dropout(0.5, noise_shape=(None, 5, 1)), layers.Masking()

    def call(self, x, training=None, step=None):
        return self.masking(self.dropout(x + 0.0 * tf.cast(step + 1, x.dtype) if training else x, training=training))

    def compute_mask(self, x, mask=None):
        return self.masking.compute_mask(self.dropout(x, training=True))


class Joined(keras.Model):
    """Puts vectors after dropout beside embedded ids, or beside each other."""

    def __init__(self, *middle, both=False):
        super().__init__()
        self.embedding, self.middle, self.both = layers.Embedding(3, 4, mask_zero=True), list(middle), both
        self.lstm, self.join = layers.LSTM(3, return_sequences=True) if both else None, layers.Concatenate()

    def build(self, shape):
        self.embedding.build(shape)

    def call(self, ids, training=None):
        one = self.embedding(ids)
        other = one if self.both else self.embedding(ids) + 0.0
        for layer in self.middle:
            other = layer(other, training=training)
        return self.join([self.lstm(other), other] if self.both else [one, other])


def lengths(x, training):
    return tf.sequence_mask(tf.fill(tf.shape(x)[:1], 3), tf.shape(x)[1])


CHANGED = {
    "dropout": lambda: [layers.Dropout(0.5, noise_shape=(None, 5, 1)), layers.Masking()],
    "noise": lambda: [layers.GaussianNoise(0.5), layers.Masking()],
    "batch statistics": lambda: [layers.BatchNormalization(), layers.Masking()],
    "random": lambda: [layers.Dense(3), Drawn()],
    "state": lambda: [layers.Dense(3), Counted()],
    "words": lambda: [Words(), layers.Embedding(3, 4, mask_zero=True)],
    "none in training": lambda: [
        By(lambda x, training: None if training else lengths(x, training)),
        layers.Activation("relu"),
    ],
    "other numbers": lambda: [By(lambda x, training: x[..., 0] > (0.5 if training else -0.5))],
}
KEPT = {
    "ids": lambda: [layers.Embedding(3, 4, mask_zero=True), layers.Dropout(0.5)],
    "features": lambda: [layers.Masking(), layers.BatchNormalization(), layers.LSTM(4, return_sequences=True, dropout=0.2)],
    "both ways": lambda: [layers.Masking(), layers.Bidirectional(layers.GRU(2, return_sequences=True))],
    "beside dropout": lambda: [Joined(layers.Dropout(0.5))],
    "beside normalization": lambda: [Joined(layers.BatchNormalization())],
    "both after dropout": lambda: [Joined(layers.Dropout(0.5), both=True)],
    "lengths": lambda: [layers.Dropout(0.5), By(lengths)],
    "of what a layer computes": lambda: [layers.Dense(3, activation="relu"), layers.Masking(), layers.SpatialDropout1D(0.5)],
}


def masks(parts, x):
    """The masks of Keras's own calls, in inference and then in training."""
    keras.utils.set_random_seed(0)
    model = Chain(*parts)
    outputs = [model(tf.constant(x), training=training) for training in (False, True, True, True)]
    given = [getattr(output, "_keras_mask", None) for output in outputs]
    return [np.ones(Y.shape[:2], bool) if mask is None else np.array(mask) for mask in given]


def fit(parts, x, **options):
    trainer = MultiHeadTrainer(Chain(*parts))
    trainer.add_head("a", layers.Dense(1), "mse")
    trainer.compile("sgd", **options)
    trainer.fit(x, {"a": Y}, verbose=0)


@pytest.mark.parametrize(("name", "eagerly"), by_turns(CHANGED))
def test_a_mask_that_training_changes_is_an_error(name, eagerly):
    x = IDS if name == "words" else X
    first, *others = masks(CHANGED[name](), x)
    assert any((first != other).any() for other in others)
    with pytest.raises(
        ValueError, match="head 'a' must give a Keras mask that is the same in training and inference.*Mask bef"
    ):
        fit(CHANGED[name](), x, run_eagerly=eagerly)


def test_a_module_that_needs_a_step_is_looked_at_as_in_training():
    trainer = MultiHeadTrainer(Step())
    trainer.add_head("a", layers.Dense(1), "mse")
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="head 'a' must give a Keras mask that is the same in training and inference"):
        trainer.fit(X, {"a": Y}, verbose=0)


@pytest.mark.parametrize(("name", "eagerly"), by_turns(KEPT))
def test_other_masks_count_as_they_are(name, eagerly):
    x = IDS if name in ("ids", "beside dropout", "beside normalization", "both after dropout") else X
    first, *others = masks(KEPT[name](), x)
    assert all((first == other).all() for other in others) and first.any()
    fit(KEPT[name](), x, run_eagerly=eagerly)


@pytest.mark.parametrize("eagerly", [False, True], ids=["graph", "eager"])
@pytest.mark.parametrize("kind", [keras.Sequential, lambda parts: Chain(*parts)], ids=["Sequential", "Chain"])
def test_a_mask_of_what_a_new_layer_computes_is_no_state(kind, eagerly):
    """The trace that makes the layer's variables gives them their first values, too."""
    trainer = MultiHeadTrainer(layers.Dense(4))
    trainer.add_head("a", kind([layers.Dense(1, activation="relu"), layers.Masking()]), "mse")
    trainer.compile("sgd", run_eagerly=eagerly)
    trainer.fit(X, {"a": Y}, verbose=0)
