"""Independent component alignment (Aligned-MTL)."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from multihead._ground.tensors import where
from multihead._ground.validation import check_choice
from multihead.balancing._base import MAX_HEADS
from multihead.balancing._kinds import PreferenceBalancer
from multihead.balancing._rows import unit_rows
from multihead.balancing._solvers.rotations import principal_axes


@keras.saving.register_keras_serializable(package="multihead")
class AlignedMTL(PreferenceBalancer):
    """Rescales the principal components of the heads' gradients to the same singular value.

    Formula: with the singular value decomposition `J = U S V^T` of the gradient matrix, the aligned gradients are the
    rows of `s U V^T`, whose condition number is 1, and `d = s V U^T p`. `p` is the `preference`; `s` is the smallest
    nonzero singular value (`scale="min"`), the median (`"median"`) or the root mean square (`"rmse"`) of them.

    What it fixes: magnitude and direction of the gradient matrix as a whole. The update never conflicts with an aligned
    gradient, but it may conflict with an original one. Size of the update: with `scale="min"`, at most the smallest
    singular value times the norm of `p`, so it is governed by the smallest gradients.

    Args:
        preference: Numbers of at least 0 by head name; 1 for a head that is missing.
        scale: `"min"`, `"median"` or `"rmse"`.
        name: Name of the layer.

    Raises:
        ValueError: An argument is out of range, or there are more than 128 heads.

    Example:
        >>> AlignedMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.4266, 1.9347, 1.9347]

    Source: Senushkin et al., Independent Component Alignment for Multi-Task Learning, CVPR 2023, algorithm 1.
    """

    max_heads = MAX_HEADS

    def __init__(
        self, preference: Mapping[str, float] | None = None, scale: str = "min", *, name: str | None = None
    ) -> None:
        super().__init__(preference, name=name)
        self.scale = check_choice("scale", scale, ("min", "median", "rmse"))

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        singular, vectors, exists = principal_axes(rows)
        inverses = where(exists, 1.0 / where(exists, singular, 1.0), 0.0 * singular)
        preference = self._preference_vector(rows.num_heads) * rows.active
        aligned = tf.linalg.matvec(vectors, inverses * tf.linalg.matvec(vectors, preference, transpose_a=True))
        return rows.coefficients(self._common(singular, exists) * aligned * rows.norms)

    def _common(self, singular: tf.Tensor, exists: tf.Tensor) -> tf.Tensor:
        """The common singular value, in units of the largest row norm."""
        count = tf.reduce_sum(tf.cast(exists, tf.int32))
        if self.scale == "rmse":
            squares = tf.reduce_sum(where(exists, singular**2, 0.0 * singular))
            return tf.sqrt(tf.math.divide_no_nan(squares, tf.cast(count, tf.float64)))
        ascending = tf.sort(where(exists, singular, singular.dtype.max))
        index = 0 if self.scale == "min" else tf.maximum(count - 1, 0) // 2
        return where(count > 0, ascending[index], 0.0 * ascending[0])
