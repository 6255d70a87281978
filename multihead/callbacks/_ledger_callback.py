"""Callbacks that record the statistics of updates: in a file, or for TensorBoard."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from multihead._ground.replicas import is_chief
from multihead.callbacks._board import Board
from multihead.callbacks._ledger import as_text, cut, keep_until, on_disk, writing
from multihead.callbacks._per_update import PerUpdate


class UpdateLogger(PerUpdate):
    """Writes the statistics of updates to a file, one line of JSON per update, during training.

    A line has `step`, the number of updates applied so far with this one; `epoch`; `applied`; and the statistics of
    `compile(telemetry=)` of this update alone, by their names in the logs, with null for missing ones, such as the
    norm of an idle head. With `telemetry="full"`, every `layers_every`-th update also has `layers`: the same statistics in
    each layer of the encoder. An update that was skipped has `"applied": false` and the step that it would have reached.
    After each epoch with validation, a line with the `val_...` metrics follows.

    Every line is written at once, so that a crash loses none. A run that continues from a `Checkpoint` cuts the file to its
    length at the checkpoint and ends with the same lines as a run that was never stopped. Without a checkpoint, a file that
    exists is continued, too: lines of updates after the trainer's current step are dropped first, and a run from step 0
    starts over.
    `python -m multihead plot run.jsonl` draws the statistics, and `multihead.plots.read` reads them.

    Args:
        path: The file. Its folder is created.
        every: Write a line once in this many updates. (Reading the statistics of an update waits for the device.)

    Raises:
        ValueError: `every` is below 1 or, in `fit`, the trainer has `telemetry=None` or the file is no ledger.

    Example:
        ```python
        trainer.compile("adam", telemetry="full")
        trainer.fit(batches, epochs=10, callbacks=[UpdateLogger("run.jsonl")])
        ```
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(every)
        self.path = Path(path)
        self._writes = False

    def begin(self, statistics: Any, step: int) -> None:
        """Continues the file at a step."""
        self._writes = is_chief(self.model)
        if not self._writes:
            return
        if self.path.is_dir():
            raise ValueError(f"`path` must be a file. Received: {str(self.path)!r}, a folder. Add the file's name.")
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = [line for line in keep_until(self.path, step) if "applied" in line]
            self.path.touch()
        averaged = () if statistics is None else statistics.layout.averaged
        if averaged and lines and not statistics.has_averages:
            last: dict[str, Any] = next((line for line in reversed(lines) if line["applied"]), {})
            values = {name: last.get(f"{name}_average") for name in averaged}
            counts = {name: self.every * sum(line.get(name) is not None for line in lines) for name in averaged}
            statistics.restore_averages(values, counts)

    def resume(self, statistics: Any, step: int, place: Any) -> None:
        """Cuts the file to its length at the checkpoint."""
        self._writes = is_chief(self.model)
        if self._writes and place is not None and not cut(self.path, place):
            warnings.warn(
                f"The ledger of a resumed run must hold the lines before its checkpoint. Received: {self.path}, of fewer "
                f"than {place} bytes. Lines are missing: put the file back, or read what there is of it.",
                RuntimeWarning,
                stacklevel=2,
            )
            self.begin(statistics, step)

    def place(self) -> int | None:
        """The length of the file, which is on the disk."""
        return on_disk(self.path) if self._writes else None

    def write(self, line: dict[str, Any]) -> None:
        """Writes a line."""
        if self._writes:
            with writing(self.path), open(self.path, "a", encoding="utf-8", newline="\n") as file:
                file.write(as_text(line))

    def write_validation(self, line: dict[str, Any]) -> None:
        """Writes a line."""
        self.write(line)


class HeadTensorBoard(PerUpdate):
    """Shows the statistics of updates in TensorBoard during training, grouped by head.

    Scalars are `{head}/loss`, `{head}/norm` and so on, `cosines/{head} and {other}`, and `update/...` for statistics of no
    head; their step is the number of updates. At the end of each epoch an image, `cosines`, shows the mean cosines between
    the heads' gradients so far, and of each with the update; it needs `telemetry="full"` and matplotlib. Keras's own
    `TensorBoard` can be used as well, with the same folder.

    Args:
        log_dir: The folder, for `tensorboard --logdir`.
        every: Write once in this many updates.

    Raises:
        ValueError: `every` is below 1 or, in `fit`, the trainer has `telemetry=None`.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(every)
        self.log_dir = Path(log_dir)
        self._board: Board | None = None

    def begin(self, statistics: Any, step: int) -> None:
        """Opens the folder."""
        if is_chief(self.model):
            self._board = Board(self.log_dir, list(self.model.heads))

    def write(self, line: dict[str, Any]) -> None:
        """Writes the scalars of an update."""
        if self._board is not None:
            self._board.add_scalars(line)

    def write_validation(self, line: dict[str, Any]) -> None:
        """Writes the scalars of a validation."""
        self.write(line)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        if self._board is not None:
            self._board.add_cosines(dict(logs or {}), self._step)

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self._board is not None:
            self._board.close()
            self._board = None
