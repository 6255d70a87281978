"""The statistics that are logged, and the metrics behind the logs."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import callbacks_of
from multihead._ground.tensors import norm_of_present, unchecked, where
from multihead._update.added_losses import adds_losses
from multihead._update.evaluate import Evaluated
from multihead._update.network import Gradients
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead._update.weights import meeting_of, weigh
from multihead.heads._named import NamedHead, or_nan
from multihead.telemetry._epoch_sums import EpochSums
from multihead.telemetry._layout import Statistic
from multihead.telemetry._statistics import UpdateStatistics

LEVELS = (None, "norms", "full")
"""The values of `telemetry=`, from the fewest to the most statistics."""


ADDED_LOSS = "added_loss"
"""The name of the sum of the losses that layers add, if any does."""

MOST_OVERFLOWS = 15
"""How often in an epoch loss scaling may skip an update: Keras begins with a factor of 2^15, which as many halve to 1."""


def _shares(update: Update) -> tf.Tensor | None:
    norms = update.norms
    if norms is None:
        return None
    contributions = tf.abs(update.combined.coefficients) * norms
    return tf.math.divide_no_nan(contributions, tf.reduce_sum(contributions))


def _global_norm(gradients: Gradients) -> tf.Tensor:
    return norm_of_present(gradients.of_losses)


def _is_clipped(update: Update) -> tf.Tensor:
    return tf.cast(_global_norm(update.clipped) < _global_norm(update.gradients), tf.float32)


def _has_regularizer(spec: UpdateSpec, level: str | None) -> bool:
    everyone = tf.ones([len(spec.network.heads)], tf.bool)
    return spec.weighting is not None and spec.weighting.regularizer(everyone) is not None


def _has_changing_weights(spec: UpdateSpec, level: str | None) -> bool:
    return spec.weighting is not None or any(head.has_weight_function for head in spec.network.heads)


def _has_changing_rates(spec: UpdateSpec, level: str | None) -> bool:
    return len(spec.periods) > 1 or any(rates.may_change for rates in spec.periods)


def _shows_norms(spec: UpdateSpec, level: str | None) -> bool:
    return level is not None


def _shows_coefficients(spec: UpdateSpec, level: str | None) -> bool:
    return level is not None and spec.balancer is not None


def _shows_all(spec: UpdateSpec, level: str | None) -> bool:
    return level == "full"


def _shows_clipping(spec: UpdateSpec, level: str | None) -> bool:
    return level == "full" and spec.clip is not None


def _cosines(update: Update) -> tf.Tensor | None:
    found = update.combined.cosines
    return None if found is None else found[:-1, :-1]


def _cosines_with_update(update: Update) -> tf.Tensor | None:
    found = update.combined.cosines
    return None if found is None else found[:-1, -1]


def _losses(update: Update) -> tf.Tensor:
    return tf.math.divide_no_nan(update.loss_sums, update.total_counts)


LOSSES = (
    Statistic("loss", lambda update: update.total_loss, _shows_norms, "update", None, averaged=True),
    Statistic("loss", _losses, _shows_norms, metric=None, averaged=True),
)
"""The losses of single updates, for running averages and the ledger. The logs show losses over all labelled elements."""

# To add a statistic, add one entry here, a line to the docstring of the package, and one to the table of docs/watching.md.
STATISTICS = (
    Statistic("regularizer", lambda update: update.total.regularizer, _has_regularizer, "update"),
    Statistic(
        "encoder_learning_rate_multiplier", lambda update: update.rates.at(update.step)[0], _has_changing_rates, "update"
    ),
    Statistic("update_norm", lambda update: _global_norm(update.gradients), _shows_all, "update", averaged=True),
    Statistic("update_norm_clipped", lambda update: _global_norm(update.clipped), _shows_clipping, "update"),
    Statistic("clipped_updates", _is_clipped, _shows_clipping, "update"),
    Statistic("weight", lambda update: update.total.weights, _has_changing_weights),
    Statistic("norm", lambda update: update.norms, _shows_norms, averaged=True),
    Statistic("share", _shares, _shows_norms, averaged=True),
    Statistic("coefficient", lambda update: update.combined.coefficients, _shows_coefficients, averaged=True),
    Statistic("update_cosine", _cosines_with_update, _shows_all, averaged=True),
    Statistic("cosine", _cosines, _shows_all, "pair", averaged=True),
    Statistic("learning_rate_multiplier", lambda update: update.rates.at(update.step)[1:], _has_changing_rates),
    Statistic("updates", lambda update: tf.ones_like(update.loss_sums), _shows_norms, metric=keras.metrics.Sum),
)
"""The statistics of updates in the logs, besides losses, the heads' metrics and the number of skipped updates."""


