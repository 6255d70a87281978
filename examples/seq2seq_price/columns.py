"""Additional heads from columns of a file: classes, numbers, and tags of the words of the source text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from examples.seq2seq_price.metrics import class_figures, number_figures
from examples.seq2seq_price.ranges import NO_LABEL, PriceRanges
from examples.seq2seq_price.tables import InputError, listed
from examples.seq2seq_price.text import tokens_per_word
from multihead import MultiHeadTrainer, losses
from multihead.models import Classifier, Regressor, TokenTagger

Representation = dict[str, Any]


def head_names(columns: Sequence[str]) -> list[str]:
    """Names of heads for columns: all characters but ASCII letters, digits and hyphens become underscores.

    Raises:
        InputError: Two heads would have the same name, or one that of the reply or the price.
    """
    names = [re.sub(r"[^A-Za-z0-9-]+", "_", column) for column in columns]
    for place, name in enumerate(names):
        if columns[place] in columns[:place]:
            raise InputError(
                f"--label, --number and --tags must name each column once. Received: {columns[place]!r} twice. Omit one."
            )
        if name in ("reply", "price", *names[:place]):
            raise InputError(
                f"The columns of --label, --number and --tags must lead to different names of heads. Received: "
                f"{columns[place]!r}, whose head would be another {name!r}. Rename the column."
            )
    return names


@dataclass(frozen=True)
class LabelColumn:
    """A column of classes, for a `Classifier`.

    Attributes:
        head: Name of the head.
        column: Name of the column.
        ranges: The classes.
    """

    kind: ClassVar[str] = "label"
    head: str
    column: str
    ranges: PriceRanges

    @classmethod
    def fit(cls, head: str, column: str, cells: Sequence[str], *, missing_is_class: bool) -> LabelColumn:
        """Finds the classes in the training rows.

        Raises:
            InputError: There are fewer than two.
        """
        return cls(head, column, PriceRanges.fit(column, cells, bands=None, missing_is_class=missing_is_class))

    def targets(self, cells: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Class numbers, int32 `[rows]`; -1 for none."""
        return self.ranges.numbers(self.column, cells)

    def add_to(self, trainer: MultiHeadTrainer, units: int) -> None:
        """Adds the head."""
        module = Classifier(len(self.ranges.names), hidden_units=units, pool=True)
        loss = "sparse_categorical_crossentropy"
        trainer.add_head(self.head, module, loss, metrics=["accuracy"], ignore_label=NO_LABEL)

    def predict(self, module: keras.layers.Layer, representation: Representation) -> tf.Tensor:
        """Probabilities, `[batch, classes]`."""
        return module(representation, training=False)

    def export_options(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Arguments of `trainer.export`: the most probable class's name and probability."""
        names = self.ranges.names
        return {
            "postprocess": lambda probabilities: {
                "label": tf.gather(names, tf.argmax(probabilities, axis=1)),
                "probability": tf.reduce_max(probabilities, axis=1),
            }
        }

    def figures(self, targets: np.ndarray, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """Accuracy and macro F1."""
        return class_figures(targets, np.argmax(answers, axis=1), self.head)

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The prediction as text."""
        return f"{self.ranges.names[answer.argmax()]} (probability {answer.max():.2f})"

    def __str__(self) -> str:
        return f"{self.column}: {len(self.ranges.names)} classes"

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {"kind": self.kind, "head": self.head, "column": self.column, "ranges": self.ranges.to_json()}


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers, for a `Regressor`, which is trained on them scaled to mean 0 and standard deviation 1.

    Attributes:
        head: Name of the head.
        column: Name of the column.
        mean: Mean of the training rows.
        deviation: Standard deviation of the training rows.
    """

    kind: ClassVar[str] = "number"
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
        if len(np.unique(present)) < 2:
            raise InputError(
                f"The column `{column}` must contain at least two different numbers. Received: "
                f"{len(np.unique(present))} in the training rows. Choose another column with --number."
            )
        return cls(head, column, float(present.mean()), float(present.std()))

    def targets(self, cells: Sequence[str], texts: Sequence[str]) -> np.ndarray:
        """Scaled numbers, float32 `[rows]`; NaN for none."""
        return ((_numbers(self.column, cells) - self.mean) / self.deviation).astype(np.float32)

    def add_to(self, trainer: MultiHeadTrainer, units: int) -> None:
        """Adds the head."""
        trainer.add_head(self.head, Regressor(hidden_units=units, pool=True), "mse")

    def predict(self, module: keras.layers.Layer, representation: Representation) -> tf.Tensor:
        """Numbers in the column's units, `[batch]`."""
        return self._in_units(module(representation, training=False))

    def export_options(self, module: keras.layers.Layer) -> dict[str, Any]:
        """Arguments of `trainer.export`: the number in the column's units."""
        return {"postprocess": lambda predictions: {"number": self._in_units(predictions)}}

    def figures(self, targets: np.ndarray, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """Mean absolute error in the column's units, and the coefficient of determination."""
        return number_figures(targets * self.deviation + self.mean, np.asarray(answers), self.head)

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The prediction as text."""
        return f"{answer:.4g}"

    def _in_units(self, predictions: tf.Tensor) -> tf.Tensor:
        return predictions[:, 0] * self.deviation + self.mean

    def __str__(self) -> str:
        return f"{self.column}: numbers of mean {self.mean:.4g}"

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True)
class TagColumn:
    """A column with one tag per word of the source text, for a `TokenTagger`.

    The first token of a word has its tag; its other tokens (punctuation is a separate token) have none.

    Attributes:
        head: Name of the head.
        column: Name of the column.
        names: The tags, numbered from 1.
    """

    kind: ClassVar[str] = "tags"
    head: str
    column: str
    names: tuple[str, ...]

    @classmethod
    def fit(cls, head: str, column: str, cells: Sequence[str]) -> TagColumn:
        """Finds the tags in the training rows.

        Raises:
            InputError: There are fewer than two.
        """
        names = sorted({name for cell in cells for name in cell.split()})
        if len(names) < 2:
            raise InputError(
                f"The column `{column}` must contain at least two different tags. Received: {len(names)} in the training "
                "rows. Choose another column with --tags."
            )
        return cls(head, column, tuple(names))

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
            unknown = [name for name in tags if name not in number]
            if unknown:
                raise InputError(
                    f"The column `{self.column}` must contain tags that occur in the training rows: "
                    f"{listed(self.names)}. Received: {unknown[0]!r}. Correct or remove the tags."
                )
            row = np.zeros([sum(counts)], np.int32)
            if tags:
                row[_starts(counts)] = [number[name] for name in tags]
            rows.append(row)
        return tf.RaggedTensor.from_row_lengths(np.concatenate(rows), [len(row) for row in rows])

    def add_to(self, trainer: MultiHeadTrainer, units: int) -> None:
        """Adds the head."""
        trainer.add_head(self.head, TokenTagger(1 + len(self.names)), losses.SequenceCrossentropy(), metrics=["accuracy"])

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

    def figures(self, targets: tf.RaggedTensor, answers: Sequence[np.ndarray]) -> dict[str, float]:
        """Accuracy and macro F1 over the words that have a tag."""
        lengths = targets.row_lengths().numpy()
        predicted = np.concatenate([answer[:length] for answer, length in zip(answers, lengths)])
        return class_figures(targets.flat_values.numpy() - 1, predicted - 1, self.head)

    def describe(self, answer: np.ndarray, asked: str) -> str:
        """The words' tags."""
        (counts,) = tokens_per_word([asked])
        return " ".join(self.names[number - 1] for number in answer[_starts(counts)])

    def __str__(self) -> str:
        return f"{self.column}: {len(self.names)} tags"

    def to_json(self) -> dict[str, Any]:
        """What `from_json` takes."""
        return {"kind": self.kind, **asdict(self)}


Column = LabelColumn | NumberColumn | TagColumn


def from_json(saved: dict[str, Any]) -> Column:
    """The column that `to_json` gave."""
    options = {name: value for name, value in saved.items() if name != "kind"}
    if saved["kind"] == LabelColumn.kind:
        return LabelColumn(**{**options, "ranges": PriceRanges.from_json(options["ranges"])})
    if saved["kind"] == TagColumn.kind:
        return TagColumn(**{**options, "names": tuple(options["names"])})
    return NumberColumn(**options)


def _numbers(column: str, cells: Sequence[str]) -> np.ndarray:
    """The cells' numbers, float64 `[rows]`; NaN where a cell is empty."""
    numbers = np.full([len(cells)], np.nan)
    for row, cell in enumerate(cells):
        if cell:
            try:
                numbers[row] = float(cell)
            except ValueError:
                pass
            if not np.isfinite(numbers[row]):
                raise InputError(
                    f"The column `{column}` must contain numbers. Received: {cell!r}. Correct the cell, or leave it "
                    "empty; use --label for classes."
                )
    return numbers


def _starts(counts: Sequence[int]) -> np.ndarray:
    """The position of each word's first token."""
    return np.cumsum([0, *counts], dtype=np.int64)[:-1]
