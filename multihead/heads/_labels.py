"""A head's labels: which elements have one, and how much the elements count.

An element (see `multihead.losses`) has no label if its target is NaN or the `ignore_label`, if the Keras mask of the
predictions leaves it out, or if its weight is 0. Every other element counts by its sample weight times the weight of its
class.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import tensorflow as tf

from multihead._ground.calls import no_autograph
from multihead._ground.tensors import in_xla, precision_of, where
from multihead._ground.types import Nested, Tensor
from multihead._ground.validation import check_dense, is_number, stop_unless
from multihead.heads._label_rules import LabelSpec, Problem, both, check_specs, find_problems, gives_columns
from multihead.losses._known import aligned, sizes, spread, with_columns, with_inner

_VALUES_AT_ONCE = 2**20


def targets_and_weights(
    spec: LabelSpec,
    targets: tf.Tensor,
    sample_weight: tf.Tensor | None,
    predictions: tf.TensorSpec,
    mask: tf.Tensor | None,
    *,
    check: bool = True,
    fully_labelled: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """The targets, and weights of the shape of the loss's values; both are 0 where there is no label.

    An element has a label unless its target marks a missing one, the Keras `mask` of the predictions leaves it out, or its
    sample weight is 0. Its weight is the sample weight times that of its class. Other targets are replaced before the loss
    is called, so that NaN, and marks that are no classes, reach no gradient.

    With `check`, labels that the loss does not accept and invalid weights raise an error; XLA cannot raise errors: there,
    their weight becomes infinite, so that the update is skipped. With `fully_labelled`, no target marks a missing label.
    """
    rank, dtype = check_specs(spec, targets, predictions), precision_of([predictions.dtype])
    labels = aligned(_copy(targets), with_columns(predictions.shape), spec.loss.over)
    is_missing = None if fully_labelled else missing(spec, labels)
    inner = list(range(rank, labels.shape.rank))
    is_labelled = None if is_missing is None else ~(tf.reduce_any(is_missing, axis=inner) if inner else is_missing)

    is_kept, element_weights = None, None
    if mask is not None:
        mask = tf.reduce_any(mask, axis=list(range(rank, mask.shape.rank)))
        is_kept = _spread(mask, labels, rank, f"The Keras mask of the predictions of head {spec.name!r}")
    if sample_weight is not None:
        check_dense(f"`sample_weights[{spec.name!r}]`", sample_weight)
        element_weights = _spread(tf.cast(_copy(sample_weight), dtype), labels, rank, f"`sample_weights[{spec.name!r}]`")
        is_kept = both(is_kept, element_weights != 0)  # NaN is not 0
    present = is_missing, is_labelled, is_kept
    problems = find_problems(spec, labels, rank, *present, element_weights, predictions) if check else []
    checks = [check for problem in problems for check in stop_unless(~tf.reduce_any(problem.broken), problem.message)]
    if checks:  # before anything reads the labels
        with tf.control_dependencies(checks):
            labels = tf.identity(labels)
    is_counted = both(is_labelled, is_kept if element_weights is None else both(is_kept, element_weights > 0))
    if is_counted is None:
        weights = tf.ones(sizes(labels, rank), dtype)
    elif element_weights is None or spec.loss.is_total:
        weights = tf.cast(is_counted, dtype)
    else:
        weights = where(is_counted, element_weights, 0.0)
    if spec.class_weight is not None:
        clean = labels if is_missing is None else where(is_missing, tf.zeros_like(labels), labels)
        weights *= tf.cast(weights_of_classes(spec.class_weight, clean, rank), dtype)
    is_plain = element_weights is None and spec.class_weight is None and not (problems and in_xla())
    weights = _infinite_where_wrong(weights, problems) if in_xla() else weights
    # Targets that do not count, including NaN, are replaced before the loss is called.
    is_used = is_counted if is_plain else (weights > 0) & tf.math.is_finite(weights)
    clean = labels if is_used is None else where(with_inner(is_used, labels), labels, tf.zeros_like(labels))
    return clean if clean.shape.rank == targets.shape.rank else tf.reshape(clean, tf.shape(targets)), weights


def missing(spec: LabelSpec, targets: tf.Tensor) -> tf.Tensor | None:
    """Booleans: which targets mark a missing label. None if neither their dtype nor the head has such a mark."""
    marks = [tf.math.is_nan(targets)] if targets.dtype.is_floating else []
    for label in spec.ignore_labels:
        marks += [tf.equal(targets, tf.constant(mark, targets.dtype)) for mark in _marks(label, targets.dtype)]
    return functools.reduce(tf.logical_or, marks) if marks else None


def _marks(label: float, dtype: tf.DType) -> list[np.ndarray]:
    """An `ignore_label` in the dtype of targets; and, for float64, as it is in targets that were float32 before."""
    if not dtype.is_floating:
        return [np.asarray(int(label), dtype.as_numpy_dtype)]
    with np.errstate(over="ignore"):
        single = np.float32(label)
    numbers = {float(label), float(single)} if dtype == tf.float64 and np.isfinite(single) else {float(label)}
    return [np.asarray(number, dtype.as_numpy_dtype) for number in sorted(numbers)]


def with_valid_labels(targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Floating-point targets for an unknown loss: missing labels are replaced with a label of the same batch.

    For the 0 of `targets_and_weights` the loss may be infinite, as `(p / y - 1)^2` is: even with a weight of 0, its gradient
    would be NaN.
    """
    num_axes = weights.shape.rank
    inner = tf.shape(targets)[num_axes:]
    rows = tf.reshape(targets, tf.concat([[tf.size(weights)], inner], axis=0))
    # In a batch without labels, 0.5, for which most losses are finite.
    rows = tf.concat([rows, tf.fill(tf.concat([[1], inner], axis=0), tf.constant(0.5, targets.dtype))], axis=0)
    valid = rows[tf.argmax(tf.concat([tf.reshape(weights, [-1]), [1e-30]], axis=0))]
    has_label = tf.reshape(weights > 0, tf.concat([tf.shape(weights), tf.ones_like(inner)], axis=0))
    return where(has_label, targets, valid)


