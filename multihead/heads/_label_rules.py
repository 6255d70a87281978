"""The rules for a head's labels: shapes and dtypes are checked when a graph is traced, values in every batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.types import Tensor
from multihead._ground.validation import check_dense
from multihead.losses._elements import ElementLoss
from multihead.losses._known import CLASSES, ELEMENTS, aligned_shape, with_columns, with_inner

_ROUNDING = 1e-3
"""How far rounding may move soft labels out of their range."""
_ROUNDING_OF_SUMS = 0.05
"""The same for the sum of a row of probabilities, which may be of bfloat16."""
_MARK = "Mark elements without a label by NaN or `ignore_label`, or give them a sample weight of 0."


class LabelSpec(NamedTuple):
    """The properties of a head's labels that are known before the first batch."""

    name: str
    loss: ElementLoss
    ignore_labels: tuple[float, ...]  # the labels that mark an element without a label
    class_weight: Mapping[int, float] | None
    above: float | None = None  # the target scaling takes only labels above this number
    # The module's own rules: its method `target_problems`
    module_rules: Callable[[tf.Tensor, tf.Tensor], Iterable[tuple[tf.Tensor, str, str]]] | None = None
    undeclared_metrics: tuple[str, ...] = ()  # the metrics that do not declare which labels of a row they read

    @property
    def targets(self) -> str:
        """The name of the targets, for messages."""
        return f"`targets[{self.name!r}]`"


class Problem(NamedTuple):
    """A rule for the values of labels or weights, and where a batch breaks it."""

    broken: tf.Tensor  # booleans, one per value or one per row of values
    received: tf.Tensor  # the values
    rule: str  # the argument and the rule
    remedy: str

    def message(self) -> list[str | tf.Tensor]:
        """The parts of an error message, with the first value, or the start of the first row, that breaks the rule."""
        wrong = tf.gather_nd(self.received, tf.where(self.broken))
        if self.broken.shape.rank < self.received.shape.rank:
            first, number, what = tf.reshape(wrong[:1], [-1])[:10], tf.shape(wrong)[0], "rows"
        else:
            first = tf.cast(wrong[:1], tf.float32) if wrong.dtype.is_floating else wrong[:1]
            number, what = tf.size(wrong), "values"
        parts = " (", number, " of ", tf.size(self.broken), f" {what} break this). {self.remedy}"
        return [f"{self.rule}. Received: ", first, *parts]


