"""One slice of a batch, forwards and backwards: every head's loss, its own gradients and what it sends the encoder.

A slice is a whole batch unless the batch is cut. The result is a plain sum over the slice's elements, already divided
by the counts of the whole update, so slices add up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._gradients import Cut, added, as_rows, computed_if, gramian, norm, scaled
from multihead._keras import Gradient, call_module, tensor_variable
from multihead.heads import Head


class Network(NamedTuple):
    """The encoder, the heads and the variables that they train.

    Attributes:
        encoder: The shared encoder.
        heads: The heads, in the order in which they were added.
        variables: All trainable variables, the encoder's first, each once.
        num_encoder: How many of them are the encoder's.
        head_indices: For each head the positions of its variables; a position below `num_encoder` is shared with it.
        learned_owners: For each variable that a weighting learns, the heads that train it; these come last.
    """

    encoder: Any
    heads: tuple[Head, ...]
    variables: list[Any]
    num_encoder: int
    head_indices: tuple[tuple[int, ...], ...]
    learned_owners: tuple[list[int], ...] = ()

    @classmethod
    def of(cls, encoder: Any, heads: Sequence[Head], weighting: Any = None) -> Network:
        """Collects the trainable variables of built modules and of a built weighting (None: there is none)."""
        variables = list(getattr(encoder, "trainable_variables", []))
        num_encoder = len(variables)
        positions = {id(tensor_variable(variable)): i for i, variable in enumerate(variables)}
        indices = []
        for head in heads:
            for variable in head.trainable_variables:
                if positions.setdefault(id(tensor_variable(variable)), len(variables)) == len(variables):
                    variables.append(variable)
            indices.append(tuple(positions[id(tensor_variable(v))] for v in head.trainable_variables))
        owners = () if weighting is None else tuple(weighting.owners(len(heads)))
        variables.extend([] if weighting is None else weighting.trainable_variables)
        return cls(encoder, tuple(heads), variables, num_encoder, tuple(indices), owners)

    @property
    def num_trained_by_losses(self) -> int:
        """How many variables are the encoder's and the heads'; a weighting's follow."""
        return len(self.variables) - len(self.learned_owners)

    @property
    def state(self) -> list[tf.Variable]:
        """What running the modules in training mode may change: moving averages and the like."""
        modules = [self.encoder, *(head.module for head in self.heads)]
        return [tensor_variable(v) for module in modules for v in getattr(module, "non_trainable_variables", [])]

    def tensors(self, indices: Sequence[int]) -> list[tf.Variable]:
        """The TensorFlow variables at some positions."""
        return [tensor_variable(self.variables[i]) for i in indices]

    def owners(self, index: int) -> list[int]:
        """The heads that train a variable: all of them for the encoder's."""
        if index < self.num_encoder:
            return list(range(len(self.heads)))
        if index >= self.num_trained_by_losses:
            return self.learned_owners[index - self.num_trained_by_losses]
        return [k for k, indices in enumerate(self.head_indices) if index in indices]


class Labels(NamedTuple):
    """A head's labels in a slice: targets without missing values, and the weight of each element (0: no label)."""

    targets: tf.Tensor
    weights: tf.Tensor


