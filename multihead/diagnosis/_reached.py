"""What the labels of a head require: whether its module can predict them, and which scaling of them fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead import scaling
from multihead._ground.keras import options_of
from multihead._ground.reach import EVERYTHING, Reach, reach_of, reach_of_operation
from multihead._update.labels import Labels
from multihead.diagnosis._constant import LabelRows, class_numbers, derivatives, loss_terms, losses_of
from multihead.heads._named import NamedHead
from multihead.heads._scaled import can_be_reached, depends_on, is_own, scaled_in_numpy
from multihead.losses._elements import ElementLoss
from multihead.losses._known import DIFFERENCES, ELEMENTS, ROWS, aligned, with_columns

_ROUNDING = 1e-3
"""The tolerance for rounding: of labels out of reach, in standard deviations, and of sums of rows that should be 1."""
_SPAN, _MANY_ZEROS, _LOWEST = 100.0, 0.2, 0.05
"""For logarithms: the factor that positive labels must span, the fraction of zeros beyond which none is taken, and the
quantile of the positive labels that is added to all if some are 0."""
_OWN_SCALE = (
    "The loss weighs small errors against large ones by numbers of its own, in the labels' units; if you scale the labels, "
    "divide these numbers, too."
)
_FEW_FAR_OFF = (
    "A few labels lie far from the others, and the loss gives them little weight: if they stand for missing values, pass "
    "NaN."
)
_MIDDLE, _FAR = (1 / 6, 0.5, 5 / 6), 5.0
"""The quantiles of the middle two thirds; a few labels are far off if the deviation is so many times half their width."""
_PROBES = ((0.0, 0.0), (0.3, 0.0), (3.0, 0.0), (0.0, 0.3), (0.0, 3.0))
"""Predictions that try out a loss of one's own: how far from the labels' mean, and how much they differ between rows."""
_PLACEHOLDER, _GAP = 0.005, 3.0
"""What fraction of the labels may stand for missing ones, and how many times the width of all others the gap to them is."""
_NO_COLUMNS = np.zeros([0, 2])


class HeadLabels(NamedTuple):
    """What the labels of a head require."""

    mean: float = np.nan  # of labels that are unbounded numbers, as the loss sees them; otherwise NaN
    deviation: float = np.nan  # their standard deviation
    # `[columns, 2]`, of unbounded numbers: the means and deviations of the columns; the median, and half the width of the
    # middle two thirds, where a few labels lie far off and the loss gives them little weight
    columns: np.ndarray = _NO_COLUMNS
    is_robust: bool = False  # whether these are the median and that width
    is_linear: bool = False  # whether the loss grows as large errors do, and not as their squares
    reach: Reach | None = None  # what the module can predict; None if unknown
    unreachable: int = 0  # the number of labels (of rows, where these should add up to 1) that it cannot predict
    number: int = 0  # the number of labels, or of rows
    ends: tuple[float, float] = (np.nan, np.nan)  # the smallest and the largest label
    # The target scaling that fits the labels, the loss and the module; None if none does
    scaling: str | scaling.Standardize | None = None
    why: str = ""  # why this scaling, or why none; a sentence for the findings
    # Whether they are numbers beyond 0 and 1, and nothing shows that the loss compares them with predictions in their units,
    # rather than with their logarithm, with a risk or with parameters
    has_unknown_units: bool = False
    rarer: tuple[int, int] | None = None  # of two classes, how many labels the rarer one has, and how many there are
    only: float | None = None  # the value of all labels, if they are equal
    zeros: int = 0  # how many labels are 0
    placeholder: tuple[float, int] | None = None  # a number far from all other labels, and how many labels are that number

    @property
    def column(self) -> int:
        """The column with the largest labels."""
        return int(np.argmax(np.nan_to_num(np.abs(self.columns).sum(axis=1)))) if len(self.columns) else 0

    @property
    def center(self) -> float:
        """The mean, or the median, of the column with the largest labels; NaN for labels that are no unbounded numbers."""
        return float(self.columns[self.column, 0]) if len(self.columns) else np.nan

    @property
    def spread(self) -> float:
        """The deviation, or half that width, of this column."""
        return float(self.columns[self.column, 1]) if len(self.columns) else np.nan


def judge(
    head: NamedHead,
    spec: tf.TensorSpec,
    rows: LabelRows | None,
    predicted: np.ndarray,
    zeros: float,
    operation: str | None,
    *,
    are_all: bool,
) -> HeadLabels:
    """What the labels of a head require.

    `zeros` is the fraction of the predictions that are exactly 0, and `operation` the type of the last operation in their
    graph. `are_all`: whether there are no other labels.
    """
    reach = reach_of(head.module) or reach_of_operation(operation)
    measured = reach or _measured(predicted, zeros, with_columns(spec.shape)[-1])
    if rows is None or rows.values is None or rows.weights is None:
        return HeadLabels(reach=reach)
    labels = rows.present
    if np.isinf(labels).any():
        return HeadLabels(reach=reach)
    shape = with_columns(spec.shape)
    targets = aligned(rows.batches[0].targets, shape, head.loss.over).shape
    has_columns = targets.rank == shape.rank and targets[-1] == shape[-1]
    depends, known, why = depends_on(head.loss), head.loss.known, ""
    is_number = known is None or (known.over == ELEMENTS and known.low is None and known.high is None)
    if depends == DIFFERENCES and is_own(head.loss) and not _is_of_differences(head, spec, rows):
        depends = None
        is_number = is_number and (has_columns or not rows.batches[0].targets.dtype.is_integer)  # otherwise classes
    ends = (float(np.nanmin(labels)), float(np.nanmax(labels)))
    has_unknown_units = is_number and known is None and depends is None and not 0 <= ends[0] <= ends[1] <= 1
    if depends == DIFFERENCES and is_own(head.loss) and not _is_the_same_scaled(head, spec, rows):
        depends, why = None, _OWN_SCALE
    summary = HeadLabels(reach=reach, ends=ends, why=why, has_unknown_units=has_unknown_units)
    if is_number:
        centers, spreads = np.nanmean(labels, axis=0), np.nanstd(labels, axis=0)
        deviation = float(np.nanmean(spreads))
        summary = summary._replace(mean=float(np.nanmean(labels)), deviation=deviation, placeholder=_placeholder(labels))
        summary = summary._replace(columns=np.stack([centers, spreads], axis=1), zeros=int((labels == 0).sum()))
        below, median, above = np.nanquantile(labels, _MIDDLE, axis=0)
        width = float(np.mean(above - below)) / 2
        is_linear = depends == DIFFERENCES and _grows_linearly(head, spec, rows)
        summary = summary._replace(is_linear=is_linear)
        if is_linear and 0 < _FAR * width < deviation:
            summary = summary._replace(columns=np.stack([median, (above - below) / 2], axis=1), is_robust=True)
    compares_values = known is not None and not (known.over == ROWS and known.low is None) or depends == DIFFERENCES
    needed = _of_values(head, measured)
    if has_columns and compares_values and needed is not None:
        low = 0.0 if known is not None and known.low == -1 else None  # hinges take 0 for -1
        unreachable, number = _count(np.where(labels == low, -1.0, labels), needed)
        reach = (needed if needed.sums_to_one else measured) if unreachable else reach
        summary = summary._replace(unreachable=unreachable, number=number, reach=reach)
    # One label for several predictions, as of quantiles: a loss of one's own may compare it with all.
    fits = has_columns or (labels.shape[1] == 1 and is_own(head.loss))
    if is_number and fits and depends is not None and head.scaling is None and head.label_spec.class_weight is None:
        if summary.placeholder is not None:  # which "standardize" would take for labels
            return summary
        if summary.is_robust:  # after "standardize", all labels but a few would be next to equal
            robust = scaling.Standardize(*map(_rounded, summary.columns.T))
            why = f"{_FEW_FAR_OFF} Otherwise, compare `target_scaling={robust!r}` with none. {_of_delta(head, robust)}"
            return summary._replace(why=why.strip())
        at_least = Reach(0) if predicted[0] >= 0 else None  # the safe assumption
        bounds, together = measured or at_least or EVERYTHING, labels.shape[1] > 1
        together = together and is_own(head.loss) and not _is_sum_over_columns(head, spec, rows)
        may_move = depends == DIFFERENCES
        target_scaling, why = _fitting(labels, bounds, may_move, together=together, are_all=are_all)
        summary = summary._replace(scaling=target_scaling, why=f"{why} {_of_delta(head, target_scaling)}".strip())
    return summary


def _of_values(head: NamedHead, reach: Reach | None) -> Reach | None:
    """What the labels have to lie in: what the module can predict, as the loss compares it with them; None if unknown."""
    known = head.loss.known
    if known is not None and known.over == ROWS and known.low == 0 and (known.columns > 1 or known.largest is not None):
        return Reach(0, 1, sums_to_one=True)  # parts of one, whatever the module ends in
    if reach is None or not takes_logits(head.loss):
        return reach
    # Of the result of a sigmoid, Keras's cross-entropy, but not its focal loss, finds the logits.
    if reach == Reach(0, 1) and not isinstance(head.loss.original, keras.losses.BinaryFocalCrossentropy):
        return EVERYTHING
    return Reach(0.0 if reach.low < 0 else 0.5, 1.0 if reach.high > 0 else 0.5)  # of classes, not how sure they can be


def takes_logits(loss: ElementLoss) -> bool:
    """Whether a loss of Keras for two classes takes logits, whose sign is the class."""
    known = loss.known
    return known is not None and (known.over, known.low, known.high, known.largest) == (ELEMENTS, 0, 1, None)


def rarer_class(head: NamedHead, rows: LabelRows | None) -> tuple[int, int] | None:
    """Of two classes, how many labels the rarer one has, and how many there are; None for other labels."""
    known = head.loss.known
    if rows is None or known is None:
        return None
    if rows.counts is not None:
        labels = np.concatenate([classes[weights > 0] for classes, weights in class_numbers(rows.batches)] or [[]])
        is_binary = len(rows.counts) == 2
    else:
        labels = rows.present[:, -1]
        labels = labels[~np.isnan(labels)]
        width = rows.present.shape[1]
        is_binary = width == 1 and (known.low, known.high) == (0, 1) or width == 2 and (known.over, known.low) == (ROWS, 0)
    if not is_binary or not len(labels) or not np.isin(labels, (0, 1)).all():
        return None
    ones = int(np.sum(labels == 1))
    return min(ones, len(labels) - ones), len(labels)


def _measured(predicted: np.ndarray, zeros: float, columns: int | None) -> Reach | None:
    """The reach that the predictions themselves prove: rows that add up to 1, or a floor at 0 that many of them lie on."""
    low, high, smallest, largest = predicted
    if columns != 1 and low >= 0 and high <= 1 and max(abs(smallest - 1), abs(largest - 1)) < _ROUNDING:
        return Reach(0, 1, sums_to_one=True)
    return Reach(0) if low == 0 and zeros > 0.01 else None


def _is_of_differences(head: NamedHead, spec: tf.TensorSpec, rows: LabelRows) -> bool:
    """Whether the loss stays the same if labels and predictions are moved together, and not if only one of them is.

    Ids, too, stay the same ids. Derivatives tell them apart: they are 0 for no column, and add up to 0. Their sum is
    compared with the column of the least effect, which may be a flag beside coordinates.
    """
    spread, center = float(np.nanstd(rows.present)), np.nan_to_num(np.nanmean(rows.present, axis=0))
    step = max(1.0, round(spread)) if rows.batches[0].targets.dtype.is_integer else max(spread, _ROUNDING)
    moved = [batch._replace(targets=batch.targets + tf.cast(step, batch.targets.dtype)) for batch in rows.batches]
    one, other = _probed(head, spec, rows.batches, center, step), _probed(head, spec, moved, center + step, step)
    if not np.isfinite(one).all() or not np.allclose(one, other, rtol=1e-2, atol=1e-6):
        return False
    found = [derivatives(head, spec, rows.batches, center + move * step, noise * step) for move, noise in _PROBES]
    present = [pair for pair in found if pair is not None]
    sums = [abs(by_labels.sum() + by_predictions.sum()) for by_labels, by_predictions in present]
    least = [np.max([np.abs(gradient).sum(axis=0) for gradient in gradients], axis=0).min() for gradients in zip(*present)]
    return len(present) == len(found) and bool(least[0] > 0 and max(sums) <= 0.01 * least[1])  # False for NaN


def _probed(head: NamedHead, spec: tf.TensorSpec, batches: Sequence[Labels], center: np.ndarray, unit: float) -> np.ndarray:
    """`[2, probes]`: the mean loss, 0 if nothing counts, and the count, for constants and for predictions that differ."""
    terms = [loss_terms(head, spec, batches, center + move * unit, noise * unit) for move, noise in _PROBES]
    sums, counts = np.array(terms).T
    return np.stack([np.where(counts == 0, 0.0, sums / np.where(counts == 0, 1.0, counts)), counts])


def _is_sum_over_columns(head: NamedHead, spec: tf.TensorSpec, rows: LabelRows) -> bool:
    """Whether the loss is a sum over columns, which can then be scaled one by one; the overlap of boxes is none."""
    center, spreads = np.nan_to_num(np.nanmean(rows.present, axis=0)), np.nanstd(rows.present, axis=0)
    steps = np.nan_to_num(spreads) + _ROUNDING
    first = np.arange(len(center)) % 2 == 0
    constants = [center, center + steps * first, center + steps * ~first, center + steps]
    values = list(losses_of(head, spec, rows.batches, constants))
    if len(values) < len(constants):
        return False
    none, one, other, both = values
    size = max(abs(value - none) for value in values)
    return abs(both - one - other + none) <= 0.02 * max(size, 1e-12)


def _is_the_same_scaled(head: NamedHead, spec: tf.TensorSpec, rows: LabelRows) -> bool:
    """Whether a loss weighs errors against each other as before if labels and predictions are divided by one number.

    Squared and absolute errors do. A loss with a threshold, such as the width of a margin, does not.
    """
    spread, center = max(float(np.nanstd(rows.present)), _ROUNDING), np.nan_to_num(np.nanmean(rows.present, axis=0))
    divided = [batch._replace(targets=tf.cast(batch.targets, tf.float32) / spread) for batch in rows.batches]
    one, other = _probed(head, spec, rows.batches, center, spread), _probed(head, spec, divided, center / spread, 1.0)
    if not np.isfinite(other).all() or not one[0].any():  # it takes no fractions, or is 0 already
        return True
    if not other[0].any() or not np.allclose(one[1], other[1], rtol=0.02):
        return False
    return bool(np.allclose(*(losses / np.abs(losses).max() for losses in (one[0], other[0])), atol=0.02))


def _grows_linearly(head: NamedHead, spec: tf.TensorSpec, rows: LabelRows) -> bool:
    """Whether a loss of differences grows as large errors do, and not as their squares: outliers then count little."""
    center, far = np.nan_to_num(np.nanmean(rows.present, axis=0)), 1e3 * float(np.nanmax(np.abs(rows.present)))
    if far > 1e15:  # whose square may be infinite
        return False
    one, other = (list(losses_of(head, spec, rows.batches, [center + distance])) for distance in (far, 2 * far))
    return bool(one and other) and other[0] < 3 * one[0]


def _rounded(values: Sequence[float]) -> float | list[float]:
    """Numbers of columns with four digits, one for all if they are equal."""
    columns = [float(f"{value:.4g}") for value in values]
    return columns[0] if len(set(columns)) == 1 else columns


def _of_delta(head: NamedHead, scaler: str | scaling.Standardize | None) -> str:
    """What becomes of the `delta` of a Huber loss that is not Keras's default."""
    delta = options_of(head.loss.original).get("delta", 1.0)
    if scaler is None or delta == 1.0:
        return ""
    return f"The loss's delta={delta:g} then counts in scaled units: divide it by the deviation of the labels, too."