def check_specs(spec: LabelSpec, targets: Tensor, predictions: tf.TensorSpec) -> int:
    """Checks the shapes and dtypes of targets, or of their specs; returns the number of axes that index the elements."""
    check_dense(spec.targets, targets)
    if predictions.shape.rank is None:
        raise ValueError(
            f"The predictions of head {spec.name!r} must have a known number of axes. Received: a shape that is unknown "
            "until the module runs. Let the module end in `tf.ensure_shape`."
        )
    dtype = targets.dtype
    for label in spec.ignore_labels:
        if dtype.is_floating:  # a fraction may be rounded like the targets; a whole number must be exact
            is_held = abs(label) <= float(dtype.max) and (label != int(label) or float(dtype.as_numpy_dtype(label)) == label)
        else:
            low, high = (0, 1) if dtype.is_bool else (dtype.min, dtype.max)
            is_held = label == int(label) and low <= label <= high
        if not is_held:
            raise ValueError(
                f"`ignore_label` of head {spec.name!r} must be a value that its targets can hold. Received: "
                f"ignore_label={label!r} for targets of dtype {dtype.name}, which cannot hold it: no label would be "
                "missing. Give the targets a dtype that can, or leave `ignore_label` out."
            )
    shape, over = with_columns(predictions.shape), spec.loss.over
    if shape[-1] == 1 and spec.loss.known is not None and spec.loss.known.columns > 1:
        raise ValueError(
            f"The module of head {spec.name!r} must predict several columns for the loss {spec.loss.name!r}, which is the "
            f"same for whatever is predicted in a single one. Received: predictions of shape {predictions.shape}. For "
            "classes, give the module one unit per class; for two, a single unit with a sigmoid and 'binary_crossentropy' "
            "serves, too; for numbers, choose 'mse' or 'mae'."
        )
    actual, expected = aligned_shape(targets.shape, shape, over), shape[:-1] if over == CLASSES else shape
    if over is not None and not (actual.rank == expected.rank and actual.is_compatible_with(expected)):
        rule = f"the shape of the predictions, {predictions.shape}"
        rule = f"one class number per prediction, shape {expected}" if over == CLASSES else rule
        hint = " Class numbers are for 'sparse_categorical_crossentropy', a value per class for 'categorical_crossentropy'."
        raise ValueError(
            f"{spec.targets} must have {rule}, for the loss {spec.loss.name!r}. Received: targets of shape {targets.shape} "
            f"for predictions of shape {predictions.shape}. Reshape the targets, or correct the module's number of units."
            f"{'' if over == ELEMENTS else hint}"
        )
    try:
        rank = spec.loss.value_rank(tf.TensorSpec(targets.shape, targets.dtype), predictions)
    except ValueError as error:
        raise ValueError(f"In head {spec.name!r}: {error}") from error
    if actual.rank < rank or not actual[:rank].is_compatible_with(shape[:rank]):
        raise ValueError(
            f"{spec.targets} must have one label per value of the loss {spec.loss.name!r}, whose values have shape "
            f"{shape[:rank]}. Received: targets of shape {targets.shape} for predictions of shape {predictions.shape}. "
            "Let the loss give one value per label; for the log likelihood of a sequence use `multihead.models.CRFTagger`."
        )
    is_row, has_columns = actual.rank > rank, gives_columns(actual, rank)
    if spec.class_weight is not None and (spec.loss.is_total or actual.rank > rank + 1):
        values = "one value for all rows" if spec.loss.is_total else f"values of shape {shape[:rank]}"
        raise ValueError(
            f"`class_weight` of head {spec.name!r} needs a loss that gives one value per class number or row of classes. "
            f"Received: {spec.loss.name!r}, with {values} for targets of shape {targets.shape}. Return one value per "
            "label, or leave `class_weight` out."
        )
    num_classes = shape[-1] if has_columns or over == CLASSES else None
    if spec.class_weight is not None and num_classes is not None and max(spec.class_weight) >= num_classes:
        raise ValueError(
            f"`class_weight` of head {spec.name!r} must name the classes 0 to {num_classes - 1}. "
            f"Received: a weight for class {max(spec.class_weight)}. Remove it, or correct the module's number of units."
        )
    known = spec.loss.known
    if is_row and known is not None and known.low == 0 and any(label >= 0 for label in spec.ignore_labels):
        raise ValueError(
            f"`ignore_label` of head {spec.name!r} must be a number that no row of labels can contain, since the loss "
            f"{spec.loss.name!r} reads whole rows. Received: ignore_label={max(spec.ignore_labels):g} for rows of shape "
            f"{actual}. Fill rows without a label with NaN or -1, or give them a sample weight of 0."
        )
    return rank


def gives_columns(targets: tf.TensorShape, rank: int) -> bool:
    """Whether the label of an element, which the first `rank` axes index, is a row of columns rather than a number."""
    return bool(targets.rank > rank and targets[-1] != 1)


