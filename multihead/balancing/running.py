"""Balancers of running gradients: MoCo, DB-MTL and ExcessMTL."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.tensors import gramian, unchecked, where
from multihead._ground.types import Tensor
from multihead._ground.validation import check_between, check_positive
from multihead.balancing._base import Balancer
from multihead.balancing._kinds import prepared, read_state, write_state

Tensors = list[tf.Tensor]
"""One tensor `[num_heads, n_i]` per gradient tensor."""
Weighed = tuple[tf.Tensor, Tensors, Tensors]
"""The heads' weights, the new running gradients, and the rows to combine, which may be these; all float64."""


class RunningBalancer(Balancer):
    """A balancer that stores one encoder gradient per head, and counts the heads' updates.

    State: `counts`, `[num_heads]` int64, and one variable `[num_heads, n_i]` float32 per gradient tensor, which takes
    `num_heads` times the memory of the encoder's parameters. An idle head does not contribute to the update. The balancer
    works only at the parameters: the elements of a representation belong to examples and cannot be averaged over updates.
    """

    uses: tuple[str, ...] = ("gradients",)
    levels: tuple[str, ...] = ("parameters",)
    rescales = False

    def create_state(self, num_heads: int) -> None:
        if None in self.sizes:
            raise ValueError(
                f"`input_shape` must contain the numbers of parameters for {type(self).__name__}, which stores running "
                f"gradients. Received: sizes {list(self.sizes)}. Build it with a list of (num_heads, size), one per "
                "gradient tensor."
            )
        self.counts = self.add_state("counts", (num_heads,), dtype="int64")
        sizes = [size for size in self.sizes if size is not None]
        self.running = [self.add_state(f"running_{index}", (num_heads, size)) for index, size in enumerate(sizes)]

    def combine(self, gradients: Sequence[tf.Tensor], *_: Tensor, losses: Tensor = None) -> list[tf.Tensor]:
        expected = [tuple(tensor_variable(variable).shape) for variable in self.running]
        received = [tuple(rows.shape) for rows in gradients]
        if expected != received:
            raise ValueError(
                f"`gradients` must have the shapes for which {type(self).__name__} was built, {expected}. "
                f"Received: {received}. Use one balancer per encoder."
            )
        rows, active, finite = prepared(gradients)
        tensor_variable(self.counts).assign_add(tf.cast(active, tf.int64))
        weights, new, tensors = self._weigh(
            rows, list(map(read_state, self.running)), active, read_state(self.counts), losses
        )
        for variable, value in zip(self.running, new):
            write_state(variable, value)
        with unchecked():
            weights = where(finite, weights, float("nan"))
        sums = [tf.linalg.matvec(matrix, weights, transpose_a=True) for matrix in tensors]
        return [tf.cast(total, original.dtype) for total, original in zip(sums, gradients)]

    @abstractmethod
    def _weigh(self, rows: Tensors, old: Tensors, active: tf.Tensor, counts: tf.Tensor, losses: Tensor) -> Weighed:
        """Weighs the heads from their gradients, `rows`, and the running gradients so far, `old`.

        `active` says which heads have a gradient, and `counts` in how many updates each head has taken part, this one
        included; `losses` may be None.
        """


