"""The metrics behind the logs, from the statistics of single updates to those of epochs and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import METRICS_ARE_SORTED, Untracked, first_replica_variable, tensor_variable
from multihead._ground.layers import distinct, losses_of_call, losses_of_weights, own_losses
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Config, Metric, Tensor
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead.heads._metric_names import TOTALS
from multihead.heads._named import NamedHead, or_nan
from multihead.telemetry import LEVELS, LOSSES, STATISTICS, comparable_pairs, names_of

Key = str | tuple[str, str]
"""What tells a value from the others: its name in the logs, or a kind and a name."""

ADDED_LOSS = "added_loss"
"""The name of the sum of the losses that layers add, if any does."""

DECAY = 0.98
"""The decay of running averages per update: half of the weight is on the last 34 updates."""


class Part(NamedTuple):
    """Values to be added to those of the epoch: vectors of sums, and their numbers of elements, updates or examples."""

    sums: Tensor
    counts: Tensor


class Mean(NamedTuple):
    """A value of the epoch so far; a mean over elements, updates or examples."""

    value: tf.Tensor  # NaN if there was none
    or_zero: tf.Tensor  # 0 if there was none
    exists: tf.Tensor  # whether there was any
    sum: tf.Tensor


class Recorded(NamedTuple):
    """What was recorded in the epoch so far."""

    total_loss: tf.Tensor  # 0 if there was none
    means: dict[Key, Mean]


class LogSums(keras.metrics.Metric):
    """The vectors behind the logs, few of them, so that a step has few operations; Keras resets `sums` in every epoch.

    Of several replicas, each holds its part of every value; a read from outside adds up the parts.
    """

    def __init__(self, logs: LogMetrics, num_sums: int, num_averages: int, latest: tuple[int, int], dtype: str) -> None:
        super().__init__(name="loss", dtype="float32")
        self._logs = Untracked(logs)
        options: Config = {"initializer": "zeros", "dtype": "float32"}
        # All sums, followed by all counts, so that one operation adds to both; see `add` and `read`.
        self.sums = self.add_weight(name="sums", shape=(2 * num_sums,), initializer="zeros", dtype=dtype)
        if latest[1]:  # running averages, their numbers of updates, and the statistics of the latest updates
            self.averages = self.add_weight(name="averages", shape=(num_averages,), **options)
            self.average_counts = self.add_weight(name="average_counts", shape=(num_averages,), **options)
            self.latest = self.add_weight(name="latest", shape=latest, **options)

    def add(self, parts: Sequence[Part]) -> None:
        """Adds this replica's part of all values, which together are in the order of `read`."""
        vectors = [*(part.sums for part in parts), *(part.counts for part in parts)]
        variable = tensor_variable(self.sums)
        variable.assign_add(tf.concat([tf.cast(vector, variable.dtype) for vector in vectors], axis=0))

    def read(self) -> Part:
        """All sums and counts so far."""
        return Part(*tf.split(tf.convert_to_tensor(tensor_variable(self.sums)), 2))

    def update_state(self, update: Update, applied: tf.Tensor) -> None:
        """As `LogMetrics.update`, which Keras does not wrap."""
        self._logs.value.update(update, applied)

    def reset_state(self) -> None:
        """Resets all sums to zero, and the counts of batches and of updates that are not finite."""
        self.sums.assign(tf.zeros(self.sums.shape, self.sums.dtype))
        self._logs.value.batches.assign(0)
        self._logs.value.spec.running.faults.numbers_of_epoch.assign([0, 0, 0])

    def result(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        recorded = self._logs.value.read()
        return where(recorded.means[ADDED_LOSS].exists, recorded.total_loss, float("nan"))


class LogMetrics:
    """The metrics behind the logs, which the trainer resets in every epoch; statistics of `latest` updates are kept."""

    def __init__(self, spec: UpdateSpec, level: str | None, latest: int = 1) -> None:
        self.heads, self.measured = spec.network.heads, spec.network.measured
        self.spec = spec
        heads, self._pairs = [head.name for head in self.heads], comparable_pairs(spec)
        levels = LEVELS[: LEVELS.index(level) + 1]
        self._shown = [
            (statistic, names_of(statistic.name, statistic.per, heads, self._pairs))
            for statistic in (*LOSSES, *STATISTICS)
            if statistic.level in levels and (statistic.needs is None or statistic.needs(spec))
        ]
        names = [name for _, names in self._shown for name in names]
        averaged = [own for statistic, own in self._shown if level == "full" and statistic.averaged]
        # The statistics that have a running average; what is known of the latest updates.
        self.averaged = [name for own in averaged for name in own]
        self._averaged_at = [names.index(name) for name in self.averaged]
        self.columns = [*names, *(f"{name}_average" for name in self.averaged), "applied"] if names else []
        self._num_statistics = len(names)
        losses, weighted = ([(kind, head) for head in heads] for kind in ("loss", "weighted"))
        self._keys: list[Key] = [*losses, *names, ADDED_LOSS, "total", *weighted]
        shape, dtype = (latest, len(self.columns)), spec.network.dtype.name
        self.sums = LogSums(self, len(self._keys), len(self.averaged), shape, dtype)
        # The batches in the epoch; the updates so far, skipped ones included, or 0 without telemetry.
        self.batches, self.recorded = (first_replica_variable(tf.constant(0, tf.int64)) for _ in range(2))
        # Of the heads, in the total loss of an evaluation.
        self.weights = first_replica_variable(tf.ones([len(heads)], spec.network.dtype))
        self._adds_losses = any(losses_of_call(module) or losses_of_weights(module) for module in spec.network.modules)
        self._adds_losses |= bool(own_losses(spec.network.trainer))
        self._names_in_logs: list[str] | None = None
        self._check_names()

    def _check_names(self) -> None:
        """Raises a `ValueError` if a metric that a layer keeps has the name of another value, which it would hide."""
        head_statistics = [name for head in (*self.heads, *self.measured) for name in _names_of(head)]
        taken = {*TOTALS, *head_statistics, *(name for _, names in self._shown for name in names), *self.columns}
        for metric in self._layer_metrics:
            if str(metric.name).removeprefix("val_") in taken:
                raise ValueError(
                    "`name` of a metric that a layer keeps must tell its values apart in the logs. Received: "
                    f"{metric.name!r}, which stands for a value of the trainer. Rename the metric."
                )

    @property
    def all(self) -> list[Metric]:
        return distinct((self.sums, *self._head_metrics, *self._layer_metrics))

    @property
    def _head_metrics(self) -> list[Metric]:
        return [metric for head in (*self.heads, *self.measured) for metric in head.metrics or []]

    @property
    def _layer_metrics(self) -> list[Metric]:
        """The metrics that layers keep, without those of the heads."""
        known = {id(self.sums), *map(id, self._head_metrics)}
        return [metric for metric in self.spec.network.metrics_of_layers if id(metric) not in known]

    def _results_of_layers(self) -> dict[str, Tensor]:
        """The results of the metrics that layers keep, by their own names, as in Keras."""
        results: dict[str, Tensor] = {}
        for metric in self._layer_metrics:
            if metric.variables:
                result = metric.result()
                results.update(result if isinstance(result, dict) else {metric.name: result})
        return results

    @property
    def counters(self) -> list[tf.Variable]:
        """The variables that count batches and updates, which are no weights of the metrics."""
        return [self.batches, self.weights, *([self.recorded] if self.columns else [])]

    def count_batches(self, number: int) -> tf.Tensor:
        """Counts batches; the position in the epoch of the first of them, from 0."""
        first = self.batches.read_value()
        self.batches.assign_add(tf.constant(number, tf.int64))
        return first

    @unchecked()
    def update(self, update: Update, applied: tf.Tensor) -> None:
        """Adds one update, with this replica's sums, and whether it was applied.

        As in Keras, finite losses count even if the gradients are not finite, as while mixed precision looks for its scale.
        """
        is_counted = ~update.broken.losses
        losses, counts = where(is_counted, update.loss_sums, 0.0), where(is_counted, update.counts, 0.0)
        total, weighted = None, losses * update.losses.loss_weights.head_weights
        if self.spec.methods.weighting is not None:  # its total need not be a sum over heads
            total, weighted = update.losses.total, tf.zeros_like(losses)
        if update.added_loss is not None:  # those of training alone are not known before
            self.show_added()
        example_losses = [loss for loss in (update.added_loss, total) if loss is not None]
        is_usable = update.participation.any & tf.reduce_all(is_counted)
        if example_losses:
            is_usable &= tf.math.is_finite(tf.add_n(example_losses))
        examples = where(is_usable, update.losses.loss_weights.examples, 0.0)
        added, total = (
            0.0 if loss is None else where(is_usable, loss * examples, 0.0) for loss in (update.added_loss, total)
        )
        statistics = self._record(update, applied)
        self._add(Part(losses, counts), statistics, [added, total], replicas.part_of(examples), weighted)

    def add_evaluated(self, *, losses: tf.Tensor, counts: tf.Tensor, added: tf.Tensor | None, examples: tf.Tensor) -> None:
        """Adds this replica's part of one batch of an evaluation; see `multihead._update.evaluate.evaluate_batch`."""
        if added is not None:
            self.show_added()
        nothing, example_losses = tf.zeros([self._num_statistics]), [0.0 if added is None else added * examples, 0.0]
        self._add(Part(losses, counts), Part(nothing, nothing), example_losses, examples, tf.zeros_like(losses))

    def _add(
        self, losses: Part, statistics: Part | None, example_losses: Sequence[Tensor], examples: tf.Tensor, weighted: Tensor
    ) -> None:
        """Adds this replica's part of all values, in the order of the keys.

        `losses` are the heads' loss sums, and `weighted` the same times the heads' weights, `[num_heads]`; `example_losses`,
        over this number of `examples`, the losses that layers add and the total of a weighting.
        """
        added = Part(tf.convert_to_tensor(example_losses, self.spec.network.dtype), tf.fill([2], examples))
        parts = [losses, statistics, added, Part(weighted, losses.counts)]
        self.sums.add([part for part in parts if part is not None])

    def show_added(self) -> None:
        """Shows the losses that layers add from now on."""
        if not self._adds_losses:
            self._adds_losses, self._names_in_logs = True, None

    def _record(self, update: Update, applied: tf.Tensor) -> Part | None:
        """Records the statistics of an update; this replica's part of them and of their numbers of updates."""
        if not self._shown:
            return None
        parts = [statistic.part(update, self._pairs) for statistic, _ in self._shown]
        values, is_known = (tf.concat(vectors, axis=0) for vectors in zip(*parts))
        counted = applied & is_known & tf.math.is_finite(values)
        numbers, known = replicas.part_of(tf.cast(counted, tf.float32)), where(counted, values, 0.0)
        row = [where(counted, values, float("nan"))]
        if self.averaged:
            row.append(self._average(*(tf.gather(vector, self._averaged_at) for vector in (known, counted, numbers))))
        row.append(replicas.part_of(tf.cast(applied, tf.float32))[tf.newaxis])
        kept, new = tensor_variable(self.sums.latest), tf.concat(row, axis=0)[tf.newaxis]
        kept.assign(new if kept.shape[0] == 1 else tf.concat([kept.read_value()[1:], new], axis=0))
        self.recorded.assign_add(1)
        return Part(known, numbers)

    def _average(self, values: tf.Tensor, counted: tf.Tensor, parts: tf.Tensor) -> tf.Tensor:
        """Moves the running averages: with `n` updates so far, by `(1 - decay) / (1 - decay^n)` of the difference.

        This is the exponential average divided by `1 - decay^n`, which is that without a bias towards the initial value.
        """
        variable, numbers = tensor_variable(self.sums.averages), tensor_variable(self.sums.average_counts)
        old, number = variable.read_value(), numbers.read_value() + parts
        rate = (1 - DECAY) / (1 - tf.pow(DECAY, tf.maximum(number * replicas.num_replicas(), 1.0)))
        new = where(counted, old + rate * (values - old), old)
        variable.assign(new)
        numbers.assign(number)
        return where(number > 0, new, float("nan"))

    def read(self) -> Recorded:
        """The total loss and all means of the epoch so far.

        The total loss is `sum_k (sum_u w_ku * S_ku) / (sum_u n_ku) + (sum_u m_u * r_u) / (sum_u m_u)`, over heads `k` and
        updates `u`, with the weights `w`, the loss sums `S`, their counts `n`, the numbers of examples `m` and the losses
        `r` that layers add. A weighting has its own total in place of the first sum.
        """
        sums, counts = self.sums.read()
        exist, or_zero = counts > 0, tf.math.divide_no_nan(sums, counts)
        vectors = where(exist, or_zero, float("nan")), or_zero, exist, sums
        means = {key: Mean(*values) for key, *values in zip(self._keys, *map(tf.unstack, vectors))}
        keys: list[Key] = [*(("weighted", head.name) for head in self.heads), ADDED_LOSS, "total"]
        return Recorded(tf.add_n([means[key].or_zero for key in keys]), means)

    @unchecked()
    def training_logs(self, *, at_end: bool = False) -> dict[str, Tensor]:
        """All statistics of the epoch so far, or `at_end`.

        Before the end, the loss of updates without any label is 0, not NaN, at which `TerminateOnNaN` would stop.
        """
        total_loss, means = self.read()
        skipped, _, faults = tf.unstack(self.spec.running.faults.numbers_of_epoch.read_value())
        is_known = means[ADDED_LOSS].exists if at_end else means[ADDED_LOSS].exists | tf.equal(faults, 0)
        logs: dict[str, Tensor] = {"loss": where(is_known, total_loss, float("nan"))}
        logs.update(self._added_logs(means))
        for head in self.heads:
            logs.update(_head_logs(head, means["loss", head.name]))
        for head in self.measured:
            logs.update(_results(head))
        # What counted in no update is 0, or NaN if updates need not measure it.
        backward = self.spec.methods.backward
        need_not = backward.may_reuse and backward.at_parameters
        for statistic, names in self._shown:
            for name in names if statistic not in LOSSES else ():
                mean = means[name]
                logs[name] = mean.sum if statistic.is_sum else mean.value if need_not else mean.or_zero
        if self.averaged:
            variables = tensor_variable(self.sums.averages), tensor_variable(self.sums.average_counts)
            values, numbers = map(tf.convert_to_tensor, variables)
            averages = tf.unstack(where(numbers > 0, values, float("nan")))
            logs.update({f"{name}_average": value for name, value in zip(self.averaged, averages)})
        logs.update(self._results_of_layers())
        logs["skipped_updates"] = tf.cast(skipped, tf.float32)
        return logs

    @unchecked()
    def evaluation_logs(self, present: Sequence[str]) -> dict[str, Tensor]:
        """The statistics of an evaluation, of the heads that are present.

        The total loss is `sum_k w_k * L_k`, with the constant `weights`, so that those of two epochs can be compared.
        """
        means, logs = self.read().means, dict[str, Tensor]()
        losses = [means["loss", head.name] for head in self.heads]
        for loss, head in zip(losses, self.heads):
            logs.update(_head_logs(head, loss) if head.name in present else {})
        for head in self.measured:
            logs.update(_results(head) if head.name in present else {})
        weights = self.weights.read_value()
        active = tf.stack([loss.exists for loss in losses]) & (weights > 0)
        total = tf.reduce_sum(where(active, weights * tf.stack([loss.value for loss in losses]), 0.0))
        loss = or_nan(total + means[ADDED_LOSS].or_zero, tf.reduce_any(active))
        return {**self._results_of_layers(), "loss": loss, **self._added_logs(means), **logs}

    def _added_logs(self, means: dict[Key, Mean]) -> dict[str, Tensor]:
        return {ADDED_LOSS: means[ADDED_LOSS].value} if self._adds_losses else {}

    def take_weights(self, heads: Sequence[NamedHead]) -> None:
        """Takes the current weights of heads for the total loss of evaluations; functions of the step count 1."""
        self.weights.assign([1.0 if head.has_weight_function else head.weight for head in heads])

    def names(self) -> list[str]:
        if self._names_in_logs is None:
            self._names_in_logs = list(self.training_logs())
        return self._names_in_logs

    def names_in_order(self) -> list[str]:
        """The names of the statistics of an evaluation, in the order in which Keras puts them into a list."""
        head_statistics = [name for head in (*self.heads, *self.measured) for name in _names_of(head)]
        losses = [f"{head.name}_loss" for head in self.heads]
        added = [ADDED_LOSS] if self._adds_losses else []
        head_metrics = [name for name in head_statistics if name not in losses]
        head_metrics = sorted(head_metrics) if METRICS_ARE_SORTED else head_metrics
        return ["loss", *losses, *head_metrics, *added, *self._results_of_layers()]

    def shown(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of the logs for the progress line: losses, the heads' first metrics, and what callbacks have added.

        `skipped_updates` is among them if there are any.
        """
        first = [name for head in self.heads for name in _names_of(head)[:2]]
        first += [name for head in self.measured for name in _names_of(head)[:1]]
        wanted = [*first, *(f"val_{name}" for name in first)]
        hidden = {f"{prefix}{name}" for name in set(self.names()) - set(first) for prefix in ("", "val_")}
        if float(logs.get("skipped_updates", 0)) > 0:
            hidden.remove("skipped_updates")
        order = [*(name for name in wanted if name in logs), *logs]
        return {name: logs[name] for name in order if name not in hidden}

    def latest(self, number: int) -> list[Config]:
        """The statistics of up to that many latest updates, oldest first.

        An update has `applied`, statistics and averages by name; None for missing values.
        """
        rows, lines = np.asarray(tf.convert_to_tensor(tensor_variable(self.sums.latest))), []
        unlisted = {"applied", *(name for statistic, names in self._shown if statistic.is_sum for name in names)}
        for row in rows[max(len(rows) - number, 0) :]:
            known = zip(self.columns, map(float, row))
            values = {name: value if np.isfinite(value) else None for name, value in known if name not in unlisted}
            lines.append({"applied": bool(row[-1] > 0.5), **values})
        return lines


def _names_of(head: NamedHead) -> list[str]:
    """The names of a head's loss and metrics."""
    return [*([f"{head.name}_loss"] if head.is_trained else []), *_results(head)]


def _head_logs(head: NamedHead, loss: Mean) -> dict[str, Tensor]:
    """A head's loss and metrics; NaN without labels."""
    metrics = {name: or_nan(value, loss.exists) for name, value in _results(head).items()}
    return {f"{head.name}_loss": loss.value, **metrics}


def _results(head: NamedHead) -> dict[str, Tensor]:
    """A head's metrics by their names in the logs."""
    return {f"{head.name}_{name}": value for name, value in head.results().items()}