def find_problems(
    spec: LabelSpec,
    targets: tf.Tensor,
    rank: int,
    is_missing: tf.Tensor | None,
    is_labelled: tf.Tensor | None,
    is_kept: tf.Tensor | None,
    element_weights: tf.Tensor | None,
    predictions: tf.TensorSpec,
) -> list[Problem]:
    """The rules that the labels and weights of a batch could break.

    The first `rank` axes of the targets index the elements. `is_missing`: which targets mark a missing label; None: none.
    `is_labelled`: which elements have no such target, and `is_kept`: which have a mask and a weight that keep them; None:
    all. `element_weights`: the sample weights; None: ones.
    """
    inner, has_columns = list(range(rank, targets.shape.rank)), gives_columns(targets.shape, rank)
    targets_kept = None if is_kept is None else with_inner(is_kept, targets)
    present = both(targets_kept, None if is_missing is None else ~is_missing)
    values = targets if targets.dtype.is_floating else tf.cast(targets, tf.int64)
    problems = [
        Problem(both(broken, present), values, f"{spec.targets} must be {rule}", _MARK)
        for broken, rule in _broken_ranges(spec, values, predictions.shape[-1], has_columns)
    ]
    if spec.class_weight is not None and has_columns:
        wide = tf.cast(values, tf.float64)
        is_one = tf.abs(tf.reduce_sum(wide, axis=-1) - 1.0) < _ROUNDING_OF_SUMS
        is_broken = ~is_one | tf.reduce_any(wide < -_ROUNDING, axis=-1)
        rule = f"{spec.targets} must be rows of zeros and a single 1, or probabilities, since the head has a `class_weight`"
        remedy = "For several labels in a row, let the loss give one value per label, or weight the rows by `sample_weight`."
        is_present = None if present is None else tf.reduce_all(present, axis=-1)
        problems.append(Problem(both(is_broken, is_present), values, rule, remedy))
    whole_rows = f"{spec.targets} must be missing for a whole row or not at all, since"
    if inner and is_missing is not None:
        any_missing, all_missing = (
            reduce(is_missing, axis=inner, keepdims=True) for reduce in (tf.reduce_any, tf.reduce_all)
        )
        rule = f"{whole_rows} the loss {spec.loss.name!r} gives one value for all of a row's labels"
        remedy = "Mark the whole row, give it a sample weight of 0, or choose a loss with one value per label."
        problems.append(Problem(both(any_missing & ~all_missing & is_missing, targets_kept), values, rule, remedy))
    is_labelled = both(is_kept, is_labelled)
    if rank > 1 and is_labelled is not None and (spec.loss.is_undeclared or spec.undeclared_metrics):
        axes = list(range(1, is_labelled.shape.rank))
        broken = tf.reduce_any(is_labelled, axis=axes) & ~tf.reduce_all(is_labelled, axis=axes)
        problems += [Problem(broken, values, f"{whole_rows} {why}", remedy) for why, remedy in _undeclared(spec)]
    if spec.module_rules is not None and targets.shape.rank > 1:
        everywhere = tf.ones_like(targets, tf.bool)
        for broken, rule, remedy in spec.module_rules(targets, everywhere if present is None else everywhere & present):
            problems.append(Problem(broken, values, f"{spec.targets} must {rule}", remedy))
    if element_weights is not None:
        argument = f"`sample_weights[{spec.name!r}]` must be"
        broken = both(is_labelled, ~((element_weights >= 0) & tf.math.is_finite(element_weights)))
        rule = f"{argument} finite and at least 0"
        remedy = (
            "A weight of 0 leaves an element out. The loss is divided by the sum of the weights; for factors with a sign, "
            "such as advantages, pass them as another column of the targets to a loss of your own, which multiplies by them."
        )
        problems.append(Problem(broken, element_weights, rule, remedy))
        if spec.loss.is_total:
            rule = f"{argument} 0 or 1, since the loss {spec.loss.name!r} gives one number for all rows"
            remedy = "Return an array with one value per row, or a sum and a count."
            problems.append(Problem(both(is_labelled, element_weights != 1), element_weights, rule, remedy))
    return problems


def _undeclared(spec: LabelSpec) -> Iterator[tuple[str, str]]:
    """The loss and metrics that do not say what they read: why a row needs all of its labels or none, and what to do."""
    if spec.loss.is_undeclared:
        why = f"the loss {spec.loss.name!r} may compare a label with the others of its row"
        yield why, "Pass `couples_rows=False` to `add_head` if its values depend on their own labels alone."
    for name in spec.undeclared_metrics:
        remedy = (
            "Set the attribute `reads` of the metric, or of its function: 'elements', 'rows', or the numbers of the columns "
            "that it reads."
        )
        yield f"nothing says which labels of a row the metric {name!r} reads", remedy


def both(one: tf.Tensor | None, other: tf.Tensor | None) -> tf.Tensor | None:
    """Where both conditions hold; None stands for a condition that holds everywhere."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def _broken_ranges(
    spec: LabelSpec, values: tf.Tensor, num_classes: int | None, has_columns: bool
) -> Iterator[tuple[tf.Tensor, str]]:
    """The ranges that the loss, the class weights and the scaling require: where a label is outside, and the rule."""
    loss, is_floating = spec.loss, values.dtype.is_floating
    low, high = (None, None) if loss.known is None else (loss.known.low, loss.known.high)
    if loss.over == CLASSES or (spec.class_weight is not None and not has_columns):
        limit = num_classes if loss.over == CLASSES else None
        is_in_range = values >= 0 if limit is None else (values >= 0) & (values < limit)
        is_in_range = is_in_range & (values == tf.floor(values)) if is_floating else is_in_range
        end = "of at least 0" if limit is None else f"from 0 to {limit - 1}"
        why = f" for the loss {loss.name!r}" if loss.over == CLASSES else ", since the head has a `class_weight`"
        yield ~is_in_range, f"whole numbers {end}{why}"
    if loss.over != CLASSES and low is not None:
        margin = _ROUNDING if is_floating else 0
        is_in_range = values >= low - margin
        if high is not None:
            is_in_range &= values <= high + margin
        elif is_floating:
            is_in_range &= tf.math.is_finite(values)
        yield ~is_in_range, f"{f'at least {low}' if high is None else f'from {low} to {high}'} for the loss {loss.name!r}"
    elif loss.over not in (None, CLASSES) and is_floating:
        yield tf.math.is_inf(values), f"finite numbers for the loss {loss.name!r}"
    if spec.above is not None:
        yield tf.cast(values, tf.float64) <= spec.above, f"above {spec.above:g} for the logarithm of `target_scaling`"
