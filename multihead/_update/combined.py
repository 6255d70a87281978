"""The heads' gradients combined into one, and what is known of them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Gradient
from multihead._update.products import cosines_of


class Combined(NamedTuple):
    """The combined encoder gradient, over all micro-batches and replicas.

    Attributes:
        gradients: One per encoder variable, or None; before the encoder's backward pass, one per leaf of the representation.
        coefficients: `[num_heads]` factors of the heads' weighted gradients; 0 for idle heads.
        gramian: `[num_heads, num_heads]` inner products of the heads' weighted gradients at the level where they are
            combined; possibly only the diagonal, or None.
        at_representation: The inner products at the representation; possibly only the diagonal, or None.
        square: The squared norm of the combined gradient, at the level of `gramian`, where it is no sum of the heads'
            gradients times their coefficients; otherwise None.
        is_measured: Whether `gramian` was computed, a boolean scalar; otherwise it is zero. None: always.
    """

    gradients: list[Gradient]
    coefficients: tf.Tensor
    gramian: tf.Tensor | None
    at_representation: tf.Tensor | None
    square: tf.Tensor | None = None
    is_measured: tf.Tensor | None = None

    @property
    def norms(self) -> tf.Tensor | None:
        """`[num_heads]` norms of the heads' weighted gradients at the level where they are combined, or None."""
        return None if self.gramian is None else tf.cast(tf.sqrt(tf.linalg.diag_part(self.gramian)), tf.float32)

    def if_measured(self, norms: tf.Tensor | None) -> tf.Tensor | None:
        """These norms; NaN if they were not measured."""
        if self.is_measured is None:
            return norms
        with unchecked():
            return where(self.is_measured, norms, float("nan"))

    @property
    def cosines(self) -> tf.Tensor | None:
        """`[num_heads + 1, num_heads + 1]` cosines of the heads' weighted gradients and, last, the combined gradient.

        NaN for a gradient that is zero; None without a whole `gramian`.
        """
        if self.gramian is None:
            return None
        coefficients = tf.cast(self.coefficients, tf.float64)
        if self.square is None:
            along = tf.linalg.matvec(self.gramian, coefficients)
            square = tf.tensordot(coefficients, along, 1)
        else:
            along, square = coefficients * tf.linalg.diag_part(self.gramian), tf.cast(self.square, tf.float64)
        top = tf.concat([self.gramian, along[:, tf.newaxis]], axis=1)
        return cosines_of(tf.concat([top, tf.concat([along, [square]], axis=0)[tf.newaxis]], axis=0))
