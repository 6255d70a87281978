"""Updates that are not finite: the last one, how many were skipped in a row, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.keras import first_replica_variable, variable_name
from multihead._ground.layers import module_variables
from multihead._ground.replicas import assign
from multihead._ground.tensors import all_of, where
from multihead._ground.validation import quoted, stop_unless
from multihead._update.broken import Broken
from multihead._update.network import Network

ON_NONFINITE = ("skip", "raise")
"""The values of `on_nonfinite=`."""

INPUTS, LABELS = 1, 2
"""The data of an update that were not finite: its inputs, or else the labels and their weights; 0 if neither."""


class Memory(NamedTuple):
    """What `Faults` remembers between updates: names for the parts of one int64 vector.

    Attributes:
        vector: `[5 + num_heads + number of variables]`: how many updates in a row were skipped up to the last fault;
            whether training must stop; then of the last fault: the number of updates before it, the position in the epoch
            of its first batch, or -1, which data, heads and variables were not finite.
        num_heads: The number of heads.
    """

    vector: Any
    num_heads: int

    @classmethod
    def of(
        cls, *, in_a_row: Any, stops: Any, step: Any, batch: Any, data: Any, heads: tf.Tensor, variables: tf.Tensor
    ) -> Memory:
        """Packs the parts into one vector."""
        scalars = tf.stack([tf.cast(each, tf.int64) for each in (in_a_row, stops, step, batch, data)])
        vector = tf.concat([scalars, tf.cast(heads, tf.int64), tf.cast(variables, tf.int64)], axis=0)
        return cls(vector, int(heads.shape[0]))

    def counting(self, *, in_a_row: Any, stops: Any) -> Memory:
        """The same last fault, with other counts."""
        counts = tf.stack([tf.cast(each, tf.int64) for each in (in_a_row, stops)])
        return self._replace(vector=tf.concat([counts, self.vector[2:]], axis=0))

    @property
    def in_a_row(self) -> Any:
        """The number of updates in a row that were skipped up to the last fault, which is one of them."""
        return self.vector[0]

    @property
    def stops(self) -> Any:
        """1 if training must stop, else 0."""
        return self.vector[1]

    @property
    def step(self) -> Any:
        """The number of updates before that of the last fault."""
        return self.vector[2]

    @property
    def batch(self) -> Any:
        """The position in the epoch of the first batch of the last fault, from 0; -1 if it is not known."""
        return self.vector[3]

    @property
    def data(self) -> Any:
        """`INPUTS`, `LABELS` or 0: the data of the last fault that were not finite."""
        return self.vector[4]

    @property
    def heads(self) -> Any:
        """`[num_heads]`: 1 where a head of the last fault was not finite, else 0."""
        return self.vector[5 : 5 + self.num_heads]

    @property
    def variables(self) -> Any:
        """1 for each variable whose gradient was not finite in the last fault, else 0."""
        return self.vector[5 + self.num_heads :]


class Counted(NamedTuple):
    """What `Faults` counts in an epoch: names for the parts of one int64 vector.

    Attributes:
        vector: `[2 + num_heads + number of variables]`: the number of skipped updates; of those that only lower the factor
            of loss scaling; and in how many others each head, and each variable, was not finite.
        num_heads: The number of heads.
    """

    vector: Any
    num_heads: int

    @property
    def skipped(self) -> Any:
        """The number of skipped updates, those with which loss scaling lowers its factor included."""
        return self.vector[0]

    @property
    def overflows(self) -> Any:
        """The number of those with which loss scaling lowers its factor."""
        return self.vector[1]

    @property
    def heads(self) -> Any:
        """The positions of heads that were not finite."""
        return [k for k, number in enumerate(self.vector[2 : 2 + self.num_heads]) if number]

    @property
    def variables(self) -> Any:
        """The positions of variables whose gradients were not finite."""
        return [i for i, number in enumerate(self.vector[2 + self.num_heads :]) if number]


Data = Sequence[Any]
"""The floating-point tensors of an update's inputs, and those of its labels; see `Change.data`."""


class Seen(NamedTuple):
    """What is known of an update where it is applied or skipped, outside of the replicas.

    Attributes:
        broken: Which losses and gradients were not finite.
        trains_any: Whether there was anything to train, a boolean scalar.
        step: The number of updates applied before it.
        loss_scale: The factor of loss scaling, or None.
        batch: The position in the epoch of its first batch; None if it is not known.
    """

    broken: Broken
    trains_any: tf.Tensor
    step: tf.Tensor
    loss_scale: tf.Tensor | None = None
    batch: tf.Tensor | None = None

    @property
    def is_fault(self) -> tf.Tensor:
        """Whether the update, which was skipped, was skipped for a fault, not to lower the factor of loss scaling."""
        if self.loss_scale is None:
            return self.trains_any
        return self.trains_any & (tf.reduce_any(self.broken.losses) | (self.loss_scale <= 1))

    @property
    def overflows(self) -> tf.Tensor | None:
        """Whether it was skipped only so that loss scaling halves its factor, to a value above 1; None without scaling."""
        if self.loss_scale is None:
            return None
        return self.trains_any & ~tf.reduce_any(self.broken.losses) & (self.loss_scale > 2)


