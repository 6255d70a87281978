"""Arithmetic on gradients that are dense, sparse or absent, compared with dense NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead._ground import tensors
from tests.helpers.cases import pairwise

pytestmark = pytest.mark.mathematics

SPARSE = tf.IndexedSlices(tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([2, 0, 2]), tf.constant([4, 2]))
DENSE = tf.reshape(tf.range(8.0), [4, 2])
KINDS = {"none": None, "sparse": SPARSE, "dense": DENSE}


def dense(gradient):
    return np.zeros((4, 2)) if gradient is None else tf.convert_to_tensor(gradient).numpy()


def kind(gradient):
    return "none" if gradient is None else "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [
        ("none", "none", "none"),
        ("none", "sparse", "sparse"),
        ("dense", "none", "dense"),
        ("sparse", "sparse", "sparse"),
        ("sparse", "dense", "dense"),
        ("dense", "dense", "dense"),
    ],
)
def test_added(first, second, wanted):
    found = tensors.added(KINDS[first], KINDS[second])
    assert kind(found) == wanted
    np.testing.assert_array_equal(dense(found), dense(KINDS[first]) + dense(KINDS[second]))


@pytest.mark.parametrize("values", [[3e30, 4e30], [3e-30, 4e-30], [3.0, 4.0], [0.0, 0.0], []])
def test_norm_neither_overflows_nor_underflows(values):
    found = tensors.norm(tf.constant(values, tf.float32))
    np.testing.assert_allclose(found, np.linalg.norm(np.array(values, "float64")), rtol=1e-6)


@pytest.mark.parametrize("jit_compile", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("is_known", [True, False], ids=["known size", "unknown size"])
@pytest.mark.parametrize("number", [0, 1, 2**11 + 1, 2**16 + 1])
def test_is_finite_of_the_largest_and_smallest_numbers(number, is_known, dtype, jit_compile):
    dtype = tf.as_dtype(dtype)
    signature = [tf.TensorSpec([number if is_known else None], dtype)]
    is_finite = tf.function(tensors.is_finite, input_signature=signature, jit_compile=jit_compile)

    def values(**at):
        found = np.full([number], dtype.max, dtype.as_numpy_dtype)
        found[1::3] = np.finfo("float32").tiny  # sums to nothing, and in half precision is nothing
        for place, each in zip((0, -1), at.values()):
            found[place] = each
        return tf.constant(found)

    assert is_finite(values())
    if number:
        assert not is_finite(values(first=np.nan)) and not is_finite(values(first=-np.inf))
        assert not is_finite(values(first=np.inf, last=-np.inf))  # whose sum is NaN


@pytest.mark.parametrize("kinds", [["sparse", "sparse"], ["sparse", "none"], ["dense", "sparse", "none"], ["dense"]])
def test_rows_have_the_inner_products_of_the_dense_gradients(kinds):
    rows = tensors.as_rows([KINDS[each] for each in kinds])
    wanted = np.stack([dense(KINDS[each]).ravel() for each in kinds])
    gramian = tensors.gramian([rows.values], len(kinds))
    assert gramian.dtype == tf.float64
    np.testing.assert_allclose(gramian, wanted @ wanted.T)
    factors = tf.range(1.0, len(kinds) + 1)
    combined = rows.restore(tf.reduce_sum(rows.times(factors).values, axis=0))
    assert kind(combined) == ("dense" if "dense" in kinds else "sparse")
    np.testing.assert_allclose(dense(combined).ravel(), factors.numpy() @ wanted)


LACKING = {"none lacks": "", "one has it": "0", "two have it": "13", "half": "024", "all lack": "all"}


SIZES = [(5, (4096, 4097)), (8, (5000, 2)), (9, (5000,))]
KNOWN = [("float16", True), ("float32", True), ("float64", True), ("float32", False)]


@pytest.mark.parametrize(
    ("lacking", "num_heads", "sizes", "dtype", "known"), [(a, *b, *c) for a, b, c in pairwise(list(LACKING), SIZES, KNOWN)]
)
def test_inner_products_are_those_of_numpy(lacking, num_heads, sizes, dtype, known):
    rng = np.random.default_rng(0)
    given = [[rng.normal(size=[size]).astype(dtype) for size in sizes] for _ in range(num_heads)]
    chosen = LACKING[lacking]
    having = range(num_heads) if not chosen else [] if chosen == "all" else [int(k) for k in chosen]
    lacks = {k for k in range(num_heads) if k not in having}

    def products(*flat):
        rows = [list(flat[k * len(sizes) : (k + 1) * len(sizes)]) for k in range(num_heads)]
        for k in lacks:
            rows[k][-1] = None  # the other tensors have a gradient for every head
        return tensors.inner_products(rows)

    flat = [each for row in given for each in row]
    specs = [tf.TensorSpec([each.size if known else None], dtype) for each in flat]
    found = tf.function(products, input_signature=specs)(*flat)
    wide = [
        np.concatenate([each.astype("float64") * (k not in lacks or i < len(sizes) - 1) for i, each in enumerate(row)])
        for k, row in enumerate(given)
    ]
    assert found.dtype == tf.float64
    np.testing.assert_allclose(found, np.stack(wide) @ np.stack(wide).T, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_inner_products_of_pairs_neither_overflow_nor_underflow(scale):
    rows = np.random.default_rng(1).normal(size=[3, 5000]).astype("float32") * np.float32(scale)
    found = tensors.inner_products([[tf.constant(row)] for row in rows])
    np.testing.assert_allclose(found, rows.astype("float64") @ rows.astype("float64").T, rtol=1e-9, atol=1e-9 * scale**2)


def test_what_is_not_finite_in_one_head_is_so_in_its_products_alone():
    rows = [[tf.fill([5000], 1.0), None], [tf.fill([5000], np.nan), None], [None, tf.fill([3], 2.0)]]
    found = tensors.inner_products(rows).numpy()
    np.testing.assert_array_equal(np.isnan(found), [[0, 1, 0], [1, 1, 0], [0, 0, 0]])
    assert found[0, 0] == 5000 and found[2, 2] == 12


def test_inner_products_of_sparse_gradients():
    found = tensors.inner_products([[SPARSE, None], [DENSE, None], [SPARSE, DENSE], [None, SPARSE]])
    first = [dense(each).ravel() for each in (SPARSE, DENSE, SPARSE, None)]
    second = [dense(each).ravel() for each in (None, None, DENSE, SPARSE)]
    wanted = np.stack(first) @ np.stack(first).T + np.stack(second) @ np.stack(second).T
    np.testing.assert_allclose(found, wanted)


def test_xla_compiles_rows_of_sparse_gradients():
    @tf.function(jit_compile=True)
    def combined(values, indices, others):
        rows = tensors.as_rows([tf.IndexedSlices(values, indices, (5, 2)), None, tf.IndexedSlices(values, others, (5, 2))])
        return tf.convert_to_tensor(rows.restore(tf.reduce_sum(rows.times(tf.constant([1.0, 7.0, 10.0])).values, axis=0)))

    values = np.arange(1.0, 7.0, dtype="float32").reshape(3, 2)
    wanted = np.zeros((5, 2))
    np.add.at(wanted, [4, 0, 4], values)
    np.add.at(wanted, [1, 1, 0], 10 * values)
    np.testing.assert_allclose(combined(values, [4, 0, 4], [1, 1, 0]), wanted)
