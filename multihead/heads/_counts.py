"""Whether the count that a loss returns is a function of the targets, tried out when a head is built.

An update needs the count before the predictions are known. This trial with made-up rows can only refuse a loss.
"""

from __future__ import annotations

import itertools
from contextlib import suppress

import numpy as np
import tensorflow as tf

from multihead._ground.calls import graph_function, written_resources
from multihead._ground.tensors import unchecked
from multihead._ground.types import Function
from multihead.heads._named import NamedHead

_LARGEST = 2**20
"""With more elements than this, nothing is tried, to save time."""


def check_count(head: NamedHead, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
    """Raises a `ValueError` if the count that a built head's loss returns changes with the predictions.

    A loss that fails for made-up rows, draws random numbers or changes variables is accepted.
    """
    loss = head.loss
    if not loss.has_count:
        return

    def counts(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        return loss.terms(head.like_scaled(targets), predictions)[1]

    compute: Function = counts
    if not loss.runs_eagerly:
        try:
            compute = traced = graph_function(counts).get_concrete_function(targets, predictions)
        except Exception:  # noqa: BLE001 - another check reports what is wrong with the head
            return
        if written_resources(traced.graph.get_operations()):
            return
    rng = np.random.default_rng(0)
    # Labels: zeros, which most losses accept, and zeros and ones. Predictions: probabilities, and any numbers.
    for highest, draw in itertools.product((1, 2), (rng.random, rng.standard_normal)):
        labels = _made_up(targets, lambda shape, highest=highest: rng.integers(0, highest, shape))
        pair = [_made_up(predictions, draw) for _ in range(2)]
        if max(int(np.prod(tensor.shape)) for tensor in (labels, *pair)) > _LARGEST:
            return
        with suppress(Exception), unchecked():  # a loss need not accept all numbers
            one, again, other = (compute(labels, tensor).numpy() for tensor in (pair[0], *pair))
            if np.array_equal(one, again) and not np.allclose(one, other, equal_nan=True):
                break
    else:
        return
    raise ValueError(
        f"`loss` of head {head.name!r} must return a count that is a function of the targets. Received: {loss.name!r}, "
        "whose count changes with the predictions. Count labels, or return one value per element, or the mean with "
        "`couples_rows=True`."
    )


def _made_up(spec: tf.TensorSpec, values: Function) -> tf.Tensor:
    """Eight rows that fit a spec."""
    return tf.cast(values([8, *(size or 3 for size in spec.shape[1:])]), spec.dtype)