class HeadPass(NamedTuple):
    """One head on one slice. Gradients are in float32, without loss scaling.

    Attributes:
        loss_sum: `sum_i s_i * loss_i`, float32.
        added_loss: The sum of its regularisation and `add_loss` losses, times the slice's share, float32.
        own: The gradient of the loss sum times the head's scale, one per variable of the module.
        cut: The same, one dense tensor per floating leaf of the representation, or None.
        added_own: The gradient of `added_loss` by the module's variables; None everywhere if there is no such loss.
        added_cut: The same by the leaves of the representation.
    """

    loss_sum: tf.Tensor
    added_loss: tf.Tensor
    own: list[Gradient]
    cut: list[tf.Tensor | None]
    added_own: list[Gradient]
    added_cut: list[tf.Tensor | None]

    @classmethod
    def of(cls, loss_sum: tf.Tensor, added_loss: tf.Tensor, gradients: Sequence[Gradient], num_leaves: int) -> HeadPass:
        """Takes the gradients of both losses, each by the leaves and then by the variables, one after the other."""
        of_loss, of_added = gradients[: len(gradients) // 2], gradients[len(gradients) // 2 :]
        dense = [
            [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in each[:num_leaves]]
            for each in (of_loss, of_added)
        ]
        own = [list(each[num_leaves:]) for each in (of_loss, of_added)]
        return cls(loss_sum, added_loss, own[0], dense[0], own[1], dense[1])


class Scales(NamedTuple):
    """What the slices' losses are multiplied by.

    Attributes:
        heads: `[num_heads]`: weight over count of the whole update for an active head, 0 for an idle one.
        added: The slice's share of losses that count once per update: its part of the examples.
        loss: The factor of loss scaling, or None.
    """

    heads: tf.Tensor
    added: tf.Tensor
    loss: tf.Tensor | None


class SliceGradients(NamedTuple):
    """The sums that a slice contributes to an update; `plus` adds two.

    Attributes:
        loss_sums: `[num_heads]`, not divided.
        added_loss: Regularisation and `add_loss` losses, times the slice's share.
        own: For each head, one gradient of its loss per variable of its module that is not the encoder's.
        added_own: The same of the losses that its module added.
        encoder: Lists of one gradient per encoder variable: one list if the heads are combined already, else one per
            head, and then one more for the encoder's own added losses.
        gramian: `[num_heads, num_heads]` inner products at the cut; only the diagonal is filled where nothing else is
            needed; None where not even that is.
        odd: The heads' lists of `encoder` again, over every other slice only, where halves are asked for.
        odd_counts: `[num_heads]` counts of labelled elements in these slices.
    """

    loss_sums: tf.Tensor
    added_loss: tf.Tensor
    own: list[list[Gradient]]
    added_own: list[list[Gradient]]
    encoder: list[list[Gradient]]
    gramian: tf.Tensor | None
    odd: Sequence[list[Gradient]] = ()
    odd_counts: tf.Tensor | None = None

    def with_odd(self, is_odd: tf.Tensor, counts: tf.Tensor) -> SliceGradients:
        """The same with the heads' gradients and `[num_heads]` counts once more, where `is_odd` (0 or 1) is 1."""
        odd = [[scaled(gradient, is_odd) for gradient in row] for row in self.encoder[:-1]]
        return self._replace(odd=odd, odd_counts=counts * is_odd)

    def times(self, factors: tf.Tensor | None) -> SliceGradients:
        """The same with what is of each head's loss times its factor, `[num_heads]`; as it is for None.

        Encoder gradients, and the Gramian, of heads that are combined already had their factors before.
        """
        if factors is None:
            return self

        def of_heads(lists: Sequence[list[Gradient]]) -> list[list[Gradient]]:
            return [[scaled(gradient, factors[k]) for gradient in row] for k, row in enumerate(lists)]

        *rows, rest = self.encoder
        gramian, wide = self.gramian, tf.cast(factors, tf.float64)
        if rows and gramian is not None:
            gramian = gramian * wide * wide[:, tf.newaxis]
        own, encoder, odd = of_heads(self.own), [*of_heads(rows), rest], of_heads(self.odd)
        return self._replace(own=own, encoder=encoder, gramian=gramian, odd=odd)

    def own_gradients(self, network: Network) -> list[Gradient]:
        """The gradients of the variables that are the heads' alone, those that several heads train added up."""
        result: list[Gradient] = [None] * (network.num_trained_by_losses - network.num_encoder)
        for indices, of_losses, of_added in zip(network.head_indices, self.own, self.added_own):
            positions = [i - network.num_encoder for i in indices if i >= network.num_encoder]
            for i, of_loss, further in zip(positions, of_losses, of_added):
                result[i] = added(result[i], added(of_loss, further))
        return result

    def plus(self, other: SliceGradients) -> SliceGradients:
        """The sum of two slices' contributions."""
        return SliceGradients(
            self.loss_sums + other.loss_sums,
            self.added_loss + other.added_loss,
            _plus(self.own, other.own),
            _plus(self.added_own, other.added_own),
            _plus(self.encoder, other.encoder),
            _sum(self.gramian, other.gramian),
            _plus(self.odd, other.odd),
            _sum(self.odd_counts, other.odd_counts),
        )


def _sum(first: tf.Tensor | None, second: tf.Tensor | None) -> tf.Tensor | None:
    return None if first is None or second is None else first + second


def _plus(first: Sequence[list[Gradient]], second: Sequence[list[Gradient]]) -> list[list[Gradient]]:
    return [[added(a, b) for a, b in zip(mine, theirs)] for mine, theirs in zip(first, second)]


Combine = Callable[[Sequence[list[tf.Tensor | None]], tf.Tensor], tuple[list[tf.Tensor | None], tf.Tensor | None, tf.Tensor]]
"""Combines the heads at the cut, given their gradients there and their `[num_heads]` loss sums.

Returns the combined gradient, the Gramian or None, and `[num_heads]` factors for what heads send to encoder variables
directly.
"""


def _share(losses: Sequence[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.cast(loss, tf.float32) for loss in losses]) if losses else tf.constant(0.0)


def head_pass(network: Network, k: int, cut: Cut, labels: Labels, scale: tf.Tensor, scales: Scales) -> HeadPass:
    """Runs one head forwards and backwards, down to the cut, and updates its metrics."""
    head, variables = network.heads[k], network.tensors(network.head_indices[k])
    with tf.GradientTape(watch_accessed_variables=False, persistent=True) as tape:
        tape.watch(cut.leaves)
        tape.watch(variables)
        predictions = head.predict(cut.representation, labels.targets, training=True)
        loss_sum = head.loss_sum(labels.targets, predictions, labels.weights)
        added_losses = head.added_losses
        added_loss = _share(added_losses)
    factor = tf.ones([]) if scales.loss is None else scales.loss
    sources: list[Any] = [*cut.leaves, *variables]
    # The added losses count once per update, unweighted, but not for an idle head.
    added_scale = tf.where(scale > 0, scales.added, 0.0)
    gradients = tape.gradient(loss_sum, sources, output_gradients=scale * factor)
    if added_losses:
        gradients += tape.gradient(added_loss, sources, output_gradients=added_scale * factor)
    else:
        gradients += [None] * len(sources)
    del tape
    head.update_metrics(labels.targets, predictions, labels.weights)
    if scales.loss is not None:
        gradients = [scaled(gradient, 1.0 / factor) for gradient in gradients]
    result = HeadPass.of(loss_sum, added_loss * added_scale, gradients, len(cut.leaves))
    if all(gradient is None for gradient in result.cut) and all(i >= network.num_encoder for i in network.head_indices[k]):
        raise ValueError(
            f"Head {head.name!r} must depend on the representation. Received: a module whose loss has no gradient with "
            "respect to any of the encoder's floating outputs. Let the module read them, without `stop_gradient` and "
            "without operations that have no gradient."
        )
    return result


def head_pass_if(
    active: tf.Tensor, network: Network, k: int, cut: Cut, labels: Labels, scale: tf.Tensor, scales: Scales
) -> HeadPass:
    """`head_pass` if the head is active; otherwise nothing of it is computed and all its sums are zero."""
    variables = network.tensors(network.head_indices[k])

    def flat() -> list[Any]:
        result = head_pass(network, k, cut, labels, scale, scales)
        gradients = [*result.cut, *result.own, *result.added_cut, *result.added_own]
        return [result.loss_sum, result.added_loss, *gradients]

    shapes = [tf.shape(source) for source in (*cut.leaves, *variables)]
    loss_sum, added_loss, *gradients = computed_if(active, flat, [tf.zeros([0], tf.int32)] * 2 + shapes * 2)
    return HeadPass.of(loss_sum, added_loss, gradients, len(cut.leaves))


def slice_gradients(
    network: Network,
    inputs: Any,
    labels: Sequence[Labels | None],
    scales: Scales,
    active: tf.Tensor,
    optional: Sequence[bool],
    combine: Combine | None,
    needs_gramian: bool,
) -> SliceGradients:
    """Runs a slice through the encoder, every head that has labels, and back.

    Args:
        network: The encoder and the heads.
        inputs: The slice's inputs.
        labels: One entry per head; None where the batch holds no targets for it.
        scales: What to multiply the losses by.
        active: `[num_heads]` booleans.
        optional: For each head whether it is computed only if it is active.
        combine: Combines the heads at the cut, so that one backward pass through the encoder is enough; None asks for
            one list of encoder gradients per head.
        needs_gramian: Whether to compute the Gramian at the cut where `combine` is None.
    """
    indices = range(network.num_encoder)
    encoder_variables = network.tensors(indices)
    with tf.GradientTape(watch_accessed_variables=False, persistent=combine is None) as tape:
        tape.watch(encoder_variables)
        representation = call_module(network.encoder, inputs, training=True)
        encoder_losses = list(getattr(network.encoder, "losses", []))
        encoder_added = _share(encoder_losses)
    cut = Cut(representation)

    passes: list[HeadPass | None] = []
    for k, head_labels in enumerate(labels):
        if head_labels is None:
            passes.append(None)
        elif optional[k]:
            passes.append(head_pass_if(active[k], network, k, cut, head_labels, scales.heads[k], scales))
        else:
            passes.append(head_pass(network, k, cut, head_labels, scales.heads[k], scales))

    factor = tf.ones([]) if scales.loss is None else scales.loss

    def backward(at_cut: Sequence[tf.Tensor | None], with_added: bool) -> list[Gradient]:
        pairs = [
            (leaf, tf.cast(gradient * tf.cast(factor, gradient.dtype), leaf.dtype))
            for leaf, gradient in zip(cut.attached, at_cut)
            if gradient is not None
        ]
        if with_added and encoder_losses:
            pairs.append((encoder_added, scales.added * factor))
        if not pairs or not encoder_variables:
            return [None] * len(encoder_variables)
        outputs, cotangents = zip(*pairs)
        gradients = tape.gradient(list(outputs), encoder_variables, output_gradients=list(cotangents))
        return gradients if scales.loss is None else [scaled(gradient, 1.0 / factor) for gradient in gradients]

    zero = tf.constant(0.0)
    loss_sums = tf.stack([zero if result is None else result.loss_sum for result in passes])
    nothing: list[tf.Tensor | None] = [None] * len(cut.leaves)
    at_cut = [nothing if result is None else result.cut for result in passes]
    unbalanced = nothing
    for result in passes:
        unbalanced = [added(a, b) for a, b in zip(unbalanced, nothing if result is None else result.added_cut)]
    if combine is not None:
        combined, inner_products, factors = combine(at_cut, loss_sums)
        encoder = [backward([added(a, b) for a, b in zip(combined, unbalanced)], True)]
    else:
        inner_products = cut_gramian(at_cut) if needs_gramian else None
        factors = tf.ones([len(passes)])
        encoder = [backward(gradients, False) for gradients in at_cut] + [backward(unbalanced, True)]

    own, added_own = _empty(network), _empty(network)
    for k, result in enumerate(passes):
        if result is None:
            continue
        own[k], added_own[k] = [], []
        for i, of_loss, of_added in zip(network.head_indices[k], result.own, result.added_own):
            if i >= network.num_encoder:
                own[k].append(of_loss)
                added_own[k].append(of_added)
                continue
            # A variable that the head shares with the encoder.
            row = encoder[0 if combine is not None else k]
            row[i] = added(row[i], scaled(of_loss, factors[k]) if combine is not None else of_loss)
            encoder[-1][i] = added(encoder[-1][i], of_added)

    return SliceGradients(
        loss_sums,
        tf.add_n([encoder_added * scales.added] + [result.added_loss for result in passes if result]),
        own,
        added_own,
        encoder,
        inner_products,
    )


def _empty(network: Network) -> list[list[Gradient]]:
    """For each head, None per variable of its own."""
    return [[None for i in indices if i >= network.num_encoder] for indices in network.head_indices]


def cut_gramian(at_cut: Sequence[list[tf.Tensor | None]]) -> tf.Tensor:
    """`[num_heads, num_heads]` inner products of the heads' gradients at the cut, over all elements of all leaves."""
    rows = [as_rows([gradients[leaf] for gradients in at_cut]) for leaf in range(len(at_cut[0]))]
    return gramian([row.values for row in rows if row is not None])


def cut_squares(at_cut: Sequence[list[tf.Tensor | None]]) -> tf.Tensor:
    """The Gramian's diagonal alone, `[num_heads, num_heads]`: cheaper where no balancer reads the rest."""
    zero = tf.zeros([], tf.float64)
    squares = [
        # Squares are summed in float32, as fast as they are read; scaled, so that they neither overflow nor vanish.
        tf.add_n([zero] + [tf.square(tf.cast(norm(g), tf.float64)) for g in gradients if g is not None])
        for gradients in at_cut
    ]
    return tf.linalg.diag(tf.stack(squares))