def labelled_rows(weights: tf.Tensor) -> tf.Tensor:
    """The positions of the rows with a label, from the weights of the elements."""
    return tf.where(tf.reduce_any(weights > 0, axis=list(range(1, weights.shape.rank))))[:, 0]


def _copy(tensor: tf.Tensor) -> tf.Tensor:
    """A copy, except in XLA: `tf.where` may write into the memory of its input, perhaps an array of a user's generator."""
    return tensor if in_xla() else tf.raw_ops.Copy(input=tensor)


def without_class_weights(spec: LabelSpec, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The weights of `targets_and_weights` divided by those of the classes, since metrics are not weighted by class."""
    if spec.class_weight is None:
        return weights
    labels = aligned(targets, with_columns(predictions.shape), spec.loss.over)
    by_class = weights_of_classes(spec.class_weight, labels, weights.shape.rank)
    return tf.math.divide_no_nan(weights, tf.cast(by_class, weights.dtype))


def with_same_sizes(first: tf.Tensor, second: tf.Tensor, num_axes: int, what: str, of: str) -> tf.Tensor:
    """Returns `first` if it has the sizes of `second` along the first axes; unknown sizes are compared at run time."""
    first_sizes, second_sizes = first.shape[:num_axes].as_list(), second.shape[:num_axes].as_list()
    if None not in first_sizes and first_sizes == second_sizes:
        return first
    one, other = tf.shape(first)[:num_axes], tf.shape(second)[:num_axes]
    rule = f"{what} must have as many rows as {of}" if num_axes == 1 else f"{what} must have the sizes of {of}"
    if None not in first_sizes and None not in second_sizes:
        raise ValueError(f"{rule}. Received: {tuple(first_sizes)} for {tuple(second_sizes)}. Pass one value for each.")
    parts = [f"{rule}. Received: (", one, ") for (", other, "). Pass one value for each."]
    with tf.control_dependencies(stop_unless(tf.reduce_all(tf.equal(one, other)), lambda: parts)):
        return tf.identity(first)


def _spread(values: tf.Tensor, targets: tf.Tensor, rank: int, what: str) -> tf.Tensor:
    """Weights or a mask of all elements, from values for the first of their axes."""
    shape, element_sizes = values.shape, targets.shape[:rank]
    while values.shape.rank > rank and values.shape[-1] == 1:
        values = tf.squeeze(values, axis=-1)
    pairs = enumerate(zip(values.shape, element_sizes))
    fits = all(a is None or b is None or a == b or (a == 1 and i > 0) for i, (a, b) in pairs)
    if not 1 <= values.shape.rank <= rank or not fits:
        raise ValueError(
            f"{what} must have the shape of the head's labels, {element_sizes}, or of its first axes. "
            f"Received: shape {shape}. Pass one weight per row, shape [batch]{', or one per label' if rank > 1 else ''}."
        )
    return spread(with_same_sizes(values, targets, 1, what, "the targets"), targets, rank)


def _infinite_where_wrong(weights: tf.Tensor, problems: Sequence[Problem]) -> tf.Tensor:
    """Infinite weights for labels that break a rule, which make XLA skip the update."""
    for problem in problems:  # an element breaks a rule if one of its labels does
        ones = [1] * max(weights.shape.rank - problem.broken.shape.rank, 0)
        broken = tf.reshape(problem.broken, tf.concat([tf.shape(problem.broken), ones], axis=0))
        broken = tf.reduce_any(broken, axis=list(range(weights.shape.rank, broken.shape.rank)))
        weights = where(broken, float("inf"), weights)
    return weights


def check_arrays(check: Callable[[Nested], None], y: Nested, sample_weight: Tensor) -> bool:
    """Calls `check` with labels and weights of `fit`, some rows at a time, if they are arrays; returns whether they are."""
    nest = tf.nest.flatten((y, sample_weight))
    leaves = [leaf for leaf in nest if leaf is not None]
    if not leaves or not all(hasattr(leaf, "dtype") and len(getattr(leaf, "shape", ())) > 0 for leaf in leaves):
        return False
    num_rows, num_values = leaves[0].shape[0], max(int(np.prod(leaf.shape)) for leaf in leaves)
    step = max(1, _VALUES_AT_ONCE * num_rows // max(1, num_values))
    for start in range(0, num_rows, step):
        rows = [None if leaf is None else tf.convert_to_tensor(leaf[start : start + step]) for leaf in nest]
        check((None, *tf.nest.pack_sequence_as((y, sample_weight), rows)))
    return True


def checked(check: Callable[[Nested], None], dataset: tf.data.Dataset, *, ahead: bool) -> tf.data.Dataset:
    """The same batches, where `check` raises an error for invalid labels; several batches in parallel if `ahead`."""

    @no_autograph
    def checked_batch(*parts: Nested) -> Nested:
        check(parts)
        return parts

    return dataset.map(checked_batch, num_parallel_calls=tf.data.AUTOTUNE if ahead else None)


def class_weights(labels: Nested, *, ignore_label: float | None = None) -> dict[int, float]:
    """Weights that give all classes the same influence, however often they occur.

    `weight_c = n / (k * n_c)`, with `n_c` the number of labels of class `c`, `n` the number of all labels and `k` the number
    of classes that occur, so that the mean weight of the labels is 1.

    Args:
        labels: Class numbers in an array of any shape, or a data set or an iterator of such arrays. NaN is ignored.
        ignore_label: The label that marks an element without a label.

    Returns:
        Weights by class, for `add_head(..., class_weight=...)`.

    Raises:
        ValueError: There is no label, a label is not a whole number of at least 0, or the rows are one-hot.
        TypeError: A data set yields something else than arrays of labels.

    Example:
        >>> class_weights([0, 0, 0, 1, -1], ignore_label=-1)
        {0: 0.6666666666666666, 1: 2.0}
    """
    is_stream = hasattr(labels, "element_spec") or isinstance(labels, Iterator)
    counts: Counter[int] = Counter()
    one_hot = True
    for array in labels if is_stream else [labels]:
        if isinstance(array, (dict, tuple)):
            raise TypeError(
                f"`labels` must be labels, or a data set of them alone. Received: a data set of {type(array).__name__}s. "
                'Map it to the labels, as in `class_weights(dataset.map(lambda x, y: y["kind"]))`.'
            )
        batch = array.compressed() if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
        kept = wrong = batch[~np.isnan(batch)] if batch.dtype.kind == "f" else batch.ravel()
        if batch.dtype.kind in "biuf":
            kept = kept if ignore_label is None else kept[kept != ignore_label]
            wrong = kept[(kept < 0) | (kept != np.floor(kept))]
        if wrong.size:
            raise ValueError(
                "`labels` must be class numbers, whole numbers of at least 0. "
                f"Received: {wrong[:3].tolist()} among them. Number the classes from 0, perhaps with "
                "`keras.layers.StringLookup`, and pass the label of missing elements as `ignore_label`."
            )
        has_columns = batch.ndim > 1 and batch.shape[-1] > 1
        one_hot = one_hot and has_columns and bool((np.sort(batch) == np.eye(batch.shape[-1])[-1]).all())
        counts.update(kept.astype(np.int64).tolist())
    if not counts:
        raise ValueError("`labels` must hold at least one label. Received: none. Pass the labels of the training data.")
    if one_hot:
        raise ValueError(
            "`labels` must be class numbers. Received: rows of zeros and a single 1, as one-hot labels are. Pass "
            "`labels.argmax(axis=-1)`; if 0 and 1 are the numbers of classes, `labels.ravel()`."
        )
    total = sum(counts.values())
    return {label: total / (len(counts) * counts[label]) for label in sorted(counts)}


def check_class_weight(weights: object) -> dict[int, float]:
    """Returns a head's weights by class number, sorted; keys may be strings of digits, as in JSON."""
    if not isinstance(weights, Mapping) or not weights or not all(str(key).isdecimal() for key in weights):
        hint = " 'balanced' is `class_weight=multihead.class_weights(labels)`." if isinstance(weights, str) else ""
        raise ValueError(
            "`class_weight` must be a dict of weights by class number. "
            f"Received: class_weight={weights!r}. Pass, say, {{0: 1.0, 1: 5.0}}.{hint}"
        )
    by_class = {int(key): weight for key, weight in sorted(weights.items(), key=lambda item: int(item[0]))}
    wrong = {key: weight for key, weight in by_class.items() if not is_number(weight) or weight < 0}
    if wrong or not any(by_class.values()):
        raise ValueError(
            "`class_weight` must hold finite numbers of at least 0, and one above it. "
            f"Received: class_weight={wrong or by_class!r}. A class of weight 0 counts as if it had no label."
        )
    return by_class


def weights_of_classes(weights: Mapping[int, float], targets: tf.Tensor, rank: int) -> tf.Tensor:
    """Float64: the weights of the elements' classes; a class is the class number, or the column with the largest value."""
    classes = tf.argmax(targets, axis=-1) if gives_columns(targets.shape, rank) else targets
    classes = tf.squeeze(classes, axis=-1) if classes.shape.rank > rank else classes
    last = max(weights) + 1  # an entry with weight 1 for all larger class numbers
    table = tf.constant([float(weights.get(label, 1.0)) for label in range(last + 1)], tf.float64)
    return tf.gather(table, tf.clip_by_value(tf.cast(classes, tf.int32), 0, last))
