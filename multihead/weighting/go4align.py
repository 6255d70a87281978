"""Group optimization for multi-task alignment (GO4Align)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_between, check_positive_whole
from multihead._method import Observation
from multihead.weighting._base import Weighting, softmax_over, sum_over, valid


@keras.saving.register_keras_serializable(package="multihead")
class GO4Align(Weighting):
    """Brings the losses to one scale, and gives similar heads one weight.

    Formula: `total = sum_k w_k L_k`, where `w_k` is the mean of `v = q_k sum_j L_j / L_k` over the group of head k, and
    `q = softmax(-step_size R)` with `R_k` the sum of the losses of head k so far, that of this update included. The groups
    are those of at most `num_groups` with the smallest squared distances of `v` from the groups' means (k-means). The
    weights are constants in the gradient; 1e-8 is added to each `L_k` in the denominator.

    What it fixes: the scales of losses: with a group for each head, the weights are at first those of `LogLoss` times the
    mean loss; with one group, all heads have the same weight. Over many updates, a head whose loss stays above the others'
    loses weight, so `step_size` times the number of updates times the losses must stay small. Losses must not be negative:
    an update with a negative loss is skipped.

    State: `indicators`, `[num_heads]` float32, the `-step_size R_k`. That of an idle head does not change.

    Args:
        num_groups: The largest number of groups, at least 1; to be chosen for each data set.
        step_size: At least 0: how fast the indicators change.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range.

    Example:
        >>> GO4Align()([4.0, 0.5]).numpy().round(4).tolist()
        [0.5624, 4.5008]

    Source: Shen et al., GO4Align: Group Optimization for Multi-Task Alignment, NeurIPS 2024, with the indicators of the
    authors' experiments and their step size. There k-means starts at random; here the best groups are found. The
    default of `num_groups` is ours.
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
    """The mean of each active number's group, for the best division into at most so many groups (k-means in one dimension).

    The best groups are intervals of the sorted numbers, found by dynamic programming.
    """
    size = int(values.shape[0])
    order = tf.argsort(where(active, values, values.dtype.max), stable=True)
    counts = tf.gather(tf.cast(active, tf.float64), order)
    ordered = tf.gather(where(active, values, 0.0), order)

    def between(terms: tf.Tensor) -> tf.Tensor:
        """`[n + 1, n + 1]`: the sum of the terms from each place up to, and without, each other place."""
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
