"""The same updates gathered in different ways, and the same written by hand."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import balancing, clipping
from tests.helpers import balancing_reference, reference, tiny

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    # Where a gradient is as small as its own rounding, Adam divides the one by the other: the default of 1e-7 lets that through.
    "adam": lambda: keras.optimizers.Adam(0.01, epsilon=1e-5),
}

# How 12 examples per update are gathered: batches per update, micro-batches per batch.
GATHERINGS = {"whole": (1, 1), "micro-batches": (1, 5), "batches": (3, 1), "both": (3, 2)}

BALANCINGS = {
    "sum": (None, "representation"),
    "representation": ("UPGrad", "representation"),
    "parameters": ("UPGrad", "parameters"),
    "known before": ("NormFloor", "representation"),
}

# With its default, this one would change nothing.
MADE = {"NormFloor": lambda: balancing.NormFloor(1.0)}

UPDATES = 3


def batches_of_updates(missing):
    """For each update three batches, of different lengths and sizes where they are ragged."""
    times, sizes = ((6, 4, 7), (5, 3, 4)) if missing else ((6, 6, 6), (4, 4, 4))
    return [
        [tiny.data(size, time, seed=10 * u + i, missing=missing) for i, (time, size) in enumerate(zip(times, sizes))]
        for u in range(UPDATES)
    ]


def padded(batches):
    """Batches joined into one, padded to the longest."""
    time = max(batch[0].shape[1] for batch in batches)
    pad = lambda a: np.pad(a, [(0, 0), (0, time - a.shape[1])]) if a.ndim == 2 else a  # noqa: E731
    return tf.nest.map_structure(lambda *arrays: np.concatenate([pad(a) for a in arrays]), *batches)


def dataset(batches):
    signature = tf.nest.map_structure(lambda a: tf.TensorSpec([None] * a.ndim, a.dtype), batches[0])
    made = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    return made.apply(tf.data.experimental.assert_cardinality(len(batches)))


def expected(updates, optimizer, balancer, level, clip):
    combine = None if balancer is None else lambda gramian: balancing_reference.coefficients(balancer, gramian)
    if balancer == "NormFloor":
        combine = balancing_reference.NormFloor(1.0, [1.0] * len(tiny.WEIGHTS))
    by_hand = reference.built(updates[0][0], optimizer(), tiny.WEIGHTS, combine, level, clip)
    for batches in updates:
        by_hand.update(batches)
    return tiny.values(by_hand.variables)


def trained(updates, optimizer, gathering, balancer, level, clip, strategy=None):
    num_batches, micro_batches = GATHERINGS[gathering]
    batches = [batch for update in updates for batch in update] if num_batches > 1 else [padded(u) for u in updates]

    def compiled():
        return tiny.trainer(
            optimizer(),
            balancer=MADE.get(balancer, lambda: balancer)(),
            balance_at=level,
            clip=None if clip is None else clipping.ByGlobalNorm(clip),
            micro_batches=micro_batches,
            gradient_accumulation_steps=num_batches,
        )

    if strategy is None:
        trainer = compiled()
    else:
        with strategy.scope():
            trainer = compiled()
    history = trainer.fit(dataset(batches), epochs=1, verbose=0, shuffle=False)
    assert tiny.values([trainer.update_count])[0] == UPDATES
    assert tiny.values([trainer.optimizer.iterations])[0] == UPDATES
    assert history.history["skipped_updates"] == [0.0]
    return tiny.weights_of(trainer), trainer


def assert_alike(actual, wanted):
    largest = max(np.abs(value).max() for value in wanted)
    difference = max(np.abs(a - b).max() for a, b in zip(actual, wanted, strict=True))
    assert difference <= 1e-6 * largest, f"differs by {difference / largest:.1e} of the largest weight"
