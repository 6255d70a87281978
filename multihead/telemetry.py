"""What the trainer shows in Keras's logs: per-head loss, gradient norm, share and coefficient.

For head `k`, with `g_k` the gradient of its weighted loss where the heads meet (at the representation, or at the
encoder's parameters) and `a_k` the coefficient that the balancer gives it (1 without a balancer):

- `{head}_loss`: its loss, unweighted, over all labelled elements of the epoch so far;
- `{head}_norm`: `|g_k|`;
- `{head}_share`: `|a_k g_k| / sum_j |a_j g_j|`;
- `{head}_coefficient`: `a_k` (for a method without coefficients `<d, g_k> / <g_k, g_k>`, `d` being what it gives), all
  three the mean over the updates that train the head;
- `{head}_weight`, where it can change: the weight of the head's loss in the total, the mean over the updates that train
  the head;
- `regularizer`, where the weighting has one: the part of the total that no head's loss is in;
- `loss`: the total loss, the mean over updates (in evaluation: from the heads' losses over all labelled elements);
- `{head}_updates`: how many updates of the epoch so far have trained it;
- `skipped_updates`: updates that were not made, since a gradient was not finite or no head had a label.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._gradients import is_finite
from multihead._keras import tensor_variable, variable_name
from multihead._step import Computed
from multihead._validation import quoted
from multihead.heads import Head

__all__ = ["LEVELS", "Trackers", "with_report"]

LEVELS = ("norms", "losses")
"""What `telemetry=` may be: `"norms"` shows everything, `"losses"` leaves out norms, shares, coefficients and counts."""


class BrokenGradients(keras.metrics.Metric):
    """Counts, by head and by variable, the updates whose gradients were not finite."""

    def __init__(self, num_heads: int, num_variables: int) -> None:
        super().__init__(name="broken_gradients")
        self.by_head = self.add_weight(name="by_head", shape=(num_heads,), initializer="zeros")
        self.by_variable = self.add_weight(name="by_variable", shape=(num_variables,), initializer="zeros")

    def update_state(
        self, loss_sums: tf.Tensor, norms: tf.Tensor | None, gradients: Sequence[Any], num_replicas: int
    ) -> None:
        """Adds one update: `[num_heads]` loss sums and norms (or None), and one gradient or None per variable."""
        heads = tf.math.is_finite(loss_sums)
        if norms is not None:
            heads &= tf.math.is_finite(norms)
        # Of the encoder and the heads alone: what a weighting learns comes after them.
        counted = gradients[: self.by_variable.shape[0]]
        variables = tf.stack([tf.constant(True) if g is None else is_finite(g) for g in counted])
        self.by_head.assign_add(tf.cast(~heads, tf.float32) / num_replicas)
        self.by_variable.assign_add(tf.cast(~variables, tf.float32) / num_replicas)

    def reset_state(self) -> None:
        """Sets all counts to zero."""
        for counts in (self.by_head, self.by_variable):
            counts.assign(tf.zeros(counts.shape))

    def result(self) -> tf.Tensor:
        """How many gradients of variables were not finite."""
        return tf.reduce_sum(tf.convert_to_tensor(self.by_variable))

    def found(self) -> tuple[list[int], list[int]]:
        """The positions of heads and of variables that had gradients which were not finite."""
        by_head, by_variable = (tf.convert_to_tensor(v).numpy() for v in (self.by_head, self.by_variable))
        return by_head.nonzero()[0].tolist(), by_variable.nonzero()[0].tolist()


class Trackers:
    """The metrics behind the logs. They live on the trainer, which resets them at every epoch.

    Args:
        heads: The heads.
        variables: The variables that they and the encoder train.
        level: One of `LEVELS`.
        weighting: The weighting, or None.
    """

    def __init__(self, heads: Sequence[Head], variables: Sequence[Any], level: str, weighting: Any = None) -> None:
        self.heads = tuple(heads)
        self.weighting = weighting
        self.weights: list[Any] = []
        if weighting is not None or any(callable(head.weight) for head in heads):
            self.weights = [keras.metrics.Mean(name=f"{head.name}_weight") for head in heads]
        self.regularizer = None
        if weighting is not None and weighting.regularizer(tf.ones([len(self.heads)], tf.bool)) is not None:
            self.regularizer = keras.metrics.Mean(name="regularizer")
        self.variables = list(variables)
        self.broken = BrokenGradients(len(self.heads), len(self.variables))
        self.total = keras.metrics.Mean(name="loss")
        self.losses = [keras.metrics.Mean(name=f"{head.name}_loss") for head in heads]
        self.flows: dict[str, list[Any]] = {}
        self.trained: list[Any] = []
        if level == "norms":
            self.flows = {
                kind: [keras.metrics.Mean(name=f"{head.name}_{kind}") for head in heads]
                for kind in ("norm", "share", "coefficient")
            }
            self.trained = [keras.metrics.Sum(name=f"{head.name}_updates") for head in heads]
        self.skipped = keras.metrics.Sum(name="skipped_updates")

    @property
    def all(self) -> list[Any]:
        """Every metric, the heads' own included."""
        flows = [metric for metrics in self.flows.values() for metric in metrics]
        own = [metric for head in self.heads for metric in head.metrics or []]
        weights = [*self.weights, *([] if self.regularizer is None else [self.regularizer])]
        return [self.total, *self.losses, *weights, *flows, *self.trained, *own, self.skipped, self.broken]

    def update(self, computed: Computed, made: tf.Tensor, num_replicas: int) -> None:
        """Adds one update's figures.

        Args:
            computed: The update and this replica's sums.
            made: Whether the update was made.
            num_replicas: How many replicas add theirs.
        """
        update = computed.update
        self.update_losses(computed.loss_sums, computed.counts)
        usable = made & tf.math.is_finite(computed.total)
        self.total.update_state(
            tf.where(usable, computed.total, 0.0) * num_replicas, tf.where(usable, 1.0 / num_replicas, 0.0)
        )
        for k, metric in enumerate(self.weights):
            weighed = made & update.active[k]
            metric.update_state(tf.where(weighed, computed.weights[k], 0.0), tf.where(weighed, 1.0, 0.0))
        if self.regularizer is not None and computed.weighed is not None:
            self.regularizer.update_state(tf.where(made, computed.weighed.regularizer, 0.0), tf.where(made, 1.0, 0.0))
        self.skipped.update_state(tf.where(made, 0.0, 1.0 / num_replicas))
        for k, metric in enumerate(self.trained):
            metric.update_state(tf.where(made & update.active[k], 1.0 / num_replicas, 0.0))
        self.broken.update_state(computed.loss_sums, update.norms, update.gradients, num_replicas)
        if self.flows and update.norms is not None:
            flows = tf.abs(update.coefficients) * update.norms
            shares = tf.math.divide_no_nan(flows, tf.reduce_sum(flows))
            for kind, values in (("norm", update.norms), ("share", shares), ("coefficient", update.coefficients)):
                for k, metric in enumerate(self.flows[kind]):
                    usable = made & update.active[k] & tf.math.is_finite(values[k])
                    metric.update_state(tf.where(usable, values[k], 0.0), tf.where(usable, 1.0, 0.0))

    def update_losses(self, loss_sums: tf.Tensor, counts: tf.Tensor) -> None:
        """Adds this replica's sums and counts, `[num_heads]` each; a loss that is not finite is left out."""
        for k, metric in enumerate(self.losses):
            usable = (counts[k] > 0) & tf.math.is_finite(loss_sums[k])
            value = tf.math.divide_no_nan(tf.where(usable, loss_sums[k], 0.0), counts[k])
            metric.update_state(value, tf.where(usable, counts[k], 0.0))

    def report(self) -> str | None:
        """A sentence about the epoch's skipped updates, naming heads and variables; None if none was skipped."""
        skipped = round(float(self.skipped.result()))
        if not skipped:
            return None
        heads, variables = self.broken.found()
        names = quoted(variable_name(self.variables[i]) for i in variables)
        if not heads and not variables:
            return f"{skipped} of the epoch's updates were skipped, since no head that was to train had a label."
        whose = f"head {quoted(self.heads[k].name for k in heads)}" if heads else "the heads together"
        return (
            f"{skipped} of the epoch's updates were skipped, since a gradient was not finite: from {whose}, in {names}. "
            "Lower the learning rate, clip (`clip=`), or look for labels and inputs that the loss cannot take."
        )

    def training_logs(self) -> dict[str, Any]:
        """All figures of the epoch so far."""
        logs: dict[str, Any] = {"loss": self.total.result()}
        if self.regularizer is not None:
            logs["regularizer"] = self.regularizer.result()
        for k, head in enumerate(self.heads):
            logs.update(self._head_logs(k, head))
            if self.weights:
                logs[f"{head.name}_weight"] = self.weights[k].result()
            for kind, metrics in self.flows.items():
                logs[f"{head.name}_{kind}"] = metrics[k].result()
            if self.trained:
                logs[f"{head.name}_updates"] = self.trained[k].result()
        logs["skipped_updates"] = self.skipped.result()
        return logs

    def evaluation_logs(self, weights: tf.Tensor, present: Sequence[str], update_count: tf.Tensor) -> dict[str, Any]:
        """The figures of an evaluation.

        Args:
            weights: `[num_heads]`: the heads' own weights.
            present: The heads that have targets in the data.
            update_count: The count of updates made so far.
        """
        logs: dict[str, Any] = {}
        weighted = []
        for k, head in enumerate(self.heads):
            head_logs = self._head_logs(k, head) if head.name in present else {}
            logs.update(head_logs)
            weighted.append(weights[k] * head_logs[f"{head.name}_loss"] if head_logs else tf.constant(0.0))
        losses = tf.stack(weighted)
        if self.weighting is None:
            return {"loss": tf.reduce_sum(losses), **logs}
        seen = [tf.convert_to_tensor(tensor_variable(metric.count)) > 0 for metric in self.losses]
        active = tf.stack(seen) & (weights > 0)
        return {"loss": self.weighting.weigh(losses, active, **self.weighting.used(update_count))[1], **logs}

    def _head_logs(self, k: int, head: Head) -> dict[str, Any]:
        logs: dict[str, Any] = {f"{head.name}_loss": self.losses[k].result()}
        for metric in head.metrics or []:
            result = metric.result()
            if isinstance(result, dict):
                logs.update({f"{head.name}_{name}": value for name, value in result.items()})
            else:
                logs[f"{head.name}_{metric.name}"] = result
        return logs


class _Report(keras.callbacks.Callback):
    """Ends an epoch: warns if updates were skipped, says whose gradients were to blame, and tells the weighting."""

    def __init__(self, trainer: Any) -> None:
        super().__init__()
        self._trainer = trainer

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        trackers = self._trainer.trackers
        if trackers is not None and trackers.weighting is not None:
            trackers.weighting.end_epoch()
        text = None if trackers is None else trackers.report()
        if text is not None:
            warnings.warn(f"Epoch {epoch + 1}: {text}", RuntimeWarning, stacklevel=2)


def with_report(trainer: Any, callbacks: Any) -> Any:
    """Adds the report on skipped updates to the callbacks of `fit`."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.insert(0, _Report(trainer))
        return callbacks
    given = [] if callbacks is None else list(callbacks) if isinstance(callbacks, (list, tuple)) else [callbacks]
    return [_Report(trainer), *given]  # first, so that a checkpoint at the end of an epoch holds what that end changes
