"""Whether the count that a loss returns is a function of the targets, tried when a head is built.

The count of an update is needed before its predictions are. This trial on made-up rows can only refuse a loss.
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
"""The number of elements of a row from which on nothing is tried."""


def check_count(head: NamedHead, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
    """Raises if the count that a built head's loss returns changes with the predictions.

    A loss that fails for the made-up rows, draws random numbers or changes variables is not tried.
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
        except Exception:  # noqa: BLE001 - what is wrong with the head is said elsewhere
            return
        if written_resources(traced.graph.get_operations()):
            return
    rng = np.random.default_rng(0)
    # Zeros, which are labels of most losses, and zeros and ones; probabilities and other numbers.
    for highest, draw in itertools.product((1, 2), (rng.random, rng.standard_normal)):
        labels = _made(targets, lambda shape, highest=highest: rng.integers(0, highest, shape))
        some = [_made(predictions, draw) for _ in range(2)]
        if max(int(np.prod(each.shape)) for each in (labels, *some)) > _LARGEST:
            return
        with suppress(Exception), unchecked():  # a loss need not take any numbers
            one, again, other = (compute(labels, each).numpy() for each in (some[0], *some))
            if np.array_equal(one, again) and not np.allclose(one, other, equal_nan=True):
                break
    else:
        return
    raise ValueError(
        f"`loss` of head {head.name!r} must return a count that is a function of the targets. Received: {loss.name!r}, "
        "whose count changes with the predictions. Count labels, or return one value per element, or the mean with "
        "`couples_rows=True`."
    )


def _made(spec: tf.TensorSpec, values: Function) -> tf.Tensor:
    """Eight rows that fit a spec."""
    return tf.cast(values([8, *(size or 3 for size in spec.shape[1:])]), spec.dtype)
