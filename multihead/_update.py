"""The update boundary: what happens once, after everything is gathered.

`reduce over replicas -> divide by counts -> balance -> clip -> apply`. Sums are divided by counts before they get here
(see `Scales`); everything else is below, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import tensorflow as tf

from multihead._backward import Network, SliceGradients
from multihead._gradients import Rows, added, as_rows, deduplicate, gramian, is_finite, scaled
from multihead._keras import Gradient, apply_reduced_gradients, record_finite, tensor_variable


def all_reduce_sum(value: Any) -> Any:
    """The sum over replicas of a tensor, or of a list of gradients (None stays None); itself on one replica."""
    if num_replicas() == 1:
        return value
    context = tf.distribute.get_replica_context()
    if not isinstance(value, list):
        return context.all_reduce(tf.distribute.ReduceOp.SUM, value)
    present = [gradient for gradient in value if gradient is not None]
    reduced = iter(context.all_reduce(tf.distribute.ReduceOp.SUM, present) if present else [])
    return [None if gradient is None else next(reduced) for gradient in value]


def num_replicas() -> int:
    """How many replicas make an update."""
    context = tf.distribute.get_replica_context()
    return 1 if context is None else int(context.num_replicas_in_sync)


class Update(NamedTuple):
    """One update's gradients, reduced and balanced, not yet clipped.

    Attributes:
        gradients: One per variable of the network, or None where nothing reaches the variable.
        active: `[num_heads]`: which heads the update trains.
        norms: `[num_heads]` norms of the heads' gradients where they meet, or None where they were not measured.
        coefficients: `[num_heads]` factors given to the heads there.
        at_cut: The reduced Gramian at the cut, `[num_heads, num_heads]`, where it was measured (perhaps only its
            diagonal), else None.
    """

    gradients: list[Gradient]
    active: tf.Tensor
    norms: tf.Tensor | None
    coefficients: tf.Tensor
    at_cut: tf.Tensor | None


def inner_products_of(rows: Sequence[Rows], num_heads: int) -> tf.Tensor:
    """The Gramian of the heads' gradients; zeros where there is no tensor that any of them reaches."""
    if not rows:
        return tf.zeros([num_heads, num_heads], tf.float64)
    return gramian([matrix.values for matrix in rows])


def _all_dense(rows: Sequence[list[Gradient]], variables: Sequence[tf.Variable]) -> list[list[tf.Tensor]]:
    """The heads' gradients as dense tensors, zeros for None: methods that keep something per parameter need them so."""
    return [
        [tf.zeros(v.shape, tf.float32) if g is None else tf.convert_to_tensor(g) for g, v in zip(row, variables)]
        for row in rows
    ]


