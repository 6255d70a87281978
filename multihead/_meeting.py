"""Where the heads' gradients meet: at the cut in one slice, or after all slices, at the cut's Gramian or the parameters'.

Balancing is not linear, so it happens once per update, on reduced inner products. With one slice the coefficients are
known before the encoder's backward pass, and one pass is enough. With several, the Gramian is complete only after the
last, so each slice brings the encoder's gradient of every head apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._backward import Combine, Network, SliceGradients, cut_gramian, cut_squares
from multihead._gradients import Rows, added, as_rows, scaled
from multihead._keras import Gradient, add_state, tensor_variable
from multihead._update import all_reduce_sum
from multihead._weighing import Weighing

AtCut = Sequence[list[tf.Tensor | None]]


class KeptCoefficients(keras.layers.Layer):
    """The coefficients of the last update that balanced, for the updates that reuse them.

    Args:
        num_heads: The number of heads.
        every: A balancer is asked at every `every`-th update; between, its last coefficients are used.
    """

    def __init__(self, num_heads: int, every: int) -> None:
        super().__init__(name="kept_coefficients", trainable=False)
        self.built = True
        self.every = every
        self.values = add_state(self, "values", (num_heads,), "ones")

    @property
    def state(self) -> list[tf.Variable]:
        """The variables that a skipped update leaves as they are."""
        return [tensor_variable(self.values)]

    def is_due(self, update_count: tf.Tensor) -> tf.Tensor:
        """Whether the balancer is asked at this update."""
        return tf.cast(update_count, tf.int64) % self.every == 0

    def renewed(self, fresh: tf.Tensor, renew: tf.Tensor) -> tf.Tensor:
        """Takes the fresh coefficients of the heads for which `renew` holds and returns all, `[num_heads]` each."""
        values = tensor_variable(self.values)
        renewed = tf.where(renew, fresh, values)
        values.assign(renewed)
        return renewed


class Meeting:
    """How the heads are combined in one update.

    Args:
        network: The encoder and the heads.
        balancer: A balancer, or None for the plain sum.
        at_parameters: Whether the balancer works on the encoder's parameters.
        measure: What to measure at the cut where there is no balancer: `"none"`, `"norms"` or the whole `"gramian"`.
        active: `[num_heads]` booleans.
        update_count: The count of updates made so far.
        counts: `[num_heads]` counts of labelled elements in the whole update, over all replicas.
        weighing: The heads' weights; what depends on the losses is applied before the heads are balanced.
        num_slices: How many slices make the update.
        kept: Where coefficients are kept that serve several updates, or None.

    Attributes:
        combine: Combines the heads inside a slice, or None if they meet after the last one.
        needs_gramian: Whether slices must bring the Gramian at the cut although the heads meet later.
        at_parameters: Whether the heads meet at the encoder's parameters.
        sees_gradients: Whether the balancer needs the gradients themselves.
        by_halves: Whether the balancer needs the inner products of two halves' gradients.
    """

    def __init__(
        self,
        network: Network,
        balancer: Any,
        at_parameters: bool,
        measure: str,
        active: tf.Tensor,
        update_count: tf.Tensor,
        counts: tf.Tensor,
        weighing: Weighing,
        num_slices: int,
        kept: KeptCoefficients | None,
    ) -> None:
        self._network = network
        self._balancer = balancer
        self._measure = measure
        self._active = active
        self._update_count = update_count
        self._counts = counts
        self._weighing = weighing
        self.at_parameters = at_parameters
        self.sees_gradients = balancer is not None and balancer.needs == "gradients"
        self._kept = kept
        self.by_halves = balancer is not None and "halves" in balancer.uses
        self._balanced: tuple[tf.Tensor, tf.Tensor] | None = None
        self.combine: Combine | None = None
        self.needs_gramian = measure != "none" if balancer is None else not at_parameters or measure == "gramian"
        # Weights that depend on all losses are known only when the last slice has brought its own.
        if balancer is None and (num_slices == 1 or not weighing.is_late):
            self.combine = self._sum
        elif balancer is not None and num_slices == 1 and not at_parameters:
            self.combine = self._balance

    def _arguments(self, loss_sums: tf.Tensor, halves: tf.Tensor | None = None) -> dict[str, Any]:
        """What the balancer declares that it uses."""
        known = {
            "update": lambda: self._update_count,
            "losses": lambda: tf.math.divide_no_nan(all_reduce_sum(loss_sums), self._counts),
            "halves": lambda: halves,
        }
        return {name: known[name]() for name in self._balancer.uses}

    def shares(self, counts: tf.Tensor) -> tf.Tensor:
        """`[num_heads]`: what part of all labelled elements the counts of some slices on this replica are."""
        return tf.math.divide_no_nan(all_reduce_sum(counts), self._counts)

    def coefficients_of(self, gramian: tf.Tensor, loss_sums: tf.Tensor, halves: tf.Tensor | None = None) -> tf.Tensor:
        """`[num_heads]` coefficients from the reduced Gramian; 0 for idle heads.

        Args:
            gramian: `[num_heads, num_heads]`, over all slices and replicas.
            loss_sums: `[num_heads]` sums of this replica's losses, over all slices.
            halves: `[num_heads, num_heads]` inner products of two halves' gradients, where the balancer uses them.
        """
        if self._balancer is None:
            return tf.cast(self._active, tf.float32)
        arguments = self._arguments(loss_sums, halves)
        if self._kept is None:
            coefficients = tf.cast(self._balancer.coefficients(gramian, **arguments), tf.float32)
        else:
            is_due = self._kept.is_due(self._update_count)
            state = [tensor_variable(variable) for variable in self._balancer.variables]
            before = [tf.identity(variable.read_value()) for variable in state]
            fresh = tf.cast(self._balancer.coefficients(gramian, **arguments), tf.float32)
            for variable, old in zip(state, before):
                variable.assign(tf.where(is_due, variable.read_value(), old))
            coefficients = self._kept.renewed(fresh, is_due & self._active)
        return tf.where(self._active, coefficients, 0.0)

    def combine_rows(
        self, rows: Sequence[Rows], gramian: tf.Tensor, loss_sums: tf.Tensor
    ) -> tuple[list[Gradient], tf.Tensor]:
        """Combines the heads by a method that needs the gradients themselves.

        Returns:
            One gradient per matrix of rows, and `[num_heads]` coefficients `<d, g_k> / <g_k, g_k>` that describe the
            combined `d`.
        """
        if not rows:
            return [], tf.zeros([gramian.shape[0]])
        masked = [tf.where(self._active[:, tf.newaxis], matrix.values, 0.0) for matrix in rows]
        combined = self._balancer.combine(masked, **self._arguments(loss_sums))
        along = tf.add_n([tf.linalg.matvec(values, vector) for values, vector in zip(masked, combined)])
        squares = tf.cast(tf.linalg.diag_part(gramian), tf.float32)
        restored = [matrix.restore(vector) for matrix, vector in zip(rows, combined)]
        return restored, tf.math.divide_no_nan(along, tf.where(self._active, squares, 0.0))

    def late_factors(self, loss_sums: tf.Tensor) -> tf.Tensor | None:
        """`[num_heads]` factors that the heads' gradients lack, or None if they lack none."""
        return self._weighing.late_factors(loss_sums)

    def measured(self, gathered: SliceGradients) -> tuple[tf.Tensor | None, tf.Tensor] | None:
        """The reduced Gramian (or None) and the coefficients if the heads were combined at the cut, else None."""
        if self.combine is None:
            return None
        if self._balancer is None:
            gramian = None if self._measure == "none" else all_reduce_sum(gathered.gramian)
            return gramian, tf.cast(self._active, tf.float32)
        return self._balanced

    def result_shapes(self) -> list[tf.Tensor]:
        """The dense shapes of what a slice brings, flattened."""
        num_heads, variables = len(self._network.heads), self._network.variables
        shapes = [tf.TensorShape(variable.shape) for variable in variables]
        encoder = shapes[: self._network.num_encoder]
        own = [shapes[i] for indices in self._network.head_indices for i in indices if i >= self._network.num_encoder]
        lists = 1 if self.combine is not None else num_heads + 1
        every = [tf.TensorShape([num_heads]), tf.TensorShape([]), *own * 2, *encoder * lists]
        every.append(tf.TensorShape([num_heads, num_heads]))
        if self.by_halves:
            every += [*encoder * num_heads, tf.TensorShape([num_heads])]
        return [tf.constant(shape.as_list(), tf.int32) for shape in every]

    def _sum(self, at_cut: AtCut, loss_sums: tf.Tensor) -> tuple[list[tf.Tensor | None], tf.Tensor | None, tf.Tensor]:
        factors = self.late_factors(loss_sums)
        at_cut = _times(at_cut, factors)
        measures = {"none": None, "norms": cut_squares, "gramian": cut_gramian}
        measure = measures[self._measure]
        given = tf.ones([len(at_cut)]) if factors is None else factors
        return _total(at_cut), None if measure is None else measure(at_cut), given

    def _balance(self, at_cut: AtCut, loss_sums: tf.Tensor) -> tuple[list[tf.Tensor | None], tf.Tensor | None, tf.Tensor]:
        factors = self.late_factors(loss_sums)
        at_cut = _times(at_cut, factors)
        gramian = all_reduce_sum(cut_gramian(at_cut))
        if self.sees_gradients:
            leaves = [as_rows([gradients[leaf] for gradients in at_cut]) for leaf in range(len(at_cut[0]))]
            restored, coefficients = self.combine_rows([m for m in leaves if m is not None], gramian, loss_sums)
            self._balanced = (gramian, coefficients)
            combined = iter(restored)
            given = coefficients if factors is None else coefficients * factors
            return [None if matrix is None else next(combined) for matrix in leaves], gramian, given
        coefficients = self.coefficients_of(gramian, loss_sums)
        self._balanced = (gramian, coefficients)
        given = coefficients if factors is None else coefficients * factors
        return _total(_times(at_cut, coefficients)), gramian, given


def _times(at_cut: AtCut, factors: tf.Tensor | None) -> AtCut:
    """The heads' gradients times a factor each; as they are for None."""
    if factors is None:
        return at_cut
    return [[scaled(gradient, factors[k]) for gradient in gradients] for k, gradients in enumerate(at_cut)]


def _total(at_cut: AtCut) -> list[tf.Tensor | None]:
    totals: list[tf.Tensor | None] = list(at_cut[0])
    for gradients in at_cut[1:]:
        totals = [added(total, gradient) for total, gradient in zip(totals, gradients)]
    return totals
