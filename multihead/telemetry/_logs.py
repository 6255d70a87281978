"""The metrics behind the logs, from the statistics of single updates to those of epochs and evaluations."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import Untracked, first_replica_variable, tensor_variable
from multihead._ground.layers import losses_of_call, losses_of_weights
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Config, Metric, Tensor
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead.heads._metrics import TOTALS
from multihead.heads._named import NamedHead, or_nan
from multihead.telemetry import LEVELS, LOSSES, STATISTICS, comparable_pairs, names_of

Key = str | tuple[str, str]
"""What tells a value from the others: its name in the logs, or a kind and a name."""

ADDED_LOSS = "added_loss"
"""The name of the sum of the losses that layers add, if any does."""

DECAY = 0.98
"""The decay of running averages per update: half of the weight is on the last 34 updates."""


class Sums(keras.metrics.Metric):
    """The vectors behind the logs, few of them, so that a step has few operations; Keras resets `sums` in every epoch.

    Of several replicas, each holds its part of every value; a read from outside adds up the parts.

    Attributes:
        sums: Sums, and then of how many elements, updates or examples each of them is.
        averages: The running averages.
        average_counts: Of how many updates each of them is.
        latest: `[updates, columns]`: the statistics of the latest updates; NaN for missing values.
    """

    def __init__(self, logs: LogMetrics, num_sums: int, num_averages: int, latest: tuple[int, int], dtype: str) -> None:
        super().__init__(name="loss", dtype="float32")
        self._logs = Untracked(logs)
        options: Config = {"initializer": "zeros", "dtype": "float32"}
        self.sums = self.add_weight(name="sums", shape=(2 * num_sums,), initializer="zeros", dtype=dtype)
        if latest[1]:
            self.averages = self.add_weight(name="averages", shape=(num_averages,), **options)
            self.average_counts = self.add_weight(name="average_counts", shape=(num_averages,), **options)
            self.latest = self.add_weight(name="latest", shape=latest, **options)

    def update_state(self, update: Update, applied: tf.Tensor) -> None:
        """As `LogMetrics.update`, which Keras does not wrap."""
        self._logs.value.update(update, applied)

    def reset_state(self) -> None:
        """Resets all sums to zero, and the counts of batches and of updates that are not finite."""
        self.sums.assign(tf.zeros(self.sums.shape, self.sums.dtype))
        self._logs.value.batches.assign(0)
        self._logs.value.spec.running.faults.reset_epoch()

    def result(self) -> tf.Tensor:
        """The total loss; NaN if nothing was added."""
        total, exist, *_ = self._logs.value.read()
        return where(exist[ADDED_LOSS], total, float("nan"))


class LogMetrics:
    """The metrics behind the logs. They belong to the trainer, which resets them in every epoch.

    Args:
        spec: How updates are computed.
        level: One of `LEVELS`.
        latest: The number of latest updates whose statistics are kept.

    Attributes:
        averaged: The names of the statistics that have a running average.
        columns: What is known of each of the latest updates: statistics, averages, and whether it was applied.
        batches: The number of batches in the epoch.
        recorded: The number of updates so far, skipped ones included; 0 without telemetry.
    """

    def __init__(self, spec: UpdateSpec, level: str | None, latest: int = 1) -> None:
        self.heads, self.measured = spec.network.heads, spec.network.measured
        self.spec = spec
        heads, self._pairs = [head.name for head in self.heads], comparable_pairs(spec)
        shown = [each for each in (*LOSSES, *STATISTICS) if each.level in LEVELS[: LEVELS.index(level) + 1]]
        shown = [each for each in shown if each.needs is None or each.needs(spec)]
        self._shown = [(each, names_of(each.name, each.per, heads, self._pairs)) for each in shown]
        names = [name for _, names in self._shown for name in names]
        self.averaged = [name for each, names in self._shown if level == "full" and each.averaged for name in names]
        self._averaged_at = [names.index(name) for name in self.averaged]
        self.columns = [*names, *(f"{name}_average" for name in self.averaged), "applied"] if names else []
        self._num_statistics = len(names)
        losses, weighted = ([(kind, head) for head in heads] for kind in ("loss", "weighted"))
        self._keys: list[Key] = [*losses, *names, ADDED_LOSS, "total", *weighted]
        shape, dtype = (latest, len(self.columns)), spec.network.dtype.name
        self.sums = Sums(self, len(self._keys), len(self.averaged), shape, dtype)
        self.batches, self.recorded = (first_replica_variable(tf.constant(0, tf.int64)) for _ in range(2))
        # Of the heads, in the total loss of an evaluation.
        self.weights = first_replica_variable(tf.ones([len(heads)], spec.network.dtype))
        self._adds_losses = any(losses_of_call(each) or losses_of_weights(each) for each in spec.network.modules)
        self._adds_losses |= bool(spec.network.losses_of_trainer)
        self._names_in_logs: list[str] | None = None
        self._check_names()

    def _check_names(self) -> None:
        """Raises a `ValueError` if a metric that a layer keeps has the name of another value, which it would hide."""
        of_heads = [name for head in (*self.heads, *self.measured) for name in _names_of(head)]
        taken = {*TOTALS, *of_heads, *(name for _, names in self._shown for name in names), *self.columns}
        own = {id(self.sums), *(id(metric) for head in (*self.heads, *self.measured) for metric in head.metrics or [])}
        for metric in self.spec.network.metrics_of_layers:
            if id(metric) not in own and str(metric.name).removeprefix("val_") in taken:
                raise ValueError(
                    "`name` of a metric that a layer keeps must tell its values apart in the logs. Received: "
                    f"{metric.name!r}, which stands for a value of the trainer. Rename the metric."
                )

    @property
    def all(self) -> list[Metric]:
        """All metrics, including those of the heads."""
        own = [metric for head in (*self.heads, *self.measured) for metric in head.metrics or []]
        return list({id(metric): metric for metric in (self.sums, *own, *self.spec.network.metrics_of_layers)}.values())

    def _results_of_layers(self) -> dict[str, Tensor]:
        """The results of the metrics that layers keep, by their own names, as in Keras."""
        own = {id(metric) for head in (*self.heads, *self.measured) for metric in head.metrics or []}
        found: dict[str, Tensor] = {}
        for metric in self.spec.network.metrics_of_layers:
            if id(metric) not in own and metric.variables:
                result = metric.result()
                found.update(result if isinstance(result, dict) else {metric.name: result})
        return found

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
        """Adds one update, with this replica's sums, and whether it was applied."""
        is_counted = applied & tf.math.is_finite(update.loss_sums)
        losses, counts = where(is_counted, update.loss_sums, 0.0), where(is_counted, update.counts, 0.0)
        total, weighted = None, losses * update.losses.loss_weights.of_heads
        if self.spec.methods.weighting is not None:  # its total need not be a sum over heads
            total, weighted = update.losses.total, tf.zeros_like(losses)
        self._show_added(update.added_loss)
        of_examples = [loss for loss in (update.added_loss, total) if loss is not None]
        is_usable = applied & tf.math.is_finite(tf.add_n(of_examples)) if of_examples else applied
        examples = where(is_usable, update.losses.loss_weights.examples, 0.0)
        added, total = (
            0.0 if each is None else where(is_usable, each * examples, 0.0) for each in (update.added_loss, total)
        )
        self._add([losses, weighted, counts], self._record(update, applied), [added, total], replicas.part_of(examples))

    def add_evaluated(self, *, losses: tf.Tensor, counts: tf.Tensor, added: tf.Tensor | None, examples: tf.Tensor) -> None:
        """Adds this replica's part of one batch of an evaluation; see `multihead._update.evaluate.evaluate_batch`."""
        self._show_added(added)
        nothing, of_examples = [tf.zeros([self._num_statistics])], [0.0 if added is None else added * examples, 0.0]
        self._add([losses, tf.zeros_like(losses), counts], (nothing, nothing), of_examples, examples)

    def _add(
        self,
        losses: Sequence[Tensor],
        statistics: Sequence[list[Tensor]],
        of_examples: Sequence[Tensor],
        examples: tf.Tensor,
    ) -> None:
        """Adds this replica's part of all values and their counts, in the order of the keys.

        `losses` are `[num_heads]` loss sums, the same times the heads' weights, and of how many elements they are;
        `statistics` two lists of vectors, of statistics and of how many updates each is; `of_examples`, over this number of
        `examples`, the losses that layers add and the total of a weighting.
        """
        sums, weighted, counts = losses
        dtype = self.spec.network.dtype
        values = [sums, *statistics[0], tf.convert_to_tensor(of_examples, dtype), weighted]
        numbers = [counts, *statistics[1], tf.fill([2], examples), counts]
        tensor_variable(self.sums.sums).assign_add(tf.concat([tf.cast(each, dtype) for each in (*values, *numbers)], axis=0))

    def _show_added(self, loss: tf.Tensor | None) -> None:
        """Shows the losses that layers add from now on, if there are any: those of training alone are not known before."""
        if loss is not None:
            self.show_added()

    def show_added(self) -> None:
        """Shows the losses that layers add from now on."""
        if not self._adds_losses:
            self._adds_losses, self._names_in_logs = True, None

    def _record(self, update: Update, applied: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Records the statistics of an update; this replica's part of them, and of how many updates each is."""
        if not self._shown:
            return [], []
        found = [each.part(update, self._pairs) for each, _ in self._shown]
        values, is_known = (tf.concat(parts, axis=0) for parts in zip(*found))
        counted = applied & is_known & tf.math.is_finite(values)
        numbers, known = replicas.part_of(tf.cast(counted, tf.float32)), where(counted, values, 0.0)
        row = [where(counted, values, float("nan"))]
        if self.averaged:
            row.append(self._average(*(tf.gather(each, self._averaged_at) for each in (known, counted, numbers))))
        row.append(replicas.part_of(tf.cast(applied, tf.float32))[tf.newaxis])
        kept, new = tensor_variable(self.sums.latest), tf.concat(row, axis=0)[tf.newaxis]
        kept.assign(new if kept.shape[0] == 1 else tf.concat([kept.read_value()[1:], new], axis=0))
        self.recorded.assign_add(1)
        return [known], [numbers]

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

    def read(self) -> tuple[tf.Tensor, dict[Key, Tensor], dict[Key, Tensor], dict[Key, Tensor], dict[Key, Tensor]]:
        """The total loss; and by key, whether there is anything, the means with 0 and with NaN for nothing, and the sums.

        The total loss is `sum_k (sum_u w_ku * S_ku) / (sum_u n_ku) + (sum_u m_u * r_u) / (sum_u m_u)`, over heads `k` and
        updates `u`, with the weights `w`, the loss sums `S`, their counts `n`, the numbers of examples `m` and the losses
        `r` that layers add. A weighting has its own total in place of the first sum.
        """
        sums, counts = tf.split(tf.convert_to_tensor(tensor_variable(self.sums.sums)), 2)
        exist, means = counts > 0, tf.math.divide_no_nan(sums, counts)
        vectors = exist, means, where(exist, means, float("nan")), sums
        exist, means, known, sums = (dict(zip(self._keys, tf.unstack(vector))) for vector in vectors)
        total = tf.add_n([*(means["weighted", head.name] for head in self.heads), means[ADDED_LOSS], means["total"]])
        return total, exist, means, known, sums

    @unchecked()
    def training_logs(self, *, at_end: bool = False) -> dict[str, Tensor]:
        """All statistics of the epoch so far, or `at_end`.

        Before the end, the loss of updates without any label is 0, not NaN, at which `TerminateOnNaN` would stop.
        """
        total, exist, means, known, sums = self.read()
        skipped, _, faults = tf.unstack(self.spec.running.faults.numbers_of_epoch.read_value())
        is_known = exist[ADDED_LOSS] if at_end else exist[ADDED_LOSS] | tf.equal(faults, 0)
        loss = where(is_known, total, float("nan"))
        logs: dict[str, Tensor] = {"loss": loss, **({ADDED_LOSS: known[ADDED_LOSS]} if self._adds_losses else {})}
        for head in self.heads:
            logs.update(_head_logs(head, known["loss", head.name], exist["loss", head.name]))
        for head in self.measured:
            logs.update(_results(head))
        # What counted in no update is 0, or NaN if updates need not measure it.
        backward = self.spec.methods.backward
        means_of_updates = known if backward.may_reuse and backward.at_parameters else means
        for statistic, names in self._shown:
            if statistic not in LOSSES:
                logs.update({name: (sums if statistic.is_sum else means_of_updates)[name] for name in names})
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
        _, exist, means, known, _ = self.read()
        keys, logs = [("loss", head.name) for head in self.heads], dict[str, Tensor]()
        for key, head in zip(keys, self.heads):
            logs.update(_head_logs(head, known[key], exist[key]) if head.name in present else {})
        for head in self.measured:
            logs.update(_results(head) if head.name in present else {})
        weights = self.weights.read_value()
        active = tf.stack([exist[key] for key in keys]) & (weights > 0)
        total = tf.reduce_sum(where(active, weights * tf.stack([known[key] for key in keys]), 0.0))
        added = {ADDED_LOSS: known[ADDED_LOSS]} if self._adds_losses else {}
        loss = or_nan(total + means[ADDED_LOSS], tf.reduce_any(active))
        return {**self._results_of_layers(), "loss": loss, **added, **logs}

    def take_weights(self, heads: Sequence[NamedHead]) -> None:
        """Takes the present weights of heads for the total loss of evaluations; functions of the step count 1."""
        self.weights.assign([1.0 if head.has_weight_function else head.weight for head in heads])

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
        of_heads = sorted(name for name in of_heads if name not in losses)
        return ["loss", *losses, *of_heads, *added, *self._results_of_layers()]

    def shown(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The part of the logs for the progress line: losses, each head's first metric, and what callbacks have added.

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
        """The statistics of at most so many latest updates, oldest first.

        Each has `applied`, statistics and averages by name; None for missing values.
        """
        rows, lines = np.asarray(tf.convert_to_tensor(tensor_variable(self.sums.latest))), []
        unlisted = {"applied", *(name for each, names in self._shown if each.is_sum for name in names)}
        for row in rows[max(len(rows) - number, 0) :]:
            known = zip(self.columns, map(float, row))
            values = {name: value if np.isfinite(value) else None for name, value in known if name not in unlisted}
            lines.append({"applied": bool(row[-1] > 0.5), **values})
        return lines


def _names_of(head: NamedHead) -> list[str]:
    """The names of a head's loss and metrics."""
    return list(_head_logs(head, tf.constant(0.0), tf.constant(True)) if head.is_trained else _results(head))


def _head_logs(head: NamedHead, loss: tf.Tensor, has_labels: tf.Tensor) -> dict[str, Tensor]:
    """A head's loss and metrics; NaN without labels."""
    return {f"{head.name}_loss": loss, **{name: or_nan(value, has_labels) for name, value in _results(head).items()}}


def _results(head: NamedHead) -> dict[str, Tensor]:
    """A head's metrics by their names in the logs."""
    return {f"{head.name}_{name}": value for name, value in head.results().items()}
