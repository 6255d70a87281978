"""The score of an epoch: one number from the metrics of all heads, for which higher is always better."""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping

import numpy as np

from multihead._ground.validation import quoted
from multihead.callbacks._best import Best


class Score:
    """The mean of the heads' metrics with their signs, or their mean relative gain; see `HeadEarlyStopping`.

    Args:
        metrics: The name in the logs of each head's metric.
        modes: `"min"` or `"max"` for each of them.
        single_task: The metrics of single-task models by head name; empty for the plain mean.

    Attributes:
        best: The best score so far.
        last: The last metric, other than NaN, of each head that has had one.
        of_epochs: The score of each epoch.
    """

    def __init__(self, metrics: Mapping[str, str], modes: Mapping[str, str], single_task: Mapping[str, float]) -> None:
        self._metrics = metrics
        self._modes = modes
        self._single_task = single_task
        self.best = Best("max", 0.0)
        self.last: dict[str, float] = {}
        self.of_epochs: dict[int, float] = {}

    @property
    def name(self) -> str:
        """The name in the logs: `val_score`, or `score` if all metrics are those of training."""
        return "val_score" if any(name.startswith("val_") for name in self._metrics.values()) else "score"

    def add(self, epoch: int, values: Mapping[str, float], idle: Collection[str]) -> None:
        """Adds the metrics of an epoch before which some heads were idle."""
        known = {head: value for head, value in values.items() if not math.isnan(value)}
        if known.keys() - self.last.keys():
            self.best = Best("max", 0.0)  # scores of more heads cannot be compared with those before
        self.last.update(known)
        gains = []
        for head, last in self.last.items():
            # A head that is not trained has no metric of training.
            value = last if head in idle and not self._metrics[head].startswith("val_") else values[head]
            base = self._single_task.get(head)
            gain = value if base is None else (value - base) / abs(base)
            gains.append(gain if self._modes[head] == "max" else -gain)
        self.of_epochs[epoch] = float(np.mean(gains)) if gains else math.nan

    def warn_of_missing(self) -> None:
        """After the first epoch, warns of heads without a value."""
        missing = [head for head in self._metrics if head not in self.last]
        if not missing or len(self.of_epochs) > 1:
            return
        names = quoted(self._metrics[head] for head in missing)
        warnings.warn(
            f"HeadEarlyStopping finds no value of head {quoted(missing)}: {names} is NaN, because the data have no labels "
            f"for it, or its loss is not finite. Until there is a value, the head does not count in {self.name}, and is "
            "not made idle. Add labels, or name only the other heads in `monitor`.",
            RuntimeWarning,
            stacklevel=3,
        )

    def warn_of_none(self, start: int) -> None:
        """Warns that there is no best score, and says why; only epochs from a first one on count."""
        if not self.of_epochs:
            reason = "no epoch had validation. Look at `validation_freq`"
        elif max(self.of_epochs) < start:
            reason = f"training ended before the epoch {start}. Lower `start_from_epoch`"
        elif not self.last:
            reason = "the values of all heads were NaN. Look at the labels and losses"
        else:
            reason = f"in each epoch, a value of the heads {quoted(self.last)} was NaN. Look at the labels and losses"
        text = f"HeadEarlyStopping has no {self.name}, and restores nothing, because {reason}."
        warnings.warn(text, RuntimeWarning, stacklevel=3)
