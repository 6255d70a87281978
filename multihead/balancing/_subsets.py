"""Few heads: non-negative least squares by trying all subsets of the rows at once, without a loop."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from multihead._ground.graphs import in_xla
from multihead._ground.where import where
from multihead.balancing._least_squares import root_of_inverse

FEW = 4
"""The largest number of heads of which all subsets are tried. Beyond, a search takes less time than their number."""


def are_few(num_heads: int) -> bool:
    """Whether all subsets are tried: not in XLA, whose decompositions lose the digits that almost opposed rows leave."""
    return num_heads <= FEW and not in_xla()


class Subsets(NamedTuple):
    """The subsets of a Gramian's rows.

    Attributes:
        gramian: `[n, n]` float64.
        roots: `[2^n, n, n]`: times their transposes, the pseudo-inverses of the part of the Gramian that belongs to each
            subset, 0 elsewhere. The members of a subset are the binary digits of its index.
    """

    gramian: tf.Tensor
    roots: tf.Tensor

    def nonnegative(self, linear: tf.Tensor) -> tf.Tensor:
        """Solves `min v . gramian v / 2 + v . linear` subject to `v >= 0`, for several `linear` at once.

        The weights of a subset make the slopes of its members zero. They are the solution if no weight and no slope is
        negative; so the subset is chosen that violates this least. A linearly independent subset always yields the solution,
        so it does no harm that dependent ones have no inverse: what their pseudo-inverse yields is a candidate as any other.

        Args:
            linear: `[num_targets, n]` float64.

        Returns:
            `[num_targets, n]` float64.
        """
        weights = self._solve(linear)
        weights += self._solve(linear + tf.matmul(weights, self.gramian))  # removes rounding errors
        slopes = linear + tf.matmul(weights, self.gramian)
        violations = tf.reduce_max(tf.abs(tf.minimum(weights, slopes)), axis=-1)
        chosen = tf.one_hot(tf.argmin(violations), int(self.roots.shape[0]), axis=0, dtype=tf.float64)
        return tf.maximum(tf.reduce_sum(tf.expand_dims(chosen, -1) * weights, axis=0), 0.0)

    def _solve(self, linear: tf.Tensor) -> tf.Tensor:
        """`[2^n, num_targets, n]`: for each subset the weights that take as much away from its members' slopes."""
        return -tf.matmul(tf.matmul(linear, self.roots), self.roots, transpose_b=True)

    def inverse(self, members: tf.Tensor) -> tf.Tensor:
        """The pseudo-inverse that belongs to one subset.

        Args:
            members: `[n]` booleans.
        """
        digits = 2 ** np.arange(int(members.shape[0]))[::-1]
        root = tf.gather(self.roots, tf.reduce_sum(where(members, digits, 0)))
        return tf.matmul(root, root, transpose_b=True)


def subsets_of(gramian: tf.Tensor, tolerance: float) -> Subsets:
    """All subsets of the rows of a Gramian.

    Args:
        gramian: `[n, n]` float64 with a positive diagonal.
        tolerance: Eigenvalues up to this value count as zero.
    """
    members = np.array(list(itertools.product([0.0, 1.0], repeat=int(gramian.shape[0]))))
    both = members[:, :, None] * members[:, None, :]
    # With ones in the diagonal, the other rows do not mix with eigenvectors of small eigenvalues.
    others = np.eye(members.shape[1]) * (1.0 - both)
    return Subsets(gramian, root_of_inverse(gramian * both + others, tolerance) * members[:, :, None])
