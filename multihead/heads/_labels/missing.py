"""Finding a head's labels: which elements have one, and how much each counts.

An element (see `multihead.losses`) has no label where its target is NaN or the `ignore_label`, where the Keras mask of the
predictions leaves it out, and where its weight is 0. Every other counts by its sample weight times its class's weight.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.tensors import in_xla, where
from multihead._ground.validation import check_dense, stop_unless
from multihead.heads._labels.checks import LabelSpec, Problem, both, check_specs, find_problems
from multihead.losses._shapes import Elements, aligned, with_columns


def mask_missing(
    spec: LabelSpec,
    targets: tf.Tensor,
    sample_weight: tf.Tensor | None,
    predictions: tf.TensorSpec,
    mask: tf.Tensor | None,
    *,
    check: bool,
    complete: bool = False,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the labels of a batch; see `Head.mask_missing`."""
    rank = check_specs(spec, targets, predictions)
    elements = Elements(aligned(_copy(targets), with_columns(predictions.shape), spec.loss.over), rank)
    seen, inner = elements.targets, elements.inner
    lacking = None if complete else _lacking(spec, seen)
    labelled = None if lacking is None else ~(tf.reduce_any(lacking, axis=inner) if inner else lacking)

    considered, given = None, None
    if mask is not None:
        mask = tf.reduce_any(mask, axis=list(range(rank, mask.shape.rank)))
        considered = _spread(mask, elements, f"The Keras mask of the predictions of head {spec.name!r}")
    if sample_weight is not None:
        check_dense(spec.weights, sample_weight)
        given = _spread(tf.cast(_copy(sample_weight), tf.float32), elements, spec.weights)
        considered = both(considered, given != 0)  # NaN is not 0
    problems = find_problems(spec, elements, lacking, considered, given, predictions) if check else []
    counted = both(labelled, considered if given is None else both(considered, given > 0))
    weights = _weights(elements, counted, None if spec.loss.is_total else given)
    if spec.class_weight is not None:
        clean = seen if lacking is None else where(lacking, tf.zeros_like(seen), seen)
        weights *= spec.class_weight.of(elements.classes(clean))
    is_plain = given is None and spec.class_weight is None and not (problems and in_xla())
    weights = _checked(weights, problems)
    # Values that do not count, NaN included, are replaced before the loss is called.
    used = counted if is_plain else (weights > 0) & tf.math.is_finite(weights)
    clean = seen if used is None else where(elements.with_inner(used), seen, tf.zeros_like(seen))
    return clean if clean.shape.rank == targets.shape.rank else tf.reshape(clean, tf.shape(targets)), weights


def _lacking(spec: LabelSpec, seen: tf.Tensor) -> tf.Tensor | None:
    """Which targets mark a missing label; None if none can."""
    marks = [tf.math.is_nan(seen)] if seen.dtype.is_floating else []
    marks += [tf.equal(seen, tf.cast(label, seen.dtype)) for label in spec.ignore_labels]
    return functools.reduce(tf.logical_or, marks) if marks else None


def _weights(elements: Elements, counted: tf.Tensor | None, given: tf.Tensor | None) -> tf.Tensor:
    """The weights of the elements, float32: 0 where they do not count, otherwise the given ones, or 1."""
    if counted is None:
        return tf.ones(elements.sizes)
    return tf.cast(counted, tf.float32) if given is None else where(counted, given, 0.0)


