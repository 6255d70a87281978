"""What functions of users return, create and read, found out before there are batches for them.

A trace shows it, and computes nothing. Only where functions run eagerly, so that their Python may depend on values, are they
called with made-up rows. These show shapes and variables, too; nothing is concluded from the numbers that come out.

- A loss shows the shape of its values, whether it counts, and which variables it reads (`terms_of` of the losses).
- A metric creates the variables that it lacks before its first update, and shows what it averages (`HeadMetric.build`).
- The modules of a trainer that is loaded show what heads predict, before there are examples (`trace_predictions`).
"""

from __future__ import annotations

import itertools

import tensorflow as tf

from multihead._ground.calls import graph_function
from multihead._ground.tensors import unchecked
from multihead._ground.types import Function, Nested, Tensor


def with_rows(*specs: tf.TensorSpec) -> list[tf.TensorSpec]:
    """Specs with a number of rows that no other axis has, so that rows are not taken for columns, as in `[6] - [6, 6]`."""
    sizes = {size for spec in specs for size in spec.shape[1:]}
    rows = next(number for number in itertools.count(2) if not sizes & {number, number + 1})
    return [tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype) for spec in specs]


def returned_by(function: Function, specs: list[tf.TensorSpec], open_size: int, *, eagerly: bool) -> Nested:
    """What a function returns for tensors of specs `with_rows`: a trace's tensors, or if it is none, `eagerly`, others.

    What the function raises is raised.
    """
    try:
        return graph_function(function).get_concrete_function(*specs).structured_outputs
    except Exception:
        if not eagerly:
            raise
    with unchecked():  # results for such rows may be infinite
        return function(*made_up_rows(specs, specs[0].shape[0], open_size))


def made_up_rows(specs: Nested, num_rows: int = 2, open_size: int = 1) -> Nested:
    """Rows that fit specs: floating-point numbers are 1, others 0."""

    def made(spec: tf.TypeSpec | None) -> Tensor:
        if spec is None:
            return None
        shape = [num_rows, *(open_size if size is None else size for size in spec.shape[1:])]
        dense = tf.ones(shape, spec.dtype) if spec.dtype.is_floating else tf.zeros(shape, spec.dtype)
        if isinstance(spec, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=spec.ragged_rank, row_splits_dtype=spec.row_splits_dtype)
        return tf.sparse.from_dense(dense) if isinstance(spec, tf.SparseTensorSpec) else dense

    return tf.nest.map_structure(made, specs)
