"""Whether heads predict probabilities where their loss takes nothing else."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from multihead._display.tables import plain
from multihead._update.batch import Batch
from multihead._update.labels import Labels
from multihead._update.network import Network
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._report import Diagnosis, Finding
from multihead.losses._known import ELEMENTS, TOLERANCE, remedy


def unchecked(network: Network) -> Network:
    """The same network, in which predictions that are no probabilities are not an error."""
    heads = [copy.copy(head) for head in network.heads]
    for head in heads:
        head.checks_range = False
    return replace(network, heads=tuple(heads))


def ranges_of(network: Network, batch: Batch, labels: Sequence[Labels | None]) -> tf.Tensor:
    """`[heads, 4]`: the smallest and the largest prediction of a batch, and sum of a row of them; NaN without labels."""
    found = [tf.fill([4], float("nan")) for _ in network.heads]
    for k, (head, of_head) in enumerate(zip(network.heads, labels)):
        if of_head is not None:
            nest = DetachedRepresentation(call_encoder(network.encoder, batch.inputs, training=False)).nest
            predictions = tf.cast(head.predict(nest, of_head.targets, training=False), tf.float32)
            both = predictions, tf.reduce_sum(predictions, axis=-1)
            found[k] = tf.stack([extreme(values) for values in both for extreme in (tf.reduce_min, tf.reduce_max)])
    return tf.stack(found)


def over_batches(ranges: np.ndarray) -> np.ndarray:
    """`[heads, 4]`: the ranges over all batches, from those of each, `[batches, heads, 4]`."""
    low, high = np.fmin.reduce(ranges, axis=0), np.fmax.reduce(ranges, axis=0)
    return np.stack([low[:, 0], high[:, 1], low[:, 2], high[:, 3]], axis=1)


def no_probabilities(found: Diagnosis, spec: UpdateSpec) -> Iterator[Finding]:
    """Heads whose predictions are not what their loss takes."""
    for head, (low, high, smallest, largest) in zip(spec.network.heads, found.predicted):
        known, text = head.loss.known, ""
        if known is None or known.largest is None:
            continue
        if low < -TOLERANCE or high > known.largest + TOLERANCE:
            text = (
                f"The predictions of {head.name!r} lie between {plain(low)} and {plain(high)}, but its loss, "
                f"{head.loss.name}, takes probabilities, from 0 to 1, and the head cannot learn from it."
            )
        elif known.over != ELEMENTS and max(1 - smallest, largest - 1) > TOLERANCE:
            text = (
                f"The predictions of {head.name!r} for an example add up to {plain(smallest)} to {plain(largest)}, but its "
                f"loss, {head.loss.name}, takes probabilities, which add up to 1."
            )
        if text:
            yield Finding(f"{text} {remedy(head.loss)}", "no probabilities", [head.name])
