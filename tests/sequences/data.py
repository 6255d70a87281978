"""Data of every form for heads of two columns, with labels missing in every way, and the batches that they consist of."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import strategies as st

from tests.helpers.keras_twin import Batches

INPUTS, COLUMNS = 3, 2

FORMS = ("arrays", "dataset", "generator", "sequence", "iterable")
BY_BATCH = ("generator", "sequence")
"""The forms in which a head may be absent from some of the batches."""
MISSING = (
    "no",
    "rows",
    "columns",
    "first batch",
    "last batch",
    "everything",
    "absent from the first",
    "absent from the last",
)


class Iterable:
    """Batches, again and again."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def parts(batch: Any) -> Any:
    """A batch as it is given: without weights if there are none."""
    return batch if batch[2] else batch[:2]


def batches_of(seed: int, sizes: list[int], missing: dict[str, str], weighted: list[str]) -> list[Any]:
    """Batches, `(x, y, sample_weight)`; numbers are eighths, so that no dtype rounds them.

    Args:
        seed: Of the numbers.
        sizes: Of the batches.
        missing: By head, which of its labels are missing; a head without an entry is in no batch.
        weighted: The heads that have sample weights.
    """
    rng, found = np.random.default_rng(seed), []
    for place, size in enumerate(sizes):
        x = rng.integers(-8, 9, (size, INPUTS)) / 8
        targets, weights = {}, {}
        for name, kind in missing.items():
            y = rng.integers(-8, 9, (size, COLUMNS)) / 8
            at = {"first": place == 0, "last": place == len(sizes) - 1}
            if kind == "rows":
                y[rng.random(size) < 0.5] = np.nan
            elif kind == "columns":
                y[rng.random(y.shape) < 0.5] = np.nan
            elif kind == "everything" or (kind.endswith(" batch") and at[kind.split()[0]]):
                y[:] = np.nan
            if kind.startswith("absent") and at[kind.split()[-1]]:
                continue
            targets[name] = y
            if name in weighted:
                weights[name] = rng.choice([0.0, 0.5, 1.0, 2.0], size)
        found.append((x, targets, weights))
    return found


def drawn(data: Any, heads: list[str], needed: list[str] = (), epochs: int = 1, accumulates: int = 1) -> Any:
    """A form, and the batches of every epoch.

    Args:
        data: Of Hypothesis.
        heads: The names of heads that may have targets.
        needed: Those of them that must have some.
        epochs: The number of epochs.
        accumulates: How many batches an update consists of.
    """
    form = data.draw(st.sampled_from(FORMS), label="form")
    number = data.draw(st.integers(1, 3), label="batches")
    if form == "generator":  # an epoch ends with an update of as many batches as any
        number = accumulates * max(number - 1, 1)
    size, last = data.draw(st.integers(1, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))), label="rows")
    weighted = data.draw(st.lists(st.sampled_from(heads), unique=True, max_size=1), label="weighted")
    kinds = MISSING if form in BY_BATCH and number > 1 else MISSING[:-2]
    absent = data.draw(st.lists(st.sampled_from(heads), unique=True, max_size=2), label="absent")
    present = [name for name in heads if name in needed or name not in absent] or heads[:1]
    found = []
    for _ in range(epochs if form == "generator" else 1):
        missing = {name: data.draw(st.sampled_from(kinds), label=f"missing of {name}") for name in present}
        seed = data.draw(st.integers(0, 99), label="seed")
        found.append(batches_of(seed, [size] * (number - 1) + [last], missing, weighted))
    return form, found if form == "generator" else found * epochs


def as_given(form: str, epochs: list[list[Any]], accumulates: int = 1) -> dict[str, Any]:
    """The arguments of `fit` for the data; those of `evaluate`, for the one epoch, have `steps` in place of `steps_per_epoch`."""
    batches = epochs[0]
    if form in ("arrays", "dataset"):
        x, y, weights = tf.nest.map_structure(lambda *each: np.concatenate(each), *batches)
        if form == "arrays":
            weights = {"sample_weight": weights} if weights else {}
            return {"x": x, "y": y, "batch_size": len(batches[0][0]), **weights}
        return {"x": tf.data.Dataset.from_tensor_slices((x, y, weights) if weights else (x, y)).batch(len(batches[0][0]))}
    if form == "iterable":
        return {"x": Iterable([parts(batch) for batch in batches])}
    if form == "sequence":
        return {"x": Batches([parts(batch) for batch in batches])}
    drawn = (parts(batch) for batches in epochs for batch in batches)
    return {"x": drawn, "steps_per_epoch": -(-len(batches) // accumulates)}
