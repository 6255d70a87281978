"""What the heads read from columns of a file: classes such as price ranges, numbers, and tags of the source's words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples._command_line import InputError
from examples.seq2seq_price.batches import tokens_per_word
from examples.seq2seq_price.model import NO_LABEL, price_head
from multihead import Head, losses
from multihead.models import Regressor, TokenTagger

MISSING = "(missing)"
"""The name of the class for rows without a label, if missing labels are a class."""

Representation = dict[str, Any]


def head_names(columns: Sequence[str]) -> list[str]:
    """Names of heads for columns: all characters but ASCII letters, digits and hyphens become underscores.

    Raises:
        InputError: Two heads would have the same name, or one that of the reply or the price.
    """
    names = [re.sub(r"[^A-Za-z0-9-]+", "_", column) for column in columns]
    for place, name in enumerate(names):
        if name in ("reply", "price", *names[:place]):
            raise InputError(
                f"The columns of --label, --number and --tags must lead to different names of heads. Received: "
                f"{columns[place]!r}, whose head would be another {name!r}. Rename or omit the column."
            )
    return names


@dataclass(frozen=True)
class LabelColumn:
    """A column of classes, such as price ranges, for a `PriceClassifier`.

    The `names` of the classes are in the order of their numbers. A numeric column has inner bin `edges` in ascending order.
    `missing_is_class` makes an empty label a class of its own, the last one; otherwise it is a missing label.
    """

    head: str
    column: str
    names: tuple[str, ...]
    edges: tuple[float, ...] | None = None
    missing_is_class: bool = False

    @classmethod
    def fit(
        cls, head: str, column: str, cells: Sequence[str], *, bands: int | None = None, missing_is_class: bool = False
    ) -> LabelColumn:
        """Finds the classes in the training rows; `bands` bins a numeric column into equal fractions of the rows.

        Raises:
            InputError: There are fewer than two different labels, or a label is not a number.
        """
        present = [cell for cell in cells if cell]
        if bands is None:
            names, edges = _different(column, "labels", present, "--label"), None
        else:
            numbers = _numbers(column, present)
            _, second, *_ = _different(column, "labels", numbers.tolist(), "--label")
            # If the smallest number fills the first bins, the second range begins at the next larger number.
            edges = tuple(np.unique(np.maximum(np.quantile(numbers, np.arange(1, bands) / bands), second)).tolist())
            names = band_names(edges)
        return cls(head, column, (*names, MISSING) if missing_is_class else names, edges, missing_is_class)

    def targets(self, cells: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Class numbers of labels, int32 `[rows]`; `NO_LABEL` where a label is missing, unless that is a class.

        Raises:
            InputError: A label does not occur in the training rows, or is not a number.
        """
        empty = len(self.names) - 1 if self.missing_is_class else NO_LABEL
        if self.edges is not None:
            numbers = _numbers(self.column, cells)
            return np.where(np.isnan(numbers), empty, np.searchsorted(self.edges, numbers, side="right")).astype(np.int32)
        index = {**{name: number for number, name in enumerate(self.names)}, "": empty}
        return np.array(_known(self.column, "labels", index, cells), np.int32)

    def make_head(self, units: int) -> Head:
        """A classifier."""
        return price_head(len(self.names), units)

    def predict(self, module: keras.layers.Layer, representation: Representation) -> tf.Tensor:
        """Probabilities, `[batch, classes]`."""
        return module(representation, training=False)

    def export_options(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Arguments of `trainer.export`: the most probable class's name and probability."""
        return {
            "postprocess": lambda probabilities: {
                "label": tf.gather(self.names, tf.argmax(probabilities, axis=1)),
                "probability": tf.reduce_max(probabilities, axis=1),
            }
        }

    def metrics(self, targets: np.ndarray, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """The accuracy."""
        return accuracy(targets, np.argmax(answers, axis=1), self.head)

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The prediction as text."""
        return f"{self.names[answer.argmax()]} (probability {answer.max():.2f})"

    def __str__(self) -> str:
        return f"{self.column}: {len(self.names)} classes"


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, for a `Regressor`, which is trained on them scaled to mean 0 and standard deviation 1."""

    head: str
    column: str
    mean: float
    deviation: float

    @classmethod
    def fit(cls, head: str, column: str, cells: Sequence[str]) -> NumberColumn:
        """Finds mean and standard deviation in the training rows.

        Raises:
            InputError: A cell is not a number, or there are fewer than two different ones.
        """
        numbers = _numbers(column, cells)
        present = numbers[~np.isnan(numbers)]
        _different(column, "numbers", present.tolist(), "--number")
        return cls(head, column, float(present.mean()), float(present.std()))

    def targets(self, cells: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Scaled numbers, float32 `[rows]`; NaN for none."""
        return ((_numbers(self.column, cells) - self.mean) / self.deviation).astype(np.float32)

    def make_head(self, units: int) -> Head:
        """A regressor."""
        return Head(Regressor(hidden_units=units, pool=True), "mse")

    def predict(self, module: keras.layers.Layer, representation: Representation) -> tf.Tensor:
        """Numbers in the column's units, `[batch]`."""
        return self._in_units(module(representation, training=False))

    def export_options(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Arguments of `trainer.export`: the number in the column's units."""
        return {"postprocess": lambda predictions: {"number": self._in_units(predictions)}}

    def metrics(self, targets: np.ndarray, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """The mean absolute error in the column's units; none without a number."""
        errors = np.abs(np.asarray(answers) - (targets * self.deviation + self.mean))[~np.isnan(targets)]
        return {f"{self.head}_mae": float(np.mean(errors))} if errors.size else {}

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The prediction as text."""
        return f"{answer:.4g}"

    def _in_units(self, predictions: tf.Tensor) -> tf.Tensor:
        return predictions[:, 0] * self.deviation + self.mean

    def __str__(self) -> str:
        return f"{self.column}: numbers of mean {self.mean:.4g}"


@dataclass(frozen=True)
class TagColumn:
    """A column with one tag per word of the source text, for a `TokenTagger`.

    The first token of a word has its tag; its other tokens (punctuation is a separate token) have none. Tags are numbered
    from 1.
    """

    head: str
    column: str
    names: tuple[str, ...]

    @classmethod
    def fit(cls, head: str, column: str, cells: Sequence[str]) -> TagColumn:
        """Finds the tags in the training rows.

        Raises:
            InputError: There are fewer than two.
        """
        return cls(head, column, _different(column, "tags", " ".join(cells).split(), "--tags"))

    def targets(self, cells: Sequence[str], texts: Sequence[str]) -> tf.RaggedTensor:
        """Numbers of tags, ragged int32 `[rows, tokens]`; 0 for none.

        Raises:
            InputError: A row has a different number of tags than words, or a tag that does not occur in the training rows.
        """
        number = {name: place for place, name in enumerate(self.names, start=1)}
        rows = []
        for cell, asked, counts in zip(cells, texts, tokens_per_word(texts)):
            tags = cell.split()
            if tags and len(tags) != len(counts):
                raise InputError(
                    f"The column `{self.column}` must contain one tag per word of the source text, separated by spaces. "
                    f"Received: {len(tags)} tags for the {len(counts)} words of {asked!r}. Correct the row, or "
                    "leave the cell empty."
                )
            row = np.zeros([sum(counts)], np.int32)
            row[_starts(counts)[: len(tags)]] = _known(self.column, "tags", number, tags)
            rows.append(row)
        return tf.RaggedTensor.from_row_lengths(np.concatenate(rows), [len(row) for row in rows])

    def make_head(self, units: int) -> Head:
        """A tagger."""
        return Head(TokenTagger(1 + len(self.names)), losses.SequenceCrossentropy(), metrics=["accuracy"])

    def predict(self, module: keras.layers.Layer, representation: Representation) -> tf.Tensor:
        """Numbers of the tokens' most probable tags, int32 `[batch, time]`; 0 at padding."""
        logits = module(representation, training=False)
        best = 1 + tf.argmax(logits[:, :, 1:], axis=2, output_type=tf.int32)
        return tf.where(representation["mask"], best, 0)

    def export_options(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Arguments of `trainer.export`: the tokens' tags, strings `[batch, time]`, empty at padding."""
        names = ("", *self.names)
        return {
            "generate": lambda representation: self.predict(module, representation),
            "postprocess": lambda numbers: {"tags": tf.gather(names, numbers)},
        }

    def metrics(self, targets: tf.RaggedTensor, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """The accuracy over the words that have a tag."""
        lengths = targets.row_lengths().numpy()
        predicted = np.concatenate([answer[:length] for answer, length in zip(answers, lengths)])
        return accuracy(targets.flat_values.numpy() - 1, predicted - 1, self.head)

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The words' tags."""
        (counts,) = tokens_per_word([asked])
        return " ".join(self.names[number - 1] for number in answer[_starts(counts)])

    def __str__(self) -> str:
        return f"{self.column}: {len(self.names)} tags"


Column = LabelColumn | NumberColumn | TagColumn


def to_json(column: Column) -> dict[str, Any]:
    """What `from_json` takes."""
    return {"kind": type(column).__name__, **asdict(column)}


def from_json(saved: dict[str, Any]) -> Column:
    """The column of which `to_json` returned this, after a round trip through JSON."""
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
    kinds: dict[str, type[Column]] = {each.__name__: each for each in (LabelColumn, NumberColumn, TagColumn)}
    return kinds[options.pop("kind")](**options)


def band_names(edges: Sequence[float]) -> tuple[str, ...]:
    """`("under 100", "100 to 300", "300 and more")` for the inner edges 100 and 300."""
    texts = [f"{edge:.6g}" for edge in edges]
    inner = (f"{low} to {high}" for low, high in zip(texts, texts[1:]))
    return (f"under {texts[0]}", *inner, f"{texts[-1]} and more")


def accuracy(labels: np.ndarray, predicted: np.ndarray, head: str = "price") -> dict[str, float]:
    """The accuracy over labelled rows by the metric's name; empty if no row has a label."""
    labelled = labels != NO_LABEL
    return {f"{head}_accuracy": float(np.mean((labels == predicted)[labelled]))} if labelled.any() else {}


def is_number(cell: str) -> bool:
    """Whether a cell is a finite number."""
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _numbers(column: str, cells: Sequence[str]) -> np.ndarray:
    """The cells' numbers, float64 `[rows]`; NaN where a cell is empty."""
    wrong = sorted({cell for cell in cells if cell and not is_number(cell)})
    if wrong:
        raise InputError(
            f"The column `{column}` must contain numbers. Received: {', '.join(map(repr, wrong[:5]))}. Correct the cells, "
            "or leave them empty; for classes, use --label without --bands."
        )
    return np.array([float(cell or "nan") for cell in cells])


def _different(column: str, kind: str, values: Iterable[Any], option: str) -> tuple[Any, ...]:
    """The different values of the training rows, in order."""
    found = tuple(sorted(set(values)))
    if len(found) < 2:
        raise InputError(
            f"The column `{column}` must contain at least two different {kind}. Received: {len(found)} in the training "
            f"rows. Choose another column with {option}."
        )
    return found


def _known(column: str, kind: str, numbers: dict[str, int], cells: Sequence[str]) -> list[int]:
    """The numbers of labels or tags, all of which must occur in the training rows."""
    for cell in cells:
        if cell not in numbers:
            known = [repr(name) for name in numbers if name]
            shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
            raise InputError(
                f"The column `{column}` must contain {kind} that occur in the training rows: {shown}. Received: {cell!r}. "
                f"Correct or remove the {kind}."
            )
    return [numbers[cell] for cell in cells]


def _starts(counts: Sequence[int]) -> np.ndarray:
    """The position of each word's first token."""
    return np.cumsum([0, *counts], dtype=np.int64)[:-1]
