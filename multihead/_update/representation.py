"""The representation as the heads read it, and the representation gradients.

Heads run on a representation that is detached from the encoder and watched by their own tapes. The representation gradients
are therefore known before the encoder's backward pass, and one such pass is enough for any number of heads.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground.calls import keras_mask, with_keras_mask
from multihead._ground.tensors import Rows, added, as_rows, half_square, inner_products, scaled, wide


class DetachedRepresentation:
    """The representation with its floating-point leaves detached from the encoder.

    Args:
        representation: The encoder's output: a tensor or any nest of tensors.

    Attributes:
        attached: The floating-point leaves as returned by the encoder, each once.
        leaves: The same leaves, detached.
        nest: The representation with detached leaves; other leaves (masks, lengths) pass through, Keras masks are kept.

    Raises:
        ValueError: There is no floating-point leaf.
    """

    def __init__(self, representation: Any) -> None:
        flat = tf.nest.flatten(representation)
        floating = [tf.is_tensor(leaf) and leaf.dtype.is_floating for leaf in flat]
        # A tensor with several names is one leaf, shared by heads that read it by different names.
        attached = {id(leaf): leaf for leaf, is_floating in zip(flat, floating) if is_floating}
        detached = {key: with_keras_mask(tf.stop_gradient(leaf), keras_mask(leaf)) for key, leaf in attached.items()}
        leaves = [detached[id(leaf)] if is_floating else leaf for leaf, is_floating in zip(flat, floating)]
        self.attached, self.leaves = list(attached.values()), list(detached.values())
        self.nest = tf.nest.pack_sequence_as(representation, leaves)
        if not self.leaves:
            raise ValueError(
                "The encoder must return at least one floating-point tensor for the heads to read. "
                f"Received: {representation!r}. Return, for example, the encoder's outputs or its final state."
            )


class RepresentationGradients(NamedTuple):
    """The gradients of the heads' losses with respect to the representation.

    Attributes:
        by_head: For each head, one dense tensor per leaf; None if the head does not read the leaf.
    """

    by_head: Sequence[list[tf.Tensor | None]]

    def times(self, factors: tf.Tensor | None) -> RepresentationGradients:
        """Multiplies each head's gradients by its factor, `[num_heads]`; unchanged for None."""
        if factors is None:
            return self
        return RepresentationGradients(
            [[scaled(gradient, factors[k]) for gradient in gradients] for k, gradients in enumerate(self.by_head)]
        )

    def total(self) -> list[tf.Tensor | None]:
        """The sum over the heads, one tensor per leaf."""
        totals: list[tf.Tensor | None] = list(self.by_head[0])
        for gradients in self.by_head[1:]:
            totals = [added(total, gradient) for total, gradient in zip(totals, gradients)]
        return totals

    def rows(self) -> list[Rows | None]:
        """One matrix of the heads' gradients per leaf; None for a leaf that no head reads."""
        return [as_rows(column) for column in zip(*self.by_head)]

    def gramian(self) -> tf.Tensor:
        """`[num_heads, num_heads]` float64 inner products of the heads' gradients, over all leaves."""
        return inner_products(self.by_head)

    def squared_norms(self) -> tf.Tensor:
        """The Gramian with only its diagonal computed, `[num_heads, num_heads]`, which is cheaper."""
        zero = tf.zeros([], tf.float64)
        halves = [tf.add_n([half_square(g) for g in gradients if g is not None] or [zero]) for gradients in self.by_head]
        return tf.linalg.diag(2.0 * tf.stack(halves))

    def products(self) -> tf.Tensor:
        """The Gramian, `[num_heads, num_heads]` float64, from sums in the gradients' precision, at least float32.

        That is exact enough for cosines, and cheaper.

        Where a sum could have left the range of float32, or a head has no gradient, it is `gramian()`.
        """
        num_heads, zero = len(self.by_head), tf.zeros([], tf.float64)
        found = {}
        for i, j in itertools.combinations_with_replacement(range(num_heads), 2):
            leaves = [(a, b) for a, b in zip(self.by_head[i], self.by_head[j]) if a is not None and b is not None]
            both = [tf.cast(tf.reduce_sum(wide(a) * wide(b)), tf.float64) for a, b in leaves]
            found[i, j] = found[j, i] = tf.add_n([zero, *both])
        matrix = tf.stack([tf.stack([found[i, j] for j in range(num_heads)]) for i in range(num_heads)])
        squares = tf.linalg.diag_part(matrix)
        is_exact = tf.reduce_all((squares > 1e-25) & (squares < 1e30))
        return tf.cond(is_exact, lambda: matrix, self.gramian)
