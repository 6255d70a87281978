"""The entries of Keras's logs: per-head loss, gradient norm, share and coefficient.

For head `k`, with `g_k` the gradient of its weighted loss at the level where the heads are combined (representation or
parameters) and `a_k` the coefficient of the balancer (1 without a balancer):

- `{head}_loss`: its unweighted loss, over all labelled elements of the epoch's updates so far, skipped ones left out;
- `{head}_norm`: `|g_k|`;
- `{head}_share`: `|a_k g_k| / sum_j |a_j g_j|`;
- `{head}_coefficient`, with a balancer: `a_k` (for a method without coefficients, `<d, g_k> / <g_k, g_k>` with `d` the
  combined gradient); norm, share and coefficient are means over the updates that train the head;
- `{head}_weight`, if it can change: the weight of the head's loss in the total, as a mean over the updates that train the
  head;
- `{head}_learning_rate` and `encoder_learning_rate`, if one of them can change: the factor of the steps that are applied to
  the head's own variables, or to the encoder's; where it differs by variable, the largest;
- `regularizer`, if the weighting has one: the part of the total that does not depend on the losses;
- `loss`: the total loss, as a mean over updates (in evaluation: from the heads' losses over all labelled elements);
- `{head}_updates`: the number of updates in the epoch so far that have trained the head;
- `skipped_updates`: the number of updates that were not applied, because a gradient was not finite or none of the scheduled
  heads had labels. It is there even if it is 0, since Keras's `CSVLogger` has the columns of the first epoch, and `History`
  does not say which epochs a figure is of.

All of them are in `History`, and so in CSV files and TensorBoard. The progress line shows each head's loss and first metric.

A loss of nothing is NaN, not 0: over an epoch whose updates were all skipped, or for a head without any label, together
with that head's metrics. 0 would be the best value that a callback can see (`EarlyStopping`, `ModelCheckpoint`,
`ReduceLROnPlateau`), and NaN never is. In training, skipped updates count in no metric; in evaluation, a loss that is not
finite shows as such.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead._gradients import is_finite
from multihead._keras import tensor_variable, variable_name
from multihead._update.pipeline import Update
from multihead._update.spec import UpdateSpec
from multihead._validation import quoted
from multihead.heads import Head

__all__ = ["FIGURES", "LEVELS", "Figure", "LogMetrics", "with_report"]

LEVELS = ("norms", "losses")
"""The values of `telemetry=`: `"norms"` logs everything, `"losses"` omits norms, shares, coefficients and counts."""


class BrokenGradients(keras.metrics.Metric):
    """Counts the updates with non-finite gradients, by head and by variable."""

    def __init__(self, num_heads: int, num_variables: int) -> None:
        super().__init__(name="broken_gradients", dtype="float32")
        self.by_head = self.add_weight(name="by_head", shape=(num_heads,), initializer="zeros")
        self.by_variable = self.add_weight(name="by_variable", shape=(num_variables,), initializer="zeros")

    def update_state(
        self, loss_sums: tf.Tensor, norms: tf.Tensor | None, gradients: Sequence[Any], num_replicas: int
    ) -> None:
        """Adds one update: `[num_heads]` loss sums and norms (or None), and one gradient or None per variable."""
        heads = tf.math.is_finite(loss_sums)
        if norms is not None:
            heads &= tf.math.is_finite(norms)
        variables = tf.stack([tf.constant(True) if g is None else is_finite(g) for g in gradients])
        self.by_head.assign_add(tf.cast(~heads, tf.float32) / num_replicas)
        self.by_variable.assign_add(tf.cast(~variables, tf.float32) / num_replicas)

    def reset_state(self) -> None:
        """Resets all counts to zero."""
        for counts in (self.by_head, self.by_variable):
            counts.assign(tf.zeros(counts.shape))

    def result(self) -> tf.Tensor:
        """The number of non-finite gradients of variables."""
        return tf.reduce_sum(tf.convert_to_tensor(self.by_variable))

    def found(self) -> tuple[list[int], list[int]]:
        """The positions of heads and of variables with non-finite gradients."""
        by_head, by_variable = (tf.convert_to_tensor(v).numpy() for v in (self.by_head, self.by_variable))
        return by_head.nonzero()[0].tolist(), by_variable.nonzero()[0].tolist()


class Figure(NamedTuple):
    """A figure in the logs, over the applied updates of the epoch so far.

    Attributes:
        name: Its name; logged as `{head}_{name}` if there is one per head.
        value: Computes a scalar, or `[num_heads]`, from an update; None if the update does not provide it.
        is_shown: Whether a trainer with this spec and level logs it.
        per_head: Whether there is one per head, over the updates that train the head.
        metric: How updates are aggregated: `keras.metrics.Mean` or `keras.metrics.Sum`.
    """

    name: str
    value: Callable[[Update], tf.Tensor | None]
    is_shown: Callable[[UpdateSpec, str], bool]
    per_head: bool = True
    metric: Any = keras.metrics.Mean


def _shares(update: Update) -> tf.Tensor | None:
    norms = update.combined.norms
    if norms is None:
        return None
    contributions = tf.abs(update.combined.coefficients) * norms
    return tf.math.divide_no_nan(contributions, tf.reduce_sum(contributions))


def _has_regularizer(spec: UpdateSpec, level: str) -> bool:
    everyone = tf.ones([len(spec.network.heads)], tf.bool)
    return spec.weighting is not None and spec.weighting.regularizer(everyone) is not None


def _has_changing_weights(spec: UpdateSpec, level: str) -> bool:
    return spec.weighting is not None or any(head.has_weight_function for head in spec.network.heads)


def _has_changing_rates(spec: UpdateSpec, level: str) -> bool:
    return len(spec.stages) > 1 or any(rates.may_change for rates in spec.stages)


def _shows_norms(spec: UpdateSpec, level: str) -> bool:
    return level == "norms"


def _shows_coefficients(spec: UpdateSpec, level: str) -> bool:
    return level == "norms" and spec.balancer is not None


# To add a figure, add one entry here, and a line to the docstring above.
FIGURES = (
    Figure("regularizer", lambda update: update.total.regularizer, _has_regularizer, per_head=False),
    Figure("encoder_learning_rate", lambda update: update.rates.at(update.step)[0], _has_changing_rates, per_head=False),
    Figure("weight", lambda update: update.total.weights, _has_changing_weights),
    Figure("norm", lambda update: update.combined.norms, _shows_norms),
    Figure("share", _shares, _shows_norms),
    Figure("coefficient", lambda update: update.combined.coefficients, _shows_coefficients),
    Figure("learning_rate", lambda update: update.rates.at(update.step)[1:], _has_changing_rates),
    Figure("updates", lambda update: tf.ones_like(update.loss_sums), _shows_norms, metric=keras.metrics.Sum),
)
"""The figures of updates in the logs, besides losses, the heads' metrics and the number of skipped updates."""


