"""`HeadEarlyStopping`: each head's best epoch, stopping and selecting by the heads' own metrics."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.types import Callback, Config, Logs, Tensor
from multihead._ground.validation import check_choice, check_head_names, did_you_mean, is_number, nearest, quoted
from multihead.callbacks._best import Best, by_head, check_by_head, variables_of
from multihead.heads._directions import direction
from multihead.heads._metrics import log_name
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
        min_delta: The smallest change that is an improvement; a number, or numbers by head name.
        patience: The number of epochs without an improvement after which a head is idle.
        verbose: 1 prints a line when a head becomes idle, when training stops and when weights are restored.
        mode: `"min"`, `"max"` or `"auto"`, or these by head name. `"auto"` knows losses and Keras's own metrics.
        restore_best_weights: Whether to keep the weights of the best epochs, in the memory of the host, and to set the
            encoder and all heads at the end to those of the epoch with the best `val_score`.
        start_from_epoch: Epochs before this one do not count.
        idle: Whether a head that has stopped improving becomes idle. False: it continues to be trained, and training stops
            when no head has improved for `patience` epochs.
        single_task: The metrics of single-task models, by head name, for `delta_m`.

    Attributes:
        best: The best metric of each head.
        best_epoch: The epoch of each head's best metric.
        best_score: The best `val_score`.
        best_score_epoch: The epoch of the best `val_score`.
        idle_heads: The heads that are idle.
        stopped_epoch: The epoch after which training was stopped; 0 if it was not.

    Raises:
        ValueError: An option is out of range or names an unknown head, or the direction of a metric is not known.

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
        for name, value in (("patience", patience), ("start_from_epoch", start_from_epoch)):
            if not isinstance(value, int) or value < 0:
                rule = f"`{name}` must be a whole number of at least 0."
                raise ValueError(f"{rule} Received: {name}={value!r}. Pass, for example, 3.")
        self.monitor = None if monitor is None else dict(monitor)
        self.min_delta = check_by_head("min_delta", min_delta, is_number, "a finite number", 0.001)
        for each in mode.values() if isinstance(mode, Mapping) else [mode]:
            check_choice("mode", each, ("auto", "min", "max"))
        self.mode = dict(mode) if isinstance(mode, Mapping) else mode
        self.single_task = check_by_head(
            "single_task", single_task or {}, lambda value: is_number(value) and value != 0, "a number other than 0", 0.9
        )
        self.patience, self.start_from_epoch = patience, start_from_epoch
        self.verbose, self.restore_best_weights, self.idle = verbose, restore_best_weights, idle
        self._metrics, self._modes = dict[str, str](), dict[str, str]()
        self._validates, self._num_epochs = True, 0
        self._clear()

    def _clear(self) -> None:
        self._bests = {head: Best(self._modes[head], by_head(self.min_delta, head, 0.0)) for head in self._metrics}
        self._best_score = Best("max")
        self._scores: dict[int, float] = {}  # of each epoch
        self._last: dict[str, float] = {}  # the last metric, other than NaN, of each head that has had one
        self._rows: dict[int, dict[str, float]] = {}
        self._weights: dict[str | None, list[np.ndarray]] = {}  # of the best epoch of a head or, with None, of the score
        self.idle_heads: list[str] = []
        self.stopped_epoch = 0

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
        """The name of the score in the logs: `val_score`, or `score` if all metrics are those of training."""
        return "val_score" if any(name.startswith("val_") for name in self._metrics.values()) else "score"

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
        self._restore([head], self._weights[head])

    def on_train_begin(self, logs: Logs = None) -> None:
        """Called by Keras."""
        heads = self.model.heads
        metrics = self.monitor or {name: f"val_{name}_loss" for name, head in heads.items() if head.loss is not None}
        check_head_names("monitor", metrics, list(heads))
        for name in ("min_delta", "mode", "single_task"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                check_head_names(name, value, list(metrics), complete=name == "single_task" and bool(value))
        self._metrics, self._num_epochs = dict(metrics), 0
        if self.idle:
            self.model.set_idle([])
        self._modes = {head: self._mode_of(head, name) for head, name in metrics.items()}
        self._clear()

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
        """Called by Keras."""
        logs = {} if logs is None else logs
        self._num_epochs += 1
        values = self._values(logs)
        if values is None:
            return
        improved, newly_idle = self._add(epoch, values)
        logs[self.score_name] = self._scores[epoch]
        missing = [head for head in self._metrics if head not in self._last]
        if missing and len(self._scores) == 1:
            names = quoted(self._metrics[head] for head in missing)
            warnings.warn(
                f"HeadEarlyStopping finds no value of head {quoted(missing)}: {names} is NaN, because the data have no "
                f"labels for it, or its loss is not finite. Until there is a value, the head does not count in "
                f"{self.score_name}, and is not made idle. Add labels, or name only the other heads in `monitor`.",
                RuntimeWarning,
                stacklevel=2,
            )
        for name in improved if self.restore_best_weights else []:
            variables = variables_of(self.model, list(self.model.heads) if name is None else [name])
            self._weights[name] = [np.array(tf.convert_to_tensor(variable)) for variable in variables]
        for head in newly_idle:
            self._say(f"Epoch {epoch + 1}: head {head!r} is idle; its best {self._metrics[head]} was {self.best[head]}")
        self._apply()

    def on_train_end(self, logs: Logs = None) -> None:
        """Called by Keras."""
        if self.idle:
            self.model.set_idle([])
        if self.stopped_epoch:
            self._say(f"Epoch {self.stopped_epoch + 1}: no head improves any more")
        if self._num_epochs and self.best_score is None:
            reason = f"in each epoch, a value of the heads {quoted(self._last)} was NaN. Look at the labels and losses"
            if not self._scores:
                reason = "no epoch had validation. Look at `validation_freq`"
            elif max(self._scores) < self.start_from_epoch:
                reason = f"training ended before the epoch {self.start_from_epoch}. Lower `start_from_epoch`"
            elif not self._last:
                reason = "the values of all heads were NaN. Look at the labels and losses"
            text = f"HeadEarlyStopping has no {self.score_name}, and restores nothing, because {reason}."
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        if self.restore_best_weights and None in self._weights:
            self._say(f"Restoring the weights of epoch {(self.best_score_epoch or 0) + 1}, the best {self.score_name}")
            self._restore(list(self.model.heads), self._weights[None])

    def get_run_state(self) -> Config:
        """Called by `Checkpoint`: the metrics of all epochs and the kept weights."""
        return {"rows": self._rows, "weights": [[name, values] for name, values in self._weights.items()]}

    def set_run_state(self, state: Config) -> None:
        """Called by `Checkpoint`: restores the result of `get_run_state`."""
        self._clear()
        for epoch, values in state["rows"].items():
            self._add(epoch, values)
        self._weights = dict(state["weights"])
        self._apply()

    def _add(self, epoch: int, values: dict[str, float]) -> tuple[list[str | None], list[str]]:
        """Adds the metrics of an epoch: the heads that improved (None stands for the score), and the newly idle ones."""
        known = {head: value for head, value in values.items() if not math.isnan(value)}
        if known.keys() - self._last.keys():
            self._best_score = Best("max")  # scores of more heads cannot be compared with those before
        self._last.update(known)
        self._rows[epoch], self._scores[epoch] = values, self._score(values)
        if epoch < self.start_from_epoch:
            return [], []
        improved: list[str | None] = [head for head, best in self._bests.items() if best.add(epoch, values[head])]
        ended = [head for head, best in self._bests.items() if head not in improved and best.wait >= self.patience]
        newly_idle = [h for h in ended if self.idle and epoch > 0 and h not in self.idle_heads and h in self._last]
        self.idle_heads += newly_idle
        if epoch > 0 and {*ended, *self.idle_heads} == set(self._bests):
            self.stopped_epoch = epoch
        if self._best_score.add(epoch, self._scores[epoch]):
            improved.append(None)
        return improved, newly_idle

    def _score(self, values: Mapping[str, float]) -> float:
        """The mean of the heads' metrics with their signs, or their mean relative gain."""
        gains = []
        for head, last in self._last.items():
            # An idle head, which is not trained, has no metric of training.
            value = last if head in self.idle_heads and not self._metrics[head].startswith("val_") else values[head]
            base = self.single_task.get(head)
            gain = value if base is None else (value - base) / abs(base)
            gains.append(gain if self._modes[head] == "max" else -gain)
        return float(np.mean(gains)) if gains else math.nan

    def _restore(self, heads: Sequence[str], values: Sequence[np.ndarray]) -> None:
        for variable, value in zip(variables_of(self.model, heads), values, strict=True):
            variable.assign(value)

    def _apply(self) -> None:
        """Makes heads idle, or stops training, according to the state."""
        if self.idle:
            self.model.set_idle(self.idle_heads)
        if self.stopped_epoch:
            self.model.stop_training = True

    def _values(self, logs: Mapping[str, Tensor]) -> dict[str, float] | None:
        absent = [name for name in self._metrics.values() if name not in logs]
        if not absent:
            return {head: float(logs[name]) for head, name in self._metrics.items()}
        are_of_validation = all(name.startswith("val_") for name in absent)
        if self._validates and are_of_validation and not any(name.startswith("val_") for name in logs):
            return None  # an epoch without validation
        remedy = "Correct the name, or pass `validation_data` with targets for the head."
        raise ValueError(
            f"`monitor` must have names in the logs. Received: {quoted(absent)}; the logs have {quoted(logs)}. "
            f"{remedy if are_of_validation and not self._validates else did_you_mean(absent, logs, remedy)}"
        )

    def _mode_of(self, head: str, metric: str) -> str:
        found, mode = self.model.heads[head], by_head(self.mode, head, "auto")
        mode = direction(metric, NamedHead(head, found)) if mode == "auto" else mode
        if mode is None:
            name = metric.removeprefix("val_").removeprefix(f"{head}_")
            own = [*(["loss"] if found.loss is not None else []), *(log_name(spec) for spec in found.metrics)]
            near = nearest(name, own)
            if near is not None and name not in own:  # no part of the library logs it
                raise ValueError(
                    f"`monitor` must have names in the logs. Received: {metric!r}; the metrics of head {head!r} are "
                    f"{quoted(f'val_{head}_{each}' for each in own)}. Did you mean '{metric.removesuffix(name)}{near}'? For "
                    "a metric of another callback, pass its `mode`."
                )
            raise ValueError(
                f"`mode` must say whether {metric!r} is better if it is higher or lower, which is known only for losses and "
                f"Keras's metrics. Received: mode={self.mode!r}. Pass `mode={{{head!r}: 'max'}}`, or 'min'."
            )
        return mode

    def _say(self, text: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{text}\n")