class LogMetrics:
    """The metrics behind the logs. They belong to the trainer, which resets them in every epoch.

    Args:
        spec: How updates are computed.
        level: One of `LEVELS`.
        latest: The number of latest updates whose statistics are kept.
    """

    def __init__(self, spec: UpdateSpec, level: str | None, latest: int = 1) -> None:
        self.heads = spec.network.heads
        self.measured = spec.network.measured
        self.weighting = spec.weighting
        self.faults = spec.faults
        self.statistics = UpdateStatistics(spec, level, (*LOSSES, *STATISTICS), latest)
        self.sums = EpochSums(len(self.heads), len(self.statistics.layout.names), self.faults)
        self._adds_losses = adds_losses(spec.network)
        self._names_in_logs: list[str] | None = None
        self._main_names: list[str] | None = None

    @property
    def all(self) -> list[Any]:
        """All metrics, including those of the heads."""
        own = [metric for head in (*self.heads, *self.measured) for metric in (*(head.metrics or []), *head.counters)]
        return [self.sums, *self.statistics.metrics, *own]

    @unchecked()
    def update(self, update: Update, applied: tf.Tensor, num_replicas: int) -> None:
        """Adds one update.

        Args:
            update: The update, with this replica's sums.
            applied: Whether it was applied.
            num_replicas: The number of replicas that add their updates.
        """
        is_counted = applied & tf.math.is_finite(update.loss_sums)
        losses = where(is_counted, update.loss_sums, 0.0)
        weighted, of_examples, is_usable = losses * update.losses.given.of_heads, {"added": update.added_loss}, applied
        if self.weighting is not None:  # its total need not be a sum over heads
            weighted, of_examples["total"] = None, update.total.total
        of_examples = {name: loss for name, loss in of_examples.items() if loss is not None}
        self._show_added(update.added_loss)
        if of_examples:
            is_usable = applied & tf.math.is_finite(tf.add_n(list(of_examples.values())))
        parts = {name: where(is_usable, loss * update.num_examples, 0.0) for name, loss in of_examples.items()}
        examples = where(is_usable, update.num_examples, 0.0)
        self.sums.add(
            losses=losses,
            weighted=weighted,
            counts=where(is_counted, update.counts, 0.0),
            **parts,
            examples=examples if num_replicas == 1 else examples / num_replicas,
            statistics=self.statistics.update(update, applied),
        )

    def _show_added(self, loss: tf.Tensor | None) -> None:
        """Shows the losses that layers add from now on, if there are any: those of training alone are not known before."""
        if loss is not None and not self._adds_losses:
            self._adds_losses, self._names_in_logs = True, None

    def count_batches(self, number: int) -> Callable[[], tf.Tensor]:
        """Counts batches; gives the position in the epoch of the first of them, from 0, until the next are counted."""
        batches = self.sums.batches.value
        batches.assign_add(tf.constant(number, tf.int64))
        return lambda: batches.read_value() - number

    def add_evaluated(self, found: Evaluated) -> None:
        """Adds this replica's part of one batch of an evaluation."""
        self._show_added(found.added_loss)
        added = None if found.added_loss is None else found.added_loss * found.num_examples
        self.sums.add(losses=found.loss_sums, counts=found.counts, added=added, examples=found.num_examples)

    def report(self) -> str | None:
        """A sentence about the epoch's skipped updates, with the heads and variables; None if no update was skipped."""
        counted = self.faults.counted()
        overflows, heads, variables = counted.overflows, counted.heads, counted.variables
        skipped = counted.skipped - overflows
        if overflows > MOST_OVERFLOWS:
            return (
                f"{overflows} of the epoch's updates were skipped because gradients overflow with loss scaling, and its "
                "factor does not recover. Lower the learning rate, clip gradients (`clip=`), or look for large inputs and "
                "labels. `mixed_bfloat16` needs no loss scaling."
            )
        were = "was" if skipped == 1 else "were"
        if skipped and not heads and not variables:
            return f"{skipped} of the epoch's updates {were} skipped because none of the scheduled heads had labels."
        if skipped:
            cause, remedy = self.faults.cause()
            place = f"{self.faults.whose(heads, variables)}; the last one {self.faults.when()}"
            reason = "because a loss or gradient was not finite"
            return f"{cause} {skipped} of the epoch's updates {were} skipped {reason}: {place}. {remedy}"
        return None

    def names(self) -> list[str]:
        """The names of all statistics of an epoch."""
        if self._names_in_logs is None:
            self._names_in_logs = list(self.training_logs())
        return self._names_in_logs

    def names_in_order(self) -> list[str]:
        """The names of the statistics of an evaluation, in the order in which Keras puts them into a list."""
        of_heads = [name for head in (*self.heads, *self.measured) for name in _names_of(head)]
        losses = [f"{head.name}_loss" for head in self.heads]
        added = [ADDED_LOSS] if self._adds_losses else []
        return ["loss", *losses, *sorted(name for name in of_heads if name not in losses), *added]

    def main_names(self) -> list[str]:
        """The names of each head's loss and first metric."""
        if self._main_names is None:
            self._main_names = [name for head in self.heads for name in _names_of(head)[:2]]
            self._main_names += [name for head in self.measured for name in _names_of(head)[:1]]
        return self._main_names

    @unchecked()
    def training_logs(self) -> dict[str, Any]:
        """All statistics of the epoch so far."""
        read, layout = self.sums.read(), self.statistics.layout
        found = self.statistics.by_name(read)
        logs: dict[str, Any] = {"loss": read.total_loss}
        if self._adds_losses:
            logs[ADDED_LOSS] = read.known.added
        logs.update({name: found[name] for name in layout.logged("update")})
        for k, head in enumerate(self.heads):
            logs.update(_head_logs(head, read.known.losses[k], read.exist.losses[k]))
            logs.update({name: found[name] for name in layout.logged("head", k)})
        for head in self.measured:
            logs.update(_results(head))
        logs.update({name: found[name] for name in layout.logged("pair")})
        logs["skipped_updates"] = tf.cast(tf.unstack(self.faults.of_epoch.read_value())[0], tf.float32)
        return logs

    @unchecked()
    def evaluation_logs(self, weights: tf.Tensor, present: Sequence[str], step: tf.Tensor) -> dict[str, Any]:
        """The statistics of an evaluation.

        Args:
            weights: `[num_heads]`: the heads' own weights.
            present: The heads that have targets in the data.
            step: The number of updates applied so far.
        """
        read, logs = self.sums.read(), dict[str, Any]()
        means, labelled = tf.stack(read.known.losses), tf.stack(read.exist.losses)
        for k, head in enumerate(self.heads):
            found = _head_logs(head, read.known.losses[k], read.exist.losses[k])
            logs.update(found if head.name in present else {})
        for head in self.measured:
            logs.update(_results(head) if head.name in present else {})
        active = labelled & (weights > 0)
        losses = where(active, weights * means, 0.0)
        if self.weighting is None:
            total = tf.reduce_sum(losses)
        else:
            total = weigh(self.weighting, losses, active=active, meeting=meeting_of(self.heads, active), step=step)[1]
        added = {ADDED_LOSS: read.known.added} if self._adds_losses else {}
        return {"loss": or_nan(total + read.means.added, tf.reduce_any(active)), **added, **logs}


