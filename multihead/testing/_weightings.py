"""The contract of weightings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from multihead._method import Observation
from multihead.testing._report import Case, Report
from multihead.weighting import Weighting

_STEP = 3


def check_weighting(
    weighting: Weighting, *, num_heads: Sequence[int] = (1, 2, 3, 5), order_matters: bool = False, xla: bool = True
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
    counts = num_heads if weighting.head_names is None else (len(weighting.head_names),)
    report = Report(type(weighting).__name__, counts)
    for count in counts:
        for label, losses in _loss_vectors(count).items():
            case = Case(weighting, report, f"losses of the kind: {label}, {count} heads", (count,))
            _check_weights(case, losses, order_matters)
            if label == "random":
                _check_copied_weightings(case, losses, xla)
    return report


def _check_weights(case: Case, losses: np.ndarray, order_matters: bool) -> None:
    weights, total = _weigh(case, losses)
    case.require(total.shape == () and np.isfinite(total), "return a finite scalar as `total`")
    case.require(np.isfinite(weights).all() and (weights >= 0).all(), "have finite weights of at least 0")
    if losses.any():
        case.require((weights > 0).any(), "have a weight above 0: does `total` have gradients for the losses?")
    if "losses" not in case.method.uses:
        others = _weigh(case, losses[::-1] + 1)[0]
        _require_same_weights(
            case, others, weights, "have weights that do not depend on the losses, or name 'losses' in `uses`"
        )
    count, idle = len(losses), np.append(losses, np.float32(0))
    with_idle = _weigh(case, idle, 1)[0][:-1]
    _require_same_weights(case, with_idle, weights, "give the same weights when a head without labels is added")
    if not order_matters:
        _require_same_weights(case, _weigh(case, losses[::-1])[0][::-1], weights, "not depend on the heads' order")
    fresh, active = case.built(1), tf.range(count + 1) < count
    norms = tf.cast(active, tf.float32) if "norms" in case.method.uses else None
    gradients = fresh.gradients(tf.constant(idle), norms, active, **fresh.used(step=_STEP))
    for owners, gradient in zip(fresh.owners(count + 1), gradients):
        case.require(np.isfinite(gradient).all(), "have finite gradients for its variables")
        if owners == [count]:
            case.require(not np.any(gradient), "not train a variable of an idle head")


def _check_copied_weightings(case: Case, losses: np.ndarray, xla: bool) -> None:
    tensor, active, used = tf.constant(losses), tf.ones([len(losses)], tf.bool), case.method.used(step=_STEP)

    def weigh(weighting: Weighting, losses: tf.Tensor, *values: tf.Tensor) -> tf.Tensor:
        return weighting.weigh(losses, tf.ones_like(losses, tf.bool), **dict(zip(used, values)))[0]

    for rule, result in case.in_graphs(weigh, tensor, *used.values(), xla=xla):
        _require_same_weights(case, result, _weigh(case, losses)[0], rule)

    fresh = case.built()

    def apply(shown: Observation) -> None:
        fresh.observe(shown, tf.constant(True))
        fresh.end_epoch()

    observed = [
        Observation(tf.constant(step, tf.int64), active, factor * tensor, losses_after=0.9 * factor * tensor)
        for step, factor in enumerate((1.0, 2.0, 0.5))
    ]
    case.check_state(fresh, [(case.description, observation) for observation in observed], apply)


def _weigh(case: Case, losses: np.ndarray, further: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The weights of losses, of which the further ones have no labels, and the total."""
    active = tf.range(len(losses)) < len(losses) - further
    tensor, fresh = tf.constant(np.ascontiguousarray(losses)), case.built(further)
    weights, total = fresh.weigh(tensor, active, **fresh.used(step=_STEP))
    return weights.numpy(), total.numpy()


def _require_same_weights(case: Case, actual: np.ndarray, expected: np.ndarray, rule: str) -> None:
    case.require_close(actual, expected, np.maximum(np.abs(expected), 1e-6 * np.abs(expected).max()), rule, 1e-4)


def _loss_vectors(num_heads: int) -> dict[str, np.ndarray]:
    """Vectors `[num_heads]` of losses, float32, by label."""
    rng = np.random.default_rng(0)
    random = rng.uniform(0.2, 3.0, num_heads)
    spread = 10.0 ** (np.linspace(-6, 6, num_heads) if num_heads > 1 else np.zeros(1))
    one_zero = random * (np.arange(num_heads) > 0)
    losses = {"random": random, "equal": np.full(num_heads, 0.7), "from 1e-6 to 1e6": spread, "one zero": one_zero}
    return {label: values.astype(np.float32) for label, values in losses.items()}
