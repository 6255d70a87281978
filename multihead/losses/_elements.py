"""Losses as sums and counts over elements."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.calls import (
    are_probabilities,
    call_users,
    keras_mask,
    targets_for_loss,
    with_columns_of_keras,
    with_keras_mask,
    with_logits,
)
from multihead._ground.graphs import kinds_with_state, operations_behind, written_resources
from multihead._ground.keras import options_of
from multihead._ground.layers import check_initialized
from multihead._ground.references import unchanged
from multihead._ground.tensors import outside_of_graphs, precision_of, where
from multihead._ground.trials import returned_by, with_rows
from multihead._ground.types import Config, Function, Loss, Nested, Tensor
from multihead._ground.validation import in_short
from multihead.losses._known import CLASSES, COMPARING, ELEMENTS, Known, aligned, is_keras, keras_object, known, with_columns


@keras.saving.register_keras_serializable(package="multihead")
class SequenceCrossentropy(keras.losses.Loss):
    """Cross-entropy of the tokens of a sequence, from logits; padding does not count.

    `loss_bt = -sum_v q_btv * log softmax(logits_bt)_v`, with `q` one-hot at the target, or, with `label_smoothing`
    `e`, `(1 - e) * one-hot + e / V` (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016).

    Args:
        padding_id: Targets of this id are padding, not tokens.
        label_smoothing: `e`, at least 0 and below 1; 0 for a module with labels that are never possible, whose attribute
            `has_impossible_labels` is true, such as `multihead.models.CRFTagger`.

    Targets are whole numbers of shape `[batch, time]`, predictions logits of shape `[batch, time, vocabulary]`; the
    values have shape `[batch, time]`.

    Raises:
        ValueError: `label_smoothing` is not in `[0, 1)` or, in a call, the predictions are known to be probabilities.
    """

    def __init__(self, *, padding_id: int = 0, label_smoothing: float = 0.0, name: str = "sequence_crossentropy") -> None:
        super().__init__(name=name)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "`label_smoothing` must be at least 0 and below 1. "
                f"Received: label_smoothing={label_smoothing!r}. Pass 0 to disable it."
            )
        self.padding_id = padding_id
        self.label_smoothing = label_smoothing

    @property
    def ignore_label(self) -> int:
        """The label that marks an element as unlabelled: the padding."""
        return self.padding_id

    def call(self, y_true: Tensor, y_pred: Tensor) -> tf.Tensor:
        """Values of shape `[batch, time]`, including those of padding."""
        y_true, y_pred = tf.cast(y_true, tf.int32), tf.convert_to_tensor(y_pred)
        if are_probabilities(y_pred):
            raise ValueError(
                "`module` of a head with `SequenceCrossentropy` must return logits. Received: the result of a softmax or a "
                "sigmoid. Leave this activation out."
            )
        values = tf.nn.sparse_softmax_cross_entropy_with_logits(y_true, y_pred)
        if self.label_smoothing:
            uniform = -tf.reduce_mean(tf.nn.log_softmax(y_pred), axis=-1)
            values = (1 - self.label_smoothing) * values + self.label_smoothing * uniform
        return values

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {"padding_id": self.padding_id, "label_smoothing": self.label_smoothing, "name": self.name}


class ElementLoss:
    """A loss as the trainer uses it: unreduced, with one value per element.

    Args:
        function: `function(y_true, y_pred)`.
        ignore_label: A label that marks an element without a label, or None.
        original: The loss as passed by the user, for the configuration.
        known: The properties of the function, or None if it is not Keras's own. The shape of its values then determines the
            elements: one per prediction, or one per row, step or example (the first axes of the predictions).
        is_apart: Whether values are known to depend only on their own labels, as in most of Keras's losses.

    Attributes:
        couples_rows: The user's declaration whether a value may depend on other rows of its batch; None without one.
        is_total: Whether it returns one number for all rows; known after `value_rank` was called.
        has_count: Whether it returns a sum and a count; known after `value_rank` was called.
    """

    def __init__(
        self,
        function: Function,
        name: str,
        ignore_label: int | None,
        original: Loss,
        known: Known | None = None,
        *,
        is_apart: bool = False,
    ) -> None:
        self._function = function
        self.name = name
        self.ignore_label = ignore_label
        self.original = original
        self.known = known
        self.is_apart = is_apart or known is not None
        self.couples_rows: bool | None = None
        self.is_total = self.has_count = False
        self.runs_eagerly = False  # whether its Python may depend on values, so that it cannot be traced
        self._ranks: dict[object, int] = {}

    @property
    def over(self) -> str | None:
        """What one value reads: `"elements"`, `"rows"` or `"classes"`; None if unknown."""
        return None if self.known is None else self.known.over

    @property
    def label_smoothing(self) -> float:
        """The part of a label that `SequenceCrossentropy` spreads over all classes."""
        loss = getattr(self._function, "__self__", None)
        return loss.label_smoothing if isinstance(loss, SequenceCrossentropy) else 0.0

    @property
    def is_undeclared(self) -> bool:
        """Whether neither the loss's class nor a declaration tells what a value depends on."""
        return self.couples_rows is None and not self.is_apart

    @property
    def takes_labelled_rows(self) -> bool:
        """Whether it gets only the rows that have a label, so that everything it compares has one."""
        return bool(self.couples_rows) or self.is_undeclared or self.is_total

    def value_rank(self, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> int:
        """The number of axes of the predictions (which have at least two) that index elements; 1 for a single number.

        A `ValueError` if the loss cannot take such targets, or returns values that do not have the shape of elements.
        """
        shape = with_columns(predictions.shape)
        if self.known is not None:
            return int(shape.rank) - (self.over != ELEMENTS)
        key = (targets.dtype, tuple(targets.shape[1:]), predictions.dtype, tuple(predictions.shape[1:]))
        if key not in self._ranks:
            self._ranks[key] = self._computed_rank(targets, predictions)
        return self._ranks[key]

    def _computed_rank(self, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> int:
        fault: str | None = None

        def terms(targets: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
            nonlocal fault
            values, counts = self.terms(targets, predictions)
            # A loss of Keras counts the rows that have others to be compared with, by their labels.
            is_fine = counts is None or tf.executing_eagerly() or is_keras(getattr(self._function, "func", None))
            fault = None if is_fine else _fault_of_count(counts, predictions)
            return values, counts

        try:
            values, counts = terms_of(self, targets, predictions, terms)
        except Exception as error:
            if isinstance(error, ReductionError):
                raise ValueError(str(error)) from None
            shapes = [tf.TensorShape([None, *spec.shape[1:]]) for spec in (targets, predictions)]
            if "KerasTensor" in str(error):
                raise ValueError(
                    f"The loss {self.name!r} must use its targets and predictions alone. Received: a loss that uses a "
                    "symbolic tensor of a model, that is, an input, another output or the result of a layer, which has no "
                    "values here. Pass weights as `sample_weight`; concatenate what else it needs to the predictions or to "
                    "the targets, or call `self.add_loss` in a layer that has it."
                ) from error
            raise ValueError(
                f"The loss {self.name!r} must take the head's targets and predictions. Received: targets of shape "
                f"{shapes[0]} and dtype {targets.dtype.name} for predictions of shape {shapes[1]}. Correct the loss, the "
                f"targets, or the module's number of units. The loss says: {in_short(error)}"
            ) from error
        self.is_total, self.has_count = not values.shape.rank, counts is not None
        _check_count(self, fault)
        return max(int(values.shape.rank), 1)

    def values(self, targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """The losses of the elements, in the shape of the predictions or of their first axes (`[batch, 1]` for `[batch]`).

        If the loss returns one number for all rows, it is their sum.
        """
        values, _ = self.terms(targets, predictions)
        if not values.shape.rank:
            return values
        rank = with_columns(predictions.shape).rank
        return tf.expand_dims(values, -1) if self.over == ELEMENTS and values.shape.rank < rank else values

    def terms(self, targets: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Sums and counts; None for counts of 1. A `ValueError` if they do not have the shape of elements."""
        predictions = tf.convert_to_tensor(predictions)
        if predictions.dtype.is_floating and predictions.dtype not in (tf.float32, tf.float64):
            predictions = with_logits(lambda tensor: tf.cast(tensor, tf.float32), predictions)
        if predictions.shape.rank == 1:
            predictions = with_logits(lambda tensor: tf.expand_dims(tensor, -1), predictions)
        shape = predictions.shape
        targets = aligned(targets, shape, self.over)
        if self.known is None:
            targets = targets_for_loss(targets, predictions)
            targets = targets if self.couples_rows else with_columns_of_keras(targets)
        elif self.over != CLASSES:
            targets = tf.cast(targets, predictions.dtype)
        if self.over == ELEMENTS and shape[-1] != 1:  # the mean over a last axis of one is the term itself
            targets, predictions = tf.expand_dims(targets, -1), with_logits(lambda t: tf.expand_dims(t, -1), predictions)
        returned = call_users(self._function, targets, predictions)
        pair = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned,)
        values, *counts = (tf.convert_to_tensor(part) for part in pair)
        if self.known is None:
            values, *counts = (_without_kept_axes(part, shape) for part in (values, *counts))
        mask = keras_mask(values)
        if self.couples_rows and mask is not None and not counts:  # Keras does not count the masked rows either
            values, counts, mask = where(mask, values, 0.0), [mask], None
        rank = values.shape.rank
        is_one = rank == 0 and bool(counts or self.couples_rows)
        fits = is_one or (rank and values.shape.is_compatible_with(shape[:rank]))
        fits = fits and all(count.shape.rank == rank and count.shape.is_compatible_with(values.shape) for count in counts)
        if not fits and isinstance(axis := options_of(self.original).get("axis"), int) and axis != -1:
            raise ReductionError(
                f"The loss {self.name!r} must compare along the last axis. Received: axis={axis!r}. Let the module end with "
                "`keras.layers.Permute`, and put this axis last in the targets, too."
            )
        if not fits or mask is not None:
            with_mask = "" if mask is None else " and a mask of their own"
            with_mask += f" and counts of shape {counts[0].shape}" if counts else ""
            with_mask += " from its own `__call__`" if isinstance(self._function, keras.losses.Loss) else ""
            raise ReductionError(
                f"The loss {self.name!r} must give one value per element, that is, values of the shape of the predictions, "
                f"{shape}, or of its first axes, and leave missing labels to `ignore_label`. Received: values of shape "
                f"{values.shape}{with_mask} for targets of shape {targets.shape}. Do not reduce over the batch in the loss: "
                "the trainer sums, counts and divides. A loss with a denominator of its own returns a sum and a count, of "
                "the same shape; for one that compares the rows of a batch, pass `couples_rows=True` to `add_head`."
            )
        dtype = precision_of([predictions.dtype])
        values, counts = tf.cast(values, dtype), [tf.cast(count, dtype) for count in counts]
        if is_one and not counts:  # from a mean over the rows to their sum
            values *= tf.cast(tf.shape(predictions)[0], dtype)
        elif self.couples_rows and self.known is None and rank > 1:  # labels belong to whole rows
            reduce = tf.reduce_sum if counts else tf.reduce_mean
            values, *counts = (reduce(part, axis=list(range(1, rank))) for part in (values, *counts))
        return values, counts[0] if counts else None


def no_loss() -> ElementLoss:
    """The loss of a head that is not trained: zeros, with the axes that targets and predictions share as elements."""

    def shared_axes(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        rank = min(targets.shape.rank, predictions.shape.rank)
        while rank > 1 and not targets.shape[:rank].is_compatible_with(predictions.shape[:rank]):
            rank -= 1
        return tf.zeros(tf.shape(predictions)[:rank])

    return ElementLoss(shared_axes, "none", None, None, is_apart=True)


class ReductionError(ValueError):
    """The values of a loss do not have the shape of elements."""


def terms_of(loss: ElementLoss, targets: tf.TensorSpec, predictions: tf.TensorSpec, terms: Function) -> Nested:
    """What a function that calls the `terms` of a loss returns for batches of these specs, before there are any."""
    specs = with_rows(targets, predictions)
    # With `couples_rows`, a size that is open may be the number of rows: one prediction per pair of them.
    open_size = specs[0].shape[0] + (not loss.couples_rows)
    with outside_of_graphs(), unchanged(loss.original, eagerly=loss.runs_eagerly):
        return returned_by(terms, specs, open_size, eagerly=loss.runs_eagerly)


def counts_of(loss: ElementLoss, targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    """The counts of a loss that has them.

    Where it runs eagerly, no trace may have shown what they depend on, so they must be the same for predictions that are all
    those of the first row.
    """
    counts: Tensor = loss.terms(targets, predictions)[1]
    if loss.runs_eagerly and tf.executing_eagerly():
        rows = tf.zeros(tf.shape(predictions)[:1], tf.int32)
        first = with_logits(lambda tensor: tf.gather(tensor, rows), predictions)
        with unchanged(loss.original, eagerly=True):
            again = loss.terms(targets, with_keras_mask(first, keras_mask(predictions)))[1]
        are_same = np.array_equal(counts, again, equal_nan=True)
        _check_count(loss, None if are_same else "whose count changes with the predictions, or differs from call to call")
    return counts


def _check_count(loss: ElementLoss, fault: str | None) -> None:
    if fault is not None:
        raise ValueError(
            f"The loss {loss.name!r} must return a count that is a function of the targets: it is needed before there are "
            f"predictions. Received: a loss {fault}. Count labels, and of the predictions take the shape alone, as "
            "`tf.ones_like` does; or return one value per element, or the mean with `couples_rows=True`."
        )


def _fault_of_count(counts: tf.Tensor, predictions: tf.Tensor) -> str | None:
    """Why a count in a graph is no function of the targets alone, or takes a call that changes something."""
    behind = operations_behind(counts, with_sizes=True)
    if written_resources(counts.graph.get_operations()):
        return "which changes variables, and is called once more for its count"
    if kinds_with_state(counts.graph, behind):
        return "whose count draws random numbers or depends on a state"
    return "whose count depends on the values of predictions" if predictions.op in behind else None


def _without_kept_axes(values: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Values without the last axes of size 1 that `keepdims` leaves where the predictions' `shape` has other sizes."""
    rank = kept = values.shape.rank or 0
    has_others = rank > shape.rank or any(one == 1 and other != 1 for one, other in zip(values.shape, shape))
    while has_others and kept > 1 and values.shape[kept - 1] == 1:
        kept -= 1
    return values if kept == rank or keras_mask(values) is not None else tf.squeeze(values, list(range(kept, rank)))


def reduction_of(loss: keras.losses.Loss) -> str:
    """The name of a loss's reduction, `"none"` for None."""
    return str(getattr(loss.reduction, "value", loss.reduction)).lower()


def get(loss: Loss) -> ElementLoss:
    """The `ElementLoss` for anything that Keras accepts as a loss.

    Args:
        loss: A name such as `"sparse_categorical_crossentropy"`, a `keras.losses.Loss`, its configuration as a dict, or
            a function `loss(y_true, y_pred)` that returns one value per element, or a sum and a count.

    Raises:
        ValueError: The name is unknown, or a `Loss` sums over the batch.
        TypeError: `loss` is none of these.
    """
    original = loss
    if isinstance(loss, (str, dict)):
        loss = keras_object(keras.losses, loss, "`loss` must be a Keras loss")
    if isinstance(loss, type) and issubclass(loss, keras.losses.Loss):
        loss = original = loss()
    if isinstance(loss, keras.losses.Loss):
        check_initialized("loss", loss)
        reduction = reduction_of(loss)
        if reduction == "sum":
            raise ValueError(
                "`loss` must leave its reduction to the trainer, which divides sums by their counts once per update. "
                f"Received: {loss.name!r} with reduction={reduction!r}. Leave `reduction` out, or pass 'none'; to make "
                "a head count for more, pass `weight=` to `add_head`."
            )
        name = str(loss.name or type(loss).__name__)
        if type(loss).__call__ is not keras.losses.Loss.__call__:  # which Keras calls, and which need not use `call`
            return ElementLoss(loss, name, None, original)
        wraps_function = getattr(type(loss).call, "__qualname__", "") == "LossFunctionWrapper.call"
        if wraps_function and is_keras(loss.fn):
            return _keras_loss(loss.fn, name, original, options_of(loss))
        properties = Known(CLASSES, 0) if type(loss).call is SequenceCrossentropy.call else None
        # A wrapper has Keras's `call`, but computes what its function does.
        is_apart = is_keras(type(loss).call) and not wraps_function and type(loss).__name__.lower() not in COMPARING
        ignored = getattr(loss, "ignore_label", None)
        return ElementLoss(loss.call, name, ignored, original, properties, is_apart=is_apart)
    if is_keras(loss):
        return _keras_loss(loss, loss.__name__, original, {})
    if callable(loss):
        return ElementLoss(loss, getattr(loss, "__name__", type(loss).__name__), None, original)
    raise TypeError(
        "`loss` must be a name, a `keras.losses.Loss` or a function of (y_true, y_pred). "
        f"Received: loss={original!r}. Pass, say, loss='mse'."
    )


def _keras_loss(function: Function, name: str, original: Loss, options: Config) -> ElementLoss:
    """The loss of a function of Keras with keyword arguments; its `ignore_class` becomes the `ignore_label`."""
    properties, ignored = known(function, options), options.pop("ignore_class", None)
    is_apart = function.__name__ not in COMPARING
    return ElementLoss(functools.partial(function, **options), name, ignored, original, properties, is_apart=is_apart)
