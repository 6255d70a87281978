"""The statistics of updates in Keras's logs, in `UpdateLogger`'s files and in TensorBoard.

`LEVELS` has the values of `telemetry=`.

`docs/watching.md` has a table of all of them. For head `k`, let `g_k` be the gradient of its weighted loss at the level
where the heads are combined (representation or parameters), `a_k` the coefficient of the balancer (1 without a balancer) and
`d` the combined gradient:

- `{head}_norm` is `|g_k|`, and `{head}_share` is `|a_k g_k| / sum_j |a_j g_j|`;
- `{head}_coefficient`, with a balancer, is `a_k` (for a method without coefficients, `<d, g_k> / <g_k, g_k>`);
- `{head}_{other}_cosine` is the cosine of `g_k` and `g_j`, for heads that read a common tensor where they are combined, and
  `{head}_update_cosine` that of `g_k` and `d`;
- `{statistic}_average` is the exponential average over all updates so far, with a decay of 0.98 and without bias towards 0.

Losses are means over all labelled elements of the epoch's updates so far, but for those of a head that are not finite; those
of a skipped update count otherwise, as in Keras. Other statistics of a head are means over the updates that train it. All
are of the gradient of a whole update: over all micro-batches, accumulated batches and replicas, and without loss scaling.

A loss of nothing is NaN, not 0: over an epoch without a finite loss, or for a head without any label, together with that
head's metrics. 0 would be the best value that a callback can see (`EarlyStopping`, `ModelCheckpoint`, `ReduceLROnPlateau`),
and NaN never is. Only within an epoch, the total of batches without labels is 0, so that `TerminateOnNaN` goes on. In
training, a skipped update counts in the metrics of a head only if its loss and their values are finite; in evaluation,
a loss that is not finite shows as such. `skipped_updates` is logged even if it is 0: Keras's `CSVLogger` has the columns of
the first epoch.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.tensors import norm_of_present
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update

LEVELS = (None, "norms", "full")
"""The values of `telemetry=`, from the fewest to the most statistics."""

__all__ = ["LEVELS"]


class Statistic(NamedTuple):
    """A statistic in the logs, over the applied updates of the epoch so far."""

    name: str  # logged as `{head}_{name}` if there is one per head, and `{head}_{other}_{name}` if one per pair
    # Computes it from an update: a scalar, `[num_heads]`, or `[num_heads, num_heads]` for pairs; None if the update does not
    # provide it. Of several replicas, all return the whole statistic.
    value: Callable[[Update], tf.Tensor | None]
    level: str | None  # the value of `telemetry=` from which on it is logged; None: with all
    # `"head"`: one per head, over the updates that train the head; `"pair"`: one per pair of heads, over those that train
    # both; `"update"`: one
    per: str = "head"
    needs: Callable[[UpdateSpec], bool] | None = None  # whether a trainer with this spec has it; None: all have
    is_sum: bool = False  # whether updates are added up; otherwise their mean is logged
    averaged: bool = False  # whether `"full"` also shows its running average

    def part(self, update: Update, pairs: Sequence[tuple[int, int]]) -> tuple[tf.Tensor, tf.Tensor]:
        """This replica's parts of the values, float32, and for which of them the update counts."""
        value, active = self.value(update), update.participation.active
        number = {"update": 1, "head": active.shape[0], "pair": len(pairs)}[self.per]
        if value is None or not number:
            return tf.zeros([number]), tf.zeros([number], tf.bool)
        value = tf.cast(value, tf.float32)
        value = value if self in LOSSES else replicas.part_of(value)
        if self.per == "update":
            return tf.reshape(value, [1]), tf.ones([1], tf.bool)
        if self.per == "head":
            return value, active
        return tf.gather_nd(value, tf.constant(pairs)), tf.stack([active[i] & active[j] for i, j in pairs])


