"""Checks of what a head declares: whether module and loss treat rows independently, on the user's own rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import keras
import numpy as np
import tensorflow as tf

from multihead._data.batch import as_tensors, batch_size
from multihead._data.reading import as_arrays, as_targets
from multihead._ground.calls import gathered, keras_mask
from multihead._ground.layers import state_kept
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Metric, Nested
from multihead.heads import Head
from multihead.heads._metric_names import copied_metric
from multihead.heads._named import NamedHead
from multihead.losses._known import with_inner
from multihead.testing._report import Report

_TOLERANCE, _ALONE = 1e-3, 8
"""The relative difference that rounding explains, and the number of rows that are tried one by one."""

_REMEDY = "Pass `couples_rows=True`, so that module and loss get the labelled rows of a batch, whole, and no others"


def check_head(head: Head, x: Nested, y: Nested) -> Report:
    """Checks what a head declares of its module, its loss and its metrics, on rows of your own.

    Labels that are missing must not count, and a batch may be split, only if a row's loss does not depend on other rows. The
    trainer takes the head's word for it; this function finds out. In inference mode, it checks that

    - the module gives a row the same predictions alone, in half of the rows and among all of them;
    - the loss gives a row, and with a value per element each element, the same value whatever the others are, and its sums
      and counts add up over rows;
    - a count that the loss returns is a function of the targets;
    - the loss and the metrics of rows of which some have no label are those of the labelled rows alone.

    A head with `couples_rows=True` need not satisfy the first two. One with None that satisfies them can be declared with
    `couples_rows=False`. What the rows do not show goes unnoticed: pass as many as a batch has, with typical labels.

    Args:
        head: The head. Its module is built if it is not yet; variables keep their values.
        x: What the encoder returns for at least four rows: a tensor, or a nest of tensors, of which the head's `reads`
            selects.
        y: The targets of these rows. Rows without a label are left out.

    Returns:
        A report of the checks.

    Raises:
        AssertionError: A check failed; the message says what to declare.
        ValueError: The loss cannot take the targets, or fewer than four rows have labels.

    Example:
        >>> import numpy as np
        >>> from multihead import Head
        >>> x, y = np.random.default_rng(0).normal(size=(2, 8, 3)).astype("float32")
        >>> check_head(Head(keras.layers.Dense(3), lambda y, p: tf.abs(y - p)), x, y)
        Head: 4 checks, 1 head
    """
    metrics, weighted = (tuple(map(_fresh, group)) for group in (head.metrics, head.weighted_metrics))
    named = NamedHead("head", replace(head, metrics=metrics, weighted_metrics=weighted))
    rows = _HeadOnRows(named, as_tensors(as_arrays("x", x)), as_tensors(as_targets("y", y)))
    with state_kept([head.module]), unchecked():
        if not head.couples_rows:
            rows.check_module()
        if named.is_trained:
            rows.check_loss(is_coupled=bool(head.couples_rows))
        rows.check_missing()
    return rows.report


def _fresh(metric: Metric) -> Metric:
    """A metric like another one, whose state stays as it is."""
    return copied_metric(metric, metric.name) if isinstance(metric, keras.metrics.Metric) else metric


class _HeadOnRows:
    """A head on some rows that all have labels."""

    def __init__(self, head: NamedHead, x: Nested, y: tf.Tensor) -> None:
        self.head, self.report = head, Report("Head", [1])
        predictions = head.predict(x, head.like_scaled(y), training=False)
        self.spec = tf.TensorSpec([None, *predictions.shape[1:]], predictions.dtype)
        head.build(tf.TensorSpec([None, *y.shape[1:]], y.dtype), self.spec)
        _, weights = head.mask_missing(y, None, self.spec, keras_mask(predictions))
        inner = list(range(1, weights.shape.rank))
        kept = tf.where(tf.reduce_all(weights > 0, axis=inner))[:, 0]
        self.size, self.x, self.y = int(tf.size(kept)), _taken(x, kept), tf.gather(y, kept)
        if self.size < 4:
            raise ValueError(
                f"`y` must have labels for at least four rows. Received: labels of whole rows for {self.size} of "
                f"{int(batch_size(y))}. Pass more rows."
            )
        self.predictions = self._predicted(range(self.size))

    def require(self, holds: bool, rule: str, detail: str) -> None:
        """Notes a rule; if it does not hold, raises an error with the remedy."""
        self.report.checks.append(rule)
        if not holds:
            what = f"the loss {self.head.loss.name!r} and the module {type(self.head.module).__name__}, {self.size} rows"
            raise AssertionError(f"`head` must {rule}. Received: {what}. {detail}.")

    def check_module(self) -> None:
        """Whether a row's predictions are its own."""
        same = [_are_same(self._predicted(part), tf.gather(self.predictions, part)) for part in self._parts()]
        self.require(all(same), "have a module that gives a row the same predictions alone as with others", _REMEDY)

    def check_loss(self, *, is_coupled: bool) -> None:
        """Whether a value of the loss is that of its own labels, and counts are functions of the targets."""
        loss, rolled = self.head.loss, tf.roll(tf.range(self.size), 1, axis=0)
        sums, counts = self._terms(self.y, self.predictions)
        if not is_coupled:
            parts = [self._terms(tf.gather(self.y, part), gathered(self.predictions, part)) for part in self._parts()]
            together = _stacked((sums, counts))
            if loss.is_total:
                same = [_are_same(together, _stacked(parts[-2]) + _stacked(parts[-1]))]
                rule = "have a loss whose sum and count add up over the rows of a batch"
            else:
                pairs = zip(self._parts(), map(_stacked, parts))
                same = [_are_same(part_terms, tf.gather(together, part, axis=1)) for part, part_terms in pairs]
                rule = "have a loss that gives a row the same value alone as with others"
            self.require(all(same), rule, _REMEDY)
        if not is_coupled and 1 < sums.shape.rank <= self.y.shape.rank:
            chosen = tf.constant(np.random.default_rng(0).random(sums.shape) < 0.5)
            y, p = (
                where(with_inner(chosen, tensor), tensor, tf.gather(tensor, rolled)) for tensor in (self.y, self.predictions)
            )
            mixed_sums = self._terms(y, p)[0]
            detail = "Let it return a value per row, or pass `couples_rows=True`"
            rule = "have a loss that gives an element a value that depends on its own label alone"
            self.require(_are_same(tf.boolean_mask(mixed_sums, chosen), tf.boolean_mask(sums, chosen)), rule, detail)
        if counts is not None:
            alike = [gathered(self.predictions, tf.fill([self.size], row)) for row in range(4)]
            same = [_are_same(counts, self._terms(self.y, predictions)[1]) for predictions in alike]
            detail = "Count labels, or return one value per element"
            self.require(all(same), "have a loss whose count is a function of the targets", detail)

    def check_missing(self) -> None:
        """Whether rows without a label count for nothing."""
        weight = np.arange(self.size) % 3 != 1
        kept = tf.constant(np.flatnonzero(weight))
        results = []
        for y, p, some in (
            (self.y, self.predictions, tf.constant(weight, tf.float32)),
            (tf.gather(self.y, kept), gathered(self.predictions, kept), None),
        ):
            results.append(self._mean_and_metrics(y, p, some))
        for name in results[0]:
            what = "a loss" if name == "loss" else f"a metric {name!r}"
            detail = "Let its attribute `reads` say what it reads" if name != "loss" else _REMEDY
            rule = f"have {what} of labelled rows alone if other rows have no label"
            self.require(_are_same(results[0][name], results[1][name]), rule, detail)

    def _mean_and_metrics(self, y: tf.Tensor, predictions: tf.Tensor, weight: tf.Tensor | None) -> dict[str, tf.Tensor]:
        head, results = self.head, dict[str, tf.Tensor]()
        clean, weights = head.mask_missing(y, weight, self.spec, keras_mask(predictions))
        scaled = clean if head.scaling is None else head.like_scaled(clean)
        if head.is_trained:
            results["loss"] = head.loss_sum(scaled, predictions, weights) / head.count(scaled, predictions, weights)
        for metric in head.metrics or []:
            metric.reset_state()
        if getattr(head.module, "scores", None) is None:  # which reads the representation
            head.update_metrics(clean, predictions, weights, None)
            results.update({name: tf.convert_to_tensor(value) for name, value in head.results().items()})
        return results

    def _terms(self, y: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
        return self.head.loss.terms(self.head.like_scaled(y), predictions)

    def _predicted(self, rows: Sequence[int]) -> tf.Tensor:
        places = tf.constant(list(rows))
        return self.head.predict(_taken(self.x, places), self.head.like_scaled(tf.gather(self.y, places)), training=False)

    def _parts(self) -> list[list[int]]:
        """Rows one by one, and both halves."""
        every = list(range(self.size))
        return [*([i] for i in every[:_ALONE]), every[: self.size // 2], every[self.size // 2 :]]


def _stacked(terms: tuple[tf.Tensor, tf.Tensor | None]) -> tf.Tensor:
    """The sums and, if there are any, the counts of a loss."""
    return tf.stack([term for term in terms if term is not None])


def _taken(nest: Nested, rows: tf.Tensor) -> Nested:
    """Some rows of all tensors of a nest that have one per example."""
    size = int(batch_size(nest))
    return tf.nest.map_structure(lambda tensor: gathered(tensor, rows) if tensor.shape[:1] == [size] else tensor, nest)


def _are_same(one: tf.Tensor, other: tf.Tensor) -> bool:
    """Whether numbers are the same up to rounding; where one is not finite, neither is the other."""
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    largest = max(np.abs(a[finite]).max(initial=0.0), np.abs(b[finite]).max(initial=0.0), 1e-30)
    return bool((np.isfinite(a) == np.isfinite(b)).all() and (np.abs(a - b)[finite] <= _TOLERANCE * largest).all())
