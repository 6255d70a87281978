"""Price ranges: texts as classes, or numbers binned into ranges of equal frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.seq2seq_price.tables import InputError, listed

NO_LABEL = -1
"""The label of a row whose price range is missing and ignored."""
MISSING = "(missing)"
"""The name of the class for rows without a price range, if missing labels are a class."""


@dataclass(frozen=True)
class PriceRanges:
    """Converts a label column to class numbers; fitted on the training file.

    Attributes:
        names: Names of the price ranges, in the order of their class numbers.
        edges: Inner bin edges in ascending order, for a numeric column; None for a column of texts.
        missing_is_class: Whether an empty label is a class of its own, the last one; otherwise it is a missing label.
    """

    names: tuple[str, ...]
    edges: tuple[float, ...] | None
    missing_is_class: bool

    @classmethod
    def fit(cls, column: str, values: Sequence[str], *, bands: int | None, missing_is_class: bool) -> PriceRanges:
        """Fits the price ranges on the training labels.

        Args:
            column: Name of the column, for error messages.
            values: The labels, `""` where missing.
            bands: Number of bins for a numeric column, each with the same fraction of the training rows (fewer if values
                repeat); None uses the texts as classes.
            missing_is_class: Whether an empty label is a class of its own.

        Raises:
            InputError: No row has a label, there is only one price range, or a label is not a number.
        """
        present = [value for value in values if value]
        if not present:
            raise InputError(
                f"The column `{column}` must contain labels. Received: {len(values)} empty labels in the training "
                "rows. Choose another column with --label."
            )
        if bands is None:
            names, edges = tuple(sorted(set(present))), None
        else:
            numbers = np.array([_number(column, value) for value in present])
            cuts, distinct = np.quantile(numbers, np.arange(1, bands) / bands), np.unique(numbers)
            # If the smallest number fills the first bins, the second range begins at the next larger number.
            edges = tuple(np.unique(np.maximum(cuts, distinct[1])).tolist()) if len(distinct) > 1 else ()
            names = band_names(edges)
        if len(names) < 2:
            raise InputError(
                f"The column `{column}` must contain at least two different labels. Received: only one, {names[0]!r}. "
                "Choose another column with --label, or bin a numeric column with --bands."
            )
        return cls((*names, MISSING) if missing_is_class else names, edges, missing_is_class)

    def numbers(self, column: str, values: Sequence[str]) -> np.ndarray:
        """Class numbers of labels, int32 `[rows]`; `NO_LABEL` where a label is missing, unless that is a class.

        Raises:
            InputError: A label does not occur in the training rows, or is not a number.
        """
        index = {name: number for number, name in enumerate(self.names)}
        empty = len(self.names) - 1 if self.missing_is_class else NO_LABEL
        numbers = np.full([len(values)], empty, np.int32)
        for row, value in enumerate(values):
            if not value:
                continue
            if self.edges is not None:
                numbers[row] = np.searchsorted(self.edges, _number(column, value), side="right")
            elif value in index:
                numbers[row] = index[value]
            else:
                raise InputError(
                    f"The column `{column}` must contain labels that occur in the training rows: "
                    f"{listed(self.names)}. Received: {value!r}. Correct or remove the label."
                )
        return numbers

    def to_json(self) -> dict[str, Any]:
        """The argument of `from_json`."""
        return {"names": self.names, "edges": self.edges, "missing_is_class": self.missing_is_class}

    @classmethod
    def from_json(cls, saved: dict[str, Any]) -> PriceRanges:
        """Creates price ranges from the result of `to_json`."""
        edges = saved["edges"]
        return cls(tuple(saved["names"]), None if edges is None else tuple(edges), saved["missing_is_class"])


def _number(column: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not np.isfinite(number):
        raise InputError(
            f"The column `{column}` must contain numbers if --bands is given. Received: {value!r}. "
            "Omit --bands to use the texts as classes."
        )
    return number


def band_names(edges: Sequence[float]) -> tuple[str, ...]:
    """`("under 100", "100 to 300", "300 and more")` for the inner edges 100 and 300."""
    if not edges:
        return ("all",)
    texts = [f"{edge:.6g}" for edge in edges]
    inner = (f"{low} to {high}" for low, high in zip(texts, texts[1:]))
    return (f"under {texts[0]}", *inner, f"{texts[-1]} and more")
