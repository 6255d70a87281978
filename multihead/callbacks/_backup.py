"""A callback's state in a folder, from which an interrupted run continues."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multihead.callbacks._best import Weights

Rows = dict[int, dict[str, float]]


class Backup:
    """The figures of all epochs, and the weights of the best ones.

    The files of an epoch's state are written before those of the epoch before are deleted, and all that follows from the
    figures is computed again from them: so the state fits a trainer that is an epoch behind, too.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._state = self._folder / "per_head.json"
        self._kept: set[str] = set()

    def read(self, epoch: int) -> tuple[Rows, Callable[[Mapping[str | None, int | None]], dict[str | None, Weights]]]:
        """The figures of the epochs before this one, and a function that gives the weights of epochs by head."""
        rows: Rows = {}
        names: list[str | None] = []
        if self._state.is_file():
            state = json.loads(self._state.read_text(encoding="utf-8"))
            rows = {int(key): values for key, values in state["epochs"].items() if int(key) < epoch}
            names = state["weights"]

        def weights(epochs: Mapping[str | None, int | None]) -> dict[str | None, Weights]:
            found = {}
            for head in names:
                path = self._folder / self._file(names, head, epochs.get(head))
                if path.is_file():
                    self._kept.add(path.name)
                    with np.load(path) as arrays:
                        found[head] = Weights(arrays[f"arr_{i}"] for i in range(len(arrays.files)))
                elif epochs.get(head) is not None:
                    warnings.warn(f"{path} is missing: the weights cannot be restored.", RuntimeWarning, stacklevel=2)
            return found

        return rows, weights

    def write(self, rows: Rows, weights: Mapping[str | None, tuple[int | None, Weights]]) -> None:
        """Writes the figures of all epochs, and weights with their epoch by head."""
        self._folder.mkdir(parents=True, exist_ok=True)
        names = list(weights)
        files = {self._file(names, head, epoch): kept for head, (epoch, kept) in weights.items()}
        for name, kept in files.items():
            if not (self._folder / name).is_file() or name not in self._kept:
                np.savez(self._folder / name, *kept.values)
        state = {"epochs": rows, "weights": names}
        draft = self._state.with_suffix(".tmp")
        draft.write_text(json.dumps(state), encoding="utf-8")
        os.replace(draft, self._state)
        for path in self._folder.glob("best-*.npz"):
            if path.name not in self._kept | files.keys():
                path.unlink()
        self._kept = set(files)

    def delete(self) -> None:
        """Deletes the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @staticmethod
    def _file(names: list[Any], head: str | None, epoch: int | None) -> str:
        return f"best-{names.index(head)}-{epoch}.npz"
