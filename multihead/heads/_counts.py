"""Whether the count that a loss returns is a function of the targets, tried out when a head is built.

An update needs the count before the predictions are known. This trial with made-up rows can only refuse a loss.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function, kinds_with_state, operations_behind, written_resources
from multihead._ground.references import unchanged
from multihead._ground.tensors import unchecked
from multihead._ground.types import Function
from multihead.heads._named import NamedHead

_LARGEST = 2**20
"""With more elements than this, nothing is tried, to save time."""


def check_count(head: NamedHead, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
    """Raises a `ValueError` if a built head's loss returns a count that is no function of the targets, or changes variables.

    The count takes a call of its own, in which random numbers are others, and a state would change once more. A loss that
    fails for made-up rows is accepted.
    """
    if head.loss.has_count:
        with unchanged(head.loss.original, eagerly=head.loss.runs_eagerly):
            fault = _fault_of_count(head, targets, predictions)
        if fault is not None:
            raise ValueError(
                f"`loss` of head {head.name!r} must return a count that is a function of the targets. Received: "
                f"{head.loss.name!r}, {fault}. Count labels, or return one value per element, or the mean with "
                "`couples_rows=True`."
            )


def _fault_of_count(head: NamedHead, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> str | None:
    def counts(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        return head.loss.terms(head.like_scaled(targets), predictions)[1]

    compute: Function = counts
    try:
        traced = graph_function(counts).get_concrete_function(targets, predictions)
    except Exception:  # noqa: BLE001 - another check reports what is wrong with the head
        if not head.loss.runs_eagerly:
            return None
    else:
        compute = counts if head.loss.runs_eagerly else traced
        if written_resources(traced.graph.get_operations()):
            return "which changes variables, and is called once more for its count"
        if kinds_with_state(traced.graph, operations_behind(traced.graph.outputs[0])):
            return "whose count draws random numbers or depends on a state"
    rng = np.random.default_rng(0)
    # Labels: zeros, which most losses accept, and zeros and ones. Predictions: probabilities, and any numbers.
    for highest, draw in itertools.product((1, 2), (rng.random, rng.standard_normal)):
        labels = _made_up(targets, lambda shape, highest=highest: rng.integers(0, highest, shape))
        pair = [_made_up(predictions, draw) for _ in range(2)]
        if max(int(np.prod(tensor.shape)) for tensor in (labels, *pair)) > _LARGEST:
            return None
        with suppress(Exception), unchecked():  # a loss need not accept all numbers
            one, again, other = (compute(labels, tensor).numpy() for tensor in (pair[0], *pair))
            if not np.array_equal(one, again, equal_nan=True):
                return "whose count is another at each call"
            if not np.allclose(one, other, equal_nan=True):
                return "whose count changes with the predictions"
    return None


def _made_up(spec: tf.TensorSpec, values: Function) -> tf.Tensor:
    """Eight rows that fit a spec."""
    return tf.cast(values([8, *(size or 3 for size in spec.shape[1:])]), spec.dtype)
