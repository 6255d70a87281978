"""Balancers of magnitude: the plain sum, and gradients scaled to norms that fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_between, check_choice, check_head_names, is_number
from multihead.balancing._base import Balancer
from multihead.balancing._kinds import PreferenceBalancer, prepared, read_state, write_state
from multihead.balancing._rows import unit_rows


@keras.saving.register_keras_serializable(package="multihead")
class Sum(PreferenceBalancer):
    """Adds the heads' gradients: the gradient of the total loss, as without a balancer.

    The baseline. It is often as good as any method, well regularized (Kurin et al., NeurIPS 2022) or with tuned weights (Xin
    et al., NeurIPS 2022).

    Formula: `d = sum_k p_k g_k`, with `p` the `preference`.

    What it fixes: nothing. Size of the update: that of the sum.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

    Example:
        >>> Sum()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [2.0, 2.0, 2.0]
    """

    norms_only = lags = True

    def known(self, step: tf.Tensor, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(True), tf.constant(self._numbers(int(active.shape[0])), tf.float64)

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        gramian = tf.convert_to_tensor(gramian)
        return tf.constant(self._numbers(int(gramian.shape[0])), gramian.dtype)


@keras.saving.register_keras_serializable(package="multihead")
class EqualNorms(PreferenceBalancer):
    """Scales every head's gradient to the same norm: the mean of their norms.

    For heads whose losses have different scales. Conflicts in direction remain; add `UPGrad` after it with `Chain` to
    remove them as well.

    Formula: `d = sum_k (m p_k / |g_k|) g_k`, with `p` the `preference` and `m = sum_k |g_k| / sum_k p_k`, both sums over the
    heads that have a gradient. The share of a head in the sum of the norms is then its share in the preference.

    What it fixes: magnitude. Size of the update: at most the sum of the norms; the gradient of a single head is
    unchanged. The direction does not depend on the loss weights: use the preference instead.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

    Example:
        >>> EqualNorms()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1588, 2.0706, 2.0706]
    """

    norms_only = True
    scale_invariant = True

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        preference = rows.active * self._numbers(rows.num_heads)
        mean = tf.math.divide_no_nan(tf.reduce_sum(rows.norms * rows.active), tf.reduce_sum(preference))
        return rows.coefficients(preference * mean)


@keras.saving.register_keras_serializable(package="multihead")
class NormBudget(PreferenceBalancer):
    """Scales gradients down so that no head's share of the encoder's update exceeds its budget.

    For a head that must not disturb the others: `NormBudget({"price": 0.3})` limits the head `price` to 30 percent of
    the encoder's update. Directions do not change, so conflicts remain.

    Formula: `d = sum_k c_k g_k` with the largest coefficients `c_k <= 1` such that each head's share
    `c_k |g_k| / sum_j c_j |g_j|` is at most its budget, its `preference`. Heads without a budget keep `c_k = 1` and share
    the rest in their original proportions.

    Guarantee: no share exceeds its budget, provided that a head without a budget has a gradient, or that the budgets of
    the heads with gradients sum to at least 1. Otherwise the budgets cannot all hold (shares sum to 1), and they are
    scaled up to sum to 1; in particular, the gradient of a single head is unchanged.

    What it fixes: magnitude. Size of the update: at most the sum of the norms.

    Args:
        preference: Budgets above 0 and at most 1 by head name; 1, no limit, for a head that is missing.

    Raises:
        ValueError: A budget is not in (0, 1], a head is unknown, or the budgets of all heads sum to less than 1.

    Example:
        >>> budget = NormBudget({"price": 0.3})
        >>> budget.bind(["reply", "price"])
        >>> budget([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-2.2302, 1.2950, 1.2950]
    """

    norms_only = True

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
        requested = tf.constant(self._numbers(rows.num_heads), tf.float64)
        limited = rows.active * tf.cast(requested < 1, tf.float64)
        # A margin for rounding to float32, so that the guarantee holds exactly.
        shave = 1.0 if rows.dtype == tf.float64 else 1.0 - 2.0**-22
        budgets = limited * requested * shave
        has_rest = tf.reduce_any((rows.active > 0) & (limited == 0))
        total = tf.reduce_sum(budgets)
        budgets = where(has_rest | (total >= shave * (1 - 1e-9)), budgets, tf.math.divide_no_nan(budgets, total))

        # A round limits the heads above their budgets, which lowers the total norm for the next round.
        ratios = where(limited > 0, norms / where(limited > 0, budgets, 1.0), 0.0)
        total_size = tf.reduce_sum(norms)
        for _ in self.preference or ():
            cut = ratios > total_size * (1 + 1e-14)
            kept = tf.reduce_sum(where(cut, tf.zeros_like(norms), norms))
            left = 1.0 - tf.reduce_sum(where(cut, budgets, 0.0))
            smallest = tf.reduce_min(where(limited > 0, ratios, tf.float64.max))
            total_size = where(left > 1e-6, kept / where(left > 1e-6, left, 1.0), smallest)
        return rows.coefficients(where(limited > 0, tf.minimum(norms, budgets * total_size), norms))


@keras.saving.register_keras_serializable(package="multihead")
class NormFloor(PreferenceBalancer):
    """Scales gradients up so that no head's running norm is below a fixed fraction of the largest.

    For models in which the gradients of some heads are too small to matter, and the other heads should lose little.
    Gradients above the floor keep their proportions, and the heads' loss weights keep their effect on them. Conflicts in
    direction remain.

    Formula: `r_k = sqrt(s_k / (1 - beta^n))` is the running root mean square of a head's norm over its `n` updates before
    this one; `t_k = max(r_k, floor p_k max_j r_j / p_j)`, with `p` the `preference`; and
    `d = (|r| / |t|) sum_k (t_k / r_k) g_k`. Afterwards `s_k <- beta s_k + (1 - beta) |g_k|^2`. A head without
    an update before this one has the coefficient 1 in place of `(|r| / |t|) (t_k / r_k)`, so that the first update is the
    plain sum. A head whose preference is 0 is never scaled up and does not count in the maximum.

    The coefficients are therefore known before the gradients are, and an update is a sum with other weights, for
    any number of heads, micro-batches, batches and replicas. They follow one update later: where a head's gradient may
    suddenly be many times as large as in all updates before, limit the update with `clip=` of `compile`.

    Guarantee: `t_i / t_j >= floor p_i / p_j` for any two heads whose preference is above 0. `floor=0` is the plain sum; with
    `floor=1`, `t` is proportional to `p`: the running form of `EqualNorms`. If the heads' gradients are
    orthogonal on average and the optimizer normalizes the update, as Adam does, a head learns `t_k / |t|` times as fast as
    when it is trained alone; with equal preferences this is never below `1 / sqrt(1 + (num_heads - 1) floor^2)` of its speed
    in the plain sum.

    What it fixes: magnitude. Size of the update: that of the plain sum, as a root mean square over updates, if the gradients
    are orthogonal; the gradient of a single head is unchanged.

    State: `lengths`, `[num_heads]` float32, the `sqrt(s_k)`, and `masses`, `[num_heads]` float32, the `1 - beta^n`. The last
    running norm of an idle head still counts in the maximum, so that the coefficients do not depend on which heads have
    labels in a batch. Call `reset` after a head has been permanently disabled.

    Args:
        floor: The smallest running norm that a head's gradient is scaled to, as a fraction of the largest, from 0 to 1.
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        beta: Decay rate of the running squares, at least 0 and below 1.

    Example:
        >>> rows, balancer = [[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]], NormFloor(floor=1.0)
        >>> balancer(rows).numpy().tolist()
        [2.0, 2.0, 2.0]
        >>> balancer(rows).numpy().tolist()
        [0.1615, 2.1056, 2.1056]
    """

    norms_only = lags = True

    def __init__(
        self,
        floor: float = 0.2,
        preference: Mapping[str, float] | None = None,
        beta: float = 0.98,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(preference, name=name)
        self.floor = check_between("floor", floor, 0.0, 1.0)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.lengths = self.add_state("lengths", (num_heads,))
        self.masses = self.add_state("masses", (num_heads,))

    def known(self, step: tf.Tensor, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.constant(True), self._coefficients()

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows, coefficients = unit_rows(gramian), self._coefficients()
        length, mass = read_state(self.lengths), read_state(self.masses)
        trains = (rows.active > 0) & rows.finite
        square = self.beta * length**2 + (1.0 - self.beta) * rows.norms**2
        write_state(self.lengths, where(trains, tf.sqrt(square), length))
        write_state(self.masses, where(trains, self.beta * mass + 1.0 - self.beta, mass))
        return rows.coefficients(rows.norms * coefficients)

    def _coefficients(self) -> tf.Tensor:
        """`[num_heads]` float64: the coefficients of the next update, of heads that may be idle in it, too."""
        length, mass = read_state(self.lengths), read_state(self.masses)
        is_known = mass > 0
        running = length / tf.sqrt(where(is_known, mass, 1.0))
        preference = tf.constant(self._numbers(int(mass.shape[0])), tf.float64)
        largest = tf.reduce_max(where(preference > 0, running / where(preference > 0, preference, 1.0), 0.0))
        target = where(is_known, tf.maximum(running, self.floor * preference * largest), 0.0)
        size = tf.math.divide_no_nan(tf.norm(running), tf.norm(target))
        return where(is_known, size * tf.math.divide_no_nan(target, running), 1.0)


@keras.saving.register_keras_serializable(package="multihead")
class MetaBalance(Balancer):
    """Scales the gradients of auxiliary heads to the norm of a target head's gradient, per encoder variable.

    For one head that matters and others that only help it. Conflicts in direction remain.

    Formula, per gradient tensor: `m_k <- beta m_k + (1 - beta) |g_k|`; for every head except the target,
    `g_k <- relax g_k m_target / m_k + (1 - relax) g_k`; the update is the sum. `strategy="reduce"` does so only where
    `m_k > m_target`, `"enlarge"` only where `m_k < m_target`.

    What it fixes: magnitude. The target's gradient is unchanged. Size of the update: at most about `num_heads` times
    that of the target's gradient (with `relax=1`).

    State: `lengths`, `[num_heads, num_tensors]` float32, the running norms `m_k`, and `masses`, of the same shape, the sums
    of the averaging weights in them. `m_k` is divided by its sum, which corrects the bias of the first updates. While
    the target is idle, or has no gradient for a tensor, the other heads' gradients are unchanged.

    Args:
        target: The head that matters: its name, or the index of its row.
        relax: From 0 (no change) to 1 (equal running norms).
        beta: Decay rate of the running norms, at least 0 and below 1.
        strategy: `"both"`, `"reduce"` or `"enlarge"`.

    Raises:
        ValueError: `target` is not a head.

    Example:
        >>> MetaBalance()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.6906, 1.7818, 1.7818]

    Source: He et al., MetaBalance: Improving Multi-Task Recommendations via Adapting Gradient Magnitudes of Auxiliary
    Tasks, WWW 2022, algorithm 1. There the running norms start at 0 without bias correction.
    """

    uses = ("gradients",)

    def __init__(
        self,
        target: str | int = 0,
        relax: float = 0.7,
        beta: float = 0.9,
        strategy: str = "both",
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.target = target
        self.relax = check_between("relax", relax, 0.0, 1.0)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_high=False)
        self.strategy = check_choice("strategy", strategy, ("both", "reduce", "enlarge"))
        self.scale_invariant = self.relax == 1 and self.strategy == "both"

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        if isinstance(self.target, str):
            check_head_names("target", [self.target], head_names)
        self._target_index(len(head_names))

    def _target_index(self, num_heads: int) -> int:
        if isinstance(self.target, str) and self.head_names is not None:
            return self.head_names.index(self.target)
        if not isinstance(self.target, int) or not 0 <= self.target < num_heads:
            raise ValueError(
                "`target` must be the index of a row or, after `bind` has been called, the name of a head. "
                f"Received: target={self.target!r} with {num_heads} heads. "
                "Correct it, or call `bind(head_names)` first."
            )
        return self.target

    def create_state(self, num_heads: int) -> None:
        self._target_index(num_heads)
        self.lengths = self.add_state("lengths", (num_heads, len(self.sizes)))
        self.masses = self.add_state("masses", (num_heads, len(self.sizes)))

    def rescale(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        rows, _, finite = prepared(gradients)
        length, mass = read_state(self.lengths), read_state(self.masses)
        if len(rows) != length.shape[1]:
            raise ValueError(
                f"`gradients` must contain as many tensors as {type(self).__name__} was built for, {length.shape[1]}. "
                f"Received: {len(rows)}. Build it with a list of shapes, one per gradient tensor."
            )
        norms = tf.stack([tf.sqrt(tf.reduce_sum(matrix**2, axis=1)) for matrix in rows], axis=1)
        active = (norms > 0) & finite
        length = where(active, self.beta * length + (1.0 - self.beta) * norms, length)
        mass = where(active, self.beta * mass + 1.0 - self.beta, mass)
        write_state(self.lengths, length)
        write_state(self.masses, mass)

        running = tf.math.divide_no_nan(length, mass)
        num_heads = int(norms.shape[0])
        target = self._target_index(num_heads)
        ratios = tf.math.divide_no_nan(running[target][None, :], running)
        changes = active & active[target][None, :] & (np.arange(num_heads) != target)[:, None]
        if self.strategy != "both":
            changes &= ratios < 1 if self.strategy == "reduce" else ratios > 1
        factors = where(changes, self.relax * ratios + 1.0 - self.relax, 1.0)
        return [matrix * factors[:, index, None] for index, matrix in enumerate(rows)]
