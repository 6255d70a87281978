"""The network that an update trains: the encoder, the heads, who trains which variables, and what layers add to the loss."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import tensorflow as tf

from multihead._ground import layers
from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import precision_of, where
from multihead._ground.types import Layer, Metric, Nested, Tensor, Variable
from multihead.heads._named import NamedHead
from multihead.rates import Factor, values_at


class ByOwner(NamedTuple):
    """Trainable variables by owner, without repetitions; or their gradients, None if no loss depends on the variable."""

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


MaskForm = tuple[bool, list[tuple[str, bytes]]]
"""Of a Keras mask: whether it depends on a state, and the kinds of operations, with the constants, that it comes from."""


class Predictions(NamedTuple):
    """Properties of a head's predictions, known before any data."""

    spec: tf.TensorSpec  # their spec
    masked: bool  # whether they carry a Keras mask
    leaves: tuple[bool, ...]  # by floating-point leaf of the representation, whether they depend on it
    # The trainable variables of the encoder and the heads that the loss itself reads
    read_by_loss: tuple[Variable, ...] = ()
    mask_form: MaskForm | None = None  # of the mask in inference mode, if a trace has shown it


@dataclass(frozen=True)
class Network:
    """The encoder, the heads and their trainable variables."""

    encoder: Layer
    heads: tuple[NamedHead, ...]  # the heads, in the order in which they were added
    variables: ByOwner  # all trainable variables
    # By head, the positions of its variables in `variables.heads`; several heads may share a variable. They are those
    # of its module, and others that its loss reads.
    own: tuple[tuple[int, ...], ...]
    # For each head that trains the encoder, the positions of variables in `variables.encoder` that its module also contains,
    # or its loss reads
    shared: tuple[tuple[int, ...], ...]
    learned_by: tuple[list[int], ...]  # by variable in `variables.weighting`, the heads that train it
    predictions: Mapping[str, Predictions]  # of every head, by its name
    stateful: tuple[bool, ...]  # by head, whether a forward pass in training mode may change variables of its module
    # The layers that may change variables of their own in such a pass, each with its module
    with_state: tuple[tuple[Layer, Layer], ...] = ()
    measured: tuple[NamedHead, ...] = ()  # the heads that are not trained, and have metrics
    # The trainer itself, whose own losses and metrics count besides those of the modules; None if there is none
    trainer: Layer = None
    # The positions in `variables.all` of variables that are not trained, and need no gradients
    frozen: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls, encoder: Layer, heads: Sequence[NamedHead], predictions: Mapping[str, Predictions], trainer: Layer = None
    ) -> Network:
        """Collects the trainable variables of built modules, of what the heads' losses read, and of the weighting."""
        measured = tuple(head for head in heads if not head.is_trained and head.metric_specs)
        heads = tuple(head for head in heads if head.is_trained)
        encoder_variables = list(getattr(encoder, "trainable_variables", []))
        in_encoder = {id(tensor_variable(variable)): i for i, variable in enumerate(encoder_variables)}
        module_variables = [list(getattr(head.module, "trainable_variables", [])) for head in heads]
        by_id = {id(tensor_variable(variable)): variable for variables in module_variables for variable in variables}
        head_variables = [variable for key, variable in by_id.items() if key not in in_encoder]
        in_heads = {id(tensor_variable(variable)): i for i, variable in enumerate(head_variables)}
        own, shared = [], []
        for head, variables in zip(heads, module_variables):
            variables += predictions[head.name].read_by_loss
            keys = list(dict.fromkeys(id(tensor_variable(variable)) for variable in variables))
            own.append(tuple(in_heads[key] for key in keys if key in in_heads))
            shared.append(tuple(in_encoder[key] for key in keys if key in in_encoder and head.trains_encoder))
        weighting: Layer = getattr(trainer, "weighting", None)
        learned = [] if weighting is None else list(weighting.trainable_variables)
        owners = () if weighting is None else tuple(weighting.owners(len(heads)))
        modules = [encoder, *(head.module for head in heads)]
        with_state = {
            id(layer): (layer, module)
            for module in modules
            for layer in layers.all_layers(module)
            if layers.own_state(layer)
        }
        return cls(
            encoder=encoder,
            heads=heads,
            variables=ByOwner(encoder=encoder_variables, heads=head_variables, weighting=learned),
            own=tuple(own),
            shared=tuple(shared),
            learned_by=owners,
            predictions=predictions,
            stateful=tuple(bool(layers.state_variables(head.module)) for head in heads),
            with_state=tuple(with_state.values()),
            measured=measured,
            trainer=trainer,
        )

    @property
    def dtype(self) -> tf.DType:
        """The precision of loss sums and counts."""
        return precision_of([spec.dtype for spec in self.specs])

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """The specs of the heads' predictions."""
        return [self.predictions[head.name].spec for head in self.heads]

    @property
    def reads(self) -> list[tuple[bool, ...]]:
        """By head, which floating-point leaves of the representation its predictions depend on."""
        return [self.predictions[head.name].leaves for head in self.heads]

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
        """The frozen layers whose forward pass would change variables of their own, as batch normalization does.

        A layer is frozen if all that it trains is, or if it assigns to a frozen variable, as spectral normalization does.
        """
        return [layer for layer, learns, trains in self._learning_layers if self._is_frozen(learns, trains, self.frozen)]

    def state_at(self, factors: Sequence[Factor], step: tf.Tensor) -> list[tuple[tf.Tensor, list[tf.Variable]]]:
        """Variables that layers change in a forward pass and that a function of the step may freeze, as it does the others.

        By whether they change, a boolean scalar; `factors` are those of learning rates, one per variable.
        """
        changing = {i for i, factor in enumerate(factors) if callable(factor)}
        changes = list[tuple[tf.Tensor, list[tf.Variable]]]()
        for layer, learns, trains in self._learning_layers if changing else []:
            if self._is_frozen(learns, trains, self.frozen) or not self._is_frozen(learns, trains, self.frozen | changing):
                continue
            by_factor = {factors[i]: values_at([factors[i]], step)[0] for i in changing & {*learns, *trains}}
            is_zero = {factor: tf.equal(value, 0) for factor, value in by_factor.items()}

            def frozen(i: int, is_zero: Nested = is_zero) -> tf.Tensor:
                return is_zero[factors[i]] if i in changing else tf.constant(i in self.frozen or i < 0)

            flags = [tf.reduce_all([frozen(i) for i in trains])] if trains else []
            moves = ~tf.reduce_any([*flags, *map(frozen, learns)])
            changes.append((moves, layers.own_state(layer)))
        return changes

    @property
    def _learning_layers(self) -> list[tuple[Layer, list[int], list[int]]]:
        """The layers that change variables of their own, with the positions of what they assign to and what they train."""
        positions = {id(tensor_variable(variable)): i for i, variable in enumerate(self.variables.all)}
        learning = []
        for layer, module in self.with_state:
            learns = [variable for variable in layers.own_state(layer) if variable.trainable]
            trains = layer.trainable_variables or (module.trainable_variables if layer.trainable else [])
            # Those that are not among the trained variables have the position -1, which counts as frozen.
            places = ([positions.get(id(tensor_variable(one)), -1) for one in variables] for variables in (learns, trains))
            learning.append((layer, *places))
        return learning

    @staticmethod
    def _is_frozen(learns: Sequence[int], trains: Sequence[int], frozen: Collection[int]) -> bool:
        """Whether a layer that assigns to variables and trains others is frozen, if those at some positions are."""
        still = {*frozen, -1}
        return not still.isdisjoint(learns) or (bool(trains) and still.issuperset(trains))

    @property
    def metrics_of_layers(self) -> list[Metric]:
        """The distinct metrics that the trainer itself and the layers of the modules keep, in the order of Keras."""
        modules = [*self.modules, *(head.module for head in self.measured)]
        metrics = [] if self.trainer is None else list(self.trainer._metrics)
        metrics += [metric for module in modules for metric in layers.metrics_of_layers(module)]
        return layers.distinct(metrics)

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that a forward pass in training mode may change, such as moving averages."""
        return layers.distinct(variable for module in self.modules for variable in layers.state_variables(module))


def read_different_tensors(network: Network) -> list[tuple[int, int]]:
    """The positions of pairs of heads that read floating leaves of the representation, and none in common."""
    read = [(k, leaves) for k, leaves in enumerate(network.reads) if any(leaves)]
    return [(i, j) for (i, a), (j, b) in itertools.combinations(read, 2) if not any(map(operator.and_, a, b))]


def sum_of(losses: Sequence[tf.Tensor | None], dtype: tf.DType | None = None) -> tf.Tensor | None:
    """The sum of some losses, in at least float32, or of a dtype; None for none."""
    present = [loss for loss in losses if loss is not None]
    dtype = dtype or precision_of([loss.dtype for loss in present])
    return tf.add_n([tf.cast(loss, dtype) for loss in present]) if present else None


def loss_of_call(module: Layer) -> tf.Tensor | None:
    """The sum of the losses that the latest call of a module has added; None without any."""
    return sum_of([_scalar(name, loss) for name, loss in layers.losses_of_call(module)])


def loss_of_weights(network: Network, active: tf.Tensor, encoder: tf.Tensor | None = None) -> tf.Tensor | None:
    """The sum of the losses of weights, such as regularizers; None without any.

    Those of heads alone count if one of them is active, the encoder's if it takes part: `encoder`, or None if it does.
    """
    losses = layers.losses_of_weights(network.encoder) | layers.own_losses(network.trainer)
    encoder_losses, owners = set(losses), dict[int, list[int]]()
    for k, head in enumerate(network.heads):
        for key, named_loss in layers.losses_of_weights(head.module).items():
            losses[key] = named_loss
            owners.setdefault(key, []).append(k)
    values = []
    for key, (name, loss) in losses.items():
        value = _scalar(name, loss())
        counts = encoder if key in encoder_losses else tf.reduce_any(tf.gather(active, owners[key]))
        if value is not None and counts is not None:
            value = where(counts, value, 0.0)
        values.append(value)
    return sum_of(values)


def gradients_of_weights(network: Network, active: tf.Tensor, encoder: tf.Tensor | None) -> tuple[tf.Tensor | None, ByOwner]:
    """`loss_of_weights` and its gradients, the same on every replica."""
    trained = [i for i in range(len(network.variables.all)) if i not in network.frozen]
    tensors = [tensor_variable(network.variables.all[i]) for i in trained]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        loss = loss_of_weights(network, active, encoder)
    gradients = {} if loss is None else dict(zip(trained, tape.gradient(loss, tensors)))
    return loss, network.variables.like([gradients.get(i) for i in range(len(network.variables.all))])


def _scalar(name: str, loss: Tensor) -> tf.Tensor | None:
    if loss is not None and loss.shape.rank:
        raise ValueError(
            "`add_loss` and regularizers must add one number, a scalar. Received: a loss of shape "
            f"{tuple(loss.shape)} from {name!r}. Reduce it, for example to its mean over the batch: "
            "`self.add_loss(tf.reduce_mean(loss))`."
        )
    return loss
