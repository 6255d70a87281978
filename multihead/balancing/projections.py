"""Balancers that project conflicts away: UPGrad, DualProj, PCGrad, GradVac and GradDrop."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.random import uniform
from multihead._ground.tensors import scan_rows, where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_between, check_whole
from multihead.balancing._base import MANY_HEADS, MAX_HEADS, Balancer
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import fast_matvec, inside_of_two, unit_rows
from multihead.balancing._solvers.least_squares import dual_cone, nonnegative_least_squares, projections


@keras.saving.register_keras_serializable(package="multihead")
class UPGrad(PreferenceBalancer):
    """Projects the heads' gradients onto the closest updates that conflict with no head, and adds the results.

    The first choice when heads conflict in direction: exact for any number of heads, independent of their order, and
    equal to the plain sum if no heads conflict.

    Formula: `d = sum_k p_k P(g_k)`, where `P` is the projection onto the dual cone `{x: x . g_j >= 0 for all j}` and
    `p` the `preference`.

    What it fixes: direction (`d . g_k >= 0` for every head). Size of the update: that of the sum if no two heads
    conflict, smaller otherwise; a head's contribution scales with its gradient. Zero if the heads exactly oppose
    each other. At most 128 heads.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

    Example:
        >>> UPGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Quinton and Rey, Jacobian Descent for Multi-Objective Optimization, arXiv 2406.16232, 2024. There the
    projections are averaged; here they are added, so that `Sum` and `UPGrad` differ only if heads conflict.
    """

    max_heads = MAX_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        sizes = rows.active * rows.norms * self._numbers(rows.num_heads)
        if rows.num_heads == 2:
            pull = tf.maximum(-rows.cosines[0, 1], 0.0)
            return rows.coefficients(inside_of_two(rows, sizes + pull * tf.reverse(sizes, [0])))

        def projected() -> tf.Tensor:
            weights = projections(rows)
            return dual_cone(rows, weights).inside(tf.linalg.matvec(weights, sizes, transpose_a=True))

        # Without conflict, rounding does not matter: the error of a product with the sum is at most `noise sum_k sizes_k`,
        # and the norm of the sum is at least the root of `sum_k sizes_k^2`.
        conflict = tf.reduce_any(rows.cosines < -rows.noise)
        return rows.coefficients(tf.cond(conflict, projected, lambda: tf.identity(sizes)))


@keras.saving.register_keras_serializable(package="multihead")
class DualProj(PreferenceBalancer):
    """Projects the sum of the heads' gradients onto the closest update that conflicts with no head.

    `UPGrad` projects each head's gradient; this method projects their sum, so heads with large gradients dominate.

    Formula: `d = P(sum_k p_k g_k)`, where `P` is the projection onto the dual cone `{x: x . g_j >= 0 for all j}` and
    `p` the `preference`.

    What it fixes: direction (`d . g_k >= 0` for every head). Size of the update: that of the sum if it conflicts with
    no head, smaller otherwise. At most 128 heads.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.

    Example:
        >>> DualProj()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [1.1111, 2.2222, 2.2222]

    Source: Lopez-Paz and Ranzato, Gradient Episodic Memory for Continual Learning, NeurIPS 2017; for several heads as
    in Quinton and Rey, arXiv 2406.16232, but with the sum instead of the mean.
    """

    max_heads = MAX_HEADS

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        sizes = rows.active * rows.norms * self._numbers(rows.num_heads)
        if rows.num_heads == 2:  # of two rows, at most one conflicts with the sum
            return rows.coefficients(inside_of_two(rows, sizes + tf.maximum(-tf.linalg.matvec(rows.cosines, sizes), 0.0)))

        def projected() -> tf.Tensor:
            cone = dual_cone(rows)
            weights = fast_matvec(cone.removal, sizes)
            products = fast_matvec(rows.cosines, weights)
            norm = tf.sqrt(tf.maximum(tf.reduce_sum(weights * products), 0.0))
            norm = where(norm > 0, norm, 1.0)
            lift = nonnegative_least_squares(rows.cosines, products[None] / norm, rows.noise, rows.tolerance)[0]
            return cone.inside(weights + norm * lift)

        conflict = tf.reduce_any(rows.cosines < -rows.noise)
        return rows.coefficients(tf.cond(conflict, projected, lambda: tf.identity(sizes)))


@keras.saving.register_keras_serializable(package="multihead")
class PCGrad(Balancer):
    """Projects each head's gradient onto the normal plane of every other gradient it conflicts with, one after another.

    Formula: for each head i, start with `x = g_i`; for the other heads j in random order, if `x . g_j < 0`, then
    `x <- x - (x . g_j / |g_j|^2) g_j`; the update is the sum of the results.

    What it fixes: direction, but completely only for two heads: with three, a later projection may reintroduce an
    earlier conflict, and the order of the projections matters. `UPGrad` has neither problem. Size of the update: that
    of the sum if no two heads conflict, smaller otherwise. At most 1024 heads.

    The order is a function of `seed` and the step, so a resumed run repeats it.

    Args:
        seed: Seed of the random order, a whole number.

    Example:
        >>> PCGrad()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Yu et al., Gradient Surgery for Multi-Task Learning, NeurIPS 2020, algorithm 1.
    """

    uses = ("step",)
    max_heads = MANY_HEADS

    def __init__(self, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.seed = check_whole("seed", seed)

    def coefficients(self, gramian: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        rows = unit_rows(gramian)
        weights = tf.linalg.diag(rows.active)
        orders = tf.transpose(other_heads_in_random_order(rows.num_heads, self.seed, step))

        def project(weights: tf.Tensor, others: tf.Tensor) -> tf.Tensor:
            mark = tf.one_hot(others, rows.num_heads, dtype=tf.float64)
            products = tf.reduce_sum(weights * tf.gather(rows.cosines, others), axis=1)
            return weights - tf.minimum(products, 0.0)[:, None] * mark

        weights = scan_rows(project, weights, orders)
        return rows.coefficients(tf.linalg.matvec(weights, rows.norms, transpose_a=True))


def other_heads_in_random_order(num_heads: int, seed: int, step: Tensor) -> tf.Tensor:
    """For each head, the other heads in an independent random order, `[num_heads, num_heads - 1]`, from seed and step.

    Up to 16 heads, the relative order of two heads does not depend on the number of heads after them.
    """
    drawn = max(num_heads, 16)
    keys = uniform([drawn, drawn], seed, step)[:num_heads, :num_heads]
    return tf.argsort(tf.linalg.set_diag(keys, tf.fill([num_heads], 2.0)), axis=1)[:, : num_heads - 1]


@keras.saving.register_keras_serializable(package="multihead")
class GradVac(Balancer):
    """Rotates each head's gradient towards the others until their cosine reaches its running average.

    Formula: for each head i, start with `x = g_i`; for the other heads j in random order, with `f = cos(x, g_j)` and
    the target `F_ij`: if `f < F_ij`, then
    `x <- x + |x| (F_ij sqrt(1 - f^2) - f sqrt(1 - F_ij^2)) / (|g_j| sqrt(1 - F_ij^2)) g_j`, after which the cosine is
    `F_ij`; then `F_ij <- (1 - beta) F_ij + beta f`. The update is the sum of the results. As long as the targets are 0,
    this is `PCGrad`.

    What it fixes: direction, partially; heads may still conflict. Size of the update: that of the sum or larger, since
    the rotation lengthens gradients. At most 1024 heads.

    State: `targets`, `[num_heads, num_heads]` float32, the running cosines `F`, initially 0.

    Args:
        beta: Weight of the newest cosine, above 0 and at most 1.
        seed: Seed of the random order, a whole number.

    Example:
        >>> GradVac()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.5848, 3.8012, 3.8012]

    Source: Wang et al., Gradient Vaccine, ICLR 2021, algorithm 1, with the whole encoder as one group of parameters.
    """

    uses = ("step",)
    max_heads = MANY_HEADS

    def __init__(self, beta: float = 0.01, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_low=False)
        self.seed = check_whole("seed", seed)

    def create_state(self, num_heads: int) -> None:
        self.targets = self.add_state("targets", (num_heads, num_heads))

    def coefficients(self, gramian: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        rows = unit_rows(gramian)
        before = tf.convert_to_tensor(tensor_variable(self.targets))
        targets = tf.cast(before, tf.float64)
        orders = tf.transpose(other_heads_in_random_order(rows.num_heads, self.seed, step))
        State = tuple[tf.Tensor, tf.Tensor, tf.Tensor]

        def turn(state: State, others: tf.Tensor) -> State:
            weights, products, targets = state
            mark = tf.one_hot(others, rows.num_heads, dtype=tf.float64)
            norm = tf.sqrt(tf.maximum(tf.reduce_sum(weights * products, axis=1), 0.0))
            # A vector that has cancelled out has no direction: neither it nor its target changes.
            both = (norm**2 > rows.tolerance) & (tf.linalg.matvec(mark, rows.active) > 0)
            cosine = tf.reduce_sum(products * mark, axis=1) / where(both, norm, 1.0)
            cosine = tf.clip_by_value(cosine, -1.0, 1.0)
            target = tf.reduce_sum(targets * mark, axis=1)
            widths = tf.sqrt(1.0 - cosine**2), tf.sqrt(tf.maximum(1.0 - target**2, rows.noise))
            change = norm * (target * widths[0] - cosine * widths[1]) / widths[1]
            change = where(both & (cosine < target), change, 0.0 * change)[:, None]
            moved = where(both, self.beta * (cosine - target), 0.0 * target)[:, None]
            return weights + change * mark, products + change * tf.gather(rows.cosines, others), targets + moved * mark

        state = tf.linalg.diag(rows.active), rows.cosines, targets
        weights, _, targets = scan_rows(turn, state, orders)
        tensor_variable(self.targets).assign(where(rows.finite, tf.cast(targets, tf.float32), before))
        return rows.coefficients(tf.linalg.matvec(weights, rows.norms, transpose_a=True))


@keras.saving.register_keras_serializable(package="multihead")
class GradDrop(Balancer):
    """Samples one sign per coordinate, in proportion to the gradients with that sign, and drops the opposite sign.

    Formula, per coordinate: `P = (1 + sum_k g_k / sum_k |g_k|) / 2` and `U` uniform in (0, 1). A head's gradient is
    kept where it is positive and `U < P`, or negative and `U > P`; elsewhere it is multiplied by `leak`. The update is
    the sum of the results.

    What it fixes: direction, per coordinate and on average. Size of the update: that of the sum where signs agree; in
    other coordinates it may be larger or smaller. The sample depends on `seed`, the step and the number of coordinates.

    Args:
        leak: Fraction of the heads' gradients that is always kept, from 0 to 1.
        seed: Seed of the random signs, a whole number.

    Example:
        >>> GradDrop()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-4.0, 2.0, 2.0]

    Source: Chen et al., Just Pick a Sign, NeurIPS 2020, algorithm 1, applied to the gradients directly (the paper first
    multiplies activation gradients by the signs of the activations and sums over the batch).
    """

    uses = ("gradients", "step")
    rescales = False

    def __init__(self, leak: float = 0.0, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.leak = check_between("leak", leak, 0.0, 1.0)
        self.seed = check_whole("seed", seed)

    def combine(self, gradients: Sequence[tf.Tensor], *, step: Tensor = 0) -> list[tf.Tensor]:
        update = []
        for stream, rows in enumerate(map(tf.stop_gradient, gradients)):
            # Half a unit in the last place keeps the sample above 0, so that a coordinate of one sign is never dropped.
            draw = tf.cast(uniform(tf.shape(rows)[1:], self.seed, step, stream), rows.dtype) + 2.0**-25
            total, size = tf.reduce_sum(rows, axis=0), tf.reduce_sum(tf.abs(rows), axis=0)
            positive = 0.5 * (1.0 + tf.math.divide_no_nan(total, size))
            kept = where(draw < positive, tf.maximum(rows, 0.0), tf.minimum(rows, 0.0))
            update.append(tf.reduce_sum(self.leak * rows + (1.0 - self.leak) * kept, axis=0))
        return update
