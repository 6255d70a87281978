"""An upper limit on a head's share of the encoder's update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.keras import keras
from multihead._ground.validation import check_head_names, is_number, quoted
from multihead._ground.where import where
from multihead.balancing._base import Balancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class NormBudget(Balancer):
    """Scales gradients down so that no head's share of the encoder's update exceeds its budget.

    For a head that must not disturb the others: `NormBudget({"price": 0.3})` limits the head `price` to 30 percent of
    the encoder's update. Directions do not change, so conflicts remain.

    Formula: `d = sum_k c_k g_k` with the largest `c_k <= 1` such that each head's share
    `c_k |g_k| / sum_j c_j |g_j|` is at most its budget `b_k`. Heads without a budget keep `c_k = 1` and share the rest
    in their original proportions.

    Guarantee: no share exceeds its budget, provided that a head without a budget has a gradient, or that the budgets of
    the heads with gradients sum to at least 1. Otherwise the budgets cannot all hold (shares sum to 1), and they are
    scaled up to sum to 1; in particular, the gradient of a single head is unchanged.

    What it fixes: magnitude. Size of the update: at most the sum of the norms.

    Args:
        budgets: Budgets above 0 and at most 1, by head name or by row index.
        name: Name of the layer.

    Raises:
        ValueError: A budget is not in (0, 1], a head is unknown, or all heads have budgets and these sum to less
            than 1.

    Example:
        >>> budget = NormBudget({1: 0.3})
        >>> budget([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-2.2302, 1.2950, 1.2950]
    """

    def __init__(self, budgets: Mapping[str | int, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._budgets = tuple((budgets or {}).items())  # as pairs: Keras wraps dicts, and JSON turns keys into strings
        for head, budget in self._budgets:
            if not is_number(budget) or not 0 < budget <= 1:
                raise ValueError(
                    f"`budgets` must be above 0 and at most 1. Received: {budget!r} for head {head!r}. "
                    "A budget is the largest allowed share of the update; to leave a head out, use a schedule."
                )

    @property
    def budgets(self) -> dict[str | int, float]:
        """The budgets as they were given."""
        return dict(self._budgets)

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        check_head_names("budgets", [head for head in self.budgets if isinstance(head, str)], head_names)
        self._vector(len(head_names))

    def _check_num_heads(self, num_heads: int) -> None:
        super()._check_num_heads(num_heads)
        self._vector(num_heads)

    def _vector(self, num_heads: int) -> list[float]:
        """One budget per head, infinite for those without."""
        vector = [math.inf] * num_heads
        for head, budget in self.budgets.items():
            if isinstance(head, str) and self.head_names is None:
                raise ValueError(
                    f"`budgets` by name require the heads' names. Received: budgets={self.budgets!r}, but `bind` was not "
                    "called. Call `bind(head_names)` first, or use row indices instead of names."
                )
            index = self.head_names.index(head) if isinstance(head, str) and self.head_names is not None else head
            if not isinstance(index, int) or not 0 <= index < num_heads:
                raise ValueError(
                    f"`budgets` must contain only known heads. Received: head {head!r}; the heads are "
                    f"{quoted(self.head_names or range(num_heads))}. Correct the name or the index."
                )
            vector[index] = float(budget)
        if num_heads > 1 and sum(vector) < 1 - 1e-9:
            raise ValueError(
                "`budgets` must sum to at least 1 if every head has one, because shares sum to 1. "
                f"Received: budgets={self.budgets!r}, which sum to {sum(vector):g}. "
                "Raise one, or leave one head without a budget."
            )
        return vector

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        norms = rows.norms * rows.active
        vector = self._vector(rows.num_heads)
        limited = rows.active * tf.constant([float(math.isfinite(budget)) for budget in vector], tf.float64)
        # A margin for rounding to float32, so that the guarantee holds exactly.
        shave = 1.0 if rows.dtype == tf.float64 else 1.0 - 2.0**-22
        budgets = limited * tf.constant([min(budget, 1.0) * shave for budget in vector], tf.float64)
        has_rest = tf.reduce_any((rows.active > 0) & (limited == 0))
        total = tf.reduce_sum(budgets)
        budgets = where(has_rest | (total >= shave * (1 - 1e-9)), budgets, tf.math.divide_no_nan(budgets, total))

        # Each round limits the heads above their budgets, which lowers the total norm for the next round.
        ratios = where(limited > 0, norms / where(limited > 0, budgets, 1.0), 0.0)
        total_size = tf.reduce_sum(norms)
        for _ in self._budgets:
            cut = ratios > total_size * (1 + 1e-14)
            kept = tf.reduce_sum(where(cut, tf.zeros_like(norms), norms))
            left = 1.0 - tf.reduce_sum(where(cut, budgets, 0.0))
            smallest = tf.reduce_min(where(limited > 0, ratios, tf.float64.max))
            total_size = where(left > 1e-6, kept / where(left > 1e-6, left, 1.0), smallest)
        return rows.coefficients(where(limited > 0, tf.minimum(norms, budgets * total_size), norms))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "budgets": [list(pair) for pair in self._budgets]}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> NormBudget:
        """Creates the balancer from the result of `get_config`."""
        return cls(dict(config["budgets"]), name=config["name"])
