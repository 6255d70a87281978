"""A head under its name, as a trainer holds it: what is computed from its module, loss, labels and metrics."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead import losses, scaling
from multihead._ground.calls import call_module, call_users, entries_for
from multihead._ground.keras import serialized, tensor_variable
from multihead._ground.tensors import in_xla, where
from multihead._ground.validation import as_python, is_number, quoted, stop_unless
from multihead.heads._labels.checks import LabelSpec, check_specs
from multihead.heads._labels.class_weights import ClassWeight
from multihead.heads._labels.missing import (
    labelled_rows,
    mask_missing,
    with_same_sizes,
    with_valid_labels,
    without_class_weights,
)
from multihead.heads._metrics import HeadMetric, check_metrics, resolve_metric
from multihead.heads._reads import check_reads, encode_reads, select
from multihead.heads._scaling import Moments, TargetScaling
from multihead.heads._weights import Weight, check_class_weights, check_weight, weight_at
from multihead.losses._elements import no_loss
from multihead.losses._known import CLASSES
from multihead.losses._probabilities import with_checked_range
from multihead.losses._shapes import aligned, with_columns
from multihead.rates import check_rate


class NamedHead:
    """A head under its name.

    Args:
        name: The key of the head's targets, sample weights and logs.
        module: As in `multihead.Head`, as are the others.
        loss: None for predictions that are measured and not trained.
        weight: A number of at least 0, or a function of the step that returns one.
        metrics: Keras metrics or their names.
        teacher_forcing: Whether the module reads its targets.
        ignore_label: The label of elements whose label is missing.
        reads: The part of the representation that the module receives.
        class_weight: Weights by class number, or None.
        target_scaling: How the targets are scaled for the loss.
        trains_encoder: Whether the encoder is trained by the head.
        couples_rows: Whether the loss, or the module, compares the rows of a batch with each other.
        learning_rate_multiplier: The factor of the steps that are applied to the module's variables.
        weight_decay_multiplier: The factor of the optimizer's weight decay.

    Raises:
        ValueError: `name` is invalid, a weight is negative or not finite, the loss or a metric is unknown, or the loss takes
            no scaled targets.
        TypeError: An argument has the wrong type.
    """

    def __init__(
        self,
        name: str,
        module: Callable[..., Any],
        loss: Any,
        *,
        weight: Weight = 1.0,
        metrics: Sequence[Any] = (),
        teacher_forcing: bool = False,
        ignore_label: float | None = None,
        reads: Any = None,
        class_weight: Mapping[int, float] | None = None,
        target_scaling: Any = None,
        trains_encoder: bool = True,
        couples_rows: bool = False,
        learning_rate_multiplier: Any = 1.0,
        weight_decay_multiplier: Any = 1.0,
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(
                f"`name` of a head must be a non-empty string without '/'. Received: name={name!r}. Pass, say, 'price'."
            )
        if not callable(module):
            raise TypeError(
                f"`module` must be a Keras layer, a model or a function. Received: module={module!r}. "
                "Pass what turns the representation into the head's predictions."
            )
        self.name = name
        self.module = module
        self.is_trained = loss is not None
        self.loss = losses.get(loss) if self.is_trained else no_loss()
        self.loss.couples_rows = bool(couples_rows)
        self._weight = check_weight(weight)
        self._weight_variable: Any = None
        self.metric_specs = check_metrics(metrics, name)
        self.teacher_forcing = bool(teacher_forcing)
        self.trains_encoder = bool(trains_encoder)
        self.ignore_label = check_ignore_label(ignore_label)
        self.class_weight = None if class_weight is None else ClassWeight(class_weight)
        self.reads = check_reads(reads)
        self.learning_rate_multiplier = check_rate("learning_rate_multiplier", learning_rate_multiplier)
        self.weight_decay_multiplier = check_rate("weight_decay_multiplier", weight_decay_multiplier)
        labels = [check_ignore_label(label) for label in (self.ignore_label, self.loss.ignore_label)]
        ignore_labels = tuple(label for label in labels if label is not None)
        self.scaling = self._scaling_of(target_scaling)
        above = None if self.scaling is None else self.scaling.scaling.above
        rules = getattr(module, "target_problems", None)
        self.label_spec = LabelSpec(name, self.loss, ignore_labels, self.class_weight, above, rules)
        self.checks_range = True  # whether predictions that are no probabilities are an error where the loss takes those
        self._metrics: list[HeadMetric] | None = None
        if not self.is_trained:
            self._refuse_options_of_training()
        self.weight_at(tf.constant(0, tf.int64))  # a function that returns no number is an error here

    def _refuse_options_of_training(self) -> None:
        """Checks that a head without a loss has no option that only training has.

        Raises:
            ValueError: It has one.
        """
        given = {
            "weight": self._weight != 1.0,
            "class_weight": self.class_weight is not None,
            "teacher_forcing": self.teacher_forcing,
            "learning_rate_multiplier": self.learning_rate_multiplier != 1.0,
            "weight_decay_multiplier": self.weight_decay_multiplier != 1.0,
            "target_scaling": self.scaling is not None,
            "trains_encoder": not self.trains_encoder,
            "couples_rows": self.loss.couples_rows,
        }
        names = [name for name, is_given in given.items() if is_given]
        if names:
            raise ValueError(
                f"`loss` of head {self.name!r} must not be None with options of training. Received: loss=None with "
                f"{quoted(names)}. Leave them out, or pass a loss."
            )

    def _scaling_of(self, target_scaling: Any) -> TargetScaling | None:
        """The scaling of the targets, if any and if the loss can be one of scaled targets."""
        found, reason = scaling.get(target_scaling), self.why_not_scaled()
        if found is None or reason is None:
            return None if found is None else TargetScaling(self.name, found)
        raise ValueError(
            f"`target_scaling` of head {self.name!r} is for targets that are measured, with a loss such as 'mse', 'mae' or "
            f"'huber'. Received: target_scaling={target_scaling!r} with the loss {self.loss.name!r}, which {reason}. Leave "
            "`target_scaling` out."
        )

    def why_not_scaled(self) -> str | None:
        """Why the loss cannot be one of scaled targets; None if it can."""
        known = self.loss.known
        if known is not None and (known.over == CLASSES or known.low is not None):
            return "takes classes, probabilities or signs"
        if known is not None and known.positive:
            return "takes numbers of at least 0, which scaled targets are not"
        return None if self.class_weight is None else "is weighted by class, and scaled targets are no classes"

    def with_scaling(self, target_scaling: Any) -> NamedHead:
        """The same head, with its module and metrics, and with another scaling of its targets unless it has this one.

        Raises:
            ValueError: The loss takes no scaled targets.
        """
        found = copy.copy(self)
        found.scaling = self._scaling_of(target_scaling)
        asked, present = (None if each is None else each.scaling for each in (found.scaling, self.scaling))
        as_config = [None if each is None else (type(each), each.get_config()) for each in (asked, present)]
        if as_config[0] == as_config[1]:
            return self
        above = None if asked is None else asked.above
        found.label_spec = found.label_spec._replace(above=above)
        return found

    @property
    def target_scaling(self) -> scaling.Scaling | None:
        """How the targets are scaled, with the mean and the deviation that were learned; None if they are not."""
        return None if self.scaling is None else self.scaling.present

    @property
    def has_weight_function(self) -> bool:
        """Whether the weight is a function of the step."""
        return callable(self._weight)

    @property
    def weight(self) -> Weight:
        """The weight: a function, or the current number."""
        if self._weight_variable is None:
            return self._weight
        with tf.init_scope():
            present = float(tf.convert_to_tensor(self._weight_variable))
        return self._weight if np.float32(self._weight) == present else present

    def keep_weight_in(self, variable: Any) -> None:
        """Reads the weight from a variable from now on, unless it is a function."""
        self._weight_variable = None if self.has_weight_function else variable

    @property
    def counters(self) -> list[Any]:
        """Keras metrics of the number of rows that count in a metric, which may be none although there are labels."""
        return [each.counted for each in self._metrics or [] if each.counted is not None]

    @property
    def runs_in_xla(self) -> bool:
        """Whether XLA can compile a step that updates the metrics."""
        return all(each.runs_in_xla for each in self._metrics or [])

    def results(self) -> dict[str, Any]:
        """The results of the metrics by name; NaN if no row counts."""
        found: dict[str, Any] = {}
        for each in self._metrics or []:
            result = each.metric.result()
            named = result if isinstance(result, dict) else {each.metric.name: result}
            if each.counted is not None:
                named = {name: or_nan(value, each.counted.result() > 0) for name, value in named.items()}
            found.update(named)
        return found

    @property
    def metrics(self) -> list[Any] | None:
        """The Keras metrics, or None before `build`."""
        return None if self._metrics is None else [each.metric for each in self._metrics]

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, serialized.

        Raises:
            TypeError: The module, the loss, a metric or the weight is a function that Keras cannot name.
        """
        serialize = keras.saving.serialize_keras_object
        given = self.arguments
        kept = ("teacher_forcing", "ignore_label", "class_weight", "trains_encoder", "couples_rows")
        return {
            **{name: serialize(value) for name, value in given.items() if name not in kept},
            **{name: given[name] for name in kept},
            "name": self.name,
            "loss": serialized(self.loss.original) if self.is_trained else None,
            "metrics": [serialized(metric) for metric in self.metric_specs],
            "reads": encode_reads(self.reads),
            "target_scaling": None if self.scaling is None else serialize(self.scaling.scaling),
        }

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `multihead.Head`, with the present weight and what was learned of the target scaling."""
        return {
            "module": self.module,
            "loss": self.loss.original if self.is_trained else None,
            "weight": self.weight,
            "metrics": tuple(self.metric_specs),
            "teacher_forcing": self.teacher_forcing,
            "ignore_label": self.ignore_label,
            "reads": self.reads,
            "class_weight": None if self.class_weight is None else dict(self.class_weight.weights),
            "target_scaling": self.target_scaling,
            "trains_encoder": self.trains_encoder,
            "couples_rows": self.loss.couples_rows,
            "learning_rate_multiplier": self.learning_rate_multiplier,
            "weight_decay_multiplier": self.weight_decay_multiplier,
        }

    def weight_at(self, step: tf.Tensor) -> tf.Tensor:
        """The head's weight at a step, the number of updates applied so far; a float32 scalar.

        Raises:
            ValueError: A function returns something other than one number.
        """
        if self._weight_variable is not None:
            return tensor_variable(self._weight_variable).read_value()
        return weight_at(self._weight, step, self.name)

    def read(self, representation: Any) -> Any:
        """The part of the representation that the module receives.

        Without `reads`, a functional model receives the entries of a dict for which it has inputs.
        """
        if self.reads is None:
            return entries_for(self.module, representation)
        return select(representation, self.reads, self.name)

    def reads_floats(self, representation: Any) -> bool:
        """Whether the encoder can learn from the head: its module receives a floating-point tensor."""
        return self.trains_encoder and any(leaf.dtype.is_floating for leaf in tf.nest.flatten(self.read(representation)))

    def predict(self, representation: Any, targets: Any, *, training: bool, step: tf.Tensor | None = None) -> tf.Tensor:
        """The module's predictions for the loss; with teacher forcing, the module also reads the targets.

        Args:
            representation: The encoder's representation.
            targets: The targets, as the loss reads them.
            training: Whether it runs in training mode.
            step: The number of updates applied so far, for a module that has an argument of this name.
        """
        representation = self.read(representation)
        arguments = (representation, targets) if self.teacher_forcing else (representation,)
        return call_module(self.module, *arguments, training=training, step=step)

    def generate(self, representation: Any) -> Any:
        """The module's output without targets: `module.generate` with teacher forcing, otherwise a plain call.

        With a scaling of the targets, the output is in the targets' own units.

        Raises:
            ValueError: The module reads its targets and has no `generate`.
        """
        representation = self.read(representation)
        if not self.teacher_forcing:
            return self.in_units(call_module(self.module, representation, training=False))
        if not callable(getattr(self.module, "generate", None)):
            raise ValueError(
                f"The module of head {self.name!r} needs a method `generate(representation)` to predict, since it reads "
                f"its targets in training (teacher_forcing=True). Received: {type(self.module).__name__} without one. "
                "Add the method."
            )
        generate: Any = getattr(self.module, "generate")  # noqa: B009 - a plain callable has no such attribute
        return self.in_units(call_users(generate, representation))

    def in_units(self, output: Any) -> Any:
        """What the module, or its `generate`, has returned, in the targets' own units."""
        return output if self.scaling is None else self.scaling.unscale(output)

    def scaled(self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec) -> tf.Tensor:
        """Targets as the loss and the module read them.

        Args:
            targets: Targets without missing values, from `mask_missing`.
            weights: Their weights, from there.
            predictions: The spec of the head's predictions.
        """
        if self.scaling is None:
            return targets
        return self.scaling.scale(targets, weights, predictions, self.loss.over)

    def like_scaled(self, targets: Any) -> Any:
        """Targets in the dtype of scaled ones, where only shapes and masks matter."""
        return tf.cast(targets, tf.float32) if self.scaling is not None and tf.is_tensor(targets) else targets

    def moments(self, targets: tf.Tensor, weights: tf.Tensor, predictions: tf.TensorSpec) -> Moments:
        """Statistics of labels, from which the scaling is learned; the arguments are those of `scaled`."""
        assert self.scaling is not None  # noqa: S101
        return self.scaling.moments(targets, weights, predictions, self.loss.over)

    def build(self, targets: Any, predictions: tf.TensorSpec) -> None:
        """Checks the specs of targets and predictions against the loss, and creates the metrics.

        Names such as `"accuracy"` are resolved by the shapes, as in Keras.

        Raises:
            TypeError: The targets are not a dense tensor of numbers.
            ValueError: Their shape fits neither the predictions nor the loss, nor a metric; or `ignore_label` or
                `class_weight` does not fit them.
        """
        rank = check_specs(self.label_spec, targets, predictions)
        if self.scaling is not None:
            self.scaling.build_for(targets, predictions, self.loss.over)
        if self._metrics is not None:
            return
        found = [HeadMetric.of(resolve_metric(spec, targets, predictions, self.name)) for spec in self.metric_specs]
        seen = targets if self.scaling is None else tf.TensorSpec(targets.shape, tf.float32)
        self._metrics = [
            each.built(self.name, seen, predictions, rank, self.loss, is_counted=not self.is_trained) for each in found
        ]

    def mask_missing(
        self,
        targets: tf.Tensor,
        sample_weight: tf.Tensor | None,
        predictions: tf.TensorSpec,
        mask: tf.Tensor | None,
        *,
        check: bool = True,
        complete: bool = False,
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds which elements have a label and how much each counts, and replaces the labels of the others with 0.

        Replacing them before the loss is called keeps NaN, and labels that are not classes, out of every gradient.

        Args:
            targets: The head's targets, `[batch, ...]`.
            sample_weight: `[batch]` or `[batch, ...]`, or None for ones.
            predictions: The spec of the head's predictions.
            mask: The Keras mask of the predictions, or None.
            check: Whether to look for labels that the loss cannot take and for invalid weights. They raise an error when
                they are read; compiled by XLA, which has no errors, their weight is infinite instead, so that the update's
                gradients are not finite and it is not applied.
            complete: Whether it is known that no target marks a missing label.

        Returns:
            The targets, and weights, float32, of the shape of the loss's values: 0 where there is no label.

        Raises:
            TypeError: Targets or weights are not dense tensors of numbers.
            ValueError: Their shapes do not fit the predictions', or a label is invalid.
        """
        return mask_missing(self.label_spec, targets, sample_weight, predictions, mask, check=check, complete=complete)

    def losses(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The loss of each element and the elements' weights, float32; see `sum_of_losses`.

        A loss that takes labelled rows gives values of these alone, of which there must be one, or their sum.

        Raises:
            ValueError: The predictions are no probabilities, which the loss takes; in a graph, when it runs.
        """
        seen, predictions, weights = self._seen(targets, predictions, weights)
        values = _like(weights, self.loss.values(seen, predictions), self.loss)
        if self.loss.is_total:
            weights = tf.ones([])
        if self.checks_range:
            values = with_checked_range(values, self.name, self.loss, predictions)
        return values, weights

    def count(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """The denominator of the loss, a float32 scalar; the arguments are those of `losses`.

        Raises:
            ValueError: The loss returns a count below 0, or one that is not finite; in a graph, when it runs.
        """
        if not self.loss.has_count:
            return tf.reduce_sum(weights)
        seen, predictions, weights = self._seen(targets, predictions, weights)
        counts: Any = self.loss.terms(seen, predictions)[1]
        counts = counts if self.loss.is_total else sum_of_losses(_like(weights, counts, self.loss), weights)
        rule = f"`loss` of head {self.name!r} must return a sum and a finite count of at least 0. Received: a count of "
        parts = [rule, counts, f" from {self.loss.name!r}. Correct the second result of the loss."]
        with tf.control_dependencies(stop_unless((counts >= 0) & tf.math.is_finite(counts), lambda: parts)):
            return tf.identity(counts)

    def _seen(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Targets, predictions and weights as the loss gets them."""
        shape, over = with_columns(predictions.shape), self.loss.over
        num_axes = 1 if over is None else min(shape.rank - (over == CLASSES), predictions.shape.rank)
        seen = aligned(targets, shape, over)
        seen = with_same_sizes(seen, predictions, num_axes, self.label_spec.targets, "the head's predictions")
        if self.loss.takes_labelled_rows:
            if in_xla():  # which miscalculates some reductions over a number of rows that depends on the data
                raise ValueError(
                    f"`jit_compile` must be False for head {self.name!r}, whose loss gets only the rows that have a label: "
                    f"XLA cannot compile that. Received: the loss {self.loss.name!r}, compiled by XLA. Pass "
                    "`jit_compile=False` to `compile`, or let the loss return one value, or a sum and a count, for each row."
                )
            rows = labelled_rows(weights)
            gathered = (tf.gather(each, rows) for each in (seen, predictions, weights))
            seen, predictions, weights = gathered
        elif self.loss.known is None and seen.dtype.is_floating:
            seen = with_valid_labels(seen, weights)
        return seen, predictions, weights

    def loss_sum(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """`sum_i s_i * loss_i`, a float32 scalar; the arguments are those of `losses`."""
        return sum_of_losses(*self.losses(targets, predictions, weights))

    def update_metrics(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor, representation: Any) -> None:
        """Adds the labelled elements to the metrics, without class weights.

        A module that reads its targets may have a method `scores`, which does not: its result, of the shape of the
        predictions, is then measured in their place.

        Args:
            targets: The targets in their own units.
            predictions: The module's predictions, of scaled targets if these are.
            weights: The weights of the loss's elements.
            representation: The encoder's representation, of the same rows.
        """
        if self._metrics:
            scores = getattr(self.module, "scores", None) if self.teacher_forcing else None
            if callable(scores):
                predictions = call_users(scores, self.read(representation))
            predictions = self.in_units(predictions)
            weights = without_class_weights(self.label_spec, targets, predictions, weights)
        for metric in self._metrics or []:
            metric.update(targets, predictions, weights)


def _like(weights: tf.Tensor, values: tf.Tensor, loss: losses.ElementLoss) -> tf.Tensor:
    """Values of a loss in the shape of the weights of elements; a number stays one."""
    if loss.is_total or (loss.over is not None and values.shape.rank == weights.shape.rank and not in_xla()):
        return values
    return tf.reshape(values, tf.shape(weights))  # XLA leaves other checks out, but fails for another number of values


def sum_of_losses(losses: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """`sum_i s_i * loss_i`, a float32 scalar; elements of weight 0 add nothing, whatever their loss is."""
    return tf.reduce_sum(tf.math.multiply_no_nan(losses, weights))


def or_nan(value: Any, condition: tf.Tensor) -> tf.Tensor:
    """A value where the condition holds, otherwise NaN; values of other dtypes than floating ones are unchanged."""
    value = tf.convert_to_tensor(value)
    return where(condition, value, float("nan")) if value.dtype.is_floating else value


def weigh_classes(heads: Sequence[NamedHead], class_weight: Any) -> list[NamedHead]:
    """The same heads, with their modules and metrics, some of them with other class weights.

    Args:
        heads: Heads.
        class_weight: Weights by class, by head name; for a single head, also the weights by class alone.

    Raises:
        ValueError: It names something that is not a head, or is not a dict of weights.
    """
    by_head = check_class_weights(class_weight, [head.name for head in heads])
    weighed = []
    for head in heads:
        if head.name in by_head:
            head = copy.copy(head)
            head.class_weight = ClassWeight(by_head[head.name])
            head.label_spec = head.label_spec._replace(class_weight=head.class_weight)
        weighed.append(head)
    return weighed


def check_ignore_label(label: Any) -> float | None:
    """Returns an `ignore_label` if it is None or a number.

    Raises:
        TypeError: It is something else.
    """
    label = as_python(label)
    if label is None or is_number(label):
        return label
    raise TypeError(
        f"`ignore_label` must be a finite number. Received: ignore_label={label!r}. Pass, say, -1; NaN always marks a "
        "missing label."
    )
