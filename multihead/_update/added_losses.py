"""Losses that layers add: those of a call, and those of weights, which count once per update.

A call adds `add_loss` and activity regularizers, each time that it runs, as in Keras. A regularizer of weights counts once,
however many modules contain its layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.layers import losses_of_call, losses_of_weights
from multihead._ground.tensors import where
from multihead._update.network import Gradients, Network


def sum_of(losses: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    """The sum of some losses, float32; None for none."""
    found = [tf.cast(loss, tf.float32) for loss in losses if loss is not None]
    return tf.add_n(found) if found else None


def adds_losses(network: Network) -> bool:
    """Whether a layer adds losses: to its latest call, or for its weights."""
    modules = (network.encoder, *(head.module for head in network.heads))
    return any(losses_of_call(module) or losses_of_weights(module) for module in modules)


def loss_of_call(module: Any) -> tf.Tensor | None:
    """The sum of the losses that the latest call of a module has added, float32; None without any.

    Raises:
        ValueError: One of them is not a scalar.
    """
    return sum_of([_scalar(name, loss) for name, loss in losses_of_call(module)])


def loss_of_weights(network: Network, active: tf.Tensor) -> tf.Tensor | None:
    """The sum of the losses of weights, float32; None without any.

    Those of layers that only heads contain count if one of these heads is active.

    Args:
        network: The encoder and the heads.
        active: `[num_heads]` booleans.

    Raises:
        ValueError: One of them is not a scalar.
    """
    found = dict[int, tuple[str, Any]](losses_of_weights(network.encoder))
    of_encoder, owners = set(found), dict[int, list[int]]()
    for k, head in enumerate(network.heads):
        for key, each in losses_of_weights(head.module).items():
            found[key] = each
            owners.setdefault(key, []).append(k)

    def counted(key: int, name: str, loss: Any) -> tf.Tensor | None:
        value = _scalar(name, loss())
        if value is None or key in of_encoder:
            return value
        return where(tf.reduce_any(tf.gather(active, owners[key])), value, 0.0)

    return sum_of([counted(key, *each) for key, each in found.items()])


def gradients_of_weights(network: Network, active: tf.Tensor) -> tuple[tf.Tensor | None, Gradients]:
    """`loss_of_weights` and its gradients, the same on every replica."""
    trained = [i for i in range(len(network.variables.all)) if i not in network.frozen]
    tensors = [tensor_variable(network.variables.all[i]) for i in trained]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        loss = loss_of_weights(network, active)
    found = {} if loss is None else dict(zip(trained, tape.gradient(loss, tensors)))
    return loss, Gradients.of([found.get(i) for i in range(len(network.variables.all))], network.variables)


def _scalar(name: str, loss: Any) -> Any:
    if loss is not None and loss.shape.rank:
        raise ValueError(
            "`add_loss` and regularizers must add one number, a scalar. Received: a loss of shape "
            f"{tuple(loss.shape)} from {name!r}. Reduce it, for example to its mean over the batch: "
            "`self.add_loss(tf.reduce_mean(loss))`."
        )
    return loss
