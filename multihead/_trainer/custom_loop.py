"""The gradients of an update as pairs with their variables, for a custom training loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Gradient
from multihead._update.broken import Broken
from multihead._update.network import Gradients, Network
from multihead._update.update import Change, Update


class ComputedGradient(tuple[Any, Any]):
    """A pair of gradient and variable that remembers its update, in whichever list it is.

    Attributes:
        update: The update; None for a pair of another origin.
    """

    update: Update | None = None


class ComputedGradients(list[Any]):
    """The pairs of an update that is not applied yet, with its losses.

    Args:
        pairs: Pairs of gradient and variable.
        update: The update; None for a list that TensorFlow made, of what a `tf.function` returns.
        heads: The names of the heads.
    """

    def __init__(self, pairs: Iterable[Any] = (), update: Update | None = None, heads: Sequence[str] = ()) -> None:
        super().__init__(pairs)
        self._update = update
        self._heads = heads

    @property
    def losses(self) -> dict[str, tf.Tensor]:
        """The mean loss of each head over its labels in the batch and on all replicas, by name, without its weight.

        Float32 scalars; NaN for a head that is idle.
        """
        update = self._found()
        sums, counts = (replicas.all_reduce_sum(each) for each in (update.loss_sums, update.counts))
        with unchecked():
            means = where(counts > 0, tf.math.divide_no_nan(sums, counts), float("nan"))
        return {name: means[k] for k, name in enumerate(self._heads)}

    @property
    def loss(self) -> tf.Tensor:
        """The total loss of the update, a float32 scalar, with weights, regularization and `add_loss` losses."""
        update = self._found()
        return replicas.all_reduce_sum(update.total_loss)

    def _found(self) -> Update:
        if self._update is None:
            raise ValueError(
                "`losses` must be read where `compute_gradients` is called. Received: the list that a `tf.function` has "
                "returned. Return `pairs.losses` from the function, too."
            )
        return self._update


def pairs_of(network: Network, update: Update) -> ComputedGradients:
    """The gradients of an update that is not applied yet. Run eagerly, idle heads have None for each variable."""
    gradients = update.gradients.all
    if tf.executing_eagerly():
        active = update.active.numpy()
        gradients = [gradient if active[of].any() else None for gradient, of in zip(gradients, network.owners)]
    pairs = [ComputedGradient(pair) for pair in zip(gradients, network.variables.all)]
    for pair in pairs:
        pair.update = update
    return ComputedGradients(pairs, update, [head.name for head in network.heads])


def to_apply(network: Network, grads_and_vars: Iterable[tuple[Any, Any]], step: tf.Tensor) -> Change:
    """The update that pairs of gradient and variable make.

    Args:
        network: The network.
        grads_and_vars: The pairs. If those of `pairs_of` among them are of one update, they are applied as that update.
        step: The number of updates applied so far.

    Raises:
        ValueError: A variable does not belong to the network.
    """
    pairs = list(grads_and_vars)
    given = {id(tensor_variable(variable)): gradient for gradient, variable in pairs}
    known = [id(tensor_variable(variable)) for variable in network.variables.all]
    if not set(given) <= set(known):
        raise ValueError(
            "`grads_and_vars` must contain only trainable variables of the trainer. Received: "
            f"{len(set(given) - set(known))} others. Pass the variables returned by `compute_gradients`."
        )
    gradients = Gradients.of([given.get(key) for key in known], network.variables)
    broken = Broken.of_gradients(network, gradients)
    updates = {id(pair.update): pair.update for pair in pairs if isinstance(pair, ComputedGradient)}
    (update,) = updates.values() if len(updates) == 1 else (None,)
    if update is not None:  # the gradients may have been changed since
        broken |= update.broken._replace(variables=broken.variables)
        return replace(update, gradients=gradients, clipped=gradients, step=step, broken=broken)
    return Change(
        gradients=gradients,
        clipped=gradients,
        step=step,
        active=_active_by_gradients(network, gradients),
        without_heads=True,
        broken=broken,
    )


def _active_by_gradients(network: Network, gradients: Gradients) -> tf.Tensor:
    """Which heads gradients of unknown origin train: those with one that is not zero for a variable of their own.

    A head counts by the variables that no other head trains, if it has any; without variables it is active.

    Returns:
        `[num_heads]` booleans.
    """
    active = []
    for k, positions in enumerate(network.own):
        alone = [i for i in positions if not any(i in others for j, others in enumerate(network.own) if j != k)]
        of_head = [gradients.heads[i] for i in alone or positions]
        found = [tf.reduce_any(tf.not_equal(_values(each), 0)) for each in of_head if each is not None]
        active.append(tf.reduce_any(found) if found else tf.constant(not of_head))
    return tf.stack(active)


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
