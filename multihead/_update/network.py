"""The network that an update trains: the encoder, the heads, their variables, and which heads train which variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.layers import all_layers, own_state, state_variables
from multihead._ground.types import Gradient
from multihead.heads._named import NamedHead


class Variables(NamedTuple):
    """Trainable variables by owner, each of them once.

    Attributes:
        encoder: Variables of the encoder.
        heads: Variables of the heads that are not variables of the encoder.
        weighting: Variables of the weighting.
    """

    encoder: list[Any]
    heads: list[Any]
    weighting: list[Any]

    @property
    def all(self) -> list[Any]:
        """All variables, in this order."""
        return [*self.encoder, *self.heads, *self.weighting]


class Gradients(NamedTuple):
    """One gradient per variable of a network, grouped as in `Variables`; None if no loss depends on the variable."""

    encoder: list[Gradient]
    heads: list[Gradient]
    weighting: list[Gradient]

    @property
    def of_losses(self) -> list[Gradient]:
        """The gradients of the encoder and the heads, which are clipped."""
        return [*self.encoder, *self.heads]

    @property
    def all(self) -> list[Gradient]:
        """All gradients, in the order of `Variables.all`."""
        return [*self.encoder, *self.heads, *self.weighting]

    @classmethod
    def of(cls, gradients: Sequence[Gradient], variables: Variables) -> Gradients:
        """Splits a list in the order of `Variables.all`."""
        end = len(variables.encoder) + len(variables.heads)
        encoder, heads = gradients[: len(variables.encoder)], gradients[len(variables.encoder) : end]
        return cls(encoder=list(encoder), heads=list(heads), weighting=list(gradients[end:]))


@dataclass(frozen=True)
class Network:
    """The encoder, the heads and their trainable variables.

    Attributes:
        encoder: The shared encoder.
        heads: The heads, in the order in which they were added.
        variables: All trainable variables.
        own: For each head, the positions of its variables in `variables.heads`; several heads may share a variable. They
            are those of its module, and others that its loss reads.
        shared: For each head that trains the encoder, the positions of variables in `variables.encoder` that its module also
            contains, or its loss reads.
        learned_by: For each variable in `variables.weighting`, the heads that train it.
        stateful: For each head, whether a forward pass in training mode may change variables of its module.
        with_state: The layers that may change variables of their own in such a pass, each with its module.
        measured: The heads that are not trained, and have metrics.
        frozen: The positions in `variables.all` of variables that are not trained, and need no gradients.
    """

    encoder: Any
    heads: tuple[NamedHead, ...]
    variables: Variables
    own: tuple[tuple[int, ...], ...]
    shared: tuple[tuple[int, ...], ...]
    learned_by: tuple[list[int], ...]
    stateful: tuple[bool, ...]
    with_state: tuple[tuple[Any, Any], ...] = ()
    measured: tuple[NamedHead, ...] = ()
    frozen: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        encoder: Any,
        heads: Sequence[NamedHead],
        weighting: Any = None,
        read_by_losses: Sequence[Sequence[Any]] = (),
        measured: Sequence[NamedHead] = (),
    ) -> Network:
        """Collects the trainable variables of built modules and of a built weighting, if any.

        Args:
            encoder: The built encoder.
            heads: The built heads.
            weighting: The built weighting, or None.
            read_by_losses: For each head, variables of these modules that its loss reads; empty for none.
            measured: The heads without a loss.
        """
        of_encoder = list(getattr(encoder, "trainable_variables", []))
        in_encoder = {id(tensor_variable(variable)): i for i, variable in enumerate(of_encoder)}
        of_heads: list[Any] = []
        in_heads: dict[int, int] = {}
        read: list[list[int]] = []
        for head in heads:
            read.append([])
            for variable in getattr(head.module, "trainable_variables", []):
                key = id(tensor_variable(variable))
                read[-1].append(key)
                if key not in in_encoder and key not in in_heads:
                    in_heads[key] = len(of_heads)
                    of_heads.append(variable)
        own, shared = [], []
        for head, keys, others in zip(heads, read, read_by_losses or [()] * len(heads)):
            keys = list(dict.fromkeys([*keys, *(id(tensor_variable(variable)) for variable in others)]))
            own.append(tuple(in_heads[key] for key in keys if key in in_heads))
            shared.append(tuple(in_encoder[key] for key in keys if key in in_encoder and head.trains_encoder))
        learned = [] if weighting is None else list(weighting.trainable_variables)
        owners = () if weighting is None else tuple(weighting.owners(len(heads)))
        modules = [encoder, *(head.module for head in heads)]
        with_state = {id(layer): (layer, module) for module in modules for layer in all_layers(module) if own_state(layer)}
        return cls(
            encoder=encoder,
            heads=tuple(heads),
            variables=Variables(encoder=of_encoder, heads=of_heads, weighting=learned),
            own=tuple(own),
            shared=tuple(shared),
            learned_by=owners,
            stateful=tuple(bool(state_variables(head.module)) for head in heads),
            with_state=tuple(with_state.values()),
            measured=tuple(measured),
        )

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

    @property
    def trains_encoder(self) -> list[bool]:
        """For each of `encoder_tensors`, whether it is trained."""
        return [i not in self.frozen for i in range(len(self.variables.encoder))]

    def trains_own(self, k: int) -> list[bool]:
        """For each of `own_tensors`, whether it is trained."""
        return [len(self.variables.encoder) + i not in self.frozen for i in self.own[k]]

    def trains_shared(self, k: int) -> list[bool]:
        """For each of `shared_tensors`, whether it is trained."""
        return [i not in self.frozen for i in self.shared[k]]

    @property
    def frozen_layers(self) -> list[Any]:
        """The layers that would change variables of their own that are frozen: batch normalization, for example.

        These are layers of which nothing is trained because they, or the whole module, are frozen, and those that assign a
        new value to a variable that is not trained, as spectral normalization does.
        """
        keys = [id(tensor_variable(variable)) for variable in self.variables.all]
        trained = {key for i, key in enumerate(keys) if i not in self.frozen}

        def is_frozen(layer: Any, module: Any) -> bool:
            learns = [variable for variable in own_state(layer) if variable.trainable]
            variables = layer.trainable_variables or (module.trainable_variables if layer.trainable else [])
            of_layer = [id(tensor_variable(variable)) for variable in variables]
            return any(id(each) not in trained for each in learns) or (bool(of_layer) and trained.isdisjoint(of_layer))

        return [layer for layer, module in self.with_state if is_frozen(layer, module)]

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that a forward pass in training mode may change, such as moving averages."""
        modules = [self.encoder, *(head.module for head in self.heads)]
        found = [variable for module in modules for variable in state_variables(module)]
        return list({id(variable): variable for variable in found}.values())

    @property
    def owners(self) -> list[list[int]]:
        """For each variable in `variables.all`, the heads that train it; all heads for those of the encoder."""
        everyone = list(range(len(self.heads)))
        of_heads = [[k for k in everyone if i in self.own[k]] for i in range(len(self.variables.heads))]
        return [*(everyone for _ in self.variables.encoder), *of_heads, *self.learned_by]


class Ownership(NamedTuple):
    """The variables that must not change while their heads are idle, grouped by these heads.

    Attributes:
        groups: Pairs of head positions and the variables (with their optimizer slots) that only these heads train.
        slots: The optimizer slots of each variable of the network.
    """

    groups: list[tuple[list[int], list[tf.Variable]]]
    slots: list[list[tf.Variable]]

    @classmethod
    def of(cls, network: Network, slots: Sequence[Sequence[Any]]) -> Ownership:
        """Groups all variables except the encoder's, which every update trains.

        Args:
            network: The network.
            slots: The optimizer slots of each of its variables.
        """
        groups: dict[tuple[int, ...], list[tf.Variable]] = {}
        first = len(network.variables.encoder)
        for variable, owners, of_variable in list(zip(network.variables.all, network.owners, slots))[first:]:
            members = groups.setdefault(tuple(owners), [])
            members.extend(tensor_variable(each) for each in (variable, *of_variable))
        tensors = [[tensor_variable(slot) for slot in of_variable] for of_variable in slots]
        return cls([(list(owners), members) for owners, members in groups.items()], tensors)
