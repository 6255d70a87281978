"""A loss of Keras as sums and counts of elements."""

from __future__ import annotations

import functools

import keras
import tensorflow as tf

from multihead._ground.calls import are_probabilities, call_users, graph_function, keras_mask, targets_for_loss, with_logits
from multihead._ground.keras import options_of
from multihead._ground.layers import check_initialized
from multihead._ground.tensors import precision_of, unchecked, where
from multihead._ground.types import Config, Function, Loss, Tensor
from multihead._ground.validation import in_short
from multihead.losses._known import CLASSES, COMPARING, ELEMENTS, Known, aligned, is_keras, known, of_keras, with_columns


@keras.saving.register_keras_serializable(package="multihead")
class SequenceCrossentropy(keras.losses.Loss):
    """Cross-entropy of each token of a sequence, from logits; padding does not count.

    `loss_bt = -sum_v q_btv * log softmax(logits_bt)_v`, with `q` one-hot at the target, or, with `label_smoothing`
    `e`, `(1 - e) * one-hot + e / V` (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016).

    Args:
        padding_id: Targets of this id are padding, not tokens.
        label_smoothing: `e`, at least 0 and below 1.

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
        known: The properties of the function, or None if it is not Keras's own. Its elements are then determined by its
            values: one per prediction, or one per row, step or example (the first axes of the predictions).
        is_apart: Whether each value is known to depend on its own labels alone, as those of most of Keras's losses do.

    Attributes:
        couples_rows: What the user has declared: whether a value may depend on other rows of its batch; None for nothing.
        is_total: Whether it gives one number for all rows; known once `value_rank` was called.
        has_count: Whether it returns a sum and a count; known once `value_rank` was called.
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
        """What one value reads: `"elements"`, `"rows"` or `"classes"`; None if it is not known."""
        return None if self.known is None else self.known.over

    @property
    def is_undeclared(self) -> bool:
        """Whether nothing is known of what a value depends on, neither by the loss's class nor by a declaration."""
        return self.couples_rows is None and not self.is_apart

    @property
    def takes_labelled_rows(self) -> bool:
        """Whether it is called without the rows that have no label, so that whatever it compares has labels."""
        return bool(self.couples_rows) or self.is_undeclared or self.is_total

    def value_rank(self, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> int:
        """How many of the predictions' axes (at least two) tell elements apart: the rank of the values, or 1 for a number.

        Raises:
            ValueError: The loss cannot take such targets, reduces its values over the batch, or returns values that do not
                have the shape of elements.
        """
        shape = with_columns(predictions.shape)
        if self.known is not None:
            return int(shape.rank) - (self.over != ELEMENTS)
        key = (targets.dtype, tuple(targets.shape[1:]), predictions.dtype, tuple(predictions.shape[1:]))
        if key not in self._ranks:
            # A unique number of rows, so that they are not taken for columns, as in `[6] - [6, 6]`.
            rows = 2 + max(size or 0 for size in (*targets.shape[1:], *predictions.shape[1:], 0))
            specs = [tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype) for spec in (targets, predictions)]
            with tf.init_scope():
                self._ranks[key] = self._found_rank(*specs)
        return self._ranks[key]

    def _found_rank(self, targets: tf.TensorSpec, predictions: tf.TensorSpec) -> int:
        failures: list[Exception] = []

        def computed(targets: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
            try:
                return self.terms(targets, predictions)
            except Exception as error:
                failures.append(error)
                raise

        def zeros(spec: tf.TensorSpec) -> tf.Tensor:  # open sizes are larger than the number of rows, to distinguish them
            open_size = spec.shape[0] + (not self.couples_rows)
            return tf.zeros([open_size if size is None else size for size in spec.shape], spec.dtype)

        try:
            if self.runs_eagerly:
                with unchecked():  # the loss of these zeros may be infinite
                    values, counts = computed(zeros(targets), zeros(predictions))
            else:
                values, counts = graph_function(computed).get_concrete_function(targets, predictions).structured_outputs
        except Exception as error:
            first = failures[0] if failures else error
            if isinstance(first, ReductionError):
                raise ValueError(str(first)) from None
            shapes = [tf.TensorShape([None, *spec.shape[1:]]) for spec in (targets, predictions)]
            if "KerasTensor" in str(first):
                raise ValueError(
                    f"The loss {self.name!r} must use its targets and predictions alone. Received: a loss that uses a "
                    "symbolic tensor of a model, that is, an input, another output or the result of a layer, which has no "
                    "values here. Pass weights as `sample_weight`; concatenate what else it needs to the predictions or to "
                    "the targets, or call `self.add_loss` in a layer that has it."
                ) from error
            raise ValueError(
                f"The loss {self.name!r} must take the head's targets and predictions. Received: targets of shape "
                f"{shapes[0]} and dtype {targets.dtype.name} for predictions of shape {shapes[1]}. Correct the loss, the "
                f"targets, or the module's number of units. The loss says: {in_short(first)}"
            ) from error
        self.is_total, self.has_count = not values.shape.rank, counts is not None
        return max(int(values.shape.rank), 1)

    def values(self, targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """The loss of each element: `predictions.shape`, or its first axes (`[batch, 1]` stands for `[batch]`).

        If the loss gives one number for all rows, it is their sum.
        """
        values, _ = self.terms(targets, predictions)
        if not values.shape.rank:
            return values
        rank = with_columns(predictions.shape).rank
        return tf.expand_dims(values, -1) if self.over == ELEMENTS and values.shape.rank < rank else values

    def terms(self, targets: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        """Sums and counts; for counts of 1, None. A `ValueError` if they do not have the shape of elements."""
        predictions = tf.convert_to_tensor(predictions)
        if predictions.dtype.is_floating and predictions.dtype not in (tf.float32, tf.float64):
            predictions = with_logits(lambda tensor: tf.cast(tensor, tf.float32), predictions)
        if predictions.shape.rank == 1:
            predictions = with_logits(lambda tensor: tf.expand_dims(tensor, -1), predictions)
        shape = predictions.shape
        targets = aligned(targets, shape, self.over)
        if self.known is None:
            targets = targets_for_loss(targets, predictions)
        elif self.over != CLASSES:
            targets = tf.cast(targets, predictions.dtype)
        if self.over == ELEMENTS and shape[-1] != 1:  # the mean over a last axis of one is the term itself
            targets, predictions = tf.expand_dims(targets, -1), with_logits(lambda t: tf.expand_dims(t, -1), predictions)
        returned = call_users(self._function, targets, predictions)
        pair = returned if isinstance(returned, (tuple, list)) and len(returned) == 2 else (returned,)
        values, *counts = (tf.convert_to_tensor(each) for each in pair)
        if self.known is None:
            values, *counts = (_without_kept_axes(each, shape) for each in (values, *counts))
        mask = keras_mask(values)
        if self.couples_rows and mask is not None and not counts:  # rows that Keras does not count either
            values, counts, mask = where(mask, values, 0.0), [mask], None
        rank = values.shape.rank
        is_one = rank == 0 and bool(counts or self.couples_rows)
        fits = is_one or (rank and values.shape.is_compatible_with(shape[:rank]))
        fits = fits and all(each.shape.rank == rank and each.shape.is_compatible_with(values.shape) for each in counts)
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
        values, counts = tf.cast(values, dtype), [tf.cast(each, dtype) for each in counts]
        if is_one and not counts:  # the mean over the rows
            values *= tf.cast(tf.shape(predictions)[0], dtype)
        elif self.couples_rows and self.known is None and rank > 1:  # only rows as a whole have labels
            reduce = tf.reduce_sum if counts else tf.reduce_mean
            values, *counts = (reduce(each, axis=list(range(1, rank))) for each in (values, *counts))
        return values, counts[0] if counts else None


def no_loss() -> ElementLoss:
    """Stands in for the loss of predictions that are not trained: its elements are the axes shared with the targets."""

    def shared_axes(targets: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        rank = min(targets.shape.rank, predictions.shape.rank)
        while rank > 1 and not targets.shape[:rank].is_compatible_with(predictions.shape[:rank]):
            rank -= 1
        return tf.zeros(tf.shape(predictions)[:rank])

    return ElementLoss(shared_axes, "none", None, None, is_apart=True)


class ReductionError(ValueError):
    """The values of a loss do not have the shape of elements."""


def _without_kept_axes(values: tf.Tensor, shape: tf.TensorShape) -> tf.Tensor:
    """Values without their last axes of size 1 where the predictions' `shape` has others, as `keepdims` leaves them."""
    rank = kept = values.shape.rank or 0
    has_others = rank > shape.rank or any(one == 1 and other != 1 for one, other in zip(values.shape, shape))
    while has_others and kept > 1 and values.shape[kept - 1] == 1:
        kept -= 1
    return values if kept == rank or keras_mask(values) is not None else tf.squeeze(values, list(range(kept, rank)))


def get(loss: Loss) -> ElementLoss:
    """Makes an `ElementLoss` from anything that Keras accepts as a loss.

    Args:
        loss: A name such as `"sparse_categorical_crossentropy"`, a `keras.losses.Loss`, its configuration as a dict, or
            a function `loss(y_true, y_pred)` that returns one value per element, or a sum and a count.

    Raises:
        ValueError: The name is unknown, or a `Loss` sums over the batch.
        TypeError: `loss` is none of these.
    """
    original = loss
    if isinstance(loss, (str, dict)):
        loss = of_keras(keras.losses, loss, "`loss` must be a Keras loss")
    if isinstance(loss, type) and issubclass(loss, keras.losses.Loss):
        loss = original = loss()
    if isinstance(loss, keras.losses.Loss):
        check_initialized("loss", loss)
        reduction = str(getattr(loss.reduction, "value", loss.reduction)).lower()
        if reduction == "sum":
            raise ValueError(
                "`loss` must leave its reduction to the trainer, which divides each sum by its count once per update. "
                f"Received: {loss.name!r} with reduction={reduction!r}. Leave `reduction` out, or pass 'none'; to make "
                "a head count for more, pass `weight=` to `add_head`."
            )
        name = str(loss.name or type(loss).__name__)
        if type(loss).__call__ is not keras.losses.Loss.__call__:  # which is what Keras calls, and need not use `call`
            return ElementLoss(loss, name, None, original)
        if getattr(type(loss).call, "__qualname__", "") == "LossFunctionWrapper.call" and is_keras(loss.fn):
            return _of_keras(loss.fn, name, original, options_of(loss))
        properties = Known(CLASSES, 0) if type(loss).call is SequenceCrossentropy.call else None
        is_apart = is_keras(type(loss).call) and type(loss).__name__.lower() not in COMPARING
        ignored = getattr(loss, "ignore_label", None)
        return ElementLoss(loss.call, name, ignored, original, properties, is_apart=is_apart)
    if is_keras(loss):
        return _of_keras(loss, loss.__name__, original, {})
    if callable(loss):
        return ElementLoss(loss, getattr(loss, "__name__", type(loss).__name__), None, original)
    raise TypeError(
        "`loss` must be a name, a `keras.losses.Loss` or a function of (y_true, y_pred). "
        f"Received: loss={original!r}. Pass, say, loss='mse'."
    )


def _of_keras(function: Function, name: str, original: Loss, options: Config) -> ElementLoss:
    """The loss of one of Keras's functions with keyword arguments; the class that it ignores is an `ignore_label`."""
    properties, ignored = known(function, options), options.pop("ignore_class", None)
    is_apart = function.__name__ not in COMPARING
    return ElementLoss(functools.partial(function, **options), name, ignored, original, properties, is_apart=is_apart)