class Faults:
    """Counts updates that are skipped because they are not finite, remembers the last one, and stops training.

    With loss scaling, a gradient that is not finite while its loss is finite means that the scale is too large: the
    optimizer lowers it, and the update does not count as a fault until the scale is 1.

    Args:
        network: The network.
        mode: One of `ON_NONFINITE`.
        limit: The number of updates skipped in a row at which training stops; None: it does not.
        window: The number of batches of an update.
    """

    def __init__(self, network: Network, mode: str, limit: int | None, window: int) -> None:
        self.mode = mode
        self._window = window
        self._limit = limit
        self._heads = [head.name for head in network.heads]
        self._variables = [variable_name(variable) for variable in network.variables.all]
        self._network = network
        self.state = self._vector(5)  # that of `Memory`
        self.of_epoch = self._vector(2)  # that of `Counted`

    def _vector(self, num_scalars: int) -> tf.Variable:
        """A vector of some numbers, one per head, and one per variable."""
        return first_replica_variable(tf.zeros([num_scalars + len(self._heads) + len(self._variables)], tf.int64))

    def fits(self, network: Network) -> bool:
        """Whether this was made for the same heads and variables."""
        names = [variable_name(variable) for variable in network.variables.all]
        return self._variables == names and self._heads == [head.name for head in network.heads]

    def reset_epoch(self) -> None:
        """Forgets the counts of an epoch."""
        self.of_epoch.assign(tf.zeros_like(self.of_epoch))

    def counted(self) -> Counted:
        """The counts of the epoch so far, as Python knows them."""
        return Counted(tf.convert_to_tensor(self.of_epoch).numpy().tolist(), len(self._heads))

    def skipped(self, strategy: tf.distribute.Strategy, seen: Seen, data: Data) -> None:
        """Remembers an update that was not applied, and stops if it must; in the cross-replica context.

        Args:
            strategy: The strategy.
            seen: The update.
            data: Its data, of all replicas.
        """
        before, fault = self._before(), seen.is_fault
        # No update was applied since a fault after as many updates, so that both are in a row.
        run = where(tf.equal(before.step, seen.step), before.in_a_row, 0) + 1
        stops = fault
        if self.mode != "raise":
            stops = tf.constant(False) if self._limit is None else fault & (run >= self._limit)
        found = _not_finite(strategy, data)
        self._remember(strategy, seen, found, fault & tf.equal(before.stops, 0), in_a_row=run, stops=stops)
        self.count_skipped(strategy, seen)
        if tf.executing_eagerly():
            self.stop()
        elif self.mode == "raise" or self._limit is not None:
            stop_unless(~stops, lambda: self._in_numbers(seen.step, run, found, seen.broken))

    def count_skipped(self, strategy: tf.distribute.Strategy, seen: Seen) -> None:
        """Counts an update that was not applied; in the cross-replica context."""
        if seen.overflows is None:
            self._count(strategy, seen, tf.constant([1, 0], tf.int64))
            return
        overflows = tf.cast(seen.overflows, tf.int64)
        self._count(strategy, seen, tf.stack([1, overflows]), 1 - overflows)

    def _before(self) -> Memory:
        return Memory(tf.unstack(self.state.read_value()), len(self._heads))

    def _remember(
        self, strategy: tf.distribute.Strategy, seen: Seen, data: tf.Tensor, is_new: tf.Tensor, **counts: Any
    ) -> None:
        """Replaces the last fault by an update, if it is a new one."""
        place = {"step": seen.step, "batch": -1 if seen.batch is None else seen.batch, "data": data}
        new = Memory.of(**counts, **place, heads=seen.broken.heads, variables=seen.broken.variables)
        assign(strategy, self.state, where(is_new, new.vector, self.state.read_value()))

    def _count(
        self, strategy: tf.distribute.Strategy, seen: Seen, scalars: tf.Tensor, factor: tf.Tensor | None = None
    ) -> None:
        broken = tf.cast(tf.concat([seen.broken.heads, seen.broken.variables], axis=0), tf.int64)
        broken = broken if factor is None else broken * factor
        assign(strategy, self.of_epoch, self.of_epoch.read_value() + tf.concat([scalars, broken], axis=0))

    def _in_numbers(self, step: tf.Tensor, run: tf.Tensor, data: tf.Tensor, broken: Broken) -> list[Any]:
        """The message in a graph, where only numbers can be filled in: XLA has no strings."""
        parts: list[Any] = ["`on_nonfinite`: a loss or gradient is not finite, in the update after ", step]
        parts += [
            " updates; data: ",
            data,
            f" ({INPUTS}: the inputs are not finite, {LABELS}: the labels or sample weights)",
        ]
        for name, flag in zip(self._heads, tf.unstack(tf.cast(broken.heads, tf.int32))):
            parts += [f", head {name!r}: ", flag]
        first = tf.argmax(tf.cast(broken.variables, tf.int32), output_type=tf.int64)
        return [*parts, " (1: not finite); first of the trainer's variables: number ", first, "; skipped in a row: ", run]

    def stop(self) -> None:
        """Raises an error if an update has said that training must stop.

        Raises:
            ValueError: It must.
        """
        memory = self._now()
        if not memory.stops:
            return
        message = self._message(memory.in_a_row)
        self.state.assign(memory.counting(in_a_row=0, stops=0).vector)  # another `fit` may follow
        raise ValueError(message)

    def _message(self, run: int) -> str:
        cause, remedy = self.cause()
        if self.mode == "raise":
            return (
                f"{cause} `on_nonfinite='raise'` requires finite losses and gradients. "
                f"Received: a value that is not finite, {self.where()}. That update was not applied. {remedy}"
            )
        return (
            f"{cause} `max_skipped_updates={self._limit}` ends training after as many updates in a row that were skipped "
            f"because a loss or gradient was not finite. Received: {run} such updates, the last one {self.where()}. {remedy}"
        )

    def cause(self) -> tuple[str, str]:
        """The most likely cause of the last fault, and what to do about it."""
        memory = self._now()
        heads = [name for name, flag in zip(self._heads, memory.heads) if flag]
        if memory.data == INPUTS:
            return "The inputs must be finite, and some are not.", "Replace NaN and infinity there, or omit these examples."
        if memory.data == LABELS:
            return (
                f"The labels and sample weights must be valid, and some of head {quoted(heads)} are not.",
                "Correct them; `compile(check_labels=True)`, without `jit_compile`, says which.",
            )
        weights = self._weights_not_finite()
        if weights:
            return (
                f"The weights must be finite, and some are not: {quoted(weights[:4])}.",
                "Load finite weights; if training has spoilt them, lower the learning rate too.",
            )
        what = "The encoder, the modules and the losses must give finite values and gradients, and one of them does not."
        if heads and len(heads) < len(self._heads):
            what = (
                f"The module and the loss of head {quoted(heads)} must give finite values and gradients, and one does not."
            )
        remedy = "Look there for logarithms, roots and divisions at 0; lower the learning rate, or clip gradients (`clip=`)."
        return what, remedy

    def where(self) -> str:
        """The last fault in words: its heads, its variables, its update and its batch."""
        memory = self._now()
        heads = [k for k, flag in enumerate(memory.heads) if flag]
        variables = [i for i, flag in enumerate(memory.variables) if flag]
        return f"{self.whose(heads, variables)}, {self.when()}"

    def whose(self, heads: Sequence[int], variables: Sequence[int]) -> str:
        """The heads at some positions in words and, unless the inputs spoil all of them, the variables."""
        of_heads = f"from head {quoted(self._heads[k] for k in heads)}" if heads else "from the heads together"
        if self._now().data == INPUTS:
            return of_heads
        names = [self._variables[i] for i in variables]
        more = f" and {len(names) - 4} others" if len(names) > 4 else ""
        return f"{of_heads}, in " + (f"the gradients of {quoted(names[:4])}{more}" if names else "the loss")

    def when(self) -> str:
        """The update and the batch of the last fault."""
        memory = self._now()
        batch, end = memory.batch, memory.batch + self._window - 1
        batches = f"batch {batch}" if self._window == 1 else f"batches {batch} to {end}"
        return f"at update {memory.step + 1}" + (f", {batches} of the epoch (counted from 0)" if batch >= 0 else "")

    def _weights_not_finite(self) -> list[str]:
        """The names of the weights that are not finite now; a skipped update has not changed them."""
        modules = [self._network.encoder, *(head.module for head in self._network.heads)]
        variables = {id(variable): variable for module in modules for variable in module_variables(module)}
        with tf.init_scope():
            values = [(each, tf.convert_to_tensor(each)) for each in variables.values() if each.dtype.is_floating]
            return [variable_name(each) for each, value in values if not tf.reduce_all(tf.math.is_finite(value))]

    def _now(self) -> Memory:
        with tf.init_scope():
            values = tf.distribute.get_strategy().experimental_local_results(self.state)
            return Memory(tf.convert_to_tensor(values[0]).numpy().tolist(), len(self._heads))


def _not_finite(strategy: tf.distribute.Strategy, data: Data) -> tf.Tensor:
    """`INPUTS`, `LABELS` or 0: the data that are not finite on one of this process's replicas, an int64 scalar."""
    leaves = [[part for leaf in each for part in strategy.experimental_local_results(leaf)] for each in data]
    inputs, labels = (~all_of([tf.reduce_all(tf.math.is_finite(leaf)) for leaf in each]) for each in leaves)
    return where(inputs, tf.constant(INPUTS, tf.int64), where(labels, tf.constant(LABELS, tf.int64), 0))