def _placeholder(labels: np.ndarray) -> tuple[float, int] | None:
    """The number that many labels of a column are, and that lies far from all others, such as -999; and how many are it."""
    if labels.shape[1] != 1:
        return None
    present = np.sort(labels[~np.isnan(labels)])
    for end in (present[0], present[-1]):
        others = present[present != end]
        number = len(present) - len(others)
        if number < max(_PLACEHOLDER * len(present), 3) or number > len(others) or others[0] == others[-1]:
            continue
        if min(abs(others[0] - end), abs(others[-1] - end)) > _GAP * (others[-1] - others[0]):
            return float(end), number
    return None


def only_value(rows: LabelRows | None) -> float | None:
    """The value of all labels, or the class of all, if they are equal; otherwise None."""
    if rows is None:
        return None
    if rows.counts is not None:
        present = np.flatnonzero(rows.counts > 1e-6)
    else:
        present = np.unique(rows.present[~np.isnan(rows.present)])
    return float(present[0]) if len(present) == 1 else None


def _count(labels: np.ndarray, reach: Reach) -> tuple[int, int]:
    """The number of labels, or rows of labels, that are out of reach, and the number of all."""
    if reach.sums_to_one:
        rows = labels[~np.isnan(labels).any(axis=1)]
        return int((np.abs(rows.sum(axis=1) - 1) > 0.01).sum()), len(rows)
    present = labels[~np.isnan(labels)]
    margin = _ROUNDING * max(float(np.nanmean(np.nanstd(labels, axis=0))), _ROUNDING)
    return int(((present < reach.low - margin) | (present > reach.high + margin)).sum()), present.size