@keras.saving.register_keras_serializable(package="multihead")
class MoCo(RunningBalancer):
    """Approximates `MGDA` on *running* gradients, one step per update, which reduces the bias due to gradient noise.

    Formula, at update t: `y_k <- y_k - b (y_k - g_k)`, `b = beta / t_k^beta_decay`; `w <- P(w - c (Y Y^T + rho I) w)`,
    `c = gamma / t^gamma_decay`, with `P` the projection onto the simplex, `Y` the matrix with the rows `y_k` and `I` the
    identity matrix; `d = sum_k w_k y_k`. `t_k` is the number of updates in which head k took part, and `t` the largest of
    these.

    What it fixes: direction and magnitude, on average over updates. Like `MGDA`, it follows the smallest gradients. Size of
    the update: that of a weighted mean of the running gradients, since the weights sum to 1. `gamma` has the unit of an
    inverse squared gradient norm.

    State: `running` (the `y_k`, initially the first gradient), `counts`, and `weights`, `[num_heads]` float32, the `w_k`,
    initially equal.

    Args:
        beta: Weight of the newest gradient, above 0 and at most 1.
        beta_decay: How fast this weight decreases, at least 0.
        gamma: Step size of the weights, above 0.
        gamma_decay: How fast this step size decreases, at least 0.
        rho: Regularization that pulls the weights towards each other, at least 0.

    Example:
        >>> MoCo()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [-4.0, 1.0, 1.0]

    Source: Fernando et al., Mitigating Gradient Bias in Multi-Objective Learning, ICLR 2023, algorithm 1, without the
    softmax and the scaling of gradients by losses that some implementations add.
    """

    def __init__(
        self,
        beta: float = 0.5,
        beta_decay: float = 0.5,
        gamma: float = 0.1,
        gamma_decay: float = 0.5,
        rho: float = 0.0,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_low=False)
        self.beta_decay = check_between("beta_decay", beta_decay, 0.0, float("inf"), with_high=False)
        self.gamma = check_positive("gamma", gamma)
        self.gamma_decay = check_between("gamma_decay", gamma_decay, 0.0, float("inf"), with_high=False)
        self.rho = check_between("rho", rho, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        uniform = keras.initializers.Constant(1.0 / num_heads)
        self.weights_of_heads = self.add_state("weights", (num_heads,), uniform)

    def _weigh(self, rows: Tensors, old: Tensors, active: tf.Tensor, counts: tf.Tensor, losses: Tensor) -> Weighed:
        rate = self.beta / tf.pow(tf.maximum(counts, 1.0), self.beta_decay)
        rate = where(active, where(counts > 1, rate, 1.0), 0.0)[:, None]
        # Not `old + rate (new - old)`: rows that are not finite have rate 0.
        running = [where(rate > 0, (1.0 - rate) * average + rate * new, average) for average, new in zip(old, rows)]
        takes_part = tf.cast(active, tf.float64)
        kept = read_state(self.weights_of_heads)
        share = tf.reduce_sum(kept * takes_part)
        exists = share > 1e-30  # otherwise equal weights
        weights = where(exists, kept, 1.0) * takes_part / where(exists, share, tf.maximum(tf.reduce_sum(takes_part), 1.0))
        step = self.gamma / tf.pow(tf.maximum(tf.reduce_max(counts), 1.0), self.gamma_decay)
        slope = tf.linalg.matvec(gramian(running), weights) + self.rho * weights
        weights = _onto_simplex(weights - step * slope, takes_part)
        write_state(self.weights_of_heads, where(active, weights * share, kept))
        return weights, running, running


def _onto_simplex(point: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The weights on the simplex that are closest to a point, 0 for idle heads; zeros if no head is active.

    Source: Duchi et al., Efficient Projections onto the l1-Ball, ICML 2008, figure 1.
    """
    takes_part = active > 0
    lowest = tf.constant(-1e300, tf.float64)
    highest = tf.reduce_max(where(takes_part, point, lowest))
    below = where(takes_part, tf.maximum(point - highest, -2.0), -2.0)  # values 1 below the highest get weight 0
    descending = tf.sort(below, direction="DESCENDING")
    counts = tf.range(1.0, float(int(point.shape[0])) + 1.0, dtype=tf.float64)
    thresholds = (tf.cumsum(descending) - 1.0) / counts
    threshold = thresholds[tf.maximum(tf.reduce_sum(tf.cast(descending > thresholds, tf.int32)) - 1, 0)]
    return where(takes_part, tf.maximum(below - threshold, 0.0), 0.0 * point)


@keras.saving.register_keras_serializable(package="multihead")
class DBMTL(RunningBalancer):
    """Takes the logarithms of the losses and scales the heads' running gradients to the same norm.

    Formula: `q_k <- b q_k + (1 - b) g_k / L_k`, the running gradient of `log L_k`, with `b = beta / t^sigma` at the
    head's t-th update; `d = sum_k (max_j |q_j| / |q_k|) q_k`.

    What it fixes: magnitude; conflicts remain. The direction does not depend on the scales of the losses. Size of the
    update: every head contributes the norm of the largest running gradient of a log-loss; set the learning rate
    accordingly.

    State: `running` (the `q_k`, before bias correction), `counts`, and `masses`, `[num_heads]` float32, the sums of the
    averaging weights in `q_k`. `q_k` is divided by its sum, so that the first updates are not too small.

    Args:
        beta: Decay rate of the running gradients, at least 0 and below 1.
        sigma: How fast this decay rate decreases, at least 0.

    Example:
        >>> DBMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [0.1881, 2.4530, 2.4530]

    Source: Lin et al., Dual-Balancing for Multi-Task Learning, arXiv 2308.12029, 2023, algorithm 1. Gradients are not
    divided by the loss if no `losses` are passed, or for a head whose loss is not above 0.
    """

    scale_invariant = True
    uses = ("gradients", "losses")

    def __init__(self, beta: float = 0.9, sigma: float = 0.0, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.beta = check_between("beta", beta, 0.0, 1.0, with_high=False)
        self.sigma = check_between("sigma", sigma, 0.0, float("inf"), with_high=False)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        self.masses = self.add_state("masses", (num_heads,))

    def _weigh(self, rows: Tensors, old: Tensors, active: tf.Tensor, counts: tf.Tensor, losses: Tensor) -> Weighed:
        if losses is not None:
            losses = tf.cast(losses, tf.float64)
            rows = [matrix / where(losses > 0, losses, 1.0)[:, None] for matrix in rows]
        past = self.beta / tf.pow(tf.maximum(counts, 1.0), self.sigma)
        is_active, past_share = active[:, None], past[:, None]
        running = [
            where(is_active, past_share * average + (1.0 - past_share) * new, average) for average, new in zip(old, rows)
        ]
        old_mass = read_state(self.masses)
        mass = where(active, past * old_mass + 1.0 - past, old_mass)
        write_state(self.masses, mass)

        norms = tf.sqrt(tf.linalg.diag_part(gramian(running)))
        norms = where(active, tf.math.divide_no_nan(norms, mass), 0.0 * norms)
        inverses = tf.math.divide_no_nan(tf.cast(active, tf.float64), norms * mass)
        return tf.reduce_max(norms) * inverses, running, running


@keras.saving.register_keras_serializable(package="multihead")
class ExcessMTL(RunningBalancer):
    """Gives more weight to heads that are still far from their own optimum, and not to those whose labels are noisy.

    Formula: `S_k <- S_k + g_k^2`; the estimated excess risk `E_k = sum_i g_ki^2 / sqrt(S_ki)` over coordinates `i`, divided
    by its value at the head's first update; `w_k <- w_k exp(step_size E_k)`, scaled to sum to 1; `d = sum_k w_k g_k`.

    What it fixes: magnitude, slowly; conflicts remain. Size of the update: that of a weighted mean of the gradients,
    since the weights sum to 1.

    State: `running` (the square roots of the `S_k`), `counts`, and two `[num_heads]` float32 variables: `first_risks` (the
    risks at the first update) and `log_weights` (the logarithms of the `w_k`, up to a common constant).

    Args:
        step_size: Step size of the weights, above 0.

    Example:
        >>> ExcessMTL()([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]).numpy().tolist()
        [1.0, 1.0, 1.0]

    Source: He et al., Robust Multi-Task Learning with Excess Risks, ICML 2024, equations 6, 7 and 9, without the
    epsilon under the square root (0/0 is 0), so that the method does not depend on the scale of the gradients.
    """

    def __init__(self, step_size: float = 0.01, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self.step_size = check_positive("step_size", step_size)

    def create_state(self, num_heads: int) -> None:
        super().create_state(num_heads)
        self.first_risks = self.add_state("first_risks", (num_heads,))
        self.log_weights = self.add_state("log_weights", (num_heads,))

    def _weigh(self, rows: Tensors, old: Tensors, active: tf.Tensor, counts: tf.Tensor, losses: Tensor) -> Weighed:
        is_first = active & (counts <= 1)
        roots = [where(active[:, None], tf.sqrt(root**2 + new**2), root) for root, new in zip(old, rows)]
        risks = tf.add_n([tf.reduce_sum(tf.math.divide_no_nan(new**2, root), 1) for new, root in zip(rows, roots)])

        first, logs = where(is_first, risks, read_state(self.first_risks)), read_state(self.log_weights)
        write_state(self.first_risks, first)
        logs = where(active, logs + self.step_size * tf.math.divide_no_nan(risks, first), logs)
        # A common constant has no effect. This one keeps the largest logarithm at 0 and shifts idle heads too.
        write_state(self.log_weights, logs - tf.reduce_max(logs))
        lowest = tf.constant(-1e300, tf.float64)
        weights = tf.nn.softmax(where(active, logs, lowest)) * tf.cast(active, tf.float64)
        return weights, roots, rows
