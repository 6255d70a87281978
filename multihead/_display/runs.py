"""Runs, read from ledgers or Keras's `History`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from multihead._ground.types import Config
from multihead._ground.validation import nearest

_OF_LINES = ("step", "epoch", "applied")


@dataclass(frozen=True)
class Run:
    """A run, from its ledger or from Keras's `History`.

    Attributes:
        heads: The heads' names, including heads that were added or dropped during the run.
        steps: `[lines]`: the number of updates, or of epochs, after that of the line.
        values: By name, `[lines]` statistics; NaN where an update does not have one.
        validation_steps: `[epochs]`: the number of updates after the epochs with validation.
        validation: By name (`val_...`), `[epochs]` values.
        name: The name of the run beside others.
        unit: What `steps` count: `"updates"`, or `"epochs"`, whose values are means already.
    """

    heads: tuple[str, ...]
    steps: np.ndarray
    values: Mapping[str, np.ndarray]
    validation_steps: np.ndarray
    validation: Mapping[str, np.ndarray]
    name: str = ""
    unit: str = "updates"

    def smoothed(self, values: np.ndarray) -> np.ndarray:
        """Values as they are drawn: those of updates as exponential averages over about a twentieth of the run.

        They have no bias towards 0, and are NaN for missing values.
        """
        if self.unit != "updates":
            return values
        decay = 1 - min(0.3, 20 / len(values))
        averages, total, weight = np.full(len(values), np.nan), 0.0, 0.0
        for i in np.flatnonzero(np.isfinite(values)):
            total, weight = decay * total + values[i], decay * weight + 1
            averages[i] = total / weight
        return averages


def read(path: str | os.PathLike[str]) -> Run:
    """Reads a ledger.

    Args:
        path: The file that `callbacks.UpdateLogger` has written.

    Raises:
        ValueError: The file is no ledger, or has no updates.
    """
    return _run_of(read_ledger(path), "path", Path(path).stem, "updates")


def _run_of(lines: Sequence[Config], argument: str, name: str, unit: str) -> Run:
    """The run of the lines of updates (or epochs), which have `applied`, and of validations."""
    updates = [line for line in lines if line.get("applied")]
    validations = [line for line in lines if "applied" not in line]
    tables = []
    for group in (updates, validations):  # in which heads may have been added and dropped
        names = dict.fromkeys(name for line in group for name in line if name not in _OF_LINES)
        tables.append({name: np.array([line.get(name) for line in group], np.float64) for name in names})
    heads = tuple(name.removesuffix("_loss") for name in tables[0] if name.endswith("_loss"))
    if not heads:
        raise ValueError(
            f"`{argument}` must have applied updates with the losses of heads. Received: {name!r}, with "
            f"{', '.join(tables[0]) or 'no update'}. Pass the ledger of a longer run, or what `fit` has returned."
        )
    steps, validation_steps = (np.array([line["step"] for line in group]) for group in (updates, validations))
    return Run(heads, steps, tables[0], validation_steps, tables[1], name, unit)


def read_ledger(path: str | os.PathLike[str]) -> list[Config]:
    """The lines of a ledger. A last line that a crash has cut off is left out."""
    hint = "Pass a file of `callbacks.UpdateLogger`."
    return read_lines(path, "a ledger, with a JSON object per line", "step", lambda line, number: "step" in line, hint)


def read_lines(
    path: str | os.PathLike[str], kind: str, first: str, is_valid: Callable[[Config, int], bool], hint: str
) -> list[Config]:
    """The lines of a file of JSON objects; `kind` says of what, and `is_valid` whether a line with its number is one.

    A last line without a line break, which a crash has cut off, is left out. The first one begins with the key `first`.
    """
    if not os.path.exists(path):
        folder = Path(path).parent
        near = nearest(Path(path).name, [file.name for file in folder.iterdir()] if folder.is_dir() else [])
        hint = f"Did you mean {str(folder / near)!r}?" if near else hint
        raise FileNotFoundError(f"`path` must be a file. Received: {os.fspath(path)!r}, which does not exist. {hint}")
    texts, objects = Path(path).read_text(encoding="utf-8").split("\n"), []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text) if text else None
        except ValueError:
            line = None
        if isinstance(line, dict) and is_valid(line, number):
            objects.append(line)
        elif text and (number < len(texts) or (number == 1 and not text.startswith(f'{{"{first}"'[: len(text)]))):
            raise ValueError(
                f"`path` must be the file of {kind}. Received: {os.fspath(path)!r}, whose line {number} is {text[:60]!r}. "
                f"{hint}"
            )
    return objects


def runs_of(run: object) -> list[Run]:
    """The runs that a plot takes: one or several."""
    runs = []
    for source in run if isinstance(run, (list, tuple)) else [run]:
        if isinstance(source, Run):
            runs.append(source)
        elif isinstance(source, (str, os.PathLike)):
            runs.append(read(source))
        elif hasattr(source, "history") and hasattr(source, "epoch"):
            lines: list[Config] = []
            for place, epoch in enumerate(source.epoch, start=-len(source.epoch)):  # not every epoch has a validation
                values = {name: known[place] for name, known in source.history.items() if place >= -len(known)}
                validation = {name: value for name, value in values.items() if name.startswith("val_")}
                training = {name: value for name, value in values.items() if name not in validation}
                lines.append({"step": epoch + 1, "applied": True, **training})
                lines += [{"step": epoch + 1, **validation}] if validation else []
            runs.append(_run_of(lines, "run", "history", "epochs"))
        else:
            raise TypeError(
                "`run` must be the file of a ledger, what `plots.read` returns, Keras's `History`, or a list of these. "
                f"Received: {source!r}. Pass what `fit` has returned."
            )
    if not runs:
        raise ValueError("`run` must be at least one run. Received: an empty list. Pass the file of a ledger.")
    return runs