def _fitting(
    labels: np.ndarray, reach: Reach, may_move: bool, *, together: bool, are_all: bool
) -> tuple[str | scaling.Standardize | None, str]:
    """The first scaling that fits labels, `[rows, columns]`, and why.

    A loss of ratios does not allow its targets to be moved, only to be divided. Where the loss relates columns to each
    other, all are scaled `together`, by the same numbers.
    """
    logarithm, why = _logarithm(labels) if may_move and not together else (None, "")
    candidates: list[tuple[str | scaling.Standardize, str]] = [] if logarithm is None else [(logarithm, why)]
    if together and may_move:
        text = "The loss relates the columns to each other, so all are moved and divided by the same numbers."
        numbers = (_rounded([function(labels)]) for function in (np.nanmean, np.nanstd))
        candidates.append((scaling.Standardize(*numbers), text))
    elif may_move:
        candidates.append(("standardize", why if logarithm is None else ""))
    size = _size(labels.reshape(-1, 1) if together else labels, reach)
    has_ends = any(np.isfinite(end) and end != 0 for end in reach[:2])  # which labels that were not measured may exceed
    if size is not None:
        text = "It only divides, since " + (
            f"the module predicts {reach}." if may_move else "its loss measures in relation to the label."
        )
        if has_ends:
            text += f" The number is that of the largest of the {np.isfinite(labels).sum():,} labels measured."
        if logarithm is not None:
            text += " For 'log', which suits labels over powers of ten, let the module end without this activation."
        candidates.append((size, text))
    for identifier, text in candidates:
        scaler = scaling.get(identifier)
        if scaler is not None and can_be_reached(scaler, reach):
            unreachable, _ = _count(scaled_in_numpy(labels, scaler), reach)
            if not unreachable:  # `fit` refuses them
                if has_ends and not are_all:
                    return None, f"After {identifier!r}, those measured are in reach, but not all data were measured."
                return identifier, text
    return None, ""


