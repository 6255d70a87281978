"""Updates that are not finite: whose loss or gradient it is, how many were skipped in a row, and when to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.errors import stop_unless
from multihead._ground.gradients import is_finite
from multihead._ground.keras import Gradient, first_replica_variable, variable_name
from multihead._ground.validation import quoted
from multihead._update.network import Gradients, Network

ON_NONFINITE = ("skip", "raise", "drop_head")
"""The values of `on_nonfinite=`."""


class Broken(NamedTuple):
    """What of an update is not finite, before clipping; equal on all replicas.

    Attributes:
        heads: `[num_heads]` booleans: the loss, or one of the gradients, of a head that the update trains.
        losses: `[num_heads]` booleans: the loss.
        variables: A boolean for the gradient of each of the network's variables.
    """

    heads: tf.Tensor
    losses: tf.Tensor
    variables: tf.Tensor

    @classmethod
    def of_gradients(cls, network: Network, gradients: Gradients) -> Broken:
        """Of an update whose losses are not known."""
        variables = _broken(gradients.all)
        return cls(_broken_heads(network, variables), tf.zeros([len(network.heads)], tf.bool), variables)

    @classmethod
    def of(
        cls,
        network: Network,
        gradients: Gradients,
        active: tf.Tensor,
        loss_sums: tf.Tensor,
        at_representation: tf.Tensor,
        norms: tf.Tensor | None,
    ) -> Broken:
        """Of an update.

        Args:
            network: The network.
            gradients: The gradients, reduced over replicas.
            active: `[num_heads]`: which heads the update trains.
            loss_sums: `[num_heads]` loss sums of this replica.
            at_representation: `[num_heads]`: above 0 where a gradient of this replica at the representation is not finite.
            norms: `[num_heads]` norms of the heads' gradients, or None.
        """
        variables = _broken(gradients.all)
        flags = tf.stack([~tf.math.is_finite(loss_sums), at_representation > 0])
        losses, at_representation = tf.unstack(replicas.on_any_replica(flags))
        heads = losses | _broken_heads(network, variables) | at_representation
        if norms is not None:
            heads |= ~tf.math.is_finite(norms)
        return cls(active & heads, active & losses, variables)

    @property
    def is_any(self) -> tf.Tensor:
        """Whether there is anything, a boolean scalar."""
        return tf.reduce_any(self.heads) | tf.reduce_any(self.variables)

    def __or__(self, other: Broken) -> Broken:
        return Broken(*(a | b for a, b in zip(self, other)))


def _broken(gradients: Sequence[Gradient]) -> tf.Tensor:
    """A boolean per gradient: whether it is not finite."""
    flags = [tf.constant(False) if gradient is None else ~is_finite(gradient) for gradient in gradients]
    return tf.stack(flags) if flags else tf.zeros([0], tf.bool)


def _broken_heads(network: Network, variables: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` booleans: whether a gradient of one of the head's own variables is not finite."""
    first = len(network.variables.encoder)
    positions = [[first + i for i in own] for own in network.own]
    return tf.stack([tf.reduce_any(tf.gather(variables, own)) if own else tf.constant(False) for own in positions])


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
        # The number of faults in a row; whether training must stop; and of the last fault its update, the position of its
        # batch in the epoch, its heads and its variables.
        self.state = first_replica_variable(tf.zeros([4 + len(self._heads) + len(self._variables)], tf.int64))

    @property
    def drops_heads(self) -> bool:
        """Whether a head that is not finite sits out the update."""
        return self.mode == "drop_head"

    def fits(self, network: Network) -> bool:
        """Whether this was made for the same heads and variables."""
        names = [variable_name(variable) for variable in network.variables.all]
        return self._variables == names and self._heads == [head.name for head in network.heads]

    def to_drop(self, broken: Broken, active: tf.Tensor, loss_scale: tf.Tensor | None) -> tf.Tensor:
        """`[num_heads]` booleans: the heads that sit out an update; none if there is no other head to train."""
        heads = broken.heads if loss_scale is None else tf.where(loss_scale > 1, broken.losses, broken.heads)
        return heads & tf.reduce_any(active & ~heads)

    def observe(
        self,
        broken: Broken,
        applied: tf.Tensor,
        active: tf.Tensor,
        step: tf.Tensor,
        batch: tf.Tensor | None,
        loss_scale: tf.Tensor | None,
    ) -> list[Any]:
        """Remembers an update, and stops if it must.

        Args:
            broken: What of it was not finite.
            applied: Whether it was applied.
            active: Which heads it was to train.
            step: The number of updates applied before it.
            batch: The position of its first batch in the epoch, if it is known.
            loss_scale: The factor of loss scaling, or None.

        Returns:
            Control dependencies of what must not run otherwise.
        """
        skipped = ~applied & tf.reduce_any(active)
        counts = tf.constant(True)
        if loss_scale is not None:
            counts = tf.reduce_any(broken.losses) | (loss_scale <= 1)
        fault = skipped & counts
        before = tf.identity(self.state.read_value())
        run = tf.where(fault, before[0] + 1, tf.where(applied, tf.constant(0, tf.int64), before[0]))
        stops = fault & tf.constant(self.mode == "raise")
        if self._limit is not None:
            stops |= fault & (run >= self._limit)
        place = tf.stack([tf.cast(step, tf.int64), tf.constant(-1, tf.int64) if batch is None else tf.cast(batch, tf.int64)])
        last = tf.concat([place, tf.cast(broken.heads, tf.int64), tf.cast(broken.variables, tf.int64)], axis=0)
        last = tf.where((skipped | broken.is_any) & (before[1] == 0), last, before[2:])
        counted = tf.stack([run, tf.maximum(before[1], tf.cast(stops, tf.int64))])
        done = self.state.assign(tf.concat([counted, last], axis=0))
        if tf.executing_eagerly():
            self.stop()
            return []
        with tf.control_dependencies([tf.identity(done)]):
            return stop_unless(~stops, lambda: self._in_numbers(step, run, broken))

    def _in_numbers(self, step: tf.Tensor, run: tf.Tensor, broken: Broken) -> list[Any]:
        """The message in a graph, where only numbers can be filled in: XLA has no strings."""
        parts: list[Any] = ["`on_nonfinite`: a loss or gradient is not finite, in the update after ", step]
        for name, flag in zip(self._heads, tf.unstack(tf.cast(broken.heads, tf.int32))):
            parts += [f" updates; head {name!r}: " if name == self._heads[0] else f", head {name!r}: ", flag]
        first = tf.argmax(tf.cast(broken.variables, tf.int32), output_type=tf.int64)
        return [*parts, " (1: not finite); first of the trainer's variables: number ", first, "; skipped in a row: ", run]

    def stop(self) -> None:
        """Raises an error if an update has said that training must stop.

        Raises:
            ValueError: It must.
        """
        run, stopped, *_ = state = self._now()
        if not stopped:
            return
        message = self._message(run)
        self.state.assign([0, 0, *state[2:]])  # another `fit` may follow
        raise ValueError(message)

    def _message(self, run: int) -> str:
        where = self.where()
        remedy = "Lower the learning rate, clip gradients (`clip=`), or check the labels and inputs for invalid values"
        if self.mode == "raise":
            return (
                "`on_nonfinite='raise'` requires finite losses and gradients. "
                f"Received: a value that is not finite, {where}. That update was not applied. {remedy}."
            )
        return (
            f"`max_skipped_updates={self._limit}` ends training after as many updates in a row that were skipped because a "
            f"loss or gradient was not finite. Received: {run} such updates, the last one {where}. {remedy}."
        )

    def where(self) -> str:
        """The last fault in words: its heads, its variables, its update and its batch."""
        heads, variables = self._names()
        of_heads = f"from head {quoted(heads)}" if heads else "from the heads together"
        of_variables = f"in the gradients of {_some(variables)}" if variables else "in the loss"
        return f"{of_heads}, {of_variables}, {self.when()}"

    def when(self) -> str:
        """The update and the batch of the last fault."""
        _, _, step, batch, *_ = self._now()
        batches = f"batch {batch}" if self._window == 1 else f"batches {batch} to {batch + self._window - 1}"
        return f"at update {step + 1}" + (f", {batches} of the epoch (counted from 0)" if batch >= 0 else "")

    def _names(self) -> tuple[list[str], list[str]]:
        flags = self._now()[4:]
        heads = [name for name, flag in zip(self._heads, flags) if flag]
        variables = [name for name, flag in zip(self._variables, flags[len(self._heads) :]) if flag]
        return heads, variables

    def _now(self) -> list[int]:
        with tf.init_scope():
            values = tf.distribute.get_strategy().experimental_local_results(self.state)
            return tf.convert_to_tensor(values[0]).numpy().tolist()


def _some(names: Sequence[str]) -> str:
    """Names for a message, at most four."""
    return quoted(names[:4]) + (f" and {len(names) - 4} others" if len(names) > 4 else "")
