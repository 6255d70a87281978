"""The gradients of an update as pairs with their variables, for a custom training loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.keras import Gradient, tensor_variable
from multihead._update.apply import Saved
from multihead._update.faults import Broken
from multihead._update.network import Gradients, Network
from multihead._update.pipeline import Update


class ComputedGradients(list[tuple[Any, Any]]):
    """Pairs of gradient and variable, with what only their computation knows. A list made of them is a plain one.

    Attributes:
        active: `[num_heads]`: which heads the update trains.
        saved: What to put back if the update is skipped.
        broken: What is not finite.
        dropped: What was not finite before heads were dropped.
    """

    active: Any = None
    saved: Saved = ()
    broken: Broken | None = None
    dropped: Broken | None = None

    @classmethod
    def of(cls, network: Network, update: Update, saved: Saved) -> ComputedGradients:
        """The gradients of an update that is not applied yet. Run eagerly, idle heads have None for each variable."""
        gradients = update.gradients.all
        if tf.executing_eagerly():
            active = update.active.numpy()
            gradients = [gradient if active[of].any() else None for gradient, of in zip(gradients, network.owners)]
        pairs = cls(zip(gradients, network.variables.all))
        pairs.active, pairs.saved, pairs.broken, pairs.dropped = update.active, saved, update.broken, update.dropped
        return pairs


class ToApply(NamedTuple):
    """An update to apply.

    Attributes:
        gradients: The gradients of the network's variables.
        active: Which heads they train.
        saved: What to restore if they are not applied.
        broken: What is not finite.
        dropped: What was not finite before heads were dropped, or None.
    """

    gradients: Gradients
    active: tf.Tensor
    saved: Saved
    broken: Broken
    dropped: Broken | None


def to_apply(network: Network, grads_and_vars: Iterable[tuple[Any, Any]]) -> ToApply:
    """The update that pairs of gradient and variable make.

    Raises:
        ValueError: A variable does not belong to the network.
    """
    pairs = grads_and_vars if isinstance(grads_and_vars, ComputedGradients) else ComputedGradients(grads_and_vars)
    given = {id(tensor_variable(variable)): gradient for gradient, variable in pairs}
    known = [id(tensor_variable(variable)) for variable in network.variables.all]
    if not set(given) <= set(known):
        raise ValueError(
            "`grads_and_vars` must contain only trainable variables of the trainer. Received: "
            f"{len(set(given) - set(known))} others. Pass the variables returned by `compute_gradients`."
        )
    gradients = Gradients.of([given.get(key) for key in known], network.variables)
    active = _active_by_gradients(network, gradients) if pairs.active is None else pairs.active
    broken = Broken.of_gradients(network, gradients)
    if pairs.broken is not None:  # the gradients may have been changed since
        broken |= pairs.broken._replace(variables=broken.variables)
    return ToApply(gradients, active, pairs.saved, broken, pairs.dropped)


def _active_by_gradients(network: Network, gradients: Gradients) -> tf.Tensor:
    """Which heads gradients of unknown origin train: those with one that is not zero for a variable of their own.

    A head counts by the variables that no other head trains, if it has any; without variables it is active.

    Returns:
        `[num_heads + 1]` booleans; the last is True, so that gradients of the encoder alone are applied, too.
    """
    active = []
    for k, positions in enumerate(network.own):
        alone = [i for i in positions if not any(i in others for j, others in enumerate(network.own) if j != k)]
        of_head = [gradients.heads[i] for i in alone or positions]
        found = [tf.reduce_any(tf.not_equal(_values(each), 0)) for each in of_head if each is not None]
        active.append(tf.reduce_any(found) if found else tf.constant(not of_head))
    return tf.stack([*active, tf.constant(True)])


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else tf.convert_to_tensor(gradient)