def _logarithm(labels: np.ndarray) -> tuple[str | scaling.Standardize | None, str]:
    """The logarithm that fits positive labels over more than two powers of ten, and why; only why, if zeros prevent it."""
    present = labels[~np.isnan(labels)]
    positive = present[present > 0]
    if present.min() < 0 or not positive.size or positive.max() <= _SPAN * positive.min():
        return None, ""
    share = 1 - positive.size / present.size
    shift = 0.0
    if share > 0:
        is_whole = bool((present == np.round(present)).all())
        shift = 1.0 if is_whole else float(f"{np.quantile(positive, _LOWEST):.0e}")
        if present.max() <= _SPAN * shift:
            return None, ""
    if _skew(np.log(labels + shift)) >= _skew(labels):  # the labels themselves are closer to a symmetric distribution
        return None, ""
    text = "On logarithms, 'mse' estimates the geometric mean, which is below the mean"
    if share > _MANY_ZEROS:
        return None, (
            f"The positive labels span powers of ten, but {share:.0%} of all are 0, which have no logarithm: train one head "
            "for whether a label is 0, and one with target_scaling='log' for the others (NaN where it is 0)."
        )
    if shift:
        return scaling.Log(shift=shift), f"{text}; {shift:g} is added first, since {share:.1%} of the labels are 0."
    return "log", f"{text}."


def _skew(values: np.ndarray) -> float:
    """The mean absolute skewness of columns."""
    centred = values - np.nanmean(values, axis=0)
    deviation = np.nanstd(values, axis=0)
    return float(np.nanmean(np.abs(np.nanmean(centred**3, axis=0)) / np.where(deviation > 0, deviation, 1.0) ** 3))


def _size(labels: np.ndarray, reach: Reach) -> scaling.Standardize | None:
    """The scaling that only divides labels, until the module can predict them; None if no divisor does that."""
    if reach.sums_to_one:
        return None
    columns = []
    for column in labels.T:
        column = column[~np.isnan(column)]
        needed = [extreme / end for extreme, end in ((column.max(), reach.high), (column.min(), reach.low)) if end != 0]
        divisor = max(*needed, 0.0) if np.isfinite(reach.low) and np.isfinite(reach.high) else 0.0
        divisor = divisor or float(np.sqrt(np.mean(column**2))) or 1.0
        upwards = np.ceil if np.isfinite(reach.high) else np.round
        unit = 10.0 ** (np.floor(np.log10(divisor)) - 2)
        columns.append(upwards(divisor / unit - 1e-9) * unit)
    return scaling.Standardize(mean=0.0, deviation=_rounded(columns))