def comparable_pairs(spec: UpdateSpec) -> list[tuple[int, int]]:
    """The positions of pairs of heads whose gradients can be compared where they are combined."""
    pairs = itertools.combinations([k for k, head in enumerate(spec.network.heads) if head.trains_encoder], 2)
    if spec.methods.backward.at_parameters:
        return list(pairs)
    reads = spec.network.reads  # what reads no common tensor has no cosine at the representation
    return [(i, j) for i, j in pairs if any(map(operator.and_, reads[i], reads[j]))]


def names_of(name: str, per: str, heads: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[str]:
    """The names of the values of a statistic: one, one per head, or one per pair of the positions of heads."""
    if per == "update":
        return [name]
    return [f"{head}_{name}" for head in heads] if per == "head" else [f"{heads[i]}_{heads[j]}_{name}" for i, j in pairs]


def _shares(update: Update) -> tf.Tensor | None:
    if update.norms is None:
        return None
    contributions = tf.abs(tf.cast(update.combined.coefficients, update.norms.dtype)) * update.norms
    return tf.math.divide_no_nan(contributions, tf.reduce_sum(contributions))


def _cosines(update: Update, columns: int | slice) -> tf.Tensor | None:
    cosines = update.combined.cosines
    return None if cosines is None else cosines[:-1, columns]


def _has_regularizer(spec: UpdateSpec) -> bool:
    everyone = tf.ones([len(spec.network.heads)], tf.bool)
    return spec.methods.weighting is not None and spec.methods.weighting.regularizer(everyone) is not None


def _has_changing_weights(spec: UpdateSpec) -> bool:
    return spec.methods.weighting is not None or any(head.has_weight_function for head in spec.network.heads)


def _has_changing_rates(spec: UpdateSpec) -> bool:
    return len(spec.running.periods) > 1 or any(callable(factor) for factor in spec.running.periods[0].steps)


def _clips(spec: UpdateSpec) -> bool:
    return spec.methods.clip is not None


def _losses(update: Update) -> tf.Tensor:
    return tf.math.divide_no_nan(update.loss_sums, update.losses.loss_weights.counts)


LOSSES = (
    Statistic("loss", lambda update: update.total_loss, "norms", "update", averaged=True),
    Statistic("loss", _losses, "norms", averaged=True),
)
"""The losses of single updates, for the ledger and running averages; a replica returns its part of them.

The logs show losses over all labelled elements of an epoch instead.
"""

# To add a statistic, add one entry here, its name to the list of `heads/_metric_names.py` that no metric may take, and a
# line to the table of docs/watching.md.
STATISTICS = (
    Statistic("regularizer", lambda update: update.losses.regularizer, None, "update", _has_regularizer),
    Statistic("encoder_learning_rate_multiplier", lambda u: u.rates.at(u.step)[0], None, "update", _has_changing_rates),
    Statistic("update_norm", lambda update: norm_of_present(update.gradients.of_losses), "full", "update", averaged=True),
    Statistic("update_norm_clipped", lambda update: norm_of_present(update.clipped.of_losses), "full", "update", _clips),
    Statistic(
        "clipped_updates",
        lambda u: tf.cast(norm_of_present(u.clipped.of_losses) < norm_of_present(u.gradients.of_losses), tf.float32),
        "full",
        "update",
        _clips,
    ),
    Statistic("weight", lambda update: update.losses.weights, None, needs=_has_changing_weights),
    Statistic("norm", lambda update: update.norms, "norms", averaged=True),
    Statistic("share", _shares, "norms", averaged=True),
    Statistic(
        "coefficient",
        lambda update: update.combined.coefficients,
        "norms",
        needs=lambda spec: spec.methods.balancer is not None,
        averaged=True,
    ),
    Statistic("update_cosine", lambda update: _cosines(update, -1), "full", averaged=True),
    Statistic("cosine", lambda update: _cosines(update, slice(-1)), "full", "pair", averaged=True),
    Statistic("learning_rate_multiplier", lambda update: update.rates.at(update.step)[1:], None, needs=_has_changing_rates),
    Statistic("updates", lambda update: tf.ones_like(update.loss_sums), "norms", is_sum=True),
)
"""The statistics of updates in the logs, besides losses, the heads' metrics and the number of skipped updates."""
