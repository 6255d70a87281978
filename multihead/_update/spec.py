"""The specification of updates: everything that is fixed by `compile` and the first batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._method import Method
from multihead._update.batch import Batch
from multihead._update.combine import Combiner, Passes, Setting
from multihead._update.faults import Faults
from multihead._update.labels import Labels, Predictions, read_labels
from multihead._update.layers import Layers
from multihead._update.network import Network, Ownership
from multihead._update.rates import Rates
from multihead._update.weights import depends_on_losses
from multihead.balancing import Balancer
from multihead.clipping import Clipping
from multihead.schedules import Schedule
from multihead.weighting import Weighting


@dataclass(frozen=True)
class UpdateSpec:
    """How updates are computed and applied.

    Attributes:
        network: The encoder and the heads.
        predictions: The rank and mask of each head's predictions.
        of_measured: The same of each head that is only measured.
        weighting: A weighting, or None for the weighted sum.
        balancer: A balancer, or None for the plain sum.
        schedule: The schedule, which decides which heads train at a step.
        combiner: Combines the heads.
        num_micro_batches: Micro-batches per batch.
        clip: Limits the gradients, or None.
        ownership: The variables that must not change while their heads are idle.
        awake: `[num_heads]`: 1 for each head that may be trained, 0 for the others.
        may_be_idle: Whether that may change, so that idle heads should cost nothing.
        faults: What happens to updates that are not finite.
        check_labels: Whether values of labels and sample weights are checked in each batch.
        complete: The names of heads none of whose targets mark a missing label.
        heads_stay: Whether heads stay awake, with weights above 0, for as long as the step is not traced again.
        periods: The factors of learning rates and weight decay in each period of training, in order.
        period: The number of the present period.
        pairs: The positions of pairs of heads whose gradients can be compared where they are combined.
        layers: The encoder's layers.
        layers_every: The heads' gradients are measured by layer in every so many updates; 0 in none.
    """

    network: Network
    predictions: Sequence[Predictions]
    weighting: Weighting | None
    balancer: Balancer | None
    schedule: Schedule
    combiner: Combiner
    num_micro_batches: int
    clip: Clipping | None
    ownership: Ownership
    awake: tf.Variable
    may_be_idle: bool
    faults: Faults
    check_labels: bool
    periods: tuple[Rates, ...]
    layers: Layers
    pairs: tuple[tuple[int, int], ...]
    layers_every: int = 0
    period: int = 0
    complete: frozenset[str] = frozenset()
    heads_stay: bool = False
    of_measured: tuple[Predictions, ...] = ()

    def labels_measured(self, batch: Batch) -> list[Labels | None]:
        """The labels in a batch of the heads that are only measured."""
        network = replace(self.network, heads=self.network.measured)
        return read_labels(network, self.of_measured, batch, check=self.check_labels)

    @property
    def rates(self) -> Rates:
        """The factors of learning rates and weight decay in the present period."""
        return self.periods[self.period]

    def period_at(self, step: int) -> int:
        """The number of the period that a step belongs to."""
        return max(i for i, rates in enumerate(self.periods) if rates.start <= step)

    def measures_layers_at(self, step: tf.Tensor) -> tf.Tensor | None:
        """Whether the update after `step` updates measures the heads' gradients by layer; None if no update does."""
        return tf.equal((step + 1) % self.layers_every, 0) if self._measures_layers else None

    @property
    def _measures_layers(self) -> bool:
        return self.layers_every > 0 and any(self.network.trains_encoder)

    def passes(self, num_batches: int, *, eagerly: bool, in_xla: bool) -> Passes:
        """How often each micro-batch runs through the encoder.

        Args:
            num_batches: The number of batches in an update.
            eagerly: Whether updates run without a graph.
            in_xla: Whether XLA compiles them.
        """
        setting = Setting(
            num_micro_batches=num_batches * self.num_micro_batches,
            depend_on_losses=depends_on_losses(self.weighting),
            by_layer=self._measures_layers,
            can_loop=not (eagerly or in_xla),
            in_xla=in_xla,
        )
        return self.combiner.passes(setting)

    def in_period(self, period: int) -> UpdateSpec:
        """The specification of updates in a period, which compute no gradients of variables that are frozen in it."""
        return replace(self, period=period, network=replace(self.network, frozen=self.periods[period].frozen))

    @property
    def methods(self) -> list[Method]:
        """The weighting, the balancer and the schedule, without None."""
        return [each for each in (self.weighting, self.balancer, self.schedule) if each is not None]

    @property
    def uses(self) -> set[str]:
        """What the methods need; see `multihead._ground.method.Method`."""
        return {name for method in self.methods for name in method.uses}

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that computing an update may change, and that are restored if the update is skipped."""
        of_methods = [variable for method in self.methods for variable in method.non_trainable_variables]
        heads = (*self.network.heads, *self.network.measured)
        metrics = [metric for head in heads for metric in (*(head.metrics or []), *head.counters)]
        of_metrics = [variable for metric in metrics for variable in metric.variables]
        return [*(tensor_variable(variable) for variable in (*of_methods, *of_metrics)), *self.network.state]