def _names_of(head: NamedHead) -> list[str]:
    """The names of a head's loss and metrics."""
    return list(_head_logs(head, tf.constant(0.0), tf.constant(True)) if head.is_trained else _results(head))


def _head_logs(head: NamedHead, loss: tf.Tensor, has_labels: tf.Tensor) -> dict[str, Any]:
    """A head's loss and metrics; NaN without labels."""
    found = {name: or_nan(value, has_labels) for name, value in _results(head).items()}
    return {f"{head.name}_loss": loss, **found}


def _results(head: NamedHead) -> dict[str, Any]:
    """A head's metrics by their names in the logs."""
    return {f"{head.name}_{name}": value for name, value in head.results().items()}


class _Report(keras.callbacks.Callback):
    """At the end of an epoch, warns about skipped updates and calls `end_epoch` of the weighting."""

    def __init__(
        self, metrics: Callable[[], LogMetrics | None], others: Sequence[Any], validates: bool, counts: bool
    ) -> None:
        super().__init__()
        self._counts = counts
        self._validates = validates
        self._metrics = metrics
        self._others = others
        self._seen: tuple[int, str | None] | None = None  # of this epoch: its batches, and the sentence on skipped updates

    def on_train_begin(self, logs: Any = None) -> None:
        for callback in self._others:
            if hasattr(callback, "check_fit"):
                callback.check_fit(self._others, validates=self._validates)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._seen = None

    def on_test_begin(self, logs: Any = None) -> None:
        self._see()  # validation resets the metrics

    def _see(self) -> None:
        metrics = self._metrics()
        if metrics is not None and self._seen is None:
            self._seen = int(tf.convert_to_tensor(metrics.sums.batches.value)), metrics.report()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Keras 3 takes the first value it sees for the best, and nothing is better than NaN.
        for callback in self._others:
            best = getattr(callback, "best", None)
            if isinstance(best, numbers.Real) and math.isnan(best):
                callback.best = None
        self._see()
        metrics = self._metrics()
        if metrics is None or self._seen is None:
            return
        number, text = self._seen
        if not number and self._counts:
            raise ValueError(
                f"`x` must yield at least one batch in every epoch. Received: none in epoch {epoch + 1}. "
                "Check its source: a file, a filter or a split may be empty, or a generator may be at its end."
            )
        if metrics.weighting is not None:
            metrics.weighting.end_epoch()
        if text is not None:
            warnings.warn(f"Epoch {epoch + 1}: {text}", RuntimeWarning, stacklevel=2)


def with_report(metrics: Callable[[], LogMetrics | None], callbacks: Any, *, validates: bool, counts: bool) -> Any:
    """Adds the report on skipped updates to the callbacks of `fit`.

    Args:
        metrics: Returns the trainer's metrics, or None before they exist.
        callbacks: The callbacks passed to `fit`.
        validates: Whether the `fit` has validation data.
        counts: Whether each step is known to count its batches in the metrics.
    """
    given = callbacks_of(callbacks)
    # First, so that a checkpoint at the end of an epoch holds what that end changes.
    given.insert(0, _Report(metrics, list(given), validates, counts))
    return callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else given
