"""Losses and modules that compare the rows of a batch, and losses that do not."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf


def rows_of(y, p):
    return tf.reshape(tf.cast(y, tf.float32), [-1]), tf.reshape(tf.cast(p, tf.float32), [-1])


def cox(y, p):
    y, p = rows_of(y, p)
    at_risk = tf.cast(tf.abs(y)[None] >= tf.abs(y)[:, None], tf.float32)
    return tf.cast(y > 0, tf.float32) * (tf.math.log(tf.reduce_sum(at_risk * tf.exp(p)[None], axis=1)) - p)


def correlation(y, p):
    y, p = rows_of(y, p)
    y, p = y - tf.reduce_mean(y), p - tf.reduce_mean(p)
    return 1 - tf.reduce_sum(y * p) / tf.sqrt(tf.reduce_sum(y**2) * tf.reduce_sum(p**2) + 1e-6)


def neighbours(y, p):
    y, p = rows_of(y, p)
    return tf.nn.softplus((p - tf.roll(p, 1, 0)) * tf.sign(tf.roll(y, 1, 0) - y))


def batch_hard(y, p):
    y = tf.reshape(tf.cast(y, tf.int32), [-1])
    distance = tf.reduce_sum((p[:, None] - p[None]) ** 2, -1)
    same = tf.cast(y[:, None] == y[None], tf.float32)
    return tf.maximum(tf.reduce_max(distance * same, 1) - tf.reduce_min(distance + 1e3 * same, 1) + 0.5, 0)


@tf.function
def compiled_cox(y, p):
    return cox(y, p)


def pairs(y, p):
    """The sum over pairs of different labels, and the number of these pairs."""
    y, p = rows_of(y, p)
    above = tf.cast(y[:, None] > y[None], tf.float32)
    return tf.reduce_sum(above * tf.nn.softplus(p[None] - p[:, None])), tf.reduce_sum(above)


def pairs_by_row(y, p):
    y, p = rows_of(y, p)
    above = tf.cast(y[:, None] > y[None], tf.float32)
    return tf.reduce_sum(above * tf.nn.softplus(p[None] - p[:, None]), 1), tf.reduce_sum(above, 1)


class Cox(keras.losses.Loss):
    def call(self, y, p):
        return cox(y, p)


class Decorrelated(keras.losses.Loss):
    """A loss with its own `__call__`, as Keras calls it."""

    def __call__(self, y, p, sample_weight=None):
        return correlation(y, p)


def hardest(y, p):
    """The 5 largest errors, as online mining of hard examples keeps them."""
    y, p = rows_of(y, p)
    errors = (y - p) ** 2
    return errors * tf.cast(errors >= tf.math.top_k(errors, tf.minimum(5, tf.size(errors))).values[-1], tf.float32)


def next_as_negative(y, p):
    """Each row against the next one, with a margin."""
    y, p = rows_of(y, p)
    return tf.nn.relu(0.5 + tf.abs(y - p) - tf.abs(tf.roll(y, -1, 0) - p))


def standardized(y, p):
    """Errors in units of the labels' own deviation in the batch."""
    y, p = rows_of(y, p)
    return tf.abs(y - p) / tf.math.reduce_std(y)


class Focused(keras.losses.Loss):
    """Errors weighted by their share of the batch's."""

    def call(self, y, p):
        y, p = rows_of(y, p)
        return tf.nn.softmax(tf.abs(y - p)) * tf.abs(y - p)


@functools.wraps(keras.losses.mean_squared_error)
def named_like_keras(y, p):
    return hardest(y, p)


def wrapped(y, p):
    return hardest(y, p)


NUMBERS = {each.__name__: each for each in (cox, correlation, neighbours, pairs, pairs_by_row)}
NUMBERS.update(compiled_cox=compiled_cox, Cox=Cox(), Decorrelated=Decorrelated())
CLASSES = {"batch_hard": batch_hard}
COUPLED = {**NUMBERS, **CLASSES}
OF_THE_BATCH = {
    "in Keras's wrapper": keras.losses.MeanSquaredError.__base__(wrapped),
    "named like Keras's": named_like_keras,
    **{each.__name__: each for each in (hardest, next_as_negative, standardized)},
    "Focused": Focused(),
}
"""Those that a few rows, or rows like each other, do not give away."""

ALL = {**COUPLED, **OF_THE_BATCH}


def data(name, rows=16, missing=True, seed=0):
    """Inputs and labels for a loss, some of them missing; the labelled rows, and the options of the head."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 5)).astype("float32")
    is_missing = (np.arange(rows) % 3 == 1) & missing
    if name in CLASSES:
        y = rng.integers(0, 3, rows)
        return x, np.where(is_missing, -1, y), ~is_missing, {"ignore_label": -1}
    y = rng.normal(size=rows).astype("float32")
    return x, np.where(is_missing, np.float32(np.nan), y), ~is_missing, {}


def total(loss, y, p):
    """The sum and the count of a loss on rows, by its own definition."""
    found = loss.call(y, p) if isinstance(loss, keras.losses.Loss) and type(loss) is not Decorrelated else loss(y, p)
    if isinstance(found, tuple):
        return tf.reduce_sum(found[0]), tf.reduce_sum(found[1])
    return tf.reduce_mean(found) * len(y), tf.constant(float(len(y)))
