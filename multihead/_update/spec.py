"""How updates are computed: what `compile` and the first batch have fixed, and the plan of a call of `fit`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from multihead._data.batch import Batch
from multihead._ground.keras import metric_variables, tensor_variable
from multihead._ground.layers import distinct, state_variables
from multihead._method import Method
from multihead._update.faults import Faults
from multihead._update.labels import Labels, read_labels, with_counts
from multihead._update.network import Network
from multihead._update.participation import Group
from multihead._update.strategies import BackwardStrategy
from multihead.balancing import Balancer
from multihead.clipping import Clipping
from multihead.heads._named import weigh_classes
from multihead.rates import Rates
from multihead.schedules import Schedule
from multihead.weighting import Weighting


class Idle(enum.Enum):
    """What is known, before a step is traced, of heads that have labels and whose turn it is."""

    NEVER = enum.auto()  # none is idle: all have weights above 0, and no code of users runs between updates
    POSSIBLE = enum.auto()  # any may become idle at any time; it is computed all the same, and what it changes is restored
    EXPECTED = enum.auto()  # some have been made idle, and should cost nothing


@dataclass(frozen=True)
class Plan:
    """What a step can rely on, all of it known before the step is traced. Another plan is another step."""

    ranks: str = ""  # of the data, for which Keras's function would otherwise be traced again without any
    labels_are_checked: bool = False  # whether all labels were checked before the first update
    fully_labelled: frozenset[str] = frozenset()  # the names of heads all of whose labels are there and count
    absent: frozenset[str] | None = None  # the names of heads without targets in the data; None: not known
    idle: Idle = Idle.POSSIBLE
    period: int | None = None  # the number of the period of training; None: the one at the time when the step is traced
    # Pairs of a head's name, and pairs of class and weight, which replace the weights of its classes
    class_weight: tuple[tuple[str, tuple[tuple[int, float], ...]], ...] = ()


@dataclass(frozen=True)
class Methods:
    """How the heads' losses and gradients become one update."""

    weighting: Weighting | None  # None for the weighted sum
    balancer: Balancer | None  # None for the plain sum
    schedule: Schedule  # decides which heads train at a step
    backward: BackwardStrategy  # carries the heads' gradients through the encoder, and combines them
    num_micro_batches: int  # micro-batches per batch
    clip: Clipping | None  # limits the gradients

    @property
    def all(self) -> list[Method]:
        """The weighting, the balancer and the schedule, without None."""
        return [method for method in (self.weighting, self.balancer, self.schedule) if method is not None]

    @property
    def uses(self) -> set[str]:
        """What the methods need; see `multihead._method.Method`."""
        return {name for method in self.all for name in method.uses}


@dataclass(frozen=True)
class Running:
    """What a trainer has besides its network and methods: variables of training, and what holds for the current steps."""

    slots: Sequence[Sequence[tf.Variable]]  # the optimizer slots by variable of the network
    enabled: tf.Variable  # `[num_heads]`: 0 for the heads that `set_idle` has made idle, 1 for the others
    faults: Faults
    check_labels: bool  # whether values of labels and sample weights are checked in every batch
    periods: tuple[Rates, ...]  # the factors of learning rates and weight decay by period of training, in order
    plan: Plan = Plan()  # what the step relies on

    @property
    def rates(self) -> Rates:
        """The factors of learning rates and weight decay in the period of the plan."""
        return self.periods[self.plan.period or 0]

    def period_at(self, step: int) -> int:
        """The number of the period that a step belongs to."""
        return max(i for i, rates in enumerate(self.periods) if rates.start <= step)


@dataclass(frozen=True)
class UpdateSpec:
    """How updates are computed and applied."""

    network: Network
    methods: Methods
    running: Running

    def under(self, plan: Plan, period: int) -> UpdateSpec:
        """The specification of updates under a plan, in a period, whose frozen variables get no gradients."""
        heads = weigh_classes(self.network.heads, {name: dict(weights) for name, weights in plan.class_weight})
        for head in heads:
            head.is_fully_labelled = head.name in plan.fully_labelled and head.label_spec.class_weight is None
        network = replace(self.network, frozen=self.running.periods[period].frozen, heads=tuple(heads))
        checks = self.running.check_labels and not plan.labels_are_checked
        running = replace(self.running, check_labels=checks, plan=replace(plan, period=period))
        return replace(self, network=network, running=running)

    def labels(self, batch: Batch) -> tuple[list[Labels | None], list[Labels | None]]:
        """The labels in a batch of the heads that are trained, and of those that are only measured."""
        network, checks = self.network, self.running.check_labels
        trained = read_labels(network, batch, check=checks, fully_labelled=self.running.plan.fully_labelled)
        measured = read_labels(replace(network, heads=network.measured), batch, check=checks)
        return with_counts(network, batch.inputs, trained), measured

    @property
    def groups(self) -> list[Group]:
        """The groups of variables; the first is the encoder's, even if it has none. A probe trains none of a weighting."""
        network, slots = self.network, self.running.slots
        encoder = tuple(k for k, head in enumerate(network.heads) if head.trains_encoder)
        start, end = len(network.variables.encoder), len(network.variables.of_losses)
        positions: dict[tuple[int, ...], list[int]] = {}  # of variables, by the heads that train them
        for i in range(end - start):
            heads = tuple(k for k, own in enumerate(network.own) if i in own)
            positions.setdefault(heads, []).append(start + i)
        for i, learners in enumerate(network.learned_by):
            positions.setdefault(tuple(k for k in learners if k in encoder), []).append(end + i)

        def group(heads: tuple[int, ...], positions: Sequence[int], state: Sequence[tf.Variable] = ()) -> Group:
            members = [variable for i in positions for variable in (tensor_variable(network.variables.all[i]), *slots[i])]
            return Group(heads, tuple(positions), tuple(members), tuple(state))

        return [group(encoder, range(start), self._state_of_encoder), *(group(*item) for item in positions.items())]

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that computing an update may change, and that are restored if the update is skipped.

        Those of metrics are restored only if the head's loss, or one of their own values, is not finite.
        """
        heads = (*self.network.heads, *self.network.measured)
        metric_state = metric_variables(metric for head in heads for metric in head.metrics or [])
        return distinct([*self._state_of_encoder, *metric_state, *self.network.state])

    @property
    def measuring(self) -> list[tuple[tuple[int, ...], list[tf.Variable]]]:
        """The variables of a head's metrics, and the positions of the heads whose losses judge them.

        Those are all heads for a head that is only measured, and for the metrics that layers keep.
        """
        alone = [((k,), head.metrics or []) for k, head in enumerate(self.network.heads)]
        every = tuple(range(len(alone)))
        others = [*(head.metrics or [] for head in self.network.measured), self.network.metrics_of_layers]
        return [(judges, metric_variables(metrics)) for judges, metrics in [*alone, *((every, part) for part in others)]]

    @property
    def _state_of_encoder(self) -> list[tf.Variable]:
        """Those of them that change only in an update that trains the encoder: its own, and the methods'."""
        method_state = [variable for method in self.methods.all for variable in method.non_trainable_variables]
        return [*map(tensor_variable, method_state), *state_variables(self.network.encoder)]
