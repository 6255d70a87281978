"""`HeadEarlyStopping`: the heads' best epochs, stopping and selecting by the heads' own metrics."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import set_direction, tensor_variable
from multihead._ground.layers import distinct
from multihead._ground.types import Callback, Logs, Trainer
from multihead._ground.validation import check_choice, check_head_names, check_whole, did_you_mean, is_number, quoted
from multihead.heads._directions import direction
from multihead.heads._metric_names import log_name
from multihead.heads._named import NamedHead


class HeadEarlyStopping(keras.callbacks.Callback):
    """Makes heads idle that stop improving, ends training when none improves, and selects the best epoch by one score.

    The options are those of Keras's `EarlyStopping`, by head: with a single head and without NaN, both stop after the same
    epoch and, with a `min_delta` of 0, find the same best one. A head that has not improved for `patience` epochs is idle
    from then on: it does not change, while the rest is trained. When all heads are idle, training stops.

    The callback adds one number to the logs of every epoch, `val_score`, or `score` if it monitors training metrics only.
    Higher is better. With `M_k` the monitored metric of head `k`, and `s_k` 1 if it is better when higher and -1 if lower,
    it is the mean `1/K sum_k s_k M_k` or, with the values `B_k` of single-task models, the mean relative gain
    `delta_m = 1/K sum_k s_k (M_k - B_k) / |B_k|` (0.05 is 5%). Callbacks that come later in the list can monitor it.

    A head that has had no metric so far, because it has no labels, does not count and continues to be trained, with a
    warning; when it has its first metric, the search for the best score restarts. An idle head that is monitored in training
    keeps its last metric. In an epoch in which any other metric is NaN, the score is NaN, and the epoch is not selected.

    Args:
        monitor: The names in the logs of the heads' metrics, by head name. Heads that are not named are trained to the end
            and do not count. None: `val_{head}_loss` of all heads.
        min_delta: The smallest change that counts as an improvement; a number, or numbers by head name.
        patience: The number of epochs without an improvement after which a head is idle.
        verbose: 1 prints a line when a head becomes idle, when training stops and when weights are restored.
        mode: `"min"`, `"max"` or `"auto"`, or these by head name. `"auto"` knows losses and Keras's own metrics.
        restore_best_weights: Whether to keep the weights of the best epochs, in host memory, and to restore those of the
            epoch with the best score at the end, for the encoder and all heads.
        start_from_epoch: Epochs before this one do not count.
        idle: False: all heads continue to be trained, and training stops when none has improved for `patience` epochs.
        single_task: The metrics of single-task models, by head name, for `delta_m`.

    Attributes:
        best: The best metrics of the heads that have had one.
        best_epoch: The epochs of the heads' best metrics.
        best_score: The best score; None if there was none.
        best_score_epoch: The epoch of the best score.
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
        changes = min_delta.values() if isinstance(min_delta, Mapping) else [min_delta]
        if not all(is_number(change) and change >= 0 for change in changes):
            raise ValueError(
                "`min_delta` must be a finite number of at least 0, or a dict of these by head name. "
                f"Received: min_delta={min_delta!r}. Pass, for example, 0.001."
            )
        for choice in mode.values() if isinstance(mode, Mapping) else [mode]:
            check_choice("mode", choice, ("auto", "min", "max"))
        bases = single_task or {}
        if not isinstance(bases, Mapping) or not all(is_number(base) and base != 0 for base in bases.values()):
            raise ValueError(
                "`single_task` must be a dict of numbers other than 0 by head name. "
                f"Received: single_task={single_task!r}. Pass, for example, {{'price': 0.9}}."
            )
        self.monitor, self.min_delta, self.mode, self.single_task = monitor, min_delta, mode, bases
        self.patience = check_whole("patience", patience, least=0)
        self.start_from_epoch = check_whole("start_from_epoch", start_from_epoch, least=0)
        self.verbose, self.restore_best_weights, self.idle = verbose, restore_best_weights, idle
        self._validates = True
        self._begin()

    def _begin(self) -> None:
        self.best: dict[str, float] = {}
        self.best_epoch: dict[str, int] = {}
        self.best_score: float | None = None
        self.best_score_epoch: int | None = None
        self.idle_heads: list[str] = []
        self.stopped_epoch = 0
        self._waits: dict[str, int] = {}  # the number of epochs since a head's best
        self._last: dict[str, float] = {}  # the last metrics, other than NaN, of the heads that have had one
        self._weights: dict[str | None, list[np.ndarray]] = {}  # of the best epoch of a head or, for None, of the score

    def restore(self, head: str | None = None) -> None:
        """Sets the encoder and one head, or all heads, to their weights of the best epoch, for example to export them.

        With one head, the others keep their weights, which belong to another state of the encoder.

        Args:
            head: The head's name. None: the encoder and all heads get their weights of the epoch with the best score.

        Raises:
            ValueError: No such weights were kept.
        """
        if head not in self._weights:
            kept = quoted(name for name in self._weights if name is not None)
            raise ValueError(
                f"`head` must be None or a head with kept weights. Received: head={head!r}; there are weights of {kept}. "
                "Pass one of these, with `restore_best_weights=True`."
            )
        for variable, value in zip(_variables(self.model, head), self._weights[head], strict=True):
            variable.assign(value)

    def on_train_begin(self, logs: Logs = None) -> None:
        heads = self.model.heads
        metrics = self.monitor or {name: f"val_{name}_loss" for name, head in heads.items() if head.loss is not None}
        check_head_names("monitor", metrics, list(heads))
        for argument, option in (("min_delta", self.min_delta), ("mode", self.mode), ("single_task", self.single_task)):
            if isinstance(option, Mapping) and option:
                check_head_names(argument, option, list(metrics), complete=argument == "single_task")
        self._signs = {head: _sign(name, NamedHead(head, heads[head]), self.mode) for head, name in metrics.items()}
        self._metrics = dict(metrics)
        self._begin()
        if self.idle:
            self.model.set_idle([])  # the steps of this `fit` can have idle heads, also if it continues a run that has some

    def check_fit(self, others: Sequence[Callback], *, validates: bool) -> None:
        """Called by the trainer: tells callbacks that monitor the score that higher is better; they must come later."""
        self._validates = validates
        if self.monitor is None and not validates:
            raise ValueError(
                "`validation_data` must be given if HeadEarlyStopping has no `monitor`. Received: neither. Pass one of them."
            )
        for place, callback in enumerate(others):
            if getattr(callback, "monitor", None) in ("val_score", "score"):
                rule, name = f"`callbacks` that monitor {callback.monitor!r} must", type(callback).__name__
                if place < list(others).index(self):
                    raise ValueError(f"{rule} come after HeadEarlyStopping. Received: {name} before it. Move it.")
                set_direction(callback, "max")
                better = getattr(callback, "monitor_op", None)
                if getattr(callback, "mode", "max") == "min" or (callable(better) and better(0.0, 1.0)):
                    raise ValueError(f"{rule} be for higher values. Received: {name} for lower ones. Pass `mode='max'`.")

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        logs = {} if logs is None else logs  # changed in place, for the callbacks that follow
        absent = [name for name in self._metrics.values() if name not in logs]
        if absent and self._validates and not any(name.startswith("val_") for name in logs):
            return  # an epoch without validation
        if absent:
            raise ValueError(
                f"`monitor` must have names in the logs. Received: {quoted(absent)}; the logs have {quoted(logs)}. "
                f"{did_you_mean(absent, logs, 'Correct the name.')} Or pass `validation_data` with targets for the head."
            )
        values = {head: float(logs[name]) for head, name in self._metrics.items()}
        values.update({head: self._last[head] for head in self.idle_heads if not self._metrics[head].startswith("val_")})
        known = {head: value for head, value in values.items() if not math.isnan(value)}
        if known.keys() - self._last.keys():  # earlier scores, of fewer heads, cannot be compared
            self.best_score = self.best_score_epoch = None
            self._weights.pop(None, None)
        self._last.update(known)
        base = self.single_task
        gains = [self._signs[head] * (values[head] - base.get(head, 0.0)) / abs(base.get(head, 1.0)) for head in self._last]
        score = float(np.mean(gains)) if gains else math.nan
        logs["val_score" if any(name.startswith("val_") for name in self._metrics.values()) else "score"] = score
        if epoch >= self.start_from_epoch:
            self._count(epoch, values, score)

    def _count(self, epoch: int, values: Mapping[str, float], score: float) -> None:
        missing = [head for head in values if head not in self._last]
        if missing and not self._waits:
            warnings.warn(
                f"HeadEarlyStopping finds no value of head {quoted(missing)}: the data have no labels for it, or its loss "
                "is not finite. Until it has one, it neither counts nor becomes idle. Add labels, or omit it in `monitor`.",
                RuntimeWarning,
                stacklevel=3,
            )
        for head, value in values.items():
            sign = self._signs[head]
            change = self.min_delta.get(head, 0.0) if isinstance(self.min_delta, Mapping) else self.min_delta
            self._waits[head] = self._waits.get(head, 0) + 1
            if sign * value - change > sign * self.best.get(head, -sign * math.inf):  # never true of NaN
                self.best[head], self.best_epoch[head], self._waits[head] = value, epoch, 0
        if score > (-math.inf if self.best_score is None else self.best_score):
            self.best_score, self.best_score_epoch = score, epoch
        for name, best_epoch in (*self.best_epoch.items(), (None, self.best_score_epoch)):
            if best_epoch == epoch and self.restore_best_weights:
                self._weights[name] = [np.array(tf.convert_to_tensor(variable)) for variable in _variables(self.model, name)]
        ended = [head for head in values if self._waits[head] >= max(self.patience, 1)]
        new = [head for head in ended if self.idle and head in self.best and head not in self.idle_heads]
        for head in new:
            self._say(f"Epoch {epoch + 1}: head {head!r} is idle; its best {self._metrics[head]} was {self.best[head]}")
        self.idle_heads += new
        if self.idle:
            self.model.set_idle(self.idle_heads)
        if epoch > 0 and {*ended, *self.idle_heads} == values.keys():
            self.stopped_epoch, self.model.stop_training = epoch, True
            self._say(f"Epoch {epoch + 1}: no head improves any more")

    def on_train_end(self, logs: Logs = None) -> None:
        if self.idle:
            self.model.set_idle([])
        if self.best_score_epoch is None:
            warnings.warn(
                f"HeadEarlyStopping restores nothing: no epoch from epoch {self.start_from_epoch} on had validation and "
                f"a value other than NaN of {quoted(self._metrics.values())}. Look at `validation_freq`, labels and losses.",
                RuntimeWarning,
                stacklevel=2,
            )
        elif self.restore_best_weights:
            self._say(f"Restoring the weights of epoch {self.best_score_epoch + 1}, which has the best score")
            self.restore()

    def _say(self, text: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{text}\n")


def _sign(metric: str, head: NamedHead, mode: str | Mapping[str, str]) -> int:
    """1 if a metric of a head in the logs is better when higher, -1 if lower."""
    given: str | None = mode.get(head.name, "auto") if isinstance(mode, Mapping) else mode
    given = direction(metric, head) if given == "auto" else given
    if given is None:
        start = f"val_{head.name}_" if metric.startswith("val_") else f"{head.name}_"
        known = [start + name for name in ("loss", *map(log_name, head.metric_specs))]
        near = did_you_mean([] if metric in known else [metric], known, "")
        raise ValueError(
            f"`mode` must say whether {metric!r} is better if it is higher or lower, which is known only for losses and "
            f"Keras's metrics. Received: mode={mode!r}. Pass `mode={{{head.name!r}: 'max'}}`, or 'min'. {near}".rstrip()
        )
    return 1 if given == "max" else -1


def _variables(trainer: Trainer, head: str | None) -> list[tf.Variable]:
    """The distinct variables of the encoder and of one head or, with None, of all heads."""
    modules = [trainer.encoder, *(trainer.heads[name].module for name in ([head] if head else trainer.heads))]
    return distinct(tensor_variable(variable) for module in modules for variable in getattr(module, "variables", []))
