"""The statistics of updates in Keras's logs, in the ledger and in TensorBoard. `LEVELS` has the values of `telemetry=`.

For head `k`, with `g_k` the gradient of its weighted loss at the level where the heads are combined (representation or
parameters), `a_k` the coefficient of the balancer (1 without a balancer) and `d` the combined gradient:

- `{head}_loss`: its unweighted loss, over all labelled elements of the epoch's updates so far, skipped ones left out;
- `{head}_norm`: `|g_k|`;
- `{head}_share`: `|a_k g_k| / sum_j |a_j g_j|`;
- `{head}_coefficient`, with a balancer: `a_k` (for a method without coefficients, `<d, g_k> / <g_k, g_k>`); norm, share and
  coefficient are means over the updates that train the head;
- `{head}_{other}_cosine`: the cosine of `g_k` and `g_j`, for heads that read a common tensor where they are combined;
- `{head}_update_cosine`: the cosine of `g_k` and `d`;
- `update_norm`, and `update_norm_clipped` with clipping: the norm of the gradients of all variables before and after
  clipping; `clipped_updates`: the fraction of updates whose norm clipping has made smaller;
- `{statistic}_average`: the exponential average over all updates so far, with a decay of 0.98 and without bias towards 0;
- `{head}_weight`, if it can change: the weight of the head's loss in the total, as a mean over the updates that train the
  head;
- `{head}_learning_rate_multiplier` and `encoder_learning_rate_multiplier`, if one of them can change: the factor of the
  steps that are applied to the head's own variables, or to the encoder's; where it differs by variable, the largest;
- `regularizer`, if the weighting has one: the part of the total that does not depend on the losses;
- `added_loss`, if a layer adds losses: the sum of regularization and `add_loss` losses, as a mean over examples;
- `loss`: the total loss: the sum of the heads' losses above times their weights, and `added_loss`; with a weighting, in
  training, its total as a mean over examples takes the place of the first sum;
- `{head}_updates`: the number of updates in the epoch so far that have trained the head;
- `skipped_updates`: the number of updates that were not applied, because a gradient was not finite or none of the scheduled
  heads had labels. It is there even if it is 0, since Keras's `CSVLogger` has the columns of the first epoch, and `History`
  does not say which epochs a statistic is of.

`telemetry=None` leaves out all that needs gradients. `"norms"` adds norms, shares, coefficients and counts; `"full"` also
cosines, norms of the update and averages, and the same statistics in each encoder layer in every `layers_every`-th
update, which only the ledger holds. All are of the gradient of a whole update: over all micro-batches, accumulated
batches and replicas, and without loss scaling.

A loss of nothing is NaN, not 0: over an epoch whose updates were all skipped, or for a head without any label, together
with that head's metrics. 0 would be the best value that a callback can see (`EarlyStopping`, `ModelCheckpoint`,
`ReduceLROnPlateau`), and NaN never is. In training, skipped updates count in no metric; in evaluation, a loss that is not
finite shows as such.
"""

from multihead.telemetry._logs import LEVELS

__all__ = ["LEVELS"]
