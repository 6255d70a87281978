"""Weightings by how the losses change: DWA, FAMO, GradNorm and GO4Align."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between, check_positive, check_positive_whole
from multihead._method import Observation
from multihead.weighting._base import BoundedWeighting, Weighting, count_of, logarithm, softmax_over, sum_over, valid, values


@keras.saving.register_keras_serializable(package="multihead")
class DWA(Weighting):
    """Gives more weight to heads whose loss has recently decreased more slowly.

    Formula: `total = sum_k w_k L_k`, with `w = K softmax(r / temperature)` over the `K` active heads, where `r_k` is the
    head's mean loss in the last epoch divided by its mean loss in the epoch before. In the first two epochs all weights
    are 1.

    What it fixes: heads that learn at different speeds. It does not correct the scales of the losses.

    State: `sums` and `counts` of the current epoch, `[num_heads]` float32; `noted`, the number of updates in it, int64;
    `last` and `before_last`, `[num_heads]` float32: mean losses of the previous two epochs, 0 before they exist.

    Args:
        temperature: Above 0; a higher temperature makes the weights more equal.
        updates_per_epoch: The number of updates in an epoch of the formula. None uses the epochs of `fit`; a custom training
            loop, which has none, needs a number.

    Example:
        >>> DWA()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Liu, Johns and Davison, End-to-End Multi-Task Learning with Attention, CVPR 2019, section 3.3.
    """

    uses = ()

    def __init__(self, temperature: float = 2.0, updates_per_epoch: int | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = check_positive("temperature", temperature)
        if updates_per_epoch is not None:
            updates_per_epoch = check_positive_whole("updates_per_epoch", updates_per_epoch)
        self.updates_per_epoch = updates_per_epoch

    def create_state(self, num_heads: int) -> None:
        self.sums = self.add_state("sums", (num_heads,))
        self.counts = self.add_state("counts", (num_heads,))
        self.last = self.add_state("last", (num_heads,))
        self.before_last = self.add_state("before_last", (num_heads,))
        self.noted = self.add_state("noted", (), dtype="int64")

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        last, before = (tf.convert_to_tensor(tensor_variable(variable)) for variable in (self.last, self.before_last))
        known = (last > 0) & (before > 0)
        ratios = where(known, last / where(known, before, 1.0), 1.0)
        weights = count_of(active) * softmax_over(ratios / self.temperature, active)
        return sum_over(weights * losses, active)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        sums, counts, noted = (tensor_variable(variable) for variable in (self.sums, self.counts, self.noted))
        seen = update.active & applied
        sums.assign(sums + where(seen, update.losses, 0.0))
        counts.assign(counts + tf.cast(seen, tf.float32))
        noted.assign(noted + tf.cast(applied, tf.int64))
        if self.updates_per_epoch is not None:
            self._turn(applied & tf.equal(noted, self.updates_per_epoch))

    def end_epoch(self) -> None:
        if self.updates_per_epoch is None:
            self._turn(tf.constant(True))

    def _turn(self, is_due: tf.Tensor) -> None:
        """Ends an epoch of the formula if `is_due`; a head without a loss in it keeps its means."""
        state = (self.sums, self.counts, self.last, self.before_last, self.noted)
        sums, counts, last, before_last, noted = (tensor_variable(variable) for variable in state)
        seen = is_due & (counts > 0)
        means = where(seen, tf.math.divide_no_nan(sums, counts), last)
        older = where(seen, last, before_last)
        last.assign(means)
        before_last.assign(older)
        for variable in (sums, counts, noted):
            variable.assign(where(is_due, tf.zeros_like(variable), variable))


_BETA_1, _BETA_2, _EPSILON = 0.9, 0.999, 1e-8


@keras.saving.register_keras_serializable(package="multihead")
class FAMO(BoundedWeighting):
    """Decreases all losses at similar rates, using one extra forward pass after every update.

    Formula: `total = c sum_k z_k log(L_k - b_k)`, with `z = softmax(v)` over the active heads and
    `c = 1 / sum_k (z_k / (L_k - b_k))` treated as constant, so `w_k = c z_k / (L_k - b_k)`: the weights sum to 1. After the
    update, with `L'_k` the losses on the same examples, `delta_k = log(L_k - b_k) - log(L'_k - b_k)` is the decrease of a
    log-loss, and Adam updates `v` along `-J delta`, with `J` the Jacobian of the softmax: a head whose loss decreased more
    loses weight. (1e-8 is added in the logarithms.)

    What it fixes: the scales of losses and heads that are left behind. It costs one more forward pass.

    State: `logits` (the `v`), `first_moments`, `second_moments` and `steps`, all `[num_heads]` float32: the state of Adam.
    The gradient of `v` is known only after the update, so it is not applied by the trainer's optimizer, and custom training
    loops with `compute_gradients` and `apply_gradients` do not change `v`. With dropout, the second forward pass uses a
    different mask.

    Args:
        learning_rate: Adam's learning rate for `v`, above 0.
        weight_decay: Weight decay of `v`, at least 0.
        least_losses: The lower bounds `b_k` of the losses by head name, multiplied by the head's `weight=` as `L_k` is. A
            missing head has 0. An update with a loss below its bound is skipped.

    Example:
        >>> [round(float(w), 4) for w in FAMO()([4.0, 1.0])]
        [0.2, 0.8]

    Source: Liu et al., FAMO: Fast Adaptive Multitask Optimization, NeurIPS 2023, algorithm 1, with the default values of
    the authors' experiments.
    """

    uses = ("losses", "losses_after")

    def __init__(
        self,
        learning_rate: float = 0.025,
        weight_decay: float = 1e-3,
        least_losses: Mapping[str, float] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(least_losses, name=name)
        self.learning_rate = check_positive("learning_rate", learning_rate)
        self.weight_decay = check_between("weight_decay", weight_decay, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.logits = self.add_state("logits", (num_heads,))
        self.first_moments = self.add_state("first_moments", (num_heads,))
        self.second_moments = self.add_state("second_moments", (num_heads,))
        self.steps = self.add_state("steps", (num_heads,))

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        shares = softmax_over(tf.convert_to_tensor(tensor_variable(self.logits)), active)
        logarithms = logarithm(self._above(losses), active)
        whole = sum_over(shares * tf.exp(-tf.stop_gradient(logarithms)), active)
        return tf.math.divide_no_nan(tf.reduce_sum(shares * logarithms), whole)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        active = update.active
        before, after = (logarithm(self._above(losses), active) for losses in (update.losses, update.losses_after))
        fell = before - after
        moved = active & applied & tf.reduce_all(tf.math.is_finite(fell))
        state = (self.logits, self.first_moments, self.second_moments, self.steps)
        logits, first, second, steps = (tensor_variable(variable) for variable in state)
        shares = softmax_over(tf.convert_to_tensor(logits), active)
        gradient = shares * (fell - tf.reduce_sum(shares * fell)) + self.weight_decay * logits
        gradient = where(moved, gradient, 0.0)  # a non-finite gradient must not reach the moments
        new_first = _BETA_1 * first + (1.0 - _BETA_1) * gradient
        new_second = _BETA_2 * second + (1.0 - _BETA_2) * tf.square(gradient)
        new_steps = steps + 1.0
        size = tf.sqrt(new_second / (1.0 - tf.pow(_BETA_2, new_steps))) + _EPSILON
        step = self.learning_rate * new_first / (1.0 - tf.pow(_BETA_1, new_steps)) / size
        for variable, new in ((logits, logits - step), (first, new_first), (second, new_second), (steps, new_steps)):
            variable.assign(where(moved, new, variable))


_LEAST = 1e-3


@keras.saving.register_keras_serializable(package="multihead")
class GradNorm(Weighting):
    """Learns weights that bring the heads' gradients to similar norms, larger for heads that train more slowly.

    Formula: `total = sum_k w_k L_k`. With `G_k = w_k |g_k|`, where `g_k` is the representation gradient of `L_k` (its
    encoder gradient with a balancer and `balance_at="parameters"`), and `r_k = (L_k / L_k(0)) / mean_j (L_j / L_j(0))`,
    the weights minimize `sum_k |G_k - mean_j(G_j) r_k^alpha|`, with the target treated as constant. After every update
    they are scaled to sum to the number of heads `K`.

    What it fixes: gradient norms and heads that learn at different speeds; conflicts remain.

    State: one learned scalar per head, `weight_{head}`, initially 1, which determines the weights up to scale; and
    `first_losses`, `[num_heads]` float32, the `L_k(0)`: the loss at the head's first update, 0 before it.

    Args:
        alpha: How strongly the norms depend on training speed, at least 0; 0 aims at equal norms.

    Example:
        >>> GradNorm()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Chen et al., GradNorm: Gradient Normalization for Adaptive Loss Balancing in Deep Multitask Networks, ICML
    2018, algorithm 1, with the representation instead of the last shared layer's weights. A weight is at least 0.001.
    """

    uses = ("norms",)

    def __init__(self, alpha: float = 1.5, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.alpha = check_between("alpha", alpha, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.parts = self.add_learned("weight", num_heads, 1.0)
        self.first_losses = self.add_state("first_losses", (num_heads,))

    def _parts(self, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The unnormalized weights, and the factor that scales them to sum to the number of active heads.

        They have a lower bound, which the gradient ignores, so that a weight can recover.
        """
        parts = values(self.parts)
        parts += tf.stop_gradient(tf.maximum(parts, _LEAST) - parts)
        return parts, tf.stop_gradient(count_of(active) / tf.maximum(sum_over(parts, active), _LEAST))

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        parts, scale = self._parts(active)
        return sum_over(scale * tf.stop_gradient(parts) * losses, active)

    def objective(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor) -> tf.Tensor:
        parts, scale = self._parts(active)
        norms = where(active, tf.zeros_like(losses) if norms is None else norms, 0.0)
        weighted = scale * parts * norms
        first = tf.convert_to_tensor(tensor_variable(self.first_losses))
        first = where(first > 0, first, losses)
        ratios = where(active, tf.math.divide_no_nan(losses, first), 0.0)
        count = tf.maximum(count_of(active), 1.0)
        speeds = tf.math.divide_no_nan(ratios, tf.reduce_sum(ratios) / count)
        targets = tf.reduce_sum(weighted) / count * tf.pow(tf.maximum(speeds, 0.0), self.alpha)
        # The weights are `scale` times the parts. Divided by its square, a gradient step on the parts moves the weights
        # as far as the same step on the weights would.
        return sum_over(tf.abs(weighted - tf.stop_gradient(targets)), active) / tf.square(scale)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        first_losses = tensor_variable(self.first_losses)
        is_first = update.active & applied & (first_losses <= 0)
        first_losses.assign(where(is_first, update.losses, first_losses))


