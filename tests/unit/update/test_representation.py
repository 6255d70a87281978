"""The detached representation, and what is computed of the heads' gradients there."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._ground.tensors import inner_products
from multihead._update.representation import DetachedRepresentation, products, squared_norms, times, total


def test_floating_leaves_are_detached_once_and_others_pass_through():
    with tf.GradientTape() as tape:
        x = tf.constant([1.0, 2.0])
        tape.watch(x)
        hidden = 2 * x
        found = DetachedRepresentation({"first": hidden, "again": hidden, "length": tf.constant([2]), "other": x + 1})
        total = tf.add_n([tf.reduce_sum(leaf) for leaf in found.leaves])
    assert len(found.leaves) == len(found.attached) == 2
    assert found.nest["first"] is found.nest["again"]
    assert found.nest["length"].dtype == tf.int32
    assert tape.gradient(total, x) is None


def test_keras_masks_stay_on_the_leaves():
    tensor = tf.constant([[1.0]])
    tensor._keras_mask = tf.constant([[True]])
    found = DetachedRepresentation([tensor])
    assert found.nest[0]._keras_mask is tensor._keras_mask and found.nest[0] is not tensor


def test_a_representation_needs_a_floating_leaf():
    with pytest.raises(ValueError, match="must return at least one floating-point tensor"):
        DetachedRepresentation({"length": tf.constant([2])})


def test_inner_products_are_over_all_leaves_and_missing_ones_are_zero():
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(3, 2, 4)).astype("float32")  # heads, leaves, elements
    dense[1, 0] = 0
    gradients = [[tf.constant(leaf.reshape(2, 2)) for leaf in head] for head in dense]
    gradients[1][0] = None
    rows = dense.reshape(3, -1).astype("float64")
    np.testing.assert_allclose(inner_products(gradients), rows @ rows.T, rtol=1e-6)
    np.testing.assert_allclose(tf.linalg.diag_part(squared_norms(gradients)), (rows**2).sum(1), rtol=1e-6)
    np.testing.assert_allclose(products(gradients), rows @ rows.T, rtol=1e-5, atol=1e-6)
    tiny = times(gradients, tf.constant([1e-22, 1.0, 1e18]))  # squares leave the range of float32
    scales = np.array([1e-22, 1.0, 1e18])
    np.testing.assert_allclose(products(tiny), (rows @ rows.T) * scales * scales[:, None], rtol=1e-5)
    factors = np.array([2.0, -1.0, 0.5], "float32")
    weighted = times(gradients, tf.constant(factors))
    np.testing.assert_allclose(
        np.concatenate([np.ravel(leaf) for leaf in total(weighted)]), (factors[:, None] * rows).sum(0), rtol=1e-5
    )
    assert times(gradients, None) is gradients and weighted[1][0] is None


def test_nothing_that_reaches_the_representation_has_zero_products():
    rows = [[None], [None]]
    assert inner_products(rows).numpy().tolist() == [[0, 0], [0, 0]] and total(rows) == [None]