def with_valid_labels(targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Targets for a loss of which nothing is known: where a label is missing, there is one from the same batch.

    Such a loss may be infinite for the 0 that `mask_missing` has left there, as `(p / y - 1)^2` is. Its gradient would be
    NaN even if its value is not used.

    Args:
        targets: Floating-point targets, `[elements, ...]`.
        weights: `[elements]`, of one axis or several; 0 where the label is missing.
    """
    num_axes = weights.shape.rank
    inner = tf.shape(targets)[num_axes:]
    rows = tf.reshape(targets, tf.concat([[tf.size(weights)], inner], axis=0))
    # Without any label, one in the middle of 0 and 1, where most losses are finite.
    rows = tf.concat([rows, tf.fill(tf.concat([[1], inner], axis=0), tf.constant(0.5, targets.dtype))], axis=0)
    valid = rows[tf.argmax(tf.concat([tf.reshape(weights, [-1]), [1e-30]], axis=0))]
    has_label = tf.reshape(weights > 0, tf.concat([tf.shape(weights), tf.ones_like(inner)], axis=0))
    return where(has_label, targets, valid)


def labelled_rows(weights: tf.Tensor) -> tf.Tensor:
    """The positions of the rows with a label, from the weights of the elements."""
    return tf.where(tf.reduce_any(weights > 0, axis=list(range(1, weights.shape.rank))))[:, 0]


def _copy(tensor: tf.Tensor) -> tf.Tensor:
    """A tensor in memory of its own.

    TensorFlow takes arrays of a generator over without copying them, and `tf.where` may write into its input: the
    generator's own labels would be replaced, and count in the next epoch. XLA copies what it is given.
    """
    return tensor if in_xla() else tf.raw_ops.Copy(input=tensor)


def without_class_weights(spec: LabelSpec, targets: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The weights that `mask_missing` gave, without the classes' part: for metrics, which count labels."""
    if spec.class_weight is None:
        return weights
    seen = aligned(targets, with_columns(predictions.shape), spec.loss.over)
    classes = Elements(seen, weights.shape.rank).classes(seen)
    return tf.math.divide_no_nan(weights, spec.class_weight.of(classes))


def with_same_sizes(first: tf.Tensor, second: tf.Tensor, num_axes: int, what: str, of: str) -> tf.Tensor:
    """Returns a tensor if it has the sizes of another along the first axes; checked in the run where they are not known.

    Args:
        first: Targets, weights or a mask; called `what` in messages.
        second: The tensor to which they belong; called `of`.
        num_axes: How many axes to compare.
        what: See `first`.
        of: See `second`.

    Returns:
        `first`.

    Raises:
        ValueError: They have not.
    """
    sizes = first.shape[:num_axes].as_list(), second.shape[:num_axes].as_list()
    if None not in sizes[0] and sizes[0] == sizes[1]:
        return first
    one, other = tf.shape(first)[:num_axes], tf.shape(second)[:num_axes]
    rule = f"{what} must have as many rows as {of}" if num_axes == 1 else f"{what} must have the sizes of {of}"
    if None not in sizes[0] and None not in sizes[1]:
        raise ValueError(f"{rule}. Received: {tuple(sizes[0])} for {tuple(sizes[1])}. Pass one value for each.")
    parts = [f"{rule}. Received: (", one, ") for (", other, "). Pass one value for each."]
    with tf.control_dependencies(stop_unless(tf.reduce_all(tf.equal(one, other)), lambda: parts)):
        return tf.identity(first)


def _spread(values: tf.Tensor, elements: Elements, what: str) -> tf.Tensor:
    """Weights or a mask for all elements, from those for the first axes of the elements."""
    rank, shape, wanted = elements.rank, values.shape, elements.targets.shape[: elements.rank]
    while values.shape.rank > rank and values.shape[-1] == 1:
        values = tf.squeeze(values, axis=-1)
    sizes = enumerate(zip(values.shape, wanted))
    fits = all(a is None or b is None or a == b or (a == 1 and i > 0) for i, (a, b) in sizes)
    if not 1 <= values.shape.rank <= rank or not fits:
        raise ValueError(
            f"{what} must have the shape of the head's labels, {wanted}, or of its first axes. "
            f"Received: shape {shape}. Pass one weight per row, shape [batch]{', or one per label' if rank > 1 else ''}."
        )
    return elements.spread(with_same_sizes(values, elements.targets, 1, what, "the targets"))


def _checked(weights: tf.Tensor, problems: Sequence[Problem]) -> tf.Tensor:
    """Raises an error for labels that break a rule. Where a graph cannot (XLA), infinite weights spoil the update."""
    wrong = [_of_elements(problem.broken, weights) for problem in problems]
    if in_xla():
        return functools.reduce(lambda found, each: where(each, float("inf"), found), wrong, weights)
    checks = [check for problem in problems for check in stop_unless(~tf.reduce_any(problem.broken), problem.message)]
    if not checks:
        return weights
    with tf.control_dependencies(checks):
        return tf.identity(weights)


def _of_elements(broken: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Which elements break a rule, from which of their labels do."""
    while broken.shape.rank < weights.shape.rank:
        broken = broken[..., tf.newaxis]
    axes = list(range(weights.shape.rank, broken.shape.rank))
    return tf.reduce_any(broken, axis=axes) if axes else broken
