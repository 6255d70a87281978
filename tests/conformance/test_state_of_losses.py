"""Losses with a state of their own: each batch changes it once, and what tries a loss out when it is built not at all."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
Y = {"a": np.ones([8, 1], "float32")}


class Counting(keras.losses.Loss):
    """A squared error that counts its calls, in one of several ways; `read` says how many there were."""

    def __init__(self, way, *, needs_values=False):
        super().__init__(name="counting")
        self.way, self.needs_values = way, needs_values
        self.variable, self.plain, self.tensor = tf.Variable(0.0, trainable=False), 0, tf.constant(0.0)
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, y, p):
        if self.needs_values:
            float(tf.reduce_sum(p))  # cannot be traced
        if self.way == "variable":
            self.variable.assign_add(1.0)
        elif self.way == "attribute":
            self.plain += 1
        elif self.way == "tensor":
            self.tensor = self.tensor + 1.0
        elif self.way == "generator":
            self.generator.uniform([])
        elif self.way == "numpy":
            np.random.random()
        return tf.reduce_sum((y - p) ** 2, axis=-1)

    def read(self):
        if self.way != "generator":
            return {"variable": self.variable, "attribute": self.plain, "tensor": self.tensor}[self.way]
        other, calls = tf.random.Generator.from_seed(3), 0
        while not np.array_equal(other.state, self.generator.state):
            other.uniform([])
            calls += 1
        return calls


def fitted(loss, **options):
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), loss, couples_rows=False)
    trainer.compile("sgd", **options)
    trainer.fit(X, Y, batch_size=2, verbose=0)
    return trainer


@pytest.mark.parametrize("way", ["variable", "generator"])
def test_each_batch_changes_it_once_in_a_graph(way):
    loss = Counting(way)
    fitted(loss)
    assert float(loss.read()) == 4


@pytest.mark.parametrize("needs_values", [False, True])
@pytest.mark.parametrize("way", ["variable", "generator", "attribute", "tensor"])
def test_each_batch_changes_it_once_eagerly(way, needs_values):
    loss = Counting(way, needs_values=needs_values)
    fitted(loss, run_eagerly=True)
    assert float(loss.read()) == 4


def test_trying_out_draws_no_random_numbers_of_numpy():
    drawn = []
    for needs_values in (False, True):
        keras.utils.set_random_seed(0)
        trainer = MultiHeadTrainer(keras.layers.Dense(2))
        trainer.add_head("a", keras.layers.Dense(1), Counting("numpy", needs_values=needs_values), couples_rows=False)
        trainer.compile("sgd", run_eagerly=True)
        trainer.evaluate(X, Y, batch_size=8, verbose=0)
        drawn.append(np.random.random())
    keras.utils.set_random_seed(0)
    assert drawn == [np.random.random(2)[-1]] * 2


def test_a_layer_that_trying_out_builds_stays_built():
    """Its attributes are its own; only what it is told to train is no head's."""

    class Frozen(keras.losses.Loss):
        def __init__(self):
            super().__init__(name="frozen")
            self.dense = keras.layers.Dense(3)
            self.dense.trainable = False

        def call(self, y, p):
            return tf.reduce_sum((self.dense(y) - self.dense(p)) ** 2, axis=-1)

    trainer = fitted(Frozen(), run_eagerly=True)
    assert int(np.array(trainer.update_count)) == 4


@pytest.mark.parametrize("smoothing", [None, [0.1, 0.2], "none"])
def test_an_attribute_of_ones_own_may_have_any_name(smoothing):
    class Smoothed(keras.losses.Loss):
        def __init__(self):
            super().__init__(name="smoothed")
            self.label_smoothing = smoothing

        def call(self, y, p):
            return tf.reduce_sum((y - p) ** 2, axis=-1)

    assert int(np.array(fitted(Smoothed()).update_count)) == 4
