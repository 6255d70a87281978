"""Checks that your own balancer or weighting satisfies the contract that the trainer relies on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.balancing import Balancer
from multihead.weighting import Weighting

__all__ = ["check_balancer", "check_weighting"]

_SIZE = 12


def check_balancer(
    balancer: Balancer,
    *,
    num_heads: Sequence[int] = (1, 2, 3, 5),
    order_matters: bool = False,
    xla: bool = True,
) -> None:
    """Checks a balancer against the contract of `multihead.balancing.Balancer`.

    For easy and hard gradients (conflicting, equal, opposed, linearly dependent, zero; norms from 1e-6 to 1e6 within one
    update, and from 1e-15 to 1e15 overall), it checks that the update

    - is finite, and has the right shape and the gradients' dtype;
    - does not change for the others when a head without a gradient is added;
    - does not depend on the order of the heads;
    - is the same in float32 and float64, in eager mode, in a graph and compiled by XLA;
    - is the same from inner products as from gradients, for a balancer that needs only inner products;
    - is the same for a copy created from `get_config`, and after a second call of `build`.

    The balancer itself is not called: the checks run on copies created from its configuration.

    Args:
        balancer: The balancer, with options that are valid for all of `num_heads`.
        num_heads: The numbers of heads to check.
        order_matters: Pass True for a method that depends on the positions of the heads, and document this.
        xla: Pass False to skip compilation, which takes most of the time.

    Raises:
        AssertionError: A check failed; the message names the check and the gradients.

    Example:
        >>> from multihead import balancing
        >>> check_balancer(balancing.EqualNorms(), num_heads=(2,))
    """
    for count in num_heads:
        for label, rows in _zoo(count).items():
            _Case(balancer, f"{label}, {count} heads", rows).check(order_matters)
        _Case(balancer, f"random, {count} heads", _zoo(count)["random"]).check_modes(xla)
    _check_copies(balancer, max(num_heads))


def check_weighting(
    weighting: Weighting,
    *,
    num_heads: Sequence[int] = (1, 2, 3, 5),
    order_matters: bool = False,
    xla: bool = True,
) -> None:
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

    Raises:
        AssertionError: A check failed; the message names the check and the losses.

    Example:
        >>> from multihead import weighting
        >>> check_weighting(weighting.LogLoss(), num_heads=(2,))
    """
    for count in num_heads if weighting.head_names is None else (len(weighting.head_names),):
        for label, losses in _losses(count).items():
            _Losses(weighting, f"{label}, {count} heads", losses).check(order_matters)
        _Losses(weighting, f"random, {count} heads", _losses(count)["random"]).check_modes(xla)
        _Losses(weighting, f"random, {count} heads", _losses(count)["random"]).check_copies()


def _losses(num_heads: int) -> dict[str, np.ndarray]:
    """Vectors `[num_heads]` of losses, float32, by label."""
    rng = np.random.default_rng(0)
    random = rng.uniform(0.2, 3.0, num_heads)
    spread = 10.0 ** (np.linspace(-6, 6, num_heads) if num_heads > 1 else np.zeros(1))
    one_zero = random * (np.arange(num_heads) > 0)
    losses = {"random": random, "equal": np.full(num_heads, 0.7), "from 1e-6 to 1e6": spread, "one zero": one_zero}
    return {label: values.astype(np.float32) for label, values in losses.items()}