class AbstractMeeting(Protocol):
    """What combining the heads asks of a meeting; see `multihead._meeting.Meeting`."""

    at_parameters: bool
    sees_gradients: bool

    def late_factors(self, loss_sums: tf.Tensor) -> tf.Tensor | None:
        """`[num_heads]` factors that the heads' gradients lack, or None if they lack none."""

    def measured(self, gathered: SliceGradients) -> tuple[tf.Tensor | None, tf.Tensor] | None:
        """The reduced Gramian (or None) and the coefficients if the heads were combined at the cut, else None."""

    def shares(self, counts: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: what part of all labelled elements the counts of some slices on this replica are."""

    def coefficients_of(self, gramian: tf.Tensor, loss_sums: tf.Tensor, halves: tf.Tensor | None = None) -> tf.Tensor:
        """`[num_heads]` coefficients from the reduced Gramian; 0 for idle heads."""

    def combine_rows(
        self, rows: Sequence[Rows], gramian: tf.Tensor, loss_sums: tf.Tensor
    ) -> tuple[list[Gradient], tf.Tensor]:
        """The combined gradients, and `[num_heads]` coefficients that describe them."""


def combine_heads(
    network: Network,
    gathered: SliceGradients,
    active: tf.Tensor,
    meeting: AbstractMeeting,
) -> Update:
    """Reduces what was gathered over the replicas and combines the heads' encoder gradients.

    Args:
        network: The network.
        gathered: The sums of all slices on this replica.
        active: `[num_heads]` booleans.
        meeting: How the heads are combined.
    """
    measured = meeting.measured(gathered)
    gathered = gathered.times(meeting.late_factors(gathered.loss_sums))
    own = all_reduce_sum(gathered.own_gradients(network))
    if measured is not None:
        inner_products, coefficients = measured
        at_cut = inner_products
        encoder = all_reduce_sum(gathered.encoder[0])
    else:
        *rows, rest = gathered.encoder
        at_cut = None if gathered.gramian is None else all_reduce_sum(gathered.gramian)
        if meeting.at_parameters:
            rows, rest = [all_reduce_sum(row) for row in rows], all_reduce_sum(rest)
            if meeting.sees_gradients:
                rows = _all_dense(rows, network.tensors(range(network.num_encoder)))
            stacked = [as_rows([row[i] for row in rows]) for i in range(network.num_encoder)]
            present = [matrix for matrix in stacked if matrix is not None]
            inner_products = inner_products_of(present, len(network.heads))
        else:
            present, inner_products = [], at_cut
        if meeting.sees_gradients:
            restored, coefficients = meeting.combine_rows(present, inner_products, gathered.loss_sums)
            combined = iter(restored)
            encoder = [rest_i if matrix is None else added(rest_i, next(combined)) for rest_i, matrix in zip(rest, stacked)]
        else:
            halves = None
            if gathered.odd_counts is not None:
                odd = [all_reduce_sum(row) for row in gathered.odd]
                halves = _between_halves(rows, odd, meeting.shares(gathered.odd_counts), inner_products)
            coefficients = meeting.coefficients_of(inner_products, gathered.loss_sums, halves)
            encoder = list(rest)
            for k, row in enumerate(rows):
                encoder = [added(total, scaled(gradient, coefficients[k])) for total, gradient in zip(encoder, row)]
            if not meeting.at_parameters:
                encoder = all_reduce_sum(encoder)
    norms = None if inner_products is None else tf.cast(tf.sqrt(tf.linalg.diag_part(inner_products)), tf.float32)
    return Update([*encoder, *own], active, norms, coefficients, at_cut)


def _between_halves(
    rows: Sequence[list[Gradient]], odd: Sequence[list[Gradient]], shares: tf.Tensor, gramian: tf.Tensor
) -> tf.Tensor:
    """The inner products of the heads' gradients on one half of the slices with those on the other.

    Args:
        rows: Each head's gradients over all slices.
        odd: The same over every other slice.
        shares: `[num_heads]`: which part of a head's labelled elements these hold.
        gramian: `[num_heads, num_heads]` of `rows`: the entries of heads with labels in one half only.

    Returns:
        `[num_heads, num_heads]` float64, symmetric. Each half's gradient is that of the mean over the half.
    """
    num_heads, shares = len(rows), tf.cast(shares, tf.float64)
    products = tf.zeros_like(gramian)
    for column in zip(*rows, *odd):
        matrix = as_rows(column)
        if matrix is not None:
            of_all, of_odd = tf.split(tf.cast(matrix.values, tf.float64), [num_heads, num_heads])
            products += tf.matmul(of_all - of_odd, of_odd, transpose_b=True)
    both = (shares > 0) & (shares < 1)
    known = both & both[:, tf.newaxis]
    products = tf.where(known, tf.math.divide_no_nan(products, (1.0 - shares)[:, tf.newaxis] * shares), gramian)
    return 0.5 * (products + tf.transpose(products))


class Ownership(NamedTuple):
    """Variables that idle heads must leave as they are: grouped by the heads that train them.

    Attributes:
        groups: Pairs of head positions and the variables (with their optimizer slots) that only these heads train.
    """

    groups: list[tuple[list[int], list[tf.Variable]]]

    @classmethod
    def of(cls, network: Network, slots: Sequence[Sequence[Any]]) -> Ownership:
        """Groups the heads' own variables; the encoder's are trained whenever there is an update at all."""
        groups: dict[tuple[int, ...], list[tf.Variable]] = {}
        for i in range(network.num_encoder, len(network.variables)):
            members = groups.setdefault(tuple(network.owners(i)), [])
            members.extend(tensor_variable(variable) for variable in (network.variables[i], *slots[i]))
        return cls([(list(owners), members) for owners, members in groups.items()])


def apply_once(
    optimizer: Any,
    variables: Sequence[Any],
    gradients: Sequence[Gradient],
    active: tf.Tensor,
    ownership: Ownership,
    counter: Any,
    state: Sequence[tuple[tf.Variable, tf.Tensor]],
) -> tf.Tensor:
    """Applies one update, or skips it whole if a gradient is not finite or no head is active.

    An idle head's variables and slots are put back as they were: a zero gradient would move them under momentum, Adam
    or weight decay.

    Args:
        optimizer: The built optimizer.
        variables: All trainable variables.
        gradients: Their gradients, reduced and clipped, without loss scaling; None where nothing reaches a variable.
        active: `[num_heads]` booleans.
        ownership: The heads' own variables and slots.
        counter: The count of updates, incremented if the update is made.
        state: Further variables, with the values to put back if the update is skipped.

    Returns:
        Whether the update was made, a boolean scalar.
    """
    pairs = [(gradient, variable) for gradient, variable in zip(gradients, variables) if gradient is not None]
    if not pairs:
        return tf.constant(False)
    # Keras 3's optimizers square the parts of a row that occurs twice, not its sum: it must occur once.
    present = [deduplicate(gradient) for gradient, _ in pairs]
    targets = [variable for _, variable in pairs]
    finite = tf.reduce_all(tf.stack([is_finite(gradient) for gradient in present]))

    def across_replicas(strategy: tf.distribute.Strategy, gradients: Any, finite: Any, active: Any, saved: Any) -> None:
        def local(value: Any) -> tf.Tensor:
            return strategy.experimental_local_results(value)[0]

        def assign(variable: tf.Variable, value: Any) -> None:
            strategy.extended.update(variable, lambda v, new: v.assign(new), args=(value,), group=False)

        def apply() -> None:
            strategy.extended.call_for_each_replica(
                lambda replica_gradients: apply_reduced_gradients(optimizer, replica_gradients, targets),
                args=(gradients,),
            )

        def apply_but_not_to_idle() -> None:
            before = [[tf.identity(variable.read_value()) for variable in group] for _, group in ownership.groups]
            with tf.control_dependencies([value for group in before for value in group]):
                apply()
            for (owners, group), old_values in zip(ownership.groups, before):
                trained = tf.reduce_any(tf.gather(local(active), owners))
                for variable, old in zip(group, old_values):
                    assign(variable, tf.where(trained, variable.read_value(), old))

        def update() -> tf.Tensor:
            tf.cond(tf.reduce_all(local(active)), lambda: _done(apply), lambda: _done(apply_but_not_to_idle))
            strategy.extended.update(tensor_variable(counter), lambda v: v.assign_add(1), group=False)
            record_finite(optimizer, True)
            return tf.constant(True)

        def skip() -> tf.Tensor:
            for (variable, _), value in zip(state, saved):
                assign(variable, value)
            tf.cond(local(finite), lambda: True, lambda: _done(lambda: record_finite(optimizer, False)))
            return tf.constant(False)

        tf.cond(local(finite) & tf.reduce_any(local(active)), update, skip)

    # A condition around an optimizer must stand outside of the replicas: inside, its branches could not meet.
    tf.distribute.get_replica_context().merge_call(
        across_replicas, args=(present, finite, active, [value for _, value in state])
    )
    return finite & tf.reduce_any(active)


def _done(action: Callable[[], None]) -> tf.Tensor:
    action()
    return tf.constant(True)
