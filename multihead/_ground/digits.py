"""Whether targets of double precision still differ once they are rounded to Keras's precision."""

from __future__ import annotations

import keras
import numpy as np

_LOST = 0.01
"""So much of the standard deviation of some numbers may be lost as they are rounded."""


class Digits:
    """What rounding takes from targets that are seen batch by batch: one batch may hold only labels that are close.

    `problem` is the message of an error; empty if the numbers of all columns differ as before.
    """

    def __init__(self, argument: str) -> None:
        self._argument, self.problem = argument, ""  # the name of the targets, for the message
        self._extremes: np.ndarray | None = None  # the lowest and the highest numbers of the columns so far

    def add(self, given: np.ndarray) -> None:
        """Looks at further targets, `[batch, ...]`, together with the extremes of those before."""
        precision, self.problem = np.dtype(keras.backend.floatx()), ""
        if given.dtype != np.float64 or precision == np.float64 or not given.size:
            return
        columns = np.reshape(given, (-1, given.shape[-1] if given.ndim > 1 else 1))
        if self._extremes is not None and self._extremes.shape[1] == columns.shape[1]:
            columns = np.concatenate([self._extremes, columns])
        with np.errstate(over="ignore"):
            rounded = columns.astype(precision)
        counts = np.isfinite(columns) & np.isfinite(rounded)
        lost = np.abs(np.subtract(rounded, columns, out=np.zeros_like(columns), where=counts)).max(axis=0)
        if lost.any():
            present = np.where(counts, columns, 0.0)
            number = counts.sum(axis=0)
            mean = present.sum(axis=0) / np.maximum(number, 1)
            deviation = np.sqrt((np.where(counts, present - mean, 0.0) ** 2).sum(axis=0) / np.maximum(number, 1))
            # What differs in the last digits of double precision was meant to be equal.
            differs = deviation > 1e-12 * np.abs(present).max(axis=0)
            for k in np.flatnonzero(differs & (lost > _LOST * deviation)):
                column = columns[counts[:, k], k]
                if len(np.unique(column) if self._extremes is not None else column) < 3:  # two may be close by chance
                    continue
                self.problem = (
                    f"`{self._argument}` must keep its differences in {precision}, Keras's `floatx`. Received: numbers "
                    f"between {column.min():.15g} and {column.max():.15g}, rounded by up to {lost[k]:.3g}. Subtract a "
                    "constant from them, such as the first, pass whole numbers as integers, or a `tf.data.Dataset`, which "
                    "keeps all digits."
                )
        self._extremes = np.stack(
            [np.where(counts, columns, np.inf).min(axis=0), np.where(counts, columns, -np.inf).max(axis=0)]
        )

    def check(self) -> None:
        """Raises a `ValueError` if there is a problem."""
        if self.problem:
            raise ValueError(self.problem)