class LogMetrics:
    """The metrics behind the logs. They belong to the trainer, which resets them in every epoch.

    Args:
        spec: How updates are computed.
        level: One of `LEVELS`.
    """

    def __init__(self, spec: UpdateSpec, level: str) -> None:
        self.heads = spec.network.heads
        self.weighting = spec.weighting
        self.variables = [*spec.network.variables.encoder, *spec.network.variables.heads]
        self.total = keras.metrics.Mean(name="loss", dtype="float32")
        self.losses = [keras.metrics.Mean(name=f"{head.name}_loss", dtype="float32") for head in self.heads]
        self.figures = [
            (figure, [figure.metric(name=name, dtype="float32") for name in self._names(figure)])
            for figure in FIGURES
            if figure.is_shown(spec, level)
        ]
        self.skipped = keras.metrics.Sum(name="skipped_updates", dtype="float32")
        self.broken = BrokenGradients(len(self.heads), len(self.variables))
        self._names_in_logs: list[str] | None = None
        self._main_names: list[str] | None = None

    def _names(self, figure: Figure) -> list[str]:
        return [f"{head.name}_{figure.name}" for head in self.heads] if figure.per_head else [figure.name]

    @property
    def all(self) -> list[Any]:
        """All metrics, including those of the heads."""
        of_figures = [metric for _, metrics in self.figures for metric in metrics]
        own = [metric for head in self.heads for metric in head.metrics or []]
        return [self.total, *self.losses, *of_figures, *own, self.skipped, self.broken]

    def update(self, update: Update, applied: tf.Tensor, num_replicas: int) -> None:
        """Adds one update.

        Args:
            update: The update, with this replica's sums.
            applied: Whether it was applied.
            num_replicas: The number of replicas that add their updates.
        """
        is_counted = applied & tf.math.is_finite(update.loss_sums)
        self.add_losses(tf.where(is_counted, update.loss_sums, 0.0), tf.where(is_counted, update.counts, 0.0))
        total = update.total.total + update.added_loss
        is_usable = applied & tf.math.is_finite(total)
        self.total.update_state(tf.where(is_usable, total, 0.0) * num_replicas, tf.where(is_usable, 1.0 / num_replicas, 0.0))
        for figure, metrics in self.figures:
            values = figure.value(update)
            if values is None:
                continue
            for k, metric in enumerate(metrics):
                value = values[k] if figure.per_head else values
                counts = applied & update.active[k] if figure.per_head else applied
                weight = tf.where(counts & tf.math.is_finite(value), 1.0 / num_replicas, 0.0)
                metric.update_state(tf.where(weight > 0, value, 0.0), weight)
        self.skipped.update_state(tf.where(applied, 0.0, 1.0 / num_replicas))
        self.broken.update_state(update.loss_sums, update.combined.norms, update.gradients.of_losses, num_replicas)

    def add_losses(self, loss_sums: tf.Tensor, counts: tf.Tensor) -> None:
        """Adds this replica's sums and counts, `[num_heads]` each."""
        for k, metric in enumerate(self.losses):
            metric.update_state(tf.math.divide_no_nan(loss_sums[k], counts[k]), counts[k])

    def report(self) -> str | None:
        """A sentence about the epoch's skipped updates, with the heads and variables; None if no update was skipped."""
        skipped = round(float(self.skipped.result()))
        if not skipped:
            return None
        heads, variables = self.broken.found()
        names = quoted(variable_name(self.variables[i]) for i in variables)
        if not heads and not variables:
            return f"{skipped} of the epoch's updates were skipped because none of the scheduled heads had labels."
        whose = f"head {quoted(self.heads[k].name for k in heads)}" if heads else "the heads together"
        return (
            f"{skipped} of the epoch's updates were skipped because a gradient was not finite: from {whose}, in {names}. "
            "Lower the learning rate, clip gradients (`clip=`), or check the labels and inputs for invalid values."
        )

    def names(self) -> list[str]:
        """The names of all figures of an epoch."""
        if self._names_in_logs is None:
            self._names_in_logs = list(self.training_logs())
        return self._names_in_logs

    def main_names(self) -> list[str]:
        """The names of each head's loss and first metric."""
        if self._main_names is None:
            self._main_names = [name for k, head in enumerate(self.heads) for name in list(self._head_logs(k, head))[:2]]
        return self._main_names

    def training_logs(self) -> dict[str, Any]:
        """All figures of the epoch so far."""
        logs: dict[str, Any] = {"loss": _or_nan(self.total.result(), _has_any(self.total))}
        logs.update({figure.name: metrics[0].result() for figure, metrics in self.figures if not figure.per_head})
        for k, head in enumerate(self.heads):
            logs.update(self._head_logs(k, head))
            for figure, metrics in self.figures:
                if figure.per_head:
                    logs[f"{head.name}_{figure.name}"] = metrics[k].result()
        logs["skipped_updates"] = self.skipped.result()
        return logs

    def evaluation_logs(self, weights: tf.Tensor, present: Sequence[str], step: tf.Tensor) -> dict[str, Any]:
        """The figures of an evaluation.

        Args:
            weights: `[num_heads]`: the heads' own weights.
            present: The heads that have targets in the data.
            step: The number of updates applied so far.
        """
        logs: dict[str, Any] = {}
        for k, head in enumerate(self.heads):
            logs.update(self._head_logs(k, head) if head.name in present else {})
        active = tf.stack([_has_any(metric) for metric in self.losses]) & (weights > 0)
        losses = weights * tf.stack([metric.result() for metric in self.losses])
        losses = tf.where(active, losses, 0.0)
        if self.weighting is None:
            total = tf.reduce_sum(losses)
        else:
            total = self.weighting.weigh(losses, active, **self.weighting.used(step=step))[1]
        return {"loss": _or_nan(total, tf.reduce_any(active)), **logs}

    def _head_logs(self, k: int, head: Head) -> dict[str, Any]:
        logs: dict[str, Any] = {f"{head.name}_loss": self.losses[k].result()}
        for metric in head.metrics or []:
            result = metric.result()
            if isinstance(result, dict):
                logs.update({f"{head.name}_{name}": value for name, value in result.items()})
            else:
                logs[f"{head.name}_{metric.name}"] = result
        has_labels = _has_any(self.losses[k])
        return {name: _or_nan(value, has_labels) for name, value in logs.items()}