@keras.saving.register_keras_serializable(package="multihead")
class GO4Align(Weighting):
    """Brings the losses to one scale, and gives similar heads one weight.

    Formula: `total = sum_k w_k L_k`, with `v_k = q_k sum_j L_j / L_k` and `w_k` the mean of the `v_j` over the group of head
    k, and `q = softmax(-step_size R)`, where `R_k` is the sum of the losses of head k over the updates so far, including
    this one. The heads are divided into at most `num_groups` groups such that the squared distances of the `v_k` from the
    means of their groups sum to a minimum (k-means). The weights are constants in the gradient; 1e-8 is added to all `L_k`
    in the denominator.

    What it fixes: the scales of losses: with one group per head, the weights are at first those of `LogLoss` times the
    mean loss; with one group, all heads have the same weight. Over many updates, a head whose loss stays above the others'
    loses weight, so `step_size` times the number of updates times the losses must stay small. An update with a negative loss
    is skipped.

    State: `indicators`, `[num_heads]` float32, the `-step_size R_k`.

    Args:
        num_groups: The largest number of groups, at least 1; to be chosen per data set.
        step_size: At least 0: how fast the indicators change.

    Example:
        >>> GO4Align()([4.0, 0.5]).numpy().round(4).tolist()
        [0.5624, 4.5008]

    Source: Shen et al., GO4Align: Group Optimization for Multi-Task Alignment, NeurIPS 2024, with the indicators of the
    authors' experiments and their step size. There k-means starts at random; here it is exact. The default of `num_groups`
    is not from the paper.
    """

    def __init__(self, num_groups: int = 2, step_size: float = 1e-4, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.num_groups = check_positive_whole("num_groups", num_groups)
        self.step_size = check_between("step_size", step_size, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        self.indicators = self.add_state("indicators", (num_heads,))

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        losses = valid(losses)
        known = tf.convert_to_tensor(tensor_variable(self.indicators)) - self.step_size * losses
        values = softmax_over(known, active) * sum_over(losses, active) / (where(active, losses, 1.0) + 1e-8)
        weights = tf.cast(group_means(tf.cast(values, tf.float64), active, self.num_groups), tf.float32)
        return sum_over(tf.stop_gradient(weights) * losses, active)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        indicators = tensor_variable(self.indicators)
        indicators.assign_sub(self.step_size * where(update.active & applied, update.losses, 0.0))


def group_means(values: tf.Tensor, active: tf.Tensor, num_groups: int) -> tf.Tensor:
    """The means of the active numbers' groups, for the best division into up to `num_groups` groups.

    This is k-means in one dimension: the best groups are intervals of the sorted numbers, computed by dynamic programming.
    """
    size = int(values.shape[0])
    order = tf.argsort(where(active, values, values.dtype.max), stable=True)
    counts = tf.gather(tf.cast(active, tf.float64), order)
    ordered = tf.gather(where(active, values, 0.0), order)

    def between(terms: tf.Tensor) -> tf.Tensor:
        """`[n + 1, n + 1]`: the sum of the terms from each place up to, but not including, each other place."""
        sums = tf.concat([[0.0], tf.cumsum(terms)], axis=0)
        return tf.expand_dims(sums, 0) - tf.expand_dims(sums, 1)

    number, total, square = between(counts), between(ordered), between(ordered**2)
    is_interval = tf.constant([[begin <= end for end in range(size + 1)] for begin in range(size + 1)])
    costs = where(is_interval, square - total**2 / tf.maximum(number, 1.0), values.dtype.max)
    least, begins = costs[0], []
    for _ in range(min(num_groups, size) - 1):
        sums = tf.expand_dims(tf.minimum(least, 1e300), 1) + tf.minimum(costs, 1e300)
        begins.append(tf.argmin(sums, axis=0, output_type=tf.int32))
        least = tf.reduce_min(sums, axis=0)

    end = tf.constant(size)
    means = tf.zeros_like(ordered)
    places = tf.range(size)
    for begin_of in [*reversed(begins), None]:
        begin = tf.constant(0) if begin_of is None else begin_of[end]
        mean = total[begin, end] / tf.maximum(number[begin, end], 1.0)
        means = where((places >= begin) & (places < end), mean, means)
        end = begin
    return tf.gather(means, tf.argsort(order))
