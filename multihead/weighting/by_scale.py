"""Weightings by the current losses: their logarithms, learned uncertainties, softmaxes; and random weights."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.random import normal
from multihead._ground.tensors import where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_positive, check_whole
from multihead.weighting._base import (
    BoundedWeighting,
    LearnedWeighting,
    Weighting,
    count_of,
    logarithm,
    softmax_over,
    sum_over,
    valid,
)


@keras.saving.register_keras_serializable(package="multihead")
class LogLoss(Weighting):
    """Minimizes the sum of the logarithms of the losses, so that only relative changes of a loss matter.

    Formula: `total = sum_k log L_k`, so `w_k = 1 / L_k` (with 1e-8 added to `L_k`).

    What it fixes: the scales of losses: a loss in cents trains like one in dollars, and `weight=` of a head has no effect.
    An update with a negative loss is skipped.

    Example:
        >>> LogLoss()([4.0, 0.5]).numpy().tolist()
        [0.25, 2.0]

    Source: the scale-invariant baseline of Navon et al., Multi-Task Learning as a Bargaining Game, ICML 2022.
    """

    scale_invariant = True

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(logarithm(losses, active))


@keras.saving.register_keras_serializable(package="multihead")
class GeometricMean(Weighting):
    """Minimizes the geometric mean of the losses, in which the same relative decrease of any loss counts equally.

    Formula: `total = (prod_k L_k)^(1/K)`, computed as `exp(mean_k log L_k)` (with 1e-8 added to `L_k`), so
    `w_k = total / (K L_k)`, over the `K` active heads.

    What it fixes: the scales of losses: scaling a loss changes the size of the update, not its direction. An update with a
    negative loss is skipped.

    Example:
        >>> GeometricMean()([4.0, 1.0]).numpy().tolist()
        [0.25, 1.0]

    Source: Chennupati et al., MultiNet++: Multi-Stream Feature Aggregation and Geometric Loss Strategy, CVPR workshops
    2019.
    """

    scale_invariant = True

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        return tf.exp(tf.math.divide_no_nan(tf.reduce_sum(logarithm(losses, active)), count_of(active)))


@keras.saving.register_keras_serializable(package="multihead")
class Uncertainty(LearnedWeighting):
    """Learns the heads' homoscedastic noise and gives less weight to noisier heads.

    Formula: `total = sum_k (exp(-s_k) L_k + s_k) / 2`, so `w_k = exp(-s_k) / 2`. For a fixed `L_k`, the learned `s_k`
    converges to `log L_k`, where `w_k = 1 / (2 L_k)`.

    What it fixes: the scales of losses. The total may become negative, which is not an error: watch the heads' own
    losses. The regularizer, `sum_k s_k / 2`, is logged separately.

    State: one learned scalar per head, `log_variance_{head}`, the `s_k`, initially 0.

    Example:
        >>> Uncertainty()([4.0, 0.5]).numpy().tolist()
        [0.5, 0.5]

    Source: Kendall, Gal and Cipolla, Multi-Task Learning Using Uncertainty to Weigh Losses, CVPR 2018, equation 7, with
    the factor 1/2 for every kind of loss. The optimizer's weight decay, if any, also applies to the `s_k`.
    """

    prefix, factor, sign = "log_variance", 0.5, -1.0


@keras.saving.register_keras_serializable(package="multihead")
class IMTLL(LearnedWeighting):
    """Learns weights that bring all weighted losses to the same scale.

    Formula: `total = sum_k (exp(s_k) L_k - s_k)`, so `w_k = exp(s_k)`. For a fixed `L_k`, the learned `s_k` converges to
    `-log L_k`, where `w_k L_k = 1`.

    What it fixes: the scales of losses. The total may be negative; the regularizer, `-sum_k s_k`, is logged separately.

    State: one learned scalar per head, `log_scale_{head}`, the `s_k`, initially 0.

    Example:
        >>> IMTLL()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Liu et al., Towards Impartial Multi-task Learning, ICLR 2021, section 3.2. The optimizer's weight decay, if
    any, also applies to the `s_k`.
    """

    prefix = "log_scale"


@keras.saving.register_keras_serializable(package="multihead")
class UWSO(Weighting):
    """Gives the heads the weights that learned uncertainties would converge to, made less extreme by a softmax.

    Soft optimal uncertainty weighting: `1 / L_k` is the weight at the optimum of uncertainty weighting, so nothing is
    learned. The softmax keeps the sum of the weights at 1.

    Formula: `total = sum_k w_k L_k`, with `w = softmax(1 / (temperature L_k))` over the active heads (with 1e-8 added to
    `L_k`); the weights are constants in the gradient.

    What it fixes: heads whose losses are far above the others'. The weights depend on the unit of the losses: they are
    nearly equal if `temperature` is far above all `1 / L_k`, and the smallest loss has all of the weight if `temperature` is
    far below them. `temperature` must therefore be chosen per data set. An update with a negative loss is skipped.

    Args:
        temperature: Above 0; a higher temperature makes the weights more equal.

    Example:
        >>> UWSO()([4.0, 0.5]).numpy().round(4).tolist()
        [0.148, 0.852]

    Source: Kirchdorfer et al., Analytical Uncertainty-Based Loss Weighting in Multi-Task Learning, GCPR 2024
    (arXiv:2408.07985), where it is called UW-SO.
    """

    def __init__(self, temperature: float = 1.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.temperature = check_positive("temperature", temperature)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        losses = valid(losses)
        inverse = 1.0 / (where(active, losses, 1.0) + 1e-8)
        weights = softmax_over(inverse / self.temperature, active)
        return sum_over(tf.stop_gradient(weights) * losses, active)


@keras.saving.register_keras_serializable(package="multihead")
class SmoothTchebycheff(BoundedWeighting):
    """Minimizes a smooth maximum of the losses minus their lower bounds, so that every Pareto optimum can be reached.

    Formula: `total = mu log sum_k exp((L_k - z_k) / mu)`, so `w = softmax((L - z) / mu)`, with `z_k` the lower bounds
    `least_losses`, over the `K` active heads. The total lies between the largest `L_k - z_k` and this value plus `mu log K`;
    as `mu` goes to 0, only the worst head counts. To prefer a head, raise its `weight=`, since `L_k` is the weighted loss.

    What it fixes: heads that are left behind. It does not correct the scales of the losses.

    Args:
        mu: Smoothness of the maximum, in units of the losses; above 0.
        least_losses: The lower bounds `z_k` of the losses by head name, multiplied by the head's `weight=` as `L_k` is. A
            missing head has 0.

    Example:
        >>> SmoothTchebycheff(mu=1.0)([1.0, 1.0]).numpy().tolist()
        [0.5, 0.5]

    Source: Lin et al., Smooth Tchebycheff Scalarization for Multi-Objective Optimization, ICML 2024, equation 8.
    """

    def __init__(self, mu: float = 1.0, least_losses: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(least_losses, name=name)
        self.mu = check_positive("mu", mu)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        above = self._above(losses) / self.mu
        return self.mu * tf.reduce_logsumexp(where(active, above, above.dtype.min))


@keras.saving.register_keras_serializable(package="multihead")
class RandomLossWeighting(Weighting):
    """Draws random weights at every update: a baseline that any other method should beat.

    Formula: `total = sum_k w_k L_k`, with `w = softmax(z)` over the active heads and `z_k` drawn from the standard normal
    distribution. The weights sum to 1, and their mean is `1/K`.

    What it fixes: nothing, by design.

    The weights are a function of `seed` and the step, so a resumed run repeats them.

    Args:
        seed: Seed of the random weights, a whole number.

    Example:
        >>> round(float(sum(RandomLossWeighting()([4.0, 0.5]))), 6)
        1.0

    Source: Lin et al., Reasonable Effectiveness of Random Weighting, TMLR 2022.
    """

    uses = ("step",)

    def __init__(self, seed: int = 0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.seed = check_whole("seed", seed)

    def total(self, losses: tf.Tensor, active: tf.Tensor, *, step: Tensor = 0) -> tf.Tensor:
        draws = normal([losses.shape[0]], self.seed, step)
        return sum_over(softmax_over(draws, active) * losses, active)
