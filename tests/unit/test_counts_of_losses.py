"""The count of a loss must be a function of the targets: what a graph shows of it."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

from multihead import losses
from tests.helpers.cases import quick

SHAPES = {"fixed": [None, 4], "open": [None, None, 4]}
NOT_OF_TARGETS = "must return a count that is a function of the targets.*depends on the values of predictions"


def errors(y, p):
    return tf.abs(tf.cast(y, p.dtype) - p)


def pair(y, p, count):
    return tf.reduce_sum(errors(y, p)), tf.cast(count, tf.float32)


def positive(y, p):
    return tf.cast(y > 0, p.dtype)


def in_condition(y, p):
    some = tf.reduce_any(y > 0)
    return tf.cond(some, lambda: pair(y, p, tf.reduce_sum(positive(y, p))), lambda: (tf.reduce_sum(p) * 0.0, 0.0))


@tf.function
def in_if(y, p):
    if tf.reduce_any(y > 0):
        total, count = tf.reduce_sum(errors(y, p)), tf.reduce_sum(positive(y, p))
    else:
        total, count = 0.0 * tf.reduce_sum(p), tf.constant(0.0)
    return total, count


def in_loop(y, p):
    def step(i, total, count):
        return i + 1, total + tf.reduce_sum(errors(y[i], p[i])), count + tf.reduce_sum(positive(y[i], p))

    return tf.while_loop(lambda i, *_: i < tf.shape(p)[0], step, [tf.constant(0), tf.constant(0.0), tf.constant(0.0)])[1:]


def by_row(y, p):
    """A pair of values for each row."""

    def of_row(row):
        return tf.reduce_sum(errors(*row)), tf.reduce_sum(positive(*row))

    return tf.map_fn(of_row, (y, p), fn_output_signature=(tf.float32, tf.float32))


def vectorized(y, p):
    return tf.vectorized_map(lambda row: (tf.reduce_sum(errors(*row)), tf.reduce_sum(positive(*row))), (y, p))


@tf.function
def in_function(y, p):
    return pair(y, p, tf.reduce_sum(positive(y, p)))


def in_functions(y, p):
    result = tf.function(lambda y, p: tf.function(in_condition)(y, p))(y, p)
    gc.collect()
    return result


@tf.custom_gradient
def with_gradient(y, p):
    return pair(y, p, tf.reduce_sum(positive(y, p))), lambda of_sum, of_count: (None, of_sum * tf.sign(p - y))


def of_open_shapes(y, p):
    """A function that is traced once for all shapes."""
    return tf.function(lambda y, p: (errors(y, p), tf.ones_like(p)), input_signature=[tf.TensorSpec(None)] * 2)(y, p)


def loop_in_loop(y, p):
    def step(i, total, count):
        return i + 1, total + tf.reduce_sum(p), in_loop(y, p)[1] + count

    return tf.while_loop(lambda i, *_: i < 2, step, [tf.constant(0), tf.constant(0.0), tf.constant(0.0)])[1:]


def in_case(y, p):
    branches = [lambda: pair(y, p, tf.reduce_sum(y)), lambda: pair(y, p, tf.size(p))]
    return tf.switch_case(tf.cast(tf.reduce_max(y), tf.int32), branches)


def after_assertion(y, p):
    with tf.control_dependencies([tf.debugging.assert_all_finite(p, "not finite")]):
        return pair(y, p, tf.identity(tf.reduce_sum(positive(y, p))))


def hardest(y, p):
    """The mean of as many of the largest errors as there are positive labels."""
    flat, number = tf.reshape(errors(y, p), [-1]), tf.cast(tf.reduce_sum(positive(y, p)), tf.int32)
    kept = tf.math.top_k(flat, number).values
    return tf.reduce_sum(kept), tf.cast(tf.size(kept), tf.float32)


def selected(y, p):
    kept = tf.boolean_mask(errors(y, p), y > 0)
    return tf.reduce_sum(kept), tf.cast(tf.shape(kept)[0], tf.float32)


OF_TARGETS = {
    "ones": lambda y, p: (errors(y, p), tf.ones_like(p)),
    "zeros": lambda y, p: (errors(y, p), tf.zeros_like(errors(y, p)) + positive(y, p)),
    "dtype": lambda y, p: (errors(y, p), tf.cast(y != 0, p.dtype)),
    "stopped": lambda y, p: (errors(y, p), tf.stop_gradient(tf.ones_like(p) * positive(y, p))),
    "filled": lambda y, p: (errors(y, p), tf.fill(tf.shape(p), 1.0)),
    "number of rows": lambda y, p: pair(y, p, tf.shape(p)[0]),
    "of integers": lambda y, p: pair(y, p, tf.math.count_nonzero(y)),
    "selected": selected,
    "hardest": hardest,
    "condition": in_condition,
    "if": in_if,
    "loop": in_loop,
    "rows": by_row,
    "vectorized": vectorized,
    "function": in_function,
    "functions": in_functions,
    "open shapes": of_open_shapes,
    "loop in loop": loop_in_loop,
    "gradient": with_gradient,
    "case": in_case,
    "assertion": after_assertion,
}


def loop_of_predictions(y, p):
    """The count depends on the predictions only from the second step on."""

    def step(i, total, before, count):
        return i + 1, total + tf.reduce_sum(y), tf.reduce_sum(p), count + before

    start = [tf.constant(0), tf.constant(0.0), tf.constant(0.0), tf.constant(0.0)]
    _, total, _, count = tf.while_loop(lambda i, *_: i < 5, step, start)
    return total, count


def steps_of_predictions(y, p):
    number = tf.cast(tf.reduce_sum(tf.abs(p)), tf.int32)
    _, count = tf.while_loop(lambda i, _: i < number, lambda i, count: (i + 1, count + 1.0), [0, 0.0])
    return tf.reduce_sum(errors(y, p)), count


@tf.function
def if_of_predictions(y, p):
    if tf.reduce_any(p > 0):
        count = tf.reduce_sum(y)
    else:
        count = tf.constant(0.0)
    return tf.reduce_sum(errors(y, p)), count


def first_of(y, p):
    kept = tf.reshape(errors(y, p), [-1])[: tf.reduce_sum(tf.cast(p > 0, tf.int32))]
    return tf.reduce_sum(kept), tf.cast(tf.size(kept), tf.float32)


OF_PREDICTIONS = {
    "positive": lambda y, p: (errors(y, p), tf.cast(p > 0, tf.float32)),
    "times zero": lambda y, p: (errors(y, p), p * 0.0 + positive(y, p)),
    "agreed": lambda y, p: pair(y, p, tf.reduce_sum(tf.cast((p > 0) & (y > 0), tf.float32))),
    "selected": lambda y, p: pair(y, p, tf.size(tf.boolean_mask(y, p > 0))),
    "places": lambda y, p: pair(y, p, tf.shape(tf.where(p > 0))[0]),
    "ones of them": lambda y, p: pair(y, p, tf.reduce_sum(tf.ones_like(tf.boolean_mask(p, p > 0)))),
    "different": lambda y, p: pair(y, p, tf.size(tf.unique(tf.reshape(p, [-1])).y)),
    "range": lambda y, p: pair(y, p, tf.size(tf.range(0.0, tf.reduce_sum(tf.abs(p))))),
    "NumPy": lambda y, p: pair(y, p, tf.size(tf.numpy_function(lambda a: np.where(a > 0)[0], [p], tf.int64))),
    "Python": lambda y, p: pair(y, p, tf.size(tf.py_function(lambda a: tf.where(a > 0), [p], tf.int64))),
    "first": first_of,
    "condition": lambda y, p: pair(y, p, tf.cond(tf.reduce_sum(p) > 0, lambda: 1.0, lambda: 2.0)),
    "branch": lambda y, p: pair(y, p, tf.cond(tf.reduce_sum(y) > 0, lambda: tf.reduce_sum(p), lambda: 2.0)),
    "if": if_of_predictions,
    "loop": loop_of_predictions,
    "steps": steps_of_predictions,
    "rows": lambda y, p: tf.map_fn(lambda row: (row[0][..., 0], row[1][..., 0]), (y, p)),
    "function": tf.function(lambda y, p: pair(y, p, tf.reduce_sum(tf.abs(p)))),
    "gradient": tf.custom_gradient(lambda y, p: (pair(y, p, tf.reduce_sum(p)), lambda *_: (None, None))),
}


def rank(loss, form):
    return losses.get(loss).value_rank(*[tf.TensorSpec(SHAPES[form])] * 2)


@pytest.mark.parametrize("form", quick(1, SHAPES))
@pytest.mark.parametrize("name", OF_TARGETS)
def test_a_count_of_targets_and_shapes_is_accepted(name, form):
    loss = losses.get(OF_TARGETS[name])
    loss.value_rank(*[tf.TensorSpec(SHAPES[form])] * 2)
    assert loss.has_count


@pytest.mark.parametrize("form", quick(1, SHAPES))
@pytest.mark.parametrize("name", OF_PREDICTIONS)
def test_a_count_of_predictions_is_refused(name, form):
    with pytest.raises(ValueError, match=NOT_OF_TARGETS):
        rank(OF_PREDICTIONS[name], form)
