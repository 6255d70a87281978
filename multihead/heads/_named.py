"""A head of a trainer under its name: what is computed with its module, loss, labels and metrics."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import keras
import tensorflow as tf

from multihead import losses
from multihead._ground.calls import call_module, call_users, entries_for, with_logits
from multihead._ground.keras import serialized, tensor_variable
from multihead._ground.tensors import has_gradients, in_xla, where
from multihead._ground.types import ClassWeight, Config, Function, Layer, Loss, Metric, Nested, Tensor, Variable
from multihead._ground.validation import check_head_names, quoted, stop_unless
from multihead.heads._label_rules import LabelSpec, check_specs
from multihead.heads._labels import (
    check_class_weight,
    labelled_rows,
    targets_and_weights,
    with_same_sizes,
    with_valid_labels,
    without_class_weights,
)
from multihead.heads._metric_names import metric_of, resolve_metric
from multihead.heads._metrics import HeadMetric
from multihead.heads._reads import encode_reads, select
from multihead.heads._scaled import check_scaling
from multihead.heads._value import Head, Weight, weight_at
from multihead.losses._elements import counts_of, no_loss
from multihead.losses._known import CLASSES, aligned, with_checked_range, with_columns
from multihead.scaling import TargetScaling

Described = TypeVar("Described")


def can_name_a_head(name: object) -> bool:
    """Whether something is a string that means nothing else in file paths."""
    return isinstance(name, str) and name not in ("", ".") and "/" not in name


class NamedHead:
    """A head of a trainer: a `Head` with its name, the key of its targets and logs, and all that is derived from it once."""

    def __init__(self, name: str, value: Head) -> None:
        if not can_name_a_head(name):
            raise ValueError(
                f"`name` of a head must be a non-empty string without '/', and not '.'. Received: name={name!r}. "
                "Pass, say, 'price'."
            )
        self.name = name
        self._value = value
        self.module = value.module
        self.is_trained = value.loss is not None
        self.loss = losses.get(value.loss) if self.is_trained else no_loss()
        self.loss.couples_rows = value.couples_rows if self.is_trained else False
        if self.loss.label_smoothing and getattr(value.module, "has_impossible_labels", False):
            raise ValueError(
                f"`loss` of head {name!r} must not smooth labels, since for its module, {type(value.module).__name__}, some "
                f"are impossible (`has_impossible_labels`). Received: label_smoothing={self.loss.label_smoothing}. Pass 0."
            )
        specs = (*value.metrics, *value.weighted_metrics)
        self.metric_specs = [metric_of(spec, name) if isinstance(spec, Mapping) else spec for spec in specs]
        self._num_unweighted = len(value.metrics)  # the metrics after these get sample weights
        self.teacher_forcing = value.teacher_forcing
        self.trains_encoder = value.trains_encoder
        self.ignore_label = value.ignore_label
        self.reads = value.reads
        self.learning_rate_multiplier = value.learning_rate_multiplier
        self.weight_decay_multiplier = value.weight_decay_multiplier
        self.weight_variable: Variable = None  # holds the weight once the head has a trainer, unless it is a function
        scaling = check_scaling(name, value.target_scaling, self.loss, value.class_weight, self.module)
        self.scaling = None if scaling is None else TargetScaling(name, scaling)
        ignored = tuple(label for label in (value.ignore_label, self.loss.ignore_label) if label is not None)
        above, rules = None if scaling is None else scaling.above, getattr(value.module, "target_problems", None)
        self.label_spec = LabelSpec(name, self.loss, ignored, value.class_weight, above, rules)
        # Which leaves of the representation have one row per example; None if unknown
        self.leaves_with_rows: tuple[bool, ...] | None = None
        self.is_fully_labelled = False  # whether no label of the data is missing or has the weight 0
        self.checks_range = True  # whether a loss of probabilities refuses other predictions
        self._metrics: list[HeadMetric] | None = None

    @property
    def value(self) -> Head:
        """The head with its current weight and the learned parameters of its target scaling."""
        scaling = None if self.scaling is None else self.scaling.current
        head = copy.copy(self._value)  # without its checks, which create metrics, even inside a graph
        metrics, weighted_metrics = map(tuple, self._by_weighting(self.metric_specs))
        vars(head).update(weight=self.weight, target_scaling=scaling, metrics=metrics, weighted_metrics=weighted_metrics)
        return head

    def with_scaling(self, target_scaling: object) -> NamedHead:
        """The same head, with the same module and metrics, but this target scaling; itself if it has it already."""
        requested = check_scaling(self.name, target_scaling, self.loss, self.label_spec.class_weight, self.module)
        current = None if self.scaling is None else self.scaling.scaling
        as_config = [None if scaling is None else (type(scaling), scaling.get_config()) for scaling in (requested, current)]
        if as_config[0] == as_config[1]:
            return self
        head = copy.copy(self)
        head.scaling = None if requested is None else TargetScaling(self.name, requested)
        head.label_spec = head.label_spec._replace(above=None if requested is None else requested.above)
        return head

    @property
    def has_weight_function(self) -> bool:
        return callable(self._value.weight)

    @property
    def weight(self) -> Weight:
        """The weight: a function, or the current number."""
        if self.weight_variable is None:
            return self._value.weight
        with tf.init_scope():
            return float(tf.convert_to_tensor(self.weight_variable))

    @property
    def takes_labelled_rows(self) -> bool:
        """Whether the loss gets only the rows that have a label; False if all are known to have one."""
        return self.loss.takes_labelled_rows and not self.is_fully_labelled

    @property
    def runs_in_xla(self) -> bool:
        """Whether XLA can compile a step that computes the loss and updates the metrics."""
        return not self.loss.takes_labelled_rows and all(metric.over is not None for metric in self._metrics or [])

    def results(self) -> dict[str, Tensor]:
        """The results of the metrics by name; NaN if no row counted."""
        results: dict[str, Tensor] = {}
        for head_metric in self._metrics or []:
            result = head_metric.metric.result()
            by_name = result if isinstance(result, dict) else {head_metric.metric.name: result}
            if head_metric.counted is not None:
                by_name = {name: or_nan(value, head_metric.counted.result() > 0) for name, value in by_name.items()}
            results.update(by_name)
        return results

    @property
    def metrics(self) -> list[Metric] | None:
        """The Keras metrics, then the counters of their rows; None before `build`."""
        if self._metrics is None:
            return None
        counters = [head_metric.counted for head_metric in self._metrics if head_metric.counted is not None]
        return [head_metric.metric for head_metric in self._metrics] + counters

    def get_config(self) -> Config:
        """The arguments of `add_head`, serialized; a `TypeError` for a function that is not registered with Keras."""
        serialize, value = keras.saving.serialize_keras_object, self.value
        plain = ("teacher_forcing", "ignore_label", "class_weight", "trains_encoder", "couples_rows")
        config = {
            "name": self.name,
            "loss": serialized(self.loss.original) if self.is_trained else None,
            "metrics": [serialized(metric) for metric in value.metrics],
            "weighted_metrics": [serialized(metric) for metric in value.weighted_metrics],
            "reads": encode_reads(self.reads),
            "target_scaling": None if self.scaling is None else serialize(self.scaling.scaling),
        }
        others = {name: option for name, option in vars(value).items() if name not in config}
        return {**config, **{name: option if name in plain else serialize(option) for name, option in others.items()}}

    def weight_at(self, step: tf.Tensor) -> tf.Tensor:
        """The head's weight at a step, the number of updates applied so far; a scalar in at least float32."""
        if self.weight_variable is not None:
            return tensor_variable(self.weight_variable).read_value()
        return weight_at(self._value.weight, step, self.name)

    def read(self, representation: Nested) -> Nested:
        """The part of the representation that the module receives: that in `reads`, or else the entries of its inputs."""
        if self.reads is None:
            return entries_for(self.module, representation)
        return select(representation, self.reads, self.name)

    def reads_floats(self, representation: Nested) -> bool:
        """Whether the encoder can learn from the head: its module receives a floating-point tensor."""
        return self.trains_encoder and any(map(has_gradients, tf.nest.flatten(self.read(representation))))

    def predict(self, representation: Nested, targets: Tensor, *, training: bool, step: Tensor = None) -> tf.Tensor:
        """The module's predictions for the loss; with teacher forcing, the module also reads the targets of the loss."""
        representation = self.read(representation)
        arguments = (representation, targets) if self.teacher_forcing else (representation,)
        return call_module(self.module, *arguments, training=training, step=step)

    def generate(self, representation: Nested) -> Nested:
        """The output without targets, in the targets' own units: `module.generate` with teacher forcing, or a plain call."""
        representation = self.read(representation)
        if not self.teacher_forcing:
            return self.in_units(call_module(self.module, representation, training=False))
        generate: Function | None = getattr(self.module, "generate", None)
        if not callable(generate):
            raise ValueError(
                f"The module of head {self.name!r} needs a method `generate(representation)` to predict, since it reads "
                f"its targets in training (teacher_forcing=True). Received: {type(self.module).__name__} without one. "
                "Add the method."
            )
        return self.in_units(call_users(generate, representation))

    def in_units(self, output: Nested) -> Nested:
        """The output of the module, or of its `generate`, in the targets' own units."""
        return output if self.scaling is None else self.scaling.unscale(output)

    def like_scaled(self, targets: Tensor) -> Tensor:
        """Targets in the dtype of scaled targets, for callers that need only shapes and masks."""
        return tf.cast(targets, tf.float32) if self.scaling is not None and tf.is_tensor(targets) else targets

    def build(self, targets: Tensor, predictions: tf.TensorSpec) -> None:
        """Checks the specs of targets and predictions against the loss, and creates the metrics."""
        rank = check_specs(self.label_spec, targets, predictions)
        if self.scaling is not None:
            self.scaling.build_for(targets, predictions, self.loss.over)
        if self._metrics is not None:
            return
        metrics = [
            HeadMetric(resolve_metric(spec, targets, predictions, self.name), self.name) for spec in self.metric_specs
        ]
        seen = targets if self.scaling is None else tf.TensorSpec(targets.shape, tf.float32)
        for head_metric in metrics:
            options = {"is_counted": not self.is_trained, "eagerly": self.loss.runs_eagerly}
            head_metric.build(self.name, seen, predictions, rank, **options)
        self._metrics = metrics
        undeclared = tuple(head_metric.metric.name for head_metric in metrics if head_metric.is_undeclared)
        self.label_spec = self.label_spec._replace(undeclared_metrics=undeclared)

    def mask_missing(
        self, targets: tf.Tensor, sample_weight: tf.Tensor | None, predictions: tf.TensorSpec, mask: Tensor, **options: bool
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The targets, 0 where there is no label, and the weights of the elements; see `targets_and_weights`."""
        return targets_and_weights(self.label_spec, targets, sample_weight, predictions, mask, **options)

    def losses(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The losses and weights of the elements, in at least float32; of the labelled rows, or one sum, for such a loss."""
        labels, predictions, weights = self._loss_arguments(targets, predictions, weights)
        values = _like(weights, self.loss.values(labels, predictions), self.loss)
        if self.loss.is_total:
            weights = tf.ones([], values.dtype)
        if self.checks_range:
            values = with_checked_range(values, self.name, self.loss, predictions)
        return values, weights

    def count(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The denominator of the loss, a scalar; the arguments are those of `losses`."""
        if not self.loss.has_count:
            return tf.reduce_sum(weights)
        labels, predictions, weights = self._loss_arguments(targets, predictions, weights)
        counts = counts_of(self.loss, labels, predictions)
        counts = counts if self.loss.is_total else sum_of_losses(_like(weights, counts, self.loss), weights)
        rule = f"`loss` of head {self.name!r} must return a sum and a finite count of at least 0. Received: a count of "
        parts = [rule, counts, f" from {self.loss.name!r}. Correct the second result of the loss."]
        with tf.control_dependencies(stop_unless((counts >= 0) & tf.math.is_finite(counts), lambda: parts)):
            return tf.identity(counts)

    def _loss_arguments(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        shape, over = with_columns(predictions.shape), self.loss.over
        num_axes = 1 if over is None else min(shape.rank - (over == CLASSES), predictions.shape.rank)
        labels = aligned(targets, shape, over)
        labels = with_same_sizes(labels, predictions, num_axes, self.label_spec.targets, "the head's predictions")
        if self.takes_labelled_rows:
            if in_xla():  # which miscalculates some reductions if the number of rows depends on the data
                remedy = "let the loss return one value, or a sum and a count, per row"
                if self.loss.is_undeclared:
                    remedy = "`couples_rows=False` to `add_head` if its values depend on their own labels alone"
                raise ValueError(
                    f"`jit_compile` must be False for head {self.name!r}, whose loss gets only the rows that have a label: "
                    f"XLA cannot compile that. Received: the loss {self.loss.name!r}, compiled by XLA. Pass "
                    f"`jit_compile=False` to `compile`, or {remedy}."
                )
            rows = labelled_rows(weights)
            labels, weights = tf.gather(labels, rows), tf.gather(weights, rows)
            predictions = with_logits(lambda tensor: tf.gather(tensor, rows), predictions)
        elif self.loss.known is None and labels.dtype.is_floating:
            labels = with_valid_labels(labels, weights)
        return labels, predictions, weights

    def loss_sum(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """`sum_i s_i * loss_i`, a float32 scalar; the arguments are those of `losses`."""
        return sum_of_losses(*self.losses(targets, predictions, weights))

    def update_metrics(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, representation: Nested) -> None:
        """Adds the labelled elements to the metrics, without class weights; the targets are in their own units."""
        if not self._metrics:
            return
        scores = getattr(self.module, "scores", None) if self.teacher_forcing else None
        if callable(scores):
            predictions = call_users(scores, self.read(representation))
        predictions = self.in_units(predictions)
        weights = without_class_weights(self.label_spec, targets, predictions, weights)
        are_labelled = tf.cast(weights > 0, weights.dtype)
        unweighted, weighted = self._by_weighting(self._metrics)
        for metric in unweighted:
            metric.update(targets, predictions, are_labelled)
        for metric in weighted:
            metric.update(targets, predictions, weights, are_weighted=True)

    def _by_weighting(self, metrics: list[Described]) -> tuple[list[Described], list[Described]]:
        """The head's metrics that ignore sample weights, and those that get them."""
        return metrics[: self._num_unweighted], metrics[self._num_unweighted :]


def _like(weights: tf.Tensor, values: tf.Tensor, loss: losses.ElementLoss) -> tf.Tensor:
    """The values of a loss in the shape of the elements' weights; a single number is unchanged."""
    if loss.is_total or (loss.over is not None and values.shape.rank == weights.shape.rank and not in_xla()):
        return values
    return tf.reshape(values, tf.shape(weights))  # XLA ignores assertions, but fails here for a wrong number of values


def sum_of_losses(losses: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`sum_i s_i * loss_i`, a float32 scalar; elements of weight 0 add nothing, whatever their loss is."""
    return tf.reduce_sum(tf.math.multiply_no_nan(losses, weights))


def or_nan(value: Tensor, condition: tf.Tensor) -> tf.Tensor:
    """A value where the condition holds, otherwise NaN; values that are not floating-point are unchanged."""
    value = tf.convert_to_tensor(value)
    return where(condition, value, float("nan")) if value.dtype.is_floating else value


def weigh_classes(heads: Sequence[NamedHead], class_weight: ClassWeight) -> list[NamedHead]:
    """The same heads, with the same modules and metrics, but the class weights of `fit`."""
    names = [head.name for head in heads]
    is_by_head = isinstance(class_weight, Mapping) and (
        all(isinstance(weights, Mapping) for weights in class_weight.values()) or set(class_weight) <= set(names)
    )
    if not is_by_head and len(names) > 1:
        raise ValueError(
            "`class_weight` must be a dict by head name of weights by class if there are several heads. "
            f"Received: class_weight={class_weight!r}; the heads are {quoted(names)}. Pass, say, "
            f"{{{names[0]!r}: {{0: 1.0, 1: 5.0}}}}."
        )
    by_head: Mapping[Any, Any] = class_weight if is_by_head else {names[0]: class_weight}
    check_head_names("class_weight", by_head, names)
    weighed = [copy.copy(head) for head in heads]
    for head in weighed:
        if head.name in by_head:
            head.label_spec = head.label_spec._replace(class_weight=check_class_weight(by_head[head.name]))
    return weighed


def new_head(name: str, module: Layer, loss: Loss, **options: object) -> NamedHead:
    """A head of a trainer from the arguments of `Head`, with errors that name the head."""
    return NamedHead(name, Head._of(str(name), module=module, loss=loss, **options))