class _Losses:
    """One weighting on one vector of losses."""

    def __init__(self, weighting: Weighting, label: str, losses: np.ndarray) -> None:
        self._weighting = weighting
        self._label = label
        self._losses = losses

    def check(self, order_matters: bool) -> None:
        weights, total = self._weigh(self._built(), self._losses)
        self._require(total.shape == () and np.isfinite(total), "return a finite scalar as `total`")
        self._require(bool(np.isfinite(weights).all() and (weights >= 0).all()), "have finite weights of at least 0")
        if self._losses.any():
            self._require(bool((weights > 0).any()), "have a weight above 0: does `total` have gradients for the losses?")
        if "losses" not in self._weighting.uses:
            others = self._weigh(self._built(), self._losses[::-1] + 1)[0]
            self._same(others, weights, "have weights that do not depend on the losses, or name 'losses' in `uses`")
        idle, _ = self._weigh(self._built(1), np.append(self._losses, 0), np.append(np.ones(len(self._losses)), 0) > 0)
        self._same(idle[:-1], weights, "give the same weights when a head without labels is added")
        if not order_matters:
            self._same(self._weigh(self._built(), self._losses[::-1])[0][::-1], weights, "not depend on the heads' order")
        fresh = self._built(1)
        ones = tf.ones([len(self._losses)])
        active = tf.constant([True] * len(self._losses) + [False])
        norms = tf.concat([ones, [0.0]], 0) if "norms" in self._weighting.uses else None
        gradients = fresh.gradients(tf.constant(np.append(self._losses, 0), tf.float32), norms, active, **self._used())
        for owners, gradient in zip(fresh.owners(len(self._losses) + 1), gradients):
            self._require(bool(np.isfinite(gradient).all()), "have finite gradients for its variables")
            if owners == [len(self._losses)]:
                self._require(not np.any(gradient), "not train a variable of an idle head")

    def check_modes(self, xla: bool) -> None:
        weights, _ = self._weigh(self._built(), self._losses)
        for is_compiled in (False, True) if xla else (False,):
            fresh = self._built()
            run = tf.function(
                lambda losses, used, made=fresh: made.weigh(losses, tf.ones_like(losses, tf.bool), **used)[0],
                jit_compile=is_compiled,
            )
            mode = "compiled by XLA" if is_compiled else "in a graph"
            self._same(
                run(tf.constant(self._losses), self._used()).numpy(), weights, f"be the same {mode} as in eager mode"
            )

    def check_copies(self) -> None:
        name = type(self._weighting).__name__
        fresh = self._built()
        self._require(fresh.get_config() == self._weighting.get_config(), "return all its arguments from `get_config`")
        before = [np.array(tf.convert_to_tensor(variable)) for variable in fresh.variables]
        fresh.build((len(self._losses),))
        self._require(len(fresh.variables) == len(before), "do nothing in a second call of `build`")
        active, losses = tf.ones([len(self._losses)], tf.bool), tf.constant(self._losses)
        for step, factor in enumerate((1.0, 2.0, 0.5)):
            observation = Observation(
                tf.constant(step, tf.int64), active, factor * losses, losses_after=0.9 * factor * losses
            )
            start = [np.array(tf.convert_to_tensor(variable)) for variable in fresh.variables]
            fresh.observe(observation, tf.constant(False))
            same = [np.array(tf.convert_to_tensor(variable)) for variable in fresh.variables]
            self._require(all(map(np.array_equal, start, same)), "not change its state if an update was not applied")
            fresh.observe(observation, tf.constant(True))
            fresh.end_epoch()
        fresh.reset()
        after = [np.array(tf.convert_to_tensor(variable)) for variable in fresh.variables]
        self._require(all(map(np.array_equal, before, after)), f"have its initial state after `{name}.reset()`")

    def _used(self) -> dict[str, tf.Tensor]:
        return self._weighting.used(step=tf.constant(3, tf.int64))

    def _built(self, further: int = 0) -> Weighting:
        fresh = type(self._weighting).from_config(self._weighting.get_config())
        count = len(self._losses) + further
        named = list(self._weighting.head_names or ())
        fresh.bind((named + [f"head_{k}" for k in range(len(named), count)])[:count])
        fresh.build((count,))
        return fresh

    def _weigh(
        self, weighting: Weighting, losses: np.ndarray, active: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        active = np.ones(len(losses), bool) if active is None else active
        given = tf.constant(np.ascontiguousarray(losses), tf.float32)
        weights, total = weighting.weigh(given, tf.constant(active), **self._used())
        return weights.numpy(), total.numpy()

    def _same(self, received: np.ndarray, expected: np.ndarray, rule: str) -> None:
        error = np.abs(received - expected) / np.maximum(np.abs(expected), 1e-6 * max(np.abs(expected).max(), 1e-30))
        self._require(bool((error <= 1e-4).all()), f"{rule} (relative difference {error.max():.1e})")

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise AssertionError(
                f"`{type(self._weighting).__name__}` must {rule}. Received: losses of the kind: {self._label}. "
                "See docs/extending.md."
            )


class _Case:
    """One balancer on one matrix of gradients."""

    def __init__(self, balancer: Balancer, label: str, rows: np.ndarray) -> None:
        self._balancer = balancer
        self._name = type(balancer).__name__
        self._label = label
        self._rows = rows

    def check(self, order_matters: bool) -> None:
        update = self._update(self._rows)
        narrow = self._update(self._rows.astype(np.float32))
        self._require(update.shape == (_SIZE,), f"have the shape [num_parameters], not {update.shape}")
        self._require(narrow.dtype == np.float32 and update.dtype == np.float64, "have the gradients' dtype")
        self._require(bool(np.isfinite(update).all() and np.isfinite(narrow).all()), "be finite")
        if self._rows.any():
            idle = np.concatenate([self._rows, np.zeros([1, _SIZE])])
            if self._takes(len(idle)):
                with_idle = self._update(idle)
                self._require(bool(np.isfinite(with_idle).all()), "be finite if a head has no gradient")
                self._same(with_idle, update, "give the same update when a head without a gradient is added")
            if not order_matters:
                self._same(self._update(self._rows[::-1]), update, "not depend on the order of the heads")

    def check_modes(self, xla: bool) -> None:
        update = self._update(self._rows)
        self._same(self._update(self._rows.astype(np.float32)), update, "be the same in float32 and float64", 1e-3)
        for is_compiled in (False, True) if xla else (False,):
            fresh = self._built()
            run = tf.function(lambda rows, made=fresh: made.combine([rows])[0], jit_compile=is_compiled)
            mode = "compiled by XLA" if is_compiled else "in a graph"
            self._same(run(tf.constant(self._rows)).numpy(), update, f"be the same {mode} as in eager mode", 1e-5)
        if "gradients" not in self._balancer.uses:
            coefficients = self._built().coefficients(tf.constant(self._rows @ self._rows.T))
            self._require(coefficients.shape == (len(self._rows),), "return one coefficient per head")
            self._same(coefficients.numpy() @ self._rows, update, "be the same from inner products as from gradients")

    def _takes(self, num_heads: int) -> bool:
        return self._balancer.max_heads is None or num_heads <= self._balancer.max_heads

    def _built(self) -> Balancer:
        fresh = self._balancer.copy()
        fresh.build((len(self._rows), _SIZE))
        return fresh

    def _update(self, rows: np.ndarray) -> np.ndarray:
        return self._balancer.copy()(np.ascontiguousarray(rows)).numpy()

    def _same(self, received: np.ndarray, expected: np.ndarray, rule: str, tolerance: float = 1e-6) -> None:
        scale = max(np.abs(expected).max(), 1e-9 * np.abs(self._rows).max())
        error = np.abs(received.astype(np.float64) - expected).max() / scale if scale else np.abs(received).max()
        self._require(bool(error <= tolerance), f"{rule} (relative difference {error:.1e})")

    def _require(self, holds: bool, rule: str) -> None:
        if not holds:
            raise AssertionError(
                f"`{self._name}` must {rule}. Received: gradients of the kind: {self._label}. See docs/extending.md."
            )


def _check_copies(balancer: Balancer, count: int) -> None:
    rows = _zoo(count)["random"]
    name = type(balancer).__name__
    one, other = balancer.copy(), balancer.copy()
    if one.get_config() != balancer.get_config():
        raise AssertionError(f"`{name}.get_config` must return all arguments of the constructor, and only these.")
    other.build((count, _SIZE))
    before = len(other.variables)
    other.build((count, _SIZE))
    if len(other.variables) != before:
        raise AssertionError(
            f"`{name}.build` must do nothing the second time. Received: {len(other.variables)} variables after {before}. "
            "Create them in `_create_state`, or return if `self.built` is True."
        )
    if any(variable.trainable for variable in other.variables):
        raise AssertionError(f"`{name}` must not have trainable variables. Create them with `trainable=False`.")
    if not np.array_equal(one(rows).numpy(), other(rows).numpy()):
        raise AssertionError(f"`{name}` must give the same update from equal configurations.")


def _zoo(num_heads: int) -> dict[str, np.ndarray]:
    """Matrices `[num_heads, 12]` by label, float64 with values that float32 can represent."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(num_heads, _SIZE))
    common = rng.normal(size=_SIZE)
    lengths = 10.0 ** rng.permutation(np.linspace(-6, 6, num_heads))[:, None] if num_heads > 1 else np.ones([1, 1])
    zero_row, opposed = rows.copy(), rows.copy()
    zero_row[0] = 0 if num_heads > 1 else rows[0]
    opposed[-1] = -rows[0] if num_heads > 1 else rows[0]
    matrices = {
        "random": rows,
        "conflicting": rng.normal(size=(num_heads, 1)) * common + 0.5 * rows,
        "norms from 1e-6 to 1e6": rows * lengths,
        "very small": rows * 1e-15,
        "very large": rows * 1e15,
        "equal": np.ones([num_heads, 1]) * common,
        "dependent": rng.normal(size=(num_heads, 1)) * common,
        "one zero": zero_row,
        "two opposed": opposed,
        "all zero": np.zeros_like(rows),
    }
    return {label: matrix.astype(np.float32).astype(np.float64) for label, matrix in matrices.items()}
