"""Scaling auxiliary gradients to the norm of a target gradient (MetaBalance)."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between, check_choice, check_head_names
from multihead.balancing._base import Balancer
from multihead.balancing._kinds import prepared


@keras.saving.register_keras_serializable(package="multihead")
class MetaBalance(Balancer):
    """Scales the gradients of auxiliary heads to the norm of a target head's gradient, per encoder variable.

    For one head that matters and others that only help it. Conflicts in direction remain; add `UPGrad` after it with
    `Chain` to remove them as well.

    Formula, for each gradient tensor: `m_k <- beta m_k + (1 - beta) |g_k|`; for every head except the target,
    `g_k <- relax g_k m_target / m_k + (1 - relax) g_k`; the update is the sum. `strategy="reduce"` does so only where
    `m_k > m_target`, `"enlarge"` only where `m_k < m_target`.

    What it fixes: magnitude. The target's gradient is unchanged. Size of the update: at most about `num_heads` times
    that of the target's gradient (with `relax=1`).

    State: `lengths`, `[num_heads, num_tensors]` float32, the running norms `m_k`, and `masses`, of the same shape, the
    sums of the averaging weights in them. Each `m_k` is divided by its sum, which corrects the bias of the first
    updates. The state of an idle head does not change. While the target is idle, or has no gradient for a tensor, the
    other heads' gradients are unchanged.

    Args:
        target: The head that matters: its name, or the index of its row.
        relax: From 0 (no change) to 1 (equal running norms).
        beta: Decay rate of the running norms, at least 0 and below 1.
        strategy: `"both"`, `"reduce"` or `"enlarge"`.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or the target is not a head.

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
        lengths, masses = tensor_variable(self.lengths), tensor_variable(self.masses)
        if len(rows) != lengths.shape[1]:
            raise ValueError(
                f"`gradients` must contain as many tensors as {type(self).__name__} was built for, {lengths.shape[1]}. "
                f"Received: {len(rows)}. Build it with a list of shapes, one per gradient tensor."
            )
        norms = tf.stack([tf.sqrt(tf.reduce_sum(each**2, axis=1)) for each in rows], axis=1)
        active = (norms > 0) & finite
        length, mass = [tf.cast(tf.convert_to_tensor(each), tf.float64) for each in (lengths, masses)]
        length = where(active, self.beta * length + (1.0 - self.beta) * norms, length)
        mass = where(active, self.beta * mass + 1.0 - self.beta, mass)
        lengths.assign(tf.cast(length, tf.float32))
        masses.assign(tf.cast(mass, tf.float32))

        running = tf.math.divide_no_nan(length, mass)
        target = self._target_index(int(norms.shape[0]))
        ratios = tf.math.divide_no_nan(running[target][None, :], running)
        changes = active & active[target][None, :]
        if self.strategy != "both":
            changes &= ratios < 1 if self.strategy == "reduce" else ratios > 1
        factors = where(changes, self.relax * ratios + 1.0 - self.relax, 1.0)
        mark = tf.one_hot(target, int(norms.shape[0]), on_value=True, off_value=False)
        factors = where(mark[:, None], 1.0 + 0.0 * factors, factors)
        return [each * factors[:, index, None] for index, each in enumerate(rows)]
