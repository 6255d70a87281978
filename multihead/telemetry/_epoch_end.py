"""The end of an epoch: what was skipped in it, and what the weighting does then."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Iterable

import keras
import tensorflow as tf

from multihead._ground.types import Callback, Logs
from multihead._update.faults import Faults

MOST_OVERFLOWS = 15
"""How often in an epoch loss scaling may skip an update: Keras begins with a factor of 2^15, which as many halve to 1."""


def _report(faults: Faults) -> str | None:
    """A sentence about the epoch's skipped updates, with the place of the last one; None if no update was skipped."""
    skipped, overflows, is_fault = faults.counted()
    if overflows > MOST_OVERFLOWS:
        return (
            f"{overflows} of the epoch's updates were skipped because gradients overflow with loss scaling, and its "
            "factor does not recover. Lower the learning rate, clip gradients (`clip=`), or look for large inputs and "
            "labels. `mixed_bfloat16` needs no loss scaling."
        )
    were = "was" if skipped == 1 else "were"
    if skipped and not is_fault:
        return f"{skipped} of the epoch's updates {were} skipped because no head had labels."
    if skipped:
        cause, place, remedy = faults.described()
        reason = f"because a loss or gradient was not finite, the last one {place}"
        return f"{cause} {skipped} of the epoch's updates {were} skipped {reason}. {remedy}"
    return None


class EpochEnd(keras.callbacks.Callback):
    """Before other callbacks see the end of an epoch, warns of skipped updates and calls `end_epoch` of the weighting."""

    def __init__(self, others: Iterable[Callback]) -> None:
        super().__init__()
        self._others = others
        self._calls = 0  # of the step before this epoch

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._calls = self._calls_so_far()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        for callback in self._others:  # Keras 3 takes the first value for the best, and nothing is better than NaN
            best = getattr(callback, "best", None)
            if isinstance(best, numbers.Real) and math.isnan(best):
                callback.best = None
        metrics = self.model.log_metrics
        if metrics is None:
            return
        # A run that continues after the last batch of an epoch makes no step in it, and a callback may reset the metrics.
        if self._calls == self._calls_so_far() and not int(tf.convert_to_tensor(metrics.batches)):
            raise ValueError(
                f"`x` must yield at least one batch in every epoch. Received: none in epoch {epoch + 1}. "
                "Check its source: a file, a filter or a split may be empty, or a generator may be at its end."
            )
        text = _report(self.model.update_spec.running.faults)
        if self.model.weighting is not None:
            self.model.weighting.end_epoch()
        if text is not None:
            warnings.warn(f"Epoch {epoch + 1}: {text}", RuntimeWarning, stacklevel=2)

    def _calls_so_far(self) -> int:
        return int(getattr(self.model.train_function, "calls", 0))
