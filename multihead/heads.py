"""A head: a module on the representation, with its loss, labels, weight and metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead import losses
from multihead._keras import call_module
from multihead._reads import check_reads, encode_reads, select
from multihead._validation import is_number

__all__ = ["Head"]

Weight = float | Callable[[tf.Tensor], Any]


class Head:
    """What the trainer knows of one head.

    Args:
        name: The key of the head's targets, sample weights and logs.
        module: Called `module(representation)`, or `module(representation, targets)` with `teacher_forcing`.
        loss: Anything `multihead.losses.get` takes.
        weight: A number of at least 0, or a function of the count of updates that gives one.
        metrics: Keras metrics or their names.
        teacher_forcing: Whether the module reads its targets.
        ignore_label: The label of an element without a label (NaN always is one).
        reads: Which part of the representation the module is given; None for all of it.

    Raises:
        ValueError: `name` cannot be one, `weight` is negative or not finite, the loss or a metric is unknown.
        TypeError: An argument is of the wrong kind.
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
        ignore_label: int | None = None,
        reads: Any = None,
    ) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"`name` must be a non-empty string without '/'. Received: name={name!r}. Pass, say, 'price'.")
        if not callable(module):
            raise TypeError(
                f"`module` must be a Keras layer, a model or a function. Received: module={module!r}. "
                "Pass what turns the representation into the head's predictions."
            )
        if isinstance(metrics, (str, keras.metrics.Metric)) or not isinstance(metrics, Sequence):
            raise TypeError(f"`metrics` must be a list. Received: metrics={metrics!r}. Put it into a list.")
        self.name = name
        self.module = module
        self.loss = losses.get(loss)
        self.weight = check_weight(weight)
        self.metric_specs = list(metrics)
        self.teacher_forcing = bool(teacher_forcing)
        self.ignore_label = ignore_label
        self.reads = check_reads(reads)
        self.metrics: list[Any] | None = None

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, serialized.

        Raises:
            TypeError: The module, the loss, a metric or the weight is a function that Keras cannot name.
        """
        serialize = keras.saving.serialize_keras_object
        return {
            "name": self.name,
            "module": serialize(self.module),
            "loss": serialize(self.loss.original),
            "weight": serialize(self.weight),
            "metrics": [serialize(metric) for metric in self.metric_specs],
            "teacher_forcing": self.teacher_forcing,
            "ignore_label": self.ignore_label,
            "reads": encode_reads(self.reads),
        }

    @property
    def trainable_variables(self) -> list[Any]:
        """The module's trainable variables (none for a plain function)."""
        return list(getattr(self.module, "trainable_variables", []))

    @property
    def added_losses(self) -> list[tf.Tensor]:
        """Regularisation and `add_loss` losses of the module's last call."""
        return list(getattr(self.module, "losses", []))

    def weight_at(self, update: tf.Tensor) -> tf.Tensor:
        """The head's weight at an update; a float32 scalar."""
        weight = self.weight(update) if callable(self.weight) else self.weight
        return tf.cast(tf.convert_to_tensor(weight), tf.float32)

    def read(self, representation: Any) -> Any:
        """The part of the representation that the module is given."""
        return select(representation, self.reads, self.name)

    def predict(self, representation: Any, targets: Any, *, training: bool) -> tf.Tensor:
        """The module's predictions for the loss: with teacher forcing it reads the targets."""
        representation = self.read(representation)
        arguments = (representation, targets) if self.teacher_forcing else (representation,)
        return call_module(self.module, *arguments, training=training)

    def generate(self, representation: Any) -> Any:
        """The module's answer without targets: `module.generate` with teacher forcing, else a plain call.

        Raises:
            ValueError: The module reads its targets and has no `generate`.
        """
        representation = self.read(representation)
        if not self.teacher_forcing:
            return call_module(self.module, representation, training=False)
        if not callable(getattr(self.module, "generate", None)):
            raise ValueError(
                f"The module of head {self.name!r} needs a method `generate(representation)` to predict, since it reads "
                f"its targets in training (teacher_forcing=True). Received: {type(self.module).__name__} without one. "
                "Add the method."
            )
        generate: Any = getattr(self.module, "generate")  # noqa: B009 - a plain callable has no such attribute
        return generate(representation)

    def labelled(
        self, targets: tf.Tensor, sample_weight: tf.Tensor | None, prediction_rank: int, mask: tf.Tensor | None
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Finds which elements have a label and how much each counts, and replaces the labels of the others by 0.

        Replacing them before the loss is called keeps a NaN, or a label that is no class, out of every gradient.

        Args:
            targets: The head's targets, `[batch, ...]`.
            sample_weight: `[batch]` or `[batch, ...]`, or None for ones.
            prediction_rank: The rank of the head's predictions; the loss's values have one axis less (at least one).
            mask: The Keras mask of the predictions, or None.

        Returns:
            The targets, and weights, float32, of the shape of the loss's values: 0 where there is no label.
        """
        rank = losses.value_rank(prediction_rank)
        missing = tf.zeros_like(targets, tf.bool)
        if targets.dtype.is_floating:
            missing = tf.math.is_nan(targets)
        for label in (self.ignore_label, self.loss.ignore_label):
            if label is not None:
                missing |= tf.equal(targets, tf.cast(label, targets.dtype))
        clean = tf.where(missing, tf.zeros_like(targets), targets)
        if missing.shape.rank > rank:
            missing = tf.reduce_any(missing, axis=list(range(rank, missing.shape.rank)))
        weights = tf.where(missing, 0.0, 1.0)
        if sample_weight is not None:
            given = tf.cast(sample_weight, tf.float32)
            message = f"`sample_weights[{self.name!r}]` must be at least 0"
            with tf.control_dependencies([tf.debugging.assert_non_negative(given, message=message)]):
                weights = weights * self._broadcast(tf.identity(given), rank)
        if mask is not None and mask.shape.rank <= rank:
            weights = weights * self._broadcast(tf.cast(mask, tf.float32), rank)
        # A weight of zero means that there is no label: whatever stands there, NaN included, is replaced too.
        used = tf.reshape(weights > 0, tf.concat([tf.shape(weights), [1] * (clean.shape.rank - rank)], axis=0))
        return tf.where(used, clean, tf.zeros_like(clean)), weights

    def _broadcast(self, weights: tf.Tensor, rank: int) -> tf.Tensor:
        while weights.shape.rank > rank and weights.shape[-1] == 1:
            weights = tf.squeeze(weights, axis=-1)
        if weights.shape.rank > rank:
            raise ValueError(
                f"`sample_weights[{self.name!r}]` must have at most {rank} axes, one weight per element of the loss. "
                f"Received: shape {weights.shape}. Pass weights of shape [batch]"
                f"{' or [batch, time]' if rank > 1 else ''}."
            )
        return tf.reshape(weights, tf.concat([tf.shape(weights), [1] * (rank - weights.shape.rank)], axis=0))

    def loss_sum(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        """`sum_i s_i * loss_i`, a float32 scalar; elements of weight 0 add nothing, whatever their loss is."""
        values = self.loss.values(targets, predictions)
        return tf.reduce_sum(tf.where(weights > 0, values, tf.zeros_like(values)) * weights)

    def build_metrics(self, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> None:
        """Creates the metrics; names such as `"accuracy"` are resolved by the shapes, as in Keras."""
        if self.metrics is None:
            self.metrics = [resolve_metric(spec, targets, predictions, self.name) for spec in self.metric_specs]

    def update_metrics(self, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds the labelled elements to the metrics."""
        for metric in self.metrics or []:
            metric.update_state(targets, predictions, sample_weight=weights)


def check_weight(weight: Any) -> Weight:
    """Returns a head's weight if it is a finite number of at least 0 or a function.

    Raises:
        ValueError: It is neither.
    """
    if callable(weight):
        return weight
    if not is_number(weight) or weight < 0:
        raise ValueError(
            "`weight` must be a finite number of at least 0, or a function of the count of updates. "
            f"Received: weight={weight!r}. To leave a head out, pass 0."
        )
    return float(weight)


def resolve_metric(spec: Any, targets: tf.TensorSpec, predictions: tf.TensorSpec, head: str) -> Any:
    """Makes a `keras.metrics.Metric` of a metric, a name or a function.

    `"accuracy"` and `"crossentropy"` become the binary, categorical or sparse form by the shapes, as in Keras.

    Raises:
        ValueError: Keras does not know the name.
    """
    if isinstance(spec, keras.metrics.Metric):
        return spec
    if spec in ("accuracy", "acc", "crossentropy", "ce"):
        if predictions.shape.rank == 1 or predictions.shape[-1] == 1:
            form = "Binary"
        elif targets.shape.rank < predictions.shape.rank or targets.shape[-1] == 1:
            form = "SparseCategorical"
        else:
            form = "Categorical"
        kind = "Accuracy" if spec in ("accuracy", "acc") else "Crossentropy"
        return getattr(keras.metrics, form + kind)(name=spec)
    try:
        metric = keras.metrics.get(spec)
    except ValueError as error:
        raise ValueError(
            f"`metrics` of head {head!r} must be Keras metrics or their names. Received: {spec!r}, which Keras does not "
            "know. Pass, say, 'accuracy' or a `keras.metrics.Metric`."
        ) from error
    if isinstance(metric, type):
        metric = metric()
    if isinstance(metric, keras.metrics.Metric):
        return metric
    return keras.metrics.MeanMetricWrapper(metric, name=spec if isinstance(spec, str) else metric.__name__)
