"""An upper limit on a head's share of the encoder's update."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import is_number
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class NormBudget(PreferenceBalancer):
    """Scales gradients down so that no head's share of the encoder's update exceeds its budget.

    For a head that must not disturb the others: `NormBudget({"price": 0.3})` limits the head `price` to 30 percent of
    the encoder's update. Directions do not change, so conflicts remain.

    Formula: `d = sum_k c_k g_k` with the largest `c_k <= 1` such that each head's share
    `c_k |g_k| / sum_j c_j |g_j|` is at most its budget, its `preference`. Heads without a budget keep `c_k = 1` and share
    the rest in their original proportions.

    Guarantee: no share exceeds its budget, provided that a head without a budget has a gradient, or that the budgets of
    the heads with gradients sum to at least 1. Otherwise the budgets cannot all hold (shares sum to 1), and they are
    scaled up to sum to 1; in particular, the gradient of a single head is unchanged.

    What it fixes: magnitude. Size of the update: at most the sum of the norms.

    Args:
        preference: Budgets above 0 and at most 1 by head name; 1, no limit, for a head that is missing.
        name: Name of the layer.

    Raises:
        TypeError: `preference` is not a mapping.
        ValueError: A budget is not in (0, 1], a head is unknown, or the budgets of all heads sum to less than 1.

    Example:
        >>> budget = NormBudget({"price": 0.3})
        >>> budget.bind(["reply", "price"])
        >>> budget([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-2.2302, 1.2950, 1.2950]
    """

    def _check_numbers(self, preference: Mapping[str, float]) -> None:
        for head, budget in preference.items():
            if not is_number(budget) or not 0 < budget <= 1:
                raise ValueError(
                    f"`preference` of NormBudget must be above 0 and at most 1. Received: {budget!r} for head {head!r}. "
                    "It is the largest allowed share of the update; to leave a head out, use a schedule."
                )

    def _numbers(self, num_heads: int) -> list[float]:
        budgets = super()._numbers(num_heads)
        if num_heads > 1 and sum(budgets) < 1 - 1e-9:
            raise ValueError(
                "`preference` of NormBudget must sum to at least 1 over all heads, because shares sum to 1. "
                f"Received: preference={self.preference!r}, which sums to {sum(budgets):g}. "
                "Raise one, or leave one head out of it."
            )
        return budgets

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        norms = rows.norms * rows.active
        given = self._numbers(rows.num_heads)
        limited = rows.active * tf.constant([float(budget < 1) for budget in given], tf.float64)
        # A margin for rounding to float32, so that the guarantee holds exactly.
        shave = 1.0 if rows.dtype == tf.float64 else 1.0 - 2.0**-22
        budgets = limited * tf.constant([budget * shave for budget in given], tf.float64)
        has_rest = tf.reduce_any((rows.active > 0) & (limited == 0))
        total = tf.reduce_sum(budgets)
        budgets = where(has_rest | (total >= shave * (1 - 1e-9)), budgets, tf.math.divide_no_nan(budgets, total))

        # Each round limits the heads above their budgets, which lowers the total norm for the next round.
        ratios = where(limited > 0, norms / where(limited > 0, budgets, 1.0), 0.0)
        total_size = tf.reduce_sum(norms)
        for _ in self.preference or ():
            cut = ratios > total_size * (1 + 1e-14)
            kept = tf.reduce_sum(where(cut, tf.zeros_like(norms), norms))
            left = 1.0 - tf.reduce_sum(where(cut, budgets, 0.0))
            smallest = tf.reduce_min(where(limited > 0, ratios, tf.float64.max))
            total_size = where(left > 1e-6, kept / where(left > 1e-6, left, 1.0), smallest)
        return rows.coefficients(where(limited > 0, tf.minimum(norms, budgets * total_size), norms))
