"""`PerHead`: each head's best epoch, stopping and selecting by the heads' own figures."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from multihead._ground.replicas import is_chief
from multihead._ground.validation import check_head_names, is_number, quoted
from multihead.callbacks._backup import Backup
from multihead.callbacks._best import Best, Weights, check_by_head, weights_of
from multihead.callbacks._directions import direction


class PerHead(keras.callbacks.Callback):
    """Keeps each head's best, idles heads that have stopped improving, stops when none improves, and selects by one number.

    The options are those of Keras's `EarlyStopping`, for each head by itself: with a single head, both stop after the same
    epoch and restore the same weights. A head that has not improved for `patience` epochs is idle from then on: it is not
    trained, and does not change, while the encoder and the other heads are trained further. When all heads are idle,
    training stops.

    The callback adds one number to the logs of each epoch, `val_score`, for which higher is always better. With `M_k` the
    monitored figure of head `k`, and `s_k` 1 if it is better when higher and -1 if lower, it is the mean `1/K sum_k s_k M_k`
    or, with the values `B_k` of single-task models, the mean relative gain `delta_m = 1/K sum_k s_k (M_k - B_k) / |B_k|`
    (0.05 is 5%). Callbacks that come later in the list can monitor it, with `mode="max"`.

    Args:
        monitor: The name in the logs of each head's figure, by head name. Heads that are not named are trained to the end
            and do not count. None: `val_{head}_loss` of all heads.
        min_delta: The smallest change that is an improvement; a number, or numbers by head name.
        patience: The number of epochs without an improvement after which a head is idle.
        verbose: 1 prints a line when a head becomes idle, when training stops and when weights are restored.
        mode: `"min"`, `"max"` or `"auto"`, or these by head name. `"auto"` knows losses and Keras's own metrics.
        restore_best_weights: Whether to keep the weights of the best epochs, in the memory of the host, and to set the
            encoder and all heads at the end to those of the epoch with the best `val_score`.
        start_from_epoch: Epochs before this one do not count.
        idle: Whether a head that has stopped improving becomes idle. False: it is trained further, and training stops when
            no head has improved for `patience` epochs.
        single_task: The figures of single-task models, by head name, for `delta_m`.
        backup_dir: A folder in which the state is saved after each epoch, as by Keras's `BackupAndRestore`: a run that was
            interrupted and is started again continues with it. It is deleted at the end of training. Put `BackupAndRestore`
            after this callback.

    Attributes:
        best: The best figure of each head.
        best_epoch: The epoch of each head's best figure.
        best_score: The best `val_score`.
        best_score_epoch: Its epoch.
        idle_heads: The heads that are idle.
        stopped_epoch: The epoch after which training was stopped; 0 if it was not.

    Raises:
        ValueError: An option is out of range, names an unknown head, or the direction of a figure is not known.

    Source: delta_m by Maninis, Radosavovic and Kokkinos, "Attentive Single-Tasking of Multiple Tasks", CVPR 2019.
    """

    def __init__(
        self,
        monitor: Mapping[str, str] | None = None,
        *,
        min_delta: float | Mapping[str, float] = 0,
        patience: int = 0,
        verbose: int = 0,
        mode: str | Mapping[str, str] = "auto",
        restore_best_weights: bool = True,
        start_from_epoch: int = 0,
        idle: bool = True,
        single_task: Mapping[str, float] | None = None,
        backup_dir: Any = None,
    ) -> None:
        super().__init__()
        if monitor is not None and (not isinstance(monitor, Mapping) or not monitor):
            raise ValueError(
                "`monitor` must be a dict from head names to names in the logs. "
                f"Received: monitor={monitor!r}. Pass, for example, {{'price': 'val_price_accuracy'}}."
            )
        for name, value in (("patience", patience), ("start_from_epoch", start_from_epoch)):
            if not isinstance(value, int) or value < 0:
                raise ValueError(
                    f"`{name}` must be a whole number of at least 0. Received: {name}={value!r}. Pass, for example, 3."
                )
        self.monitor = None if monitor is None else dict(monitor)
        self.min_delta = check_by_head("min_delta", min_delta, is_number, "a finite number", 0.001)
        modes = ("auto", "min", "max")
        self.mode = check_by_head("mode", mode, lambda value: value in modes, f"one of {quoted(modes)}", "max")
        self.single_task = check_by_head(
            "single_task", single_task or {}, lambda value: is_number(value) and value != 0, "a number other than 0", 0.9
        )
        self.patience, self.start_from_epoch = patience, start_from_epoch
        self.verbose, self.restore_best_weights, self.idle = verbose, restore_best_weights, idle
        self._backup = None if backup_dir is None else Backup(backup_dir)
        self._figures: dict[str, str] = {}
        self._modes: dict[str, str] = {}
        self._clear()

    def _clear(self) -> None:
        self._bests = {head: Best(self._modes[head], self._of(self.min_delta, head, 0.0)) for head in self._figures}
        self._best_score = Best("max", 0.0)
        self._rows: dict[int, dict[str, float]] = {}
        self._weights: dict[str | None, Weights] = {}
        self.idle_heads: list[str] = []
        self._newly_idle: list[str] = []
        self.stopped_epoch = 0
        self._is_started = False

    @property
    def best(self) -> dict[str, float | None]:
        return {head: best.value for head, best in self._bests.items()}

    @property
    def best_epoch(self) -> dict[str, int | None]:
        return {head: best.epoch for head, best in self._bests.items()}

    @property
    def best_score(self) -> float | None:
        return self._best_score.value

    @property
    def best_score_epoch(self) -> int | None:
        return self._best_score.epoch

    @property
    def score_name(self) -> str:
        """The name of the score in the logs: `val_score`, or `score` if all figures are those of training."""
        return "val_score" if any(name.startswith("val_") for name in self._figures.values()) else "score"

    def restore(self, head: str) -> None:
        """Sets the encoder and one head to their weights of the head's best epoch, for example to export them.

        The other heads keep their weights, which belong to another state of the encoder.

        Args:
            head: The head's name.

        Raises:
            ValueError: There are no such weights.
        """
        if head not in self._weights:
            raise ValueError(
                f"`head` must be a head with kept weights. Received: head={head!r}; there are weights of "
                f"{quoted(name for name in self._weights if name is not None)}. Pass one of these, with "
                "`restore_best_weights=True`."
            )
        self._weights[head].restore(weights_of(self.model, [head]))

    def on_train_begin(self, logs: Any = None) -> None:
        """Called by Keras."""
        heads = self.model.heads
        figures = self.monitor or {head: f"val_{head}_loss" for head in heads}
        check_head_names("monitor", figures, list(heads))
        for name in ("min_delta", "mode", "single_task"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                check_head_names(name, value, list(figures), complete=name == "single_task" and bool(value))
        self._figures = dict(figures)
        if self.idle:
            self.model.set_idle([])
        self._modes = {head: self._mode_of(head, name) for head, name in figures.items()}
        self._clear()

    def check_others(self, others: Sequence[Any]) -> None:
        """Called by the trainer: checks that callbacks which monitor the score see it, and treat higher as better.

        Args:
            others: All callbacks of the `fit`.

        Raises:
            ValueError: One does not.
        """
        for place, callback in enumerate(others):
            if getattr(callback, "monitor", None) not in ("val_score", "score"):
                continue
            name, better = type(callback).__name__, getattr(callback, "monitor_op", None)
            if place < list(others).index(self):
                raise ValueError(
                    f"`callbacks` must have PerHead before callbacks that monitor {callback.monitor!r}. Received: {name} "
                    "before PerHead. Move it."
                )
            if getattr(callback, "mode", "max") != "max" or (callable(better) and better(0.0, 1.0)):
                raise ValueError(
                    f"`mode` of {name} must be 'max': of {callback.monitor!r}, higher is better. Received: "
                    f"{name}(monitor={callback.monitor!r}) for lower values. Pass `mode='max'`."
                )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        if self._is_started:
            return
        self._is_started = True
        if self._backup is not None:
            rows, load = self._backup.read(epoch)
            for earlier, values in rows.items():
                self._count(earlier, values)
            self._weights = load({head: self._epoch_of(head) for head in [*self._bests, None]})
        self._set_idle()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Called by Keras."""
        logs = {} if logs is None else logs
        values = self._values(logs)
        if values is None:
            return
        logs[self.score_name] = self._score(values)
        for improved in self._count(epoch, values):
            if self.restore_best_weights:
                names = list(self.model.heads) if improved is None else [improved]
                self._weights[improved] = Weights(weights_of(self.model, names))
        self._set_idle(epoch)
        if self._backup is not None and is_chief(self.model):
            self._backup.write(self._rows, {head: (self._epoch_of(head), kept) for head, kept in self._weights.items()})

    def on_train_end(self, logs: Any = None) -> None:
        """Called by Keras."""
        if self.idle:
            self.model.set_idle([])
        self._say(f"Epoch {self.stopped_epoch + 1}: no head improves any more" if self.stopped_epoch else None)
        if self.restore_best_weights and None in self._weights:
            self._say(f"Restoring the weights of epoch {(self.best_score_epoch or 0) + 1}, the best {self.score_name}")
            self._weights[None].restore(weights_of(self.model, list(self.model.heads)))
        if self._backup is not None and is_chief(self.model):
            self._backup.delete()

    def get_run_state(self) -> dict[str, Any]:
        """Called by `Checkpoint`: what the callback knows of the run."""
        weights = [[head, kept.values] for head, kept in self._weights.items()]
        return {"rows": self._rows, "weights": weights}

    def set_run_state(self, state: Mapping[str, Any]) -> None:
        """Called by `Checkpoint`: restores what `get_run_state` has returned."""
        self._clear()
        for epoch, values in state["rows"].items():
            self._count(epoch, values)
        self._weights = {head: Weights(values) for head, values in state["weights"]}
        self._is_started = True
        self._set_idle()

    def _count(self, epoch: int, values: dict[str, float]) -> list[str | None]:
        """Adds the figures of an epoch to the state; the heads, and None for the score, which are better than before."""
        self._rows[epoch] = values
        self._newly_idle = []
        if epoch < self.start_from_epoch:
            return []
        improved: list[str | None] = [head for head, best in self._bests.items() if best.add(epoch, values[head])]
        ended = [head for head, best in self._bests.items() if head not in improved and best.wait >= self.patience]
        self._newly_idle = [head for head in ended if self.idle and epoch > 0 and head not in self.idle_heads]
        self.idle_heads += self._newly_idle
        finished = self.idle_heads if self.idle else ended
        if epoch > 0 and len(finished) == len(self._bests):
            self.stopped_epoch = epoch
        return [*improved, None] if self._best_score.add(epoch, self._score(values)) else improved

    def _set_idle(self, epoch: int | None = None) -> None:
        """Makes heads idle as the state says, or stops training."""
        if self.idle:
            self.model.set_idle(self.idle_heads)
        for head in [] if epoch is None else self._newly_idle:
            best = f"{self._figures[head]} was {self.best[head]}"
            self._say(f"Epoch {(epoch or 0) + 1}: head {head!r} is idle; its best {best}")
        if self.stopped_epoch:
            self.model.stop_training = True

    def _values(self, logs: Mapping[str, Any]) -> dict[str, float] | None:
        absent = [name for name in self._figures.values() if name not in logs]
        if not absent:
            return {head: float(logs[name]) for head, name in self._figures.items()}
        if all(name.startswith("val_") for name in absent) and not any(name.startswith("val_") for name in logs):
            return None  # an epoch without validation
        raise ValueError(
            f"`monitor` must have names in the logs. Received: {quoted(absent)}; the logs have {quoted(logs)}. "
            "Correct the name, or pass `validation_data` with targets for the head."
        )

    def _score(self, values: Mapping[str, float]) -> float:
        signs = {head: 1.0 if self._modes[head] == "max" else -1.0 for head in values}
        if not self.single_task:
            return float(np.mean([signs[head] * value for head, value in values.items()]))
        base = self.single_task
        return float(np.mean([signs[head] * (value - base[head]) / abs(base[head]) for head, value in values.items()]))

    def _mode_of(self, head: str, figure: str) -> str:
        mode = self._of(self.mode, head, "auto")
        mode = direction(figure, self.model.heads[head]) if mode == "auto" else mode
        if mode is None:
            raise ValueError(
                f"`mode` must say whether {figure!r} is better if it is higher or lower, which is known only for losses and "
                f"Keras's metrics. Received: mode={self.mode!r}. Pass `mode={{{head!r}: 'max'}}`, or 'min'."
            )
        return mode

    def _epoch_of(self, head: str | None) -> int | None:
        return self.best_score_epoch if head is None else self.best_epoch[head]

    def _say(self, text: str | None) -> None:
        if self.verbose and text is not None:
            sys.stdout.write(f"{text}\n")

    @staticmethod
    def _of(option: Any, head: str, default: Any) -> Any:
        return option.get(head, default) if isinstance(option, Mapping) else option
