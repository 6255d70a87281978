"""Updates that are not finite: the last one, how many were skipped in a row, and when to stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import first_replica_variable, variable_name
from multihead._ground.layers import distinct, module_variables
from multihead._ground.replicas import assign
from multihead._ground.tensors import all_hold, is_finite, where
from multihead._ground.validation import quoted, stop_unless
from multihead._update.network import ByOwner, Network

ON_NONFINITE = ("skip", "raise")
"""The values of `on_nonfinite=`."""

INPUTS, LABELS = 1, 2
"""The data of an update that were not finite: its inputs, or else the labels and their weights; 0 if neither."""


class Broken(NamedTuple):
    """The losses and gradients of an update that are not finite, before clipping; equal on all replicas."""

    heads: tf.Tensor  # `[num_heads]` booleans: the loss, or one of the gradients, of a head that the update trains
    losses: tf.Tensor  # `[num_heads]` booleans: the loss
    variables: tf.Tensor  # booleans for the gradients of the network's variables

    @classmethod
    def of_gradients(cls, network: Network, gradients: ByOwner) -> Broken:
        """The gradients that are not finite, of an update whose losses are not known."""
        flags = [tf.constant(True) if gradient is None else is_finite(gradient) for gradient in gradients.all]
        variables = ~tf.stack(flags) if flags else tf.zeros([0], tf.bool)
        first = len(network.variables.encoder)
        own = [[i - first in positions for i in range(len(flags))] for positions in network.own]
        heads = tf.reduce_any(tf.constant(own, tf.bool) & variables, axis=1)
        return cls(heads=heads, losses=tf.zeros_like(heads), variables=variables)

    def with_losses(
        self, active: tf.Tensor, loss_sums: tf.Tensor, at_representation: tf.Tensor, norms: tf.Tensor | None
    ) -> Broken:
        """The same for an update with `[num_heads]` loss sums of this replica.

        `at_representation` is above 0 where a gradient there is not finite, other than those that have `norms`.
        """
        losses, at_representation = replicas.on_any_replica([~tf.math.is_finite(loss_sums), at_representation > 0])
        flags = [losses, at_representation, self.heads, *([] if norms is None else [~tf.math.is_finite(norms)])]
        return self._replace(heads=active & reduce(tf.logical_or, flags), losses=active & losses)

    @property
    def is_any(self) -> tf.Tensor:
        """Whether there is anything, a boolean scalar."""
        return tf.reduce_any(tf.concat([self.heads, self.variables], axis=0))


class Faults:
    """Counts updates that are skipped because they are not finite, remembers the last one, and stops training.

    With loss scaling, a gradient that is not finite while its loss is finite means that the scale is too large: the
    optimizer lowers it, and the update does not count as a fault until the scale is 1. Training stops at `limit` updates
    skipped in a row, if it is not None; `window` is the number of batches of an update.
    """

    def __init__(self, network: Network, mode: str, limit: int | None, window: int) -> None:
        self._network, self._mode, self._window = network, mode, window
        self._limit = 1 if mode == "raise" else limit
        self._heads = [head.name for head in network.heads]
        self._variables = [variable_name(variable) for variable in network.variables.all]
        # Of the last fault: how many updates in a row were skipped up to it; the number of updates before it; the position
        # in the epoch of its first batch, or -1; which data were not finite. Once training must stop, they stay as they are.
        # The flags say of heads, and then of variables, whether they were not finite. The numbers of the epoch are of
        # updates skipped, and of those among them for loss scaling, and because of a fault.
        flags = tf.zeros([len(self._heads) + len(self._variables)], tf.bool)
        self.numbers, self.flags = first_replica_variable(tf.zeros([4], tf.int64)), first_replica_variable(flags)
        self.numbers_of_epoch = first_replica_variable(tf.zeros([3], tf.int64))
        self.state = [self.numbers, self.flags, self.numbers_of_epoch]

    def skipped(
        self,
        strategy: tf.distribute.Strategy,
        broken: Broken,
        trains_any: tf.Tensor,
        step: tf.Tensor,
        loss_scale: tf.Tensor | None,
        data: Sequence[Sequence[tf.Tensor]],
        batch: tf.Tensor | None,
    ) -> None:
        """Remembers an update that was not applied, and stops if it must; in the cross-replica context.

        `trains_any` is whether there was anything to train, `loss_scale` None unless the optimizer adapts it, `data` as in
        `Change`, and `batch` the position in the epoch of the first batch, if it is known.
        """
        fault = trains_any if loss_scale is None else trains_any & (tf.reduce_any(broken.losses) | (loss_scale <= 1))
        numbers, flags = self.numbers.read_value(), tf.concat([broken.heads, broken.variables], axis=0)
        in_a_row, last_step, *_ = tf.unstack(numbers)
        # No update was applied since a fault after as many updates, so that both are in a row.
        run = where(tf.equal(last_step, step), in_a_row, 0) + 1
        # The data that are not finite on one of this process's replicas.
        local = [[part for leaf in leaves for part in strategy.experimental_local_results(leaf)] for leaves in data]
        inputs, labels = (~all_hold([tf.reduce_all(tf.math.is_finite(part)) for part in parts]) for parts in local)
        cause = where(inputs, tf.constant(INPUTS, tf.int64), where(labels, tf.constant(LABELS, tf.int64), 0))
        is_new = fault if self._limit is None else fault & (in_a_row < self._limit)
        new = tf.stack([run, step, tf.constant(-1, tf.int64) if batch is None else batch, cause])
        assign(strategy, self.numbers, where(is_new, new, numbers))
        assign(strategy, self.flags, where(is_new, flags, self.flags.read_value()))
        overflows = 0 if loss_scale is None else tf.cast(trains_any & ~fault, tf.int64)
        assign(
            strategy, self.numbers_of_epoch, self.numbers_of_epoch.read_value() + [1, overflows, tf.cast(fault, tf.int64)]
        )
        if tf.executing_eagerly():
            self.stop()
        elif self._limit is not None:
            parts = ["`on_nonfinite`: a loss or gradient is not finite, in the update after ", step]
            parts += [" updates; skipped in a row: ", run, ". Compute it eagerly, outside of a graph, to see where."]
            with tf.control_dependencies([self.numbers.read_value(), self.flags.read_value()]):  # for `stop`
                stop_unless(~(fault & (run >= self._limit)), lambda: parts)

    def stop(self) -> float:
        """Raises a `ValueError` if an update has said that training must stop; after how many updates one may say so."""
        if self._limit is None:
            return math.inf
        run, *_ = numbers = _now(self.numbers)
        if run < self._limit:
            return float(self._limit - run)
        self.numbers.assign([0, *numbers[1:]])  # another `fit` may follow
        cause, place, remedy = self.described()
        if self._mode == "raise":
            raise ValueError(
                f"{cause} `on_nonfinite='raise'` requires finite losses and gradients. "
                f"Received: a value that is not finite, {place}. That update was not applied. {remedy}"
            )
        raise ValueError(
            f"{cause} `max_skipped_updates={self._limit}` ends training after as many updates in a row that were skipped "
            f"because a loss or gradient was not finite. Received: {run} such updates, the last one {place}. {remedy}"
        )

    def counted(self) -> tuple[int, int, bool]:
        """In the epoch so far: the updates skipped, without and for loss scaling, and whether any was not finite."""
        skipped, overflows, faults = _now(self.numbers_of_epoch)
        return skipped - overflows, overflows, faults > 0

    def described(self) -> tuple[str, str, str]:
        """The last fault as text: the most likely cause, where it showed, and what to do."""
        (_, step, batch, data), flags = _now(self.numbers), _now(self.flags)
        heads = [name for name, flag in zip(self._heads, flags) if flag]
        names = [name for name, flag in zip(self._variables, flags[len(self._heads) :]) if flag]
        place = f"from head {quoted(heads)}" if heads else "from the combined gradient"
        if data != INPUTS:  # which spoil all gradients
            more = f" and {len(names) - 4} others" if len(names) > 4 else ""
            place += f", in the gradients of {quoted(names[:4])}{more}" if names else ", in the loss"
        place += f", at update {step + 1}"
        if batch >= 0:
            batches = f"batch {batch}" if self._window == 1 else f"batches {batch} to {batch + self._window - 1}"
            place += f", {batches} of the epoch (counted from 0)"
        if data == INPUTS:
            cause = "The inputs must be finite, and some are not."
            return cause, place, "Replace NaN and infinity there, or omit these examples."
        if data == LABELS:
            cause = f"The labels and sample weights must be valid, and some of head {quoted(heads)} are not."
            return cause, place, "Correct them; `compile(check_labels=True)`, without `jit_compile`, says which."
        weights = self._weights_not_finite()
        if weights:
            cause = f"The weights must be finite, and some are not: {quoted(weights[:4])}."
            return cause, place, "Load finite weights; if training has spoilt them, lower the learning rate too."
        cause = "The encoder, the modules and the losses must give finite values and gradients, and one of them does not."
        remedy = "Look there for logarithms, roots and divisions at 0; lower the learning rate, or clip gradients (`clip=`)."
        return cause, place, remedy

    def _weights_not_finite(self) -> list[str]:
        """The names of the weights that are not finite now; a skipped update has not changed them."""
        variables = distinct(variable for module in self._network.modules for variable in module_variables(module))
        with tf.init_scope():
            floats = [variable for variable in variables if variable.dtype.is_floating]
            finite = [bool(tf.reduce_all(tf.math.is_finite(tf.convert_to_tensor(variable)))) for variable in floats]
            return [variable_name(variable) for variable, is_finite in zip(floats, finite) if not is_finite]


def _now(variable: tf.Variable) -> list[Any]:
    """The values of a variable, as Python knows them."""
    with tf.init_scope():
        values = tf.distribute.get_strategy().experimental_local_results(variable)
        return list(tf.convert_to_tensor(values[0]).numpy().tolist())
