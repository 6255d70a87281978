"""A run as statistics over its updates or epochs, from a ledger or from Keras's `History`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from multihead.callbacks import _ledger

_LOSS = "_loss"


@dataclass(frozen=True)
class Run:
    """A run, from its ledger or from Keras's `History`.

    Attributes:
        heads: The heads' names, including heads that were added or dropped during the run.
        steps: `[lines]`: the number of updates after each line's, or of epochs.
        values: By name, `[lines]` statistics; NaN where an update does not have one.
        layers: By encoder layer and by name, the mean over the updates that measured it.
        validation_steps: `[epochs]`: the number of updates after each epoch with validation.
        validation: By name (`val_...`), `[epochs]` values.
        name: What the run is called beside others.
        unit: What `steps` count: `"updates"`, or `"epochs"`, whose values are means already.
    """

    heads: tuple[str, ...]
    steps: np.ndarray
    values: Mapping[str, np.ndarray]
    layers: Mapping[str, Mapping[str, float]]
    validation_steps: np.ndarray
    validation: Mapping[str, np.ndarray]
    name: str = ""
    unit: str = "updates"

    def smoothed(self, values: np.ndarray) -> np.ndarray:
        """Values as they are drawn: those of updates are smoothed."""
        return smooth(values) if self.unit == "updates" else values


def read(path: str | os.PathLike[str]) -> Run:
    """Reads a ledger.

    Args:
        path: The file that `callbacks.UpdateLogger` has written.

    Raises:
        ValueError: The file is no ledger, or has no updates.
    """
    found = _ledger.read(path)
    updates, epochs = ([line for line in found if ("applied" in line) == is_update] for is_update in (True, False))
    updates = [line for line in updates if line["applied"]]
    if not updates:
        raise ValueError(
            f"`path` must be a ledger with at least one applied update. Received: {os.fspath(path)!r}, with none. Train "
            "further, or pass another file."
        )
    names = dict.fromkeys(name for line in updates for name in line)  # heads may have been added and dropped
    heads = tuple(name.removesuffix(_LOSS) for name in names if name.endswith(_LOSS))
    by_layer: dict[str, dict[str, list[float]]] = {}
    for line in updates:
        for layer, of_layer in line.get("layers", {}).items():
            for name, value in of_layer.items():
                by_layer.setdefault(layer, {}).setdefault(name, []).append(np.nan if value is None else value)
    return Run(
        heads,
        np.array([line["step"] for line in updates]),
        _columns(updates),
        {layer: {name: mean(values) for name, values in found.items()} for layer, found in by_layer.items()},
        np.array([line["step"] for line in epochs]),
        _columns(epochs),
        Path(path).stem,
    )


def of_history(history: Any) -> Run:
    """The run of one call of `fit`, by epoch.

    Args:
        history: What `fit` has returned.

    Raises:
        ValueError: It has no epoch, or no losses of heads.
    """
    known = {name: np.array(values, np.float64) for name, values in history.history.items()}
    of_training = {name: values for name, values in known.items() if not name.startswith("val_")}
    heads = tuple(name.removesuffix(_LOSS) for name in of_training if name.endswith(_LOSS))
    if not heads:
        raise ValueError(
            "`run` must be the history of a `fit` with the losses of heads. Received: a history of "
            f"{', '.join(known) or 'no epoch'}. Pass what `MultiHeadTrainer.fit` has returned."
        )
    steps = np.array(history.epoch) + 1
    validation = {name: values for name, values in known.items() if name.startswith("val_")}
    steps_of = {len(values): steps[-len(values) :] for values in validation.values()}
    return Run(heads, steps, of_training, {}, next(iter(steps_of.values()), steps[:0]), validation, "history", "epochs")


def runs_of(run: Any) -> list[Run]:
    """The runs of what a picture is given: one or several, each with a name of its own.

    Raises:
        TypeError: It is none of what a run can be.
    """
    given = list(run) if isinstance(run, (list, tuple)) else [run]
    found = [_one(each) for each in given]
    if not found:
        raise ValueError("`run` must be at least one run. Received: an empty list. Pass the file of a ledger.")
    names = [each.name or "run" for each in found]
    numbered = (f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names))
    return [replace(each, name=name) for each, name in zip(found, numbered)]


def _one(run: Any) -> Run:
    if isinstance(run, Run):
        return run
    if isinstance(run, (str, os.PathLike)):
        return read(run)
    if hasattr(run, "history") and hasattr(run, "epoch"):
        return of_history(run)
    raise TypeError(
        "`run` must be the file of a ledger, what `plots.read` returns, Keras's `History`, or a list of these. "
        f"Received: {run!r}. Pass what `fit` has returned."
    )


def _columns(found: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for line in found for name in line)
    names = {name: None for name in names if name not in ("step", "epoch", "applied", "layers")}
    return {name: np.array([line.get(name) for line in found], np.float64) for name in names}


def mean(values: Sequence[float]) -> float:
    known = np.isfinite(values)
    return float(np.mean(np.asarray(values)[known])) if known.any() else float("nan")


def smooth(values: np.ndarray) -> np.ndarray:
    """An exponential average over about a twentieth of the run, without bias towards 0; NaN for missing values."""
    decay = 1 - min(0.3, 20 / len(values))
    averages, total, weight = np.full(len(values), np.nan), 0.0, 0.0
    for i in np.flatnonzero(np.isfinite(values)):
        total, weight = decay * total + values[i], decay * weight + 1
        averages[i] = total / weight
    return averages
