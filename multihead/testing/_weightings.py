"""The contract of weightings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.testing._report import Case, Report, state_of, traced
from multihead.weighting import Weighting


def check_weighting(
    weighting: Weighting,
    *,
    num_heads: Sequence[int] = (1, 2, 3, 5),
    order_matters: bool = False,
    xla: bool = True,
) -> Report:
    """Checks a weighting against the contract of `multihead.weighting.Weighting`.

    For easy and hard losses (equal, from 1e-6 to 1e6 within one update, zero), it checks that

    - the total is a finite scalar, and the weights, its derivatives, are finite and not negative;
    - the weights do not depend on the losses unless `uses` contains `"losses"`;
    - the weights do not change for the others when a head without labels is added, and do not depend on the order;
    - the weights are the same in eager mode, in a graph and compiled by XLA;
    - the gradients of its variables are finite, and those of idle heads' variables are zero;
    - a copy created from `get_config` is equivalent, a second call of `build` does nothing, an update that was not applied
      does not change the state, and `reset` resets it.

    The weighting itself is not called: the checks run on copies created from its configuration.

    Args:
        weighting: The weighting, with options that are valid for all of `num_heads`.
        num_heads: The numbers of heads to check; ignored for a weighting that is bound to head names.
        order_matters: Pass True for a method that depends on the positions or names of the heads, and document this.
        xla: Pass False to skip compilation.

    Returns:
        A report of the checks.

    Raises:
        AssertionError: A check failed; the message names the check and the losses.

    Example:
        >>> from multihead import weighting
        >>> check_weighting(weighting.LogLoss(), num_heads=(2,))
        LogLoss: 11 checks, 2 heads
    """
    report = Report(weighting, "losses of the kind:")
    for count in num_heads if weighting.head_names is None else (len(weighting.head_names),):
        report.tried(count)
        cases = {label: _Case(weighting, report, label, losses) for label, losses in _losses(count).items()}
        for case in cases.values():
            case.check(order_matters)
        cases["random"].check_modes(xla)
        cases["random"].check_copies()
    return report


def _losses(num_heads: int) -> dict[str, np.ndarray]:
    """Vectors `[num_heads]` of losses, float32, by label."""
    rng = np.random.default_rng(0)
    random = rng.uniform(0.2, 3.0, num_heads)
    spread = 10.0 ** (np.linspace(-6, 6, num_heads) if num_heads > 1 else np.zeros(1))
    one_zero = random * (np.arange(num_heads) > 0)
    losses = {"random": random, "equal": np.full(num_heads, 0.7), "from 1e-6 to 1e6": spread, "one zero": one_zero}
    return {label: values.astype(np.float32) for label, values in losses.items()}


class _Case(Case):
    """One weighting on one vector of losses."""

    def __init__(self, weighting: Weighting, report: Report, label: str, losses: np.ndarray) -> None:
        super().__init__(weighting, report, f"{label}, {len(losses)} heads", len(losses))
        self._losses = losses

    def check(self, order_matters: bool) -> None:
        weights, total = self._weigh(self.built(), self._losses)
        self.require(total.shape == () and np.isfinite(total), "return a finite scalar as `total`")
        self.require(np.isfinite(weights).all() and (weights >= 0).all(), "have finite weights of at least 0")
        if self._losses.any():
            self.require((weights > 0).any(), "have a weight above 0: does `total` have gradients for the losses?")
        if "losses" not in self._method.uses:
            others = self._weigh(self.built(), self._losses[::-1] + 1)[0]
            self._same(others, weights, "have weights that do not depend on the losses, or name 'losses' in `uses`")
        idle, _ = self._weigh(self.built(1), np.append(self._losses, 0), np.append(np.ones(len(self._losses)), 0) > 0)
        self._same(idle[:-1], weights, "give the same weights when a head without labels is added")
        if not order_matters:
            self._same(self._weigh(self.built(), self._losses[::-1])[0][::-1], weights, "not depend on the heads' order")
        fresh = self.built(1)
        ones = tf.ones([len(self._losses)])
        active = tf.constant([True] * len(self._losses) + [False])
        norms = tf.concat([ones, [0.0]], 0) if "norms" in self._method.uses else None
        gradients = fresh.gradients(tf.constant(np.append(self._losses, 0), tf.float32), norms, active, **self._used())
        for owners, gradient in zip(fresh.owners(len(self._losses) + 1), gradients):
            self.require(np.isfinite(gradient).all(), "have finite gradients for its variables")
            if owners == [len(self._losses)]:
                self.require(not np.any(gradient), "not train a variable of an idle head")

    def check_modes(self, xla: bool) -> None:
        weights, _ = self._weigh(self.built(), self._losses)
        for is_compiled in (False, True) if xla else (False,):
            losses, used, fresh = tf.constant(self._losses), self._used(), self.built()

            def weigh(losses: tf.Tensor, used: dict[str, tf.Tensor], fresh: Weighting = fresh) -> tf.Tensor:
                return fresh.weigh(losses, tf.ones_like(losses, tf.bool), **used)[0]

            mode = "compiled by XLA" if is_compiled else "in a graph"
            run = traced(weigh, losses, used, xla=is_compiled)
            self._same(run(losses, *used.values()).numpy(), weights, f"be the same {mode} as in eager mode")

    def check_copies(self) -> None:
        fresh = self.built()
        self.check_config(fresh)
        start, active, losses = state_of(fresh), tf.ones([len(self._losses)], tf.bool), tf.constant(self._losses)
        for step, factor in enumerate((1.0, 2.0, 0.5)):
            shown = Observation(tf.constant(step, tf.int64), active, factor * losses, losses_after=0.9 * factor * losses)
            self.check_skipped(fresh, shown)
            fresh.observe(shown, tf.constant(True))
            fresh.end_epoch()
        self.check_reset(fresh, start)

    def _used(self) -> dict[str, tf.Tensor]:
        return self._method.used(step=tf.constant(3, tf.int64))

    def _weigh(
        self, weighting: Weighting, losses: np.ndarray, active: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        active = np.ones(len(losses), bool) if active is None else active
        given = tf.constant(np.ascontiguousarray(losses), tf.float32)
        weights, total = weighting.weigh(given, tf.constant(active), **self._used())
        return weights.numpy(), total.numpy()

    def _same(self, received: np.ndarray, expected: np.ndarray, rule: str) -> None:
        error = np.abs(received - expected) / np.maximum(np.abs(expected), 1e-6 * max(np.abs(expected).max(), 1e-30))
        self.require((error <= 1e-4).all(), rule, f" (relative difference {error.max():.1e})")
