"""The network that an update trains: the encoder, the heads, who trains which variables, and what layers add to the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.layers import (
    all_layers,
    losses_of_call,
    losses_of_weights,
    metrics_of_layers,
    own_losses,
    own_state,
    state_variables,
)
from multihead._ground.tensors import where
from multihead._ground.types import Function, Layer, Metric, Nested, Tensor, Variable
from multihead.heads._named import NamedHead


class ByOwner(NamedTuple):
    """Trainable variables by owner, each of them once; or one gradient for each, None if no loss depends on the variable."""

    encoder: list[Nested]  # those of the encoder
    heads: list[Nested]  # those of the heads that are not variables of the encoder
    weighting: list[Nested]  # those of the weighting

    @property
    def of_losses(self) -> list[Nested]:
        """Those of the encoder and the heads, whose gradients are clipped."""
        return [*self.encoder, *self.heads]

    @property
    def all(self) -> list[Nested]:
        """All of them, in this order."""
        return [*self.encoder, *self.heads, *self.weighting]

    def like(self, values: Sequence[Nested]) -> ByOwner:
        """A list of something in the order of `all`, by owner."""
        end = len(self.of_losses)
        return ByOwner(list(values[: len(self.encoder)]), list(values[len(self.encoder) : end]), list(values[end:]))


@dataclass(frozen=True)
class Network:
    """The encoder, the heads and their trainable variables."""

    encoder: Layer
    heads: tuple[NamedHead, ...]  # the heads, in the order in which they were added
    variables: ByOwner  # all trainable variables
    # For each head, the positions of its variables in `variables.heads`; several heads may share a variable. They are those
    # of its module, and others that its loss reads.
    own: tuple[tuple[int, ...], ...]
    # For each head that trains the encoder, the positions of variables in `variables.encoder` that its module also contains,
    # or its loss reads
    shared: tuple[tuple[int, ...], ...]
    learned_by: tuple[list[int], ...]  # for each variable in `variables.weighting`, the heads that train it
    stateful: tuple[bool, ...]  # for each head, whether a forward pass in training mode may change variables of its module
    # The layers that may change variables of their own in such a pass, each with its module
    with_state: tuple[tuple[Layer, Layer], ...] = ()
    measured: tuple[NamedHead, ...] = ()  # the heads that are not trained, and have metrics
    # The trainer itself, whose own losses and metrics count besides those of the modules; None if there is none
    trainer: Layer = None
    # The positions in `variables.all` of variables that are not trained, and need no gradients
    frozen: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        encoder: Layer,
        heads: Sequence[NamedHead],
        weighting: Layer = None,
        read_by_losses: Sequence[Sequence[Variable]] = (),
        measured: Sequence[NamedHead] = (),
        trainer: Layer = None,
    ) -> Network:
        """Collects the trainable variables of built modules, of what the heads' losses read, and of a weighting."""
        of_encoder = list(getattr(encoder, "trainable_variables", []))
        in_encoder = {id(tensor_variable(variable)): i for i, variable in enumerate(of_encoder)}
        of_modules = [list(getattr(head.module, "trainable_variables", [])) for head in heads]
        found = {id(tensor_variable(variable)): variable for variables in of_modules for variable in variables}
        of_heads = [variable for key, variable in found.items() if key not in in_encoder]
        in_heads = {id(tensor_variable(variable)): i for i, variable in enumerate(of_heads)}
        own, shared = [], []
        for head, variables, others in zip(heads, of_modules, read_by_losses or [()] * len(heads)):
            keys = list(dict.fromkeys(id(tensor_variable(variable)) for variable in (*variables, *others)))
            own.append(tuple(in_heads[key] for key in keys if key in in_heads))
            shared.append(tuple(in_encoder[key] for key in keys if key in in_encoder and head.trains_encoder))
        learned = [] if weighting is None else list(weighting.trainable_variables)
        owners = () if weighting is None else tuple(weighting.owners(len(heads)))
        modules = [encoder, *(head.module for head in heads)]
        with_state = {id(layer): (layer, module) for module in modules for layer in all_layers(module) if own_state(layer)}
        return cls(
            encoder=encoder,
            heads=tuple(heads),
            variables=ByOwner(encoder=of_encoder, heads=of_heads, weighting=learned),
            own=tuple(own),
            shared=tuple(shared),
            learned_by=owners,
            stateful=tuple(bool(state_variables(head.module)) for head in heads),
            with_state=tuple(with_state.values()),
            measured=tuple(measured),
            trainer=trainer,
        )

    @property
    def modules(self) -> list[Layer]:
        """The encoder, and the modules of the heads."""
        return [self.encoder, *(head.module for head in self.heads)]

    @property
    def encoder_tensors(self) -> list[tf.Variable]:
        """The TensorFlow variables of the encoder."""
        return [tensor_variable(variable) for variable in self.variables.encoder]

    def own_tensors(self, k: int) -> list[tf.Variable]:
        """The TensorFlow variables of head `k` that the encoder does not contain."""
        return [tensor_variable(self.variables.heads[i]) for i in self.own[k]]

    def shared_tensors(self, k: int) -> list[tf.Variable]:
        """The TensorFlow variables of the encoder that the module of head `k` also contains."""
        return [tensor_variable(self.variables.encoder[i]) for i in self.shared[k]]

    def trained(self, tensors: Sequence[tf.Variable]) -> list[tf.Variable]:
        """Those of some variables that are not frozen."""
        frozen = {id(tensor_variable(self.variables.all[i])) for i in self.frozen}
        return [tensor for tensor in tensors if id(tensor) not in frozen]

    @property
    def frozen_layers(self) -> list[Layer]:
        """The layers that would change variables of their own that are frozen, as batch normalization does.

        These have nothing to train because they, or the whole module, are frozen, or assign to a variable that is frozen, as
        spectral normalization does.
        """
        keys = [id(tensor_variable(variable)) for variable in self.variables.all]
        trained = {key for i, key in enumerate(keys) if i not in self.frozen}

        def is_frozen(layer: Layer, module: Layer) -> bool:
            learns = [variable for variable in own_state(layer) if variable.trainable]
            variables = layer.trainable_variables or (module.trainable_variables if layer.trainable else [])
            of_layer = [id(tensor_variable(variable)) for variable in variables]
            return any(id(each) not in trained for each in learns) or (bool(of_layer) and trained.isdisjoint(of_layer))

        return [layer for layer, module in self.with_state if is_frozen(layer, module)]

    @property
    def metrics_of_layers(self) -> list[Metric]:
        """The metrics that the trainer itself and the layers of the modules keep, each once, in the order of Keras."""
        modules = [*self.modules, *(head.module for head in self.measured)]
        found = [metric for each in modules for metric in metrics_of_layers(each)]
        own = [] if self.trainer is None else self.trainer._metrics
        return list({id(metric): metric for metric in (*own, *found)}.values())

    @property
    def losses_of_trainer(self) -> dict[int, tuple[str, Function]]:
        """The losses that were added to the trainer itself."""
        return {} if self.trainer is None else own_losses(self.trainer)

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that a forward pass in training mode may change, such as moving averages."""
        found = [variable for module in self.modules for variable in state_variables(module)]
        return list({id(variable): variable for variable in found}.values())

    @property
    def owners(self) -> list[list[int]]:
        """For each variable in `variables.all`, the heads that train it; all heads for those of the encoder."""
        everyone = list(range(len(self.heads)))
        of_heads = [[k for k in everyone if i in self.own[k]] for i in range(len(self.variables.heads))]
        return [*(everyone for _ in self.variables.encoder), *of_heads, *self.learned_by]


def sum_of(losses: Sequence[tf.Tensor | None]) -> tf.Tensor | None:
    """The sum of some losses, float32; None for none."""
    found = [tf.cast(loss, tf.float32) for loss in losses if loss is not None]
    return tf.add_n(found) if found else None


def loss_of_call(module: Layer) -> tf.Tensor | None:
    """The sum of the losses that the latest call of a module has added, float32; None without any."""
    return sum_of([_scalar(name, loss) for name, loss in losses_of_call(module)])


def loss_of_weights(network: Network, active: tf.Tensor) -> tf.Tensor | None:
    """The sum of the losses of weights, float32; None without any. Those of heads alone count if one of them is active."""
    found = dict[int, tuple[str, Function]]({**losses_of_weights(network.encoder), **network.losses_of_trainer})
    of_encoder, owners = set(found), dict[int, list[int]]()
    for k, head in enumerate(network.heads):
        for key, each in losses_of_weights(head.module).items():
            found[key] = each
            owners.setdefault(key, []).append(k)
    values = []
    for key, (name, loss) in found.items():
        value = _scalar(name, loss())
        if value is not None and key not in of_encoder:
            value = where(tf.reduce_any(tf.gather(active, owners[key])), value, 0.0)
        values.append(value)
    return sum_of(values)


def gradients_of_weights(network: Network, active: tf.Tensor) -> tuple[tf.Tensor | None, ByOwner]:
    """`loss_of_weights` and its gradients, the same on every replica."""
    trained = [i for i in range(len(network.variables.all)) if i not in network.frozen]
    tensors = [tensor_variable(network.variables.all[i]) for i in trained]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        loss = loss_of_weights(network, active)
    found = {} if loss is None else dict(zip(trained, tape.gradient(loss, tensors)))
    return loss, network.variables.like([found.get(i) for i in range(len(network.variables.all))])


def _scalar(name: str, loss: Tensor) -> tf.Tensor | None:
    if loss is not None and loss.shape.rank:
        raise ValueError(
            "`add_loss` and regularizers must add one number, a scalar. Received: a loss of shape "
            f"{tuple(loss.shape)} from {name!r}. Reduce it, for example to its mean over the batch: "
            "`self.add_loss(tf.reduce_mean(loss))`."
        )
    return loss
