"""`HeadEarlyStopping`: each head's best epoch, stopping and selecting by the heads' own metrics."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.layers import distinct
from multihead._ground.types import Callback, Config, Logs, Trainer
from multihead._ground.validation import check_choice, check_head_names, check_whole, did_you_mean, is_number, quoted
from multihead.heads._directions import direction
from multihead.heads._metric_names import log_name
from multihead.heads._named import NamedHead


class HeadEarlyStopping(keras.callbacks.Callback):
    """Makes heads idle that stop improving, ends training when none improves, and selects the best epoch by one score.

    The options are those of Keras's `EarlyStopping`, applied to each head separately: with a single head, both callbacks
    stop after the same epoch and restore the same weights. A head that has not improved for `patience` epochs is idle from
    then on: it is not trained and does not change, while training of the encoder and the other heads continues. When all
    heads are idle, training stops.

    The callback adds one number to the logs of each epoch, `val_score`, for which higher is always better. With `M_k` the
    monitored metric of head `k`, and `s_k` 1 if it is better when higher and -1 if lower, it is the mean `1/K sum_k s_k M_k`
    or, with the values `B_k` of single-task models, the mean relative gain `delta_m = 1/K sum_k s_k (M_k - B_k) / |B_k|`
    (0.05 is 5%). Callbacks that come later in the list can monitor it, with `mode="max"`. A head that has had no metric so
    far, because it has no labels, does not count and continues to be trained, with a warning; when it has its first metric,
    the search for the best score restarts. An idle head that is monitored in training keeps its last metric. In an epoch in
    which any other metric is NaN, the score is NaN, and the epoch is not selected.

    Args:
        monitor: The name in the logs of each head's metric, by head name. Heads that are not named are trained to the end
            and do not count. None: `val_{head}_loss` of all heads.
        min_delta: The smallest change that counts as an improvement; a number, or numbers by head name.
        patience: The number of epochs without an improvement after which a head is idle.
        verbose: 1 prints a line when a head becomes idle, when training stops and when weights are restored.
        mode: `"min"`, `"max"` or `"auto"`, or these by head name. `"auto"` knows losses and Keras's own metrics.
        restore_best_weights: Whether to keep the weights of the best epochs, in host memory, and to restore those of the
            epoch with the best `val_score` at the end, for the encoder and all heads.
        start_from_epoch: Epochs before this one do not count.
        idle: Whether a head that has stopped improving becomes idle. False: it continues to be trained, and training stops
            when no head has improved for `patience` epochs.
        single_task: The metrics of single-task models, by head name, for `delta_m`.

    Attributes:
        best: The best metric of each head.
        best_epoch: The epoch of each head's best metric.
        best_score: The best `val_score`.
        best_score_epoch: The epoch of the best `val_score`.
        score_name: The name of the score in the logs: `val_score`, or `score` if all metrics are training metrics.
        idle_heads: The heads that are idle.
        stopped_epoch: The epoch after which training was stopped; 0 if it was not.

    Raises:
        ValueError: An option is out of range or names an unknown head, or the direction of a metric is unknown.

    Example:
        >>> metrics = {"price": "val_price_accuracy", "size": "val_size_loss"}
        >>> stopping = HeadEarlyStopping(metrics, patience=3)

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
    ) -> None:
        super().__init__()
        if monitor is not None and (not isinstance(monitor, Mapping) or not monitor):
            raise ValueError(
                "`monitor` must be a dict from head names to names in the logs. "
                f"Received: monitor={monitor!r}. Pass, for example, {{'price': 'val_price_accuracy'}}."
            )
        if not all(map(is_number, min_delta.values() if isinstance(min_delta, Mapping) else [min_delta])):
            raise ValueError(
                "`min_delta` must be a finite number, or a dict of these by head name. Received: "
                f"min_delta={min_delta!r}. Pass, for example, 0.001."
            )
        for choice in mode.values() if isinstance(mode, Mapping) else [mode]:
            check_choice("mode", choice, ("auto", "min", "max"))
        bases = single_task or {}
        if not isinstance(bases, Mapping) or not all(is_number(base) and base != 0 for base in bases.values()):
            raise ValueError(
                "`single_task` must be a dict of numbers other than 0 by head name. Received: "
                f"single_task={single_task!r}. Pass, for example, {{'price': 0.9}}."
            )
        self.monitor = None if monitor is None else dict(monitor)
        self.min_delta, self.mode, self.single_task = min_delta, mode, dict(bases)
        self.patience = check_whole("patience", patience, least=0)
        self.start_from_epoch = check_whole("start_from_epoch", start_from_epoch, least=0)
        self.verbose, self.restore_best_weights, self.idle = verbose, restore_best_weights, idle
        self._metrics, self._modes, self._validates = dict[str, str](), dict[str, str](), True
        self._clear()

    def _clear(self) -> None:
        self.score_name = "val_score" if any(name.startswith("val_") for name in self._metrics.values()) else "score"
        self.best: dict[str, float | None] = dict.fromkeys(self._metrics)
        self.best_epoch: dict[str, int | None] = dict.fromkeys(self._metrics)
        self.best_score: float | None = None
        self.best_score_epoch: int | None = None
        self._last: dict[str, float] = {}  # the last metric, other than NaN, of each head that has had one
        self._rows: dict[int, dict[str, float]] = {}
        self._weights: dict[str | None, list[np.ndarray]] = {}  # of the best epoch of a head or, for None, of the score
        self.idle_heads: list[str] = []
        self.stopped_epoch = 0

    def restore(self, head: str) -> None:
        """Sets the encoder and one head to their weights of the head's best epoch, for example to export them.

        The other heads keep their weights, which belong to another state of the encoder.

        Args:
            head: The head's name.

        Raises:
            ValueError: There is no such head, or no weights of its best epoch were kept.
        """
        kept = [name for name in self._weights if name is not None]
        if head not in kept:
            raise ValueError(
                f"`head` must be a head with kept weights. Received: head={head!r}; there are weights of "
                f"{quoted(kept)}. {did_you_mean([head], kept, 'Pass one of these, with `restore_best_weights=True`.')}"
            )
        self._restore(head)

    def on_train_begin(self, logs: Logs = None) -> None:
        heads = self.model.heads
        metrics = self.monitor or {name: f"val_{name}_loss" for name, head in heads.items() if head.loss is not None}
        check_head_names("monitor", metrics, list(heads))
        for name in ("min_delta", "mode", "single_task"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                check_head_names(name, value, list(metrics), complete=name == "single_task" and bool(value))
        self._metrics = dict(metrics)
        self._modes = {head: self._mode_of(head, name) for head, name in metrics.items()}
        self._clear()
        self._apply()

    def check_fit(self, others: Sequence[Callback], *, validates: bool) -> None:
        """Called by the trainer: checks that callbacks which monitor the score see it, and treat higher as better.

        Args:
            others: All callbacks of the `fit`.
            validates: Whether the `fit` has validation data.

        Raises:
            ValueError: Such a callback comes before this one or has a `mode` for which lower is better, or the metrics to
                monitor need validation data and `validates` is False.
        """
        self._validates = validates
        if self.monitor is None and not validates:
            raise ValueError(
                "`validation_data` must be given for HeadEarlyStopping, which monitors `val_{head}_loss`. Received: a `fit` "
                "without validation data. Pass them, or other metrics by head name as `monitor`."
            )
        for place, callback in enumerate(others):
            if getattr(callback, "monitor", None) not in ("val_score", "score"):
                continue
            name, better = type(callback).__name__, getattr(callback, "monitor_op", None)
            if place < list(others).index(self):
                raise ValueError(
                    f"`callbacks` must have HeadEarlyStopping before callbacks that monitor {callback.monitor!r}. Received: "
                    f"{name} before HeadEarlyStopping. Move it."
                )
            if getattr(callback, "mode", "max") != "max" or (callable(better) and better(0.0, 1.0)):
                raise ValueError(
                    f"`mode` of {name} must be 'max': of {callback.monitor!r}, higher is better. Received: "
                    f"{name}(monitor={callback.monitor!r}) for lower values. Pass `mode='max'`."
                )

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        logs = {} if logs is None else logs  # changed in place, for the callbacks that follow
        absent = [name for name in self._metrics.values() if name not in logs]
        if absent and self._validates and absent == [name for name in (*absent, *logs) if name.startswith("val_")]:
            return  # an epoch without validation
        if absent:
            raise ValueError(
                f"`monitor` must have names in the logs. Received: {quoted(absent)}; the logs have {quoted(logs)}. "
                f"{did_you_mean(absent, logs, 'Correct the name.')} Or pass `validation_data` with targets for the head."
            )
        idle_before = len(self.idle_heads)
        logs[self.score_name] = self._add(epoch, {head: float(logs[name]) for head, name in self._metrics.items()})
        missing = [head for head in self._metrics if head not in self._last]
        if missing and len(self._rows) == 1:
            names = quoted(self._metrics[head] for head in missing)
            warnings.warn(
                f"HeadEarlyStopping finds no value of head {quoted(missing)}: {names} is NaN, because the data have no "
                f"labels for it, or its loss is not finite. Until there is a value, the head does not count in "
                f"{self.score_name}, and is not made idle. Add labels, or name only the other heads in `monitor`.",
                RuntimeWarning,
                stacklevel=2,
            )
        for name, best_epoch in (*self.best_epoch.items(), (None, self.best_score_epoch)):
            if best_epoch == epoch and self.restore_best_weights:
                self._weights[name] = [np.array(tf.convert_to_tensor(variable)) for variable in _variables(self.model, name)]
        for head in self.idle_heads[idle_before:]:
            self._say(f"Epoch {epoch + 1}: head {head!r} is idle; its best {self._metrics[head]} was {self.best[head]}")
        self._apply()

    def on_train_end(self, logs: Logs = None) -> None:
        if self.idle:
            self.model.set_idle([])
        if self.stopped_epoch:
            self._say(f"Epoch {self.stopped_epoch + 1}: no head improves any more")
        if self.best_score is None:
            warnings.warn(
                f"HeadEarlyStopping has no {self.score_name}, and restores nothing: no epoch from epoch "
                f"{self.start_from_epoch} on had validation and values other than NaN of {quoted(self._metrics.values())}. "
                "Look at `validation_freq`, `start_from_epoch`, the labels and the losses.",
                RuntimeWarning,
                stacklevel=2,
            )
        if None in self._weights:
            self._say(f"Restoring the weights of epoch {(self.best_score_epoch or 0) + 1}, the best {self.score_name}")
            self._restore(None)

    def get_run_state(self) -> Config:
        """Called by `Checkpoint`: the metrics of all epochs and the kept weights."""
        return {"rows": self._rows, "weights": self._weights}

    def set_run_state(self, state: Config) -> None:
        """Called by `Checkpoint`: restores the result of `get_run_state`."""
        self._clear()
        for epoch, values in state["rows"].items():
            self._add(epoch, values)
        self._weights = dict(state["weights"])
        self._apply()

    def _add(self, epoch: int, values: dict[str, float]) -> float:
        """Adds an epoch's metrics, from which all else follows; returns the score."""
        known = {head: value for head, value in values.items() if not math.isnan(value)}
        if known.keys() - self._last.keys():  # earlier scores, of fewer heads, cannot be compared
            self.best_score = self.best_score_epoch = None
            self._weights.pop(None, None)
        self._last.update(known)
        self._rows[epoch], score = values, self._score(values)
        if epoch < self.start_from_epoch:
            return score
        ended = []
        for head, value in values.items():
            delta = self.min_delta.get(head, 0.0) if isinstance(self.min_delta, Mapping) else self.min_delta
            if _is_better(value, self.best[head], self._modes[head], abs(delta)):
                self.best[head], self.best_epoch[head] = value, epoch
            best_epoch = self.best_epoch[head]
            since = self.start_from_epoch if best_epoch is None else best_epoch + 1
            if best_epoch != epoch and sum(row >= since for row in self._rows) >= self.patience:
                ended.append(head)
        if self.idle and epoch > 0:
            self.idle_heads += [head for head in ended if head in self._last and head not in self.idle_heads]
        if epoch > 0 and {*ended, *self.idle_heads} == set(values):
            self.stopped_epoch = epoch
        if _is_better(score, self.best_score, "max"):
            self.best_score, self.best_score_epoch = score, epoch
        return score

    def _score(self, values: Mapping[str, float]) -> float:
        gains = []
        for head, last in self._last.items():
            # An idle head is not trained, so it has no training metric.
            value = last if head in self.idle_heads and not self._metrics[head].startswith("val_") else values[head]
            base = self.single_task.get(head)
            gain = value if base is None else (value - base) / abs(base)
            gains.append(gain if self._modes[head] == "max" else -gain)
        return float(np.mean(gains)) if gains else math.nan

    def _restore(self, name: str | None) -> None:
        for variable, value in zip(_variables(self.model, name), self._weights[name], strict=True):
            variable.assign(value)

    def _apply(self) -> None:
        if self.idle:
            self.model.set_idle(self.idle_heads)
        if self.stopped_epoch:
            self.model.stop_training = True

    def _mode_of(self, head: str, metric: str) -> str:
        definition = self.model.heads[head]
        mode: str | None = self.mode.get(head, "auto") if isinstance(self.mode, Mapping) else self.mode
        mode = direction(metric, NamedHead(head, definition)) if mode == "auto" else mode
        if mode is None:
            name = metric.removeprefix("val_").removeprefix(f"{head}_")
            own = ["loss", *(log_name(spec) for spec in definition.metrics)]
            near = did_you_mean([metric], [metric.removesuffix(name) + option for option in own], "")
            raise ValueError(
                f"`mode` must say whether {metric!r} is better if it is higher or lower, which is known only for losses and "
                f"Keras's metrics. Received: mode={self.mode!r}. Pass `mode={{{head!r}: 'max'}}`, or 'min'. "
                f"{'' if name in own else near}".rstrip()
            )
        return mode

    def _say(self, text: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{text}\n")


def _is_better(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Whether a value is better than the best so far, if there is one, as in Keras's `EarlyStopping`; NaN never is."""
    sign = 1 if mode == "max" else -1
    return sign * value - min_delta > (-math.inf if best is None else sign * best)


def _variables(trainer: Trainer, head: str | None) -> list[tf.Variable]:
    """The distinct variables of the encoder and of one head or, with None, of all heads."""
    definitions = trainer.heads.values() if head is None else [trainer.heads[head]]
    modules = [trainer.encoder, *(definition.module for definition in definitions)]
    return distinct(tensor_variable(variable) for module in modules for variable in getattr(module, "variables", []))