def _has_any(mean: Any) -> tf.Tensor:
    """Whether a `keras.metrics.Mean` is of anything."""
    return tf.convert_to_tensor(tensor_variable(mean.count)) > 0


def _or_nan(figure: Any, condition: tf.Tensor) -> Any:
    """A figure where the condition holds, else NaN; what is not floating is left as it is."""
    figure = tf.convert_to_tensor(figure)
    return tf.where(condition, figure, float("nan")) if figure.dtype.is_floating else figure


class _Report(keras.callbacks.Callback):
    """At the end of an epoch, warns about skipped updates and calls `end_epoch` of the weighting."""

    def __init__(self, metrics: Callable[[], LogMetrics | None], others: Sequence[Any]) -> None:
        super().__init__()
        self._metrics = metrics
        self._others = others

    def on_train_begin(self, logs: Any = None) -> None:
        for callback in self._others:
            if hasattr(callback, "check_others"):
                callback.check_others(self._others)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        # Keras 3 takes the first value it sees for the best, and nothing is better than NaN.
        for callback in self._others:
            best = getattr(callback, "best", None)
            if isinstance(best, numbers.Real) and math.isnan(best):
                callback.best = None
        metrics = self._metrics()
        if metrics is None:
            return
        if metrics.weighting is not None:
            metrics.weighting.end_epoch()
        text = metrics.report()
        if text is not None:
            warnings.warn(f"Epoch {epoch + 1}: {text}", RuntimeWarning, stacklevel=2)


def with_report(metrics: Callable[[], LogMetrics | None], callbacks: Any) -> Any:
    """Adds the report on skipped updates to the callbacks of `fit`.

    Args:
        metrics: Returns the trainer's metrics, or None before they exist.
        callbacks: The callbacks passed to `fit`.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, _Report(metrics, list(callbacks.callbacks)))
        return callbacks
    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    # First, so that a checkpoint at the end of an epoch holds what that end changes.
    return [_Report(metrics, given), *given]
