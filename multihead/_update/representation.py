"""The representation as the heads read it, and the heads' gradients there.

Heads run on a representation that is detached from the encoder, under their own tapes. Its gradients are therefore known
before the encoder's backward pass, and one such pass is enough for any number of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from multihead._ground.calls import call_module, keras_logits, keras_mask, with_keras_logits, with_keras_mask
from multihead._ground.tensors import added, half_square, has_gradients, scaled, unchecked, where
from multihead._ground.types import Gradient, Layer, Nested
from multihead._ground.validation import described, in_short

Rows = Sequence[list[Gradient]]
"""By head, one gradient per leaf of the representation or per variable; None where the head has none."""

Measure = Callable[[Rows], tf.Tensor]
"""Computes the inner products of the heads' gradients, `[num_heads, num_heads]` float64, or only their diagonal."""


def call_encoder(encoder: Layer, inputs: Nested, *, training: bool, step: tf.Tensor | None = None) -> Nested:
    """The representation of a nest of inputs; a `ValueError` if the encoder cannot take them."""
    try:
        return call_module(encoder, inputs, training=training, step=step)
    except (ValueError, TypeError, AttributeError, tf.errors.InvalidArgumentError) as error:
        raise ValueError(
            f"`encoder` must take the inputs of the data. Received: {type(encoder).__name__}, and inputs "
            f"{described(inputs)}. Correct the inputs, or the encoder; of a data set, set shapes that are unknown, by "
            f"`tf.ensure_shape` or `output_signature`. The encoder says: {in_short(error)}"
        ) from error


class DetachedRepresentation:
    """The encoder's output, a nest of tensors; its floating-point leaves, real or complex, are detached from the encoder."""

    def __init__(self, representation: Nested) -> None:
        flat = tf.nest.flatten(representation)
        floating = [tf.is_tensor(leaf) and has_gradients(leaf) for leaf in flat]
        composite = [leaf for leaf, is_floating in zip(flat, floating) if is_floating and not isinstance(leaf, tf.Tensor)]
        if composite:
            raise ValueError(
                "`encoder` must return dense tensors, at which heads have gradients. Received: a representation with a "
                f"{type(composite[0]).__name__} of {composite[0].dtype.name}. Return it as a dense tensor, by `to_tensor()` "
                "or `tf.sparse.to_dense`, with its mask or lengths beside it if heads read them."
            )
        # A tensor with several names is one leaf, shared by heads that read it by different names.
        attached = {id(leaf): leaf for leaf, is_floating in zip(flat, floating) if is_floating}
        detached = {key: with_keras_mask(tf.stop_gradient(leaf), keras_mask(leaf)) for key, leaf in attached.items()}
        # The logits of what a softmax or a sigmoid returned, with which Keras's cross-entropies compute, are leaves, too.
        for key, logits in [(key, keras_logits(leaf)) for key, leaf in attached.items()]:
            if logits is not None:
                attached[id(logits)], detached[id(logits)] = logits, tf.stop_gradient(logits)
                with_keras_logits(detached[key], detached[id(logits)])
        leaves = [detached[id(leaf)] if is_floating else leaf for leaf, is_floating in zip(flat, floating)]
        # The distinct floating-point leaves, and the nest with detached ones; other leaves pass through; masks are kept.
        self.attached, self.leaves = list(attached.values()), list(detached.values())
        self.nest = tf.nest.pack_sequence_as(representation, leaves)
        if not self.leaves:
            raise ValueError(
                "The encoder must return at least one floating-point tensor for the heads to read. "
                f"Received: {representation!r}. Return, for example, the encoder's outputs or its final state."
            )


def times(rows: Rows, factors: tf.Tensor | None) -> Rows:
    """The heads' gradients times their factors, `[num_heads]`; unchanged for None."""
    if factors is None:
        return rows
    by_head = zip(rows, tf.unstack(factors, len(rows)), strict=True)
    return [[scaled(gradient, factor) for gradient in row] for row, factor in by_head]


def total(rows: Rows) -> list[Gradient]:
    """The sum over the heads."""
    sums = list(rows[0])
    for row in rows[1:]:
        sums = [added(a, b) for a, b in zip(sums, row)]
    return sums


def squared_norms(rows: Rows) -> tf.Tensor:
    """The inner products with only their diagonal computed, which is cheaper."""
    zero = tf.zeros([], tf.float64)
    halves = [tf.add_n([half_square(g) for g in row if g is not None] or [zero]) for row in rows]
    return tf.linalg.diag(2.0 * tf.stack(halves))


def weighted(products: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """Inner products after the rows are multiplied by their factors, float64; unchanged for None."""
    products = tf.cast(products, tf.float64)  # in eager mode, those of a batch without examples are zeros of any dtype
    if factors is None:
        return products
    wide = tf.cast(factors, tf.float64)
    return products * wide * wide[:, tf.newaxis]


def cosines_of(products: tf.Tensor) -> tf.Tensor:
    """`[..., n, n]` float32 cosines from inner products of the same shape; NaN for a vector of norm 0."""
    norms = tf.sqrt(tf.linalg.diag_part(products))
    scales = norms[..., :, tf.newaxis] * norms[..., tf.newaxis, :]
    is_known = scales > 0
    cosines = tf.cast(tf.clip_by_value(products / where(is_known, scales, 1.0), -1.0, 1.0), tf.float32)
    with unchecked():
        return where(is_known, cosines, float("nan"))
