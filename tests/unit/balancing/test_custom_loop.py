"""Balancing in a custom training loop: lists of dense, sparse and absent gradients."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing
from multihead.balancing import balance
from tests.helpers import zoo


def pieces(rows):
    return [[tf.constant(row[:6].reshape(2, 3)), tf.constant(row[6:])] for row in rows]


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize("name", ["UPGrad", "PCGrad", "MGDA", "MoCo", "GradVac"])
def test_lists_equal_the_matrix(name):
    rows = zoo.matrix("conflicting", 3)
    result = balance(pieces(rows), name)
    assert [tuple(each.shape) for each in result] == [(2, 3), (25,)]
    flat = np.concatenate([each.numpy().ravel() for each in result])
    np.testing.assert_allclose(flat, balancing.get(name)(rows).numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.mathematics
def test_sparse_rows_that_repeat_are_summed_and_none_is_zero():
    sparse = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([1, 1]), tf.constant([3, 2]))
    dense = tf.constant([[0.0, 0.0], [0.0, 0.0], [-1.0, -1.0]])
    first, second, third = balance([[sparse, None, None], [dense, tf.constant([2.0]), None]], "sum")
    np.testing.assert_array_equal(first, [[0, 0], [4, 6], [-1, -1]])
    np.testing.assert_array_equal(second, [2])
    assert third is None
    assert balance([[None], [None]], "upgrad") == [None]


def test_in_a_custom_loop_with_state_and_a_count():
    balancer, update = balancing.MetaBalance(relax=1.0), tf.Variable(0, dtype=tf.int64)
    weights = tf.Variable([[1.0], [2.0]])

    @tf.function
    def step(inputs):
        with tf.GradientTape(persistent=True) as tape:
            outputs = inputs @ weights
            losses = [tf.reduce_sum(outputs**2), 1e3 * tf.reduce_sum(outputs)]
        gradients = [tape.gradient(loss, [weights]) for loss in losses]
        (combined,) = balance(gradients, balancer, step=update, losses=losses)
        update.assign_add(1)
        return combined, gradients

    for _ in range(2):
        combined, ((first,), (second,)) = step(tf.constant([[1.0, 1.0], [0.5, -1.0]]))
        expected = first + second * np.linalg.norm(first) / np.linalg.norm(second)
        np.testing.assert_allclose(combined, expected, rtol=1e-5)


@pytest.mark.mathematics
def test_errors():
    one, two = tf.constant([1.0]), tf.constant([1.0, 2.0])
    with pytest.raises(ValueError, match=r"`gradients` must be one list per head.*Received: lists of lengths \[1, 2\]"):
        balance([[one], [one, two]], "sum")
    with pytest.raises(ValueError, match=r"`gradients` must be one list per head.*Received: lists of lengths \[\]"):
        balance([], "sum")
    with pytest.raises(ValueError, match=r"`gradients` of variable 1 must all have the variable's shape"):
        balance([[one, one], [one, two]], "sum")
    with pytest.raises(ValueError, match=r"`balancer` must be a balancer or its name\. Received: None"):
        balance([[one]], None)
    with pytest.raises(ValueError, match=r"`matrix` must be finite.*Received: non-finite gradients of head 1"):
        balance([[one], [tf.constant([float("nan")])]], "sum")
