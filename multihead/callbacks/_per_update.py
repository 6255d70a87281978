"""The base of callbacks that write the statistics of single updates: it finds the new updates and their steps."""

from __future__ import annotations

from typing import Any

import keras

from multihead._ground.validation import check_positive_whole


class PerUpdate(keras.callbacks.Callback):
    """Calls `begin` or `resume`, then `write` and `write_validation` with the statistics of updates.

    An update that was skipped has the step that it would have reached.

    Args:
        every: Only updates whose step is a multiple of this are written.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = check_positive_whole("every", every)
        self._is_begun = False
        self._epoch = 0
        self._seen = 0  # updates, skipped ones included
        self._step = 0
        self._calls = 0  # of the step function since the statistics were last read
        self._layers: list[str] = []  # the encoder's layers, by their names when the run began

    def begin(self, statistics: Any, step: int) -> None:
        """Called before the first update of a `fit`.

        Args:
            statistics: The trainer's `UpdateStatistics`; None before the trainer is built.
            step: The number of updates applied so far.
        """

    def resume(self, statistics: Any, step: int, place: Any) -> None:
        """Called instead of `begin` in a run that continues from a checkpoint.

        Args:
            statistics: As for `begin`.
            step: As for `begin`.
            place: What `place` returned when the checkpoint was made.
        """
        self.begin(statistics, step)

    def place(self) -> Any:
        """How far the writing has come, as something that a checkpoint can hold; until there, it is on the disk."""
        return None

    def write(self, line: dict[str, Any]) -> None:
        """Called for an update, with its `step`, `epoch` and statistics."""
        raise NotImplementedError

    def write_validation(self, line: dict[str, Any]) -> None:
        """Called at the end of an epoch with validation, with `step`, `epoch` and the statistics of validation."""

    def get_run_state(self) -> dict[str, Any]:
        """Called by `Checkpoint`: where the callback is among the updates, and in its file."""
        if not self._is_begun:
            return {}
        return {
            "seen": self._seen,
            "step": self._step,
            "calls": self._calls,
            "layers": self._layers,
            "place": self.place(),
        }

    def set_run_state(self, state: dict[str, Any]) -> None:
        """Called by `Checkpoint`: continues from the result of `get_run_state`, before any further update."""
        if not state:
            return
        self._is_begun = True
        statistics = self._statistics()
        recorded = statistics.num_recorded if statistics else 0
        # Without statistics of the run, which `Checkpoint(strict=False)` may have left out, there are none to wait for.
        self._seen, self._calls = (state["seen"], state["calls"]) if state["seen"] <= recorded else (recorded, 0)
        self._step, self._layers = state["step"], state["layers"]
        self.resume(statistics, self.model.num_updates, state["place"])

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self.model.options.telemetry is None:
            raise ValueError(
                f"`telemetry` must be 'norms' or 'full' for {type(self).__name__}. Received: telemetry=None. Pass one of "
                "them to `compile`."
            )
        if self.model.options.steps_per_execution == "auto":
            raise ValueError(
                f"`steps_per_execution` must be a number for {type(self).__name__}, which reads as many updates at once. "
                "Received: steps_per_execution='auto'. Pass a number to `compile`."
            )
        self._is_begun = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if not self._is_begun:  # now callbacks that load weights have done so
            self._is_begun, self._layers = True, []
            statistics = self._statistics()
            self._seen, self._step, self._calls = statistics.num_recorded if statistics else 0, self.model.num_updates, 0
            self.begin(statistics, self._step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Called by Keras."""
        self._calls += 1
        # Reading waits for the device, so it is done only after the step that may hold the next multiple.
        if self._calls * self.model.options.updates_at_once >= self.every - self._step % self.every:
            self._read()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if not self._is_begun:
            return
        self._read()
        validation = {name: float(value) for name, value in (logs or {}).items() if name.startswith("val_")}
        if validation:
            self.write_validation({"step": self._step, "epoch": epoch, **validation})

    def _statistics(self) -> Any:
        return None if self.model.log_metrics is None else self.model.log_metrics.statistics

    def _read(self) -> None:
        statistics, number = self._statistics(), self.model.num_updates
        lines, new = statistics.latest(), statistics.num_recorded - self._seen
        lines = lines[len(lines) - min(new, len(lines)) :]
        step = number - sum(line["applied"] for line in lines)
        for line in lines:
            if (step + 1) % self.every == 0:
                self.write({"step": step + 1, "epoch": self._epoch, **self._renamed(line)})
            step += line["applied"]
        self._seen, self._step, self._calls = self._seen + new, number, 0

    def _renamed(self, line: dict[str, Any]) -> dict[str, Any]:
        """The statistics with the names that layers had when the run began: Keras's own count the layers of a process."""
        if "layers" not in line:
            return line
        if len(self._layers) != len(line["layers"]):
            self._layers = list(line["layers"])
        return {**line, "layers": dict(zip(self._layers, line["layers"].values()))}
