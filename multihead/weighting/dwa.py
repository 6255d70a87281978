"""Dynamic weight average (DWA)."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import where
from multihead._ground.validation import check_positive, check_positive_whole
from multihead._method import Observation
from multihead.weighting._base import Weighting, count_of, softmax_over, sum_over


@keras.saving.register_keras_serializable(package="multihead")
class DWA(Weighting):
    """Gives more weight to heads whose loss has recently decreased more slowly.

    Formula: `total = sum_k w_k L_k`, with `w = K softmax(r / temperature)` over the `K` active heads, where `r_k` is the
    head's mean loss in the last epoch divided by its mean loss in the epoch before. In the first two epochs all weights
    are 1.

    What it fixes: heads that learn at different speeds. It does not correct the scales of the losses.

    State: `sums` and `counts` of the current epoch, `[num_heads]` float32, and `noted`, its number of updates, int64;
    `last` and `before_last`, `[num_heads]` float32: mean losses of the previous two epochs, 0 before they exist.

    Args:
        temperature: Above 0; a higher temperature makes the weights more equal.
        updates_per_epoch: The number of updates in an epoch of the formula. None uses the epochs of `fit`.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range.

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
        last, before = (tf.convert_to_tensor(tensor_variable(each)) for each in (self.last, self.before_last))
        known = (last > 0) & (before > 0)
        ratios = where(known, last / where(known, before, 1.0), 1.0)
        weights = count_of(active) * softmax_over(ratios / self.temperature, active)
        return sum_over(weights * losses, active)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        sums, counts, noted = (tensor_variable(each) for each in (self.sums, self.counts, self.noted))
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
        sums, counts, last, before_last, noted = (tensor_variable(each) for each in state)
        seen = is_due & (counts > 0)
        means = where(seen, tf.math.divide_no_nan(sums, counts), last)
        older = where(seen, last, before_last)
        last.assign(means)
        before_last.assign(older)
        for each in (sums, counts, noted):
            each.assign(where(is_due, tf.zeros_like(each), each))
