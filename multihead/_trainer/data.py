"""Data before training: the targets of every head, and labels that are checked at once where steps cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._data.data import Data
from multihead._ground.validation import quoted
from multihead._trainer.shapes import Shapes
from multihead._update.batch import unpack
from multihead.heads._labels import check_arrays, checked
from multihead.heads._named import NamedHead
from multihead.heads._value import is_zero


def check_every_head(targets: Mapping[str, Any], heads: Sequence[NamedHead]) -> None:
    """Checks that there are targets for every head that is trained.

    Raises:
        ValueError: There are none for a head whose weight is not 0.
    """
    absent = [head.name for head in heads if head.name not in targets and not is_zero(head.weight)]
    if absent:
        head_names = [head.name for head in heads]
        raise ValueError(
            f"The targets must have a key for every head, but the head {quoted(absent)} has none in the data and would "
            f"never be trained. Received: targets for {quoted(targets)}; the heads are {quoted(head_names)}. "
            "Correct the key, or add targets that are `ignore_label` or NaN where the label is missing; with a weight of "
            "0, a head needs none."
        )


def with_checked_labels(
    data: Data, heads: Mapping[str, NamedHead], shapes: Shapes, *, in_xla: bool, shuffle: Any = False, argument: str = "x"
) -> Data:
    """The data, with arrays of labels checked at once, and what yields batches checked outside of what XLA compiles.

    Args:
        data: The data.
        heads: The heads by name.
        shapes: What they predict.
        in_xla: Whether XLA compiles the steps, in which no error can be raised.
        shuffle: Whether to shuffle a `PyDataset`.
        argument: The argument that the data are, for messages.

    Raises:
        ValueError: Labels in arrays are invalid.
    """
    masked = {name for name, each in shapes.predictions.items() if each.masked}  # only a batch can tell which labels count
    complete = set(heads) - masked

    def check(data: Any) -> None:
        batch = unpack(data, list(heads))
        for name, targets in batch.targets.items():
            if name not in masked:
                spec = shapes.predictions[name].spec
                _, weights = heads[name].mask_missing(targets, batch.sample_weights.get(name), spec, None)
                if tf.executing_eagerly() and not bool(tf.reduce_all(weights > 0)):
                    complete.discard(name)

    if data.is_arrays:
        try:
            are_checked = check_arrays(check, data.y, data.sample_weight)
        except ValueError as error:
            if argument == "x":
                raise
            raise ValueError(f"In `{argument}`: {error}") from error
        return data._replace(
            labels_are_checked=are_checked and not masked, complete=frozenset(complete if are_checked else ())
        )
    if in_xla and (data.batches is not None or isinstance(data.x, tf.data.Dataset)):
        dataset = data.as_dataset(None, None, shuffle, "`jit_compile`")
        # What Python makes is lost if it is read and not used, and may draw random numbers.
        return data._replace(x=checked(check, dataset, ahead=data.batches is None), batches=None)
    return data
