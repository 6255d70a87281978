"""Warnings of options that have no effect together with others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from multihead._ground.validation import quoted
from multihead._update.network import Network
from multihead.heads import Head


class _Rule(NamedTuple):
    """An option of `compile` that another makes useless.

    Attributes:
        option: The option.
        default: Its default, which is never worth a warning.
        is_idle: Whether it has no effect with all options.
        why: What makes it so, and what to do.
    """

    option: str
    default: Any
    is_idle: Callable[[Any], bool]
    why: str


_WITHOUT_BALANCER = "without a balancer. Pass `balancer=`"
_RULES = (
    _Rule("balance_at", "representation", lambda options: options.balancer is None, _WITHOUT_BALANCER),
    _Rule("balance_every", 1, lambda options: options.balancer is None, _WITHOUT_BALANCER),
    _Rule("layers_every", 100, lambda options: options.telemetry != "full", 'without `telemetry="full"`. Pass it'),
    _Rule(
        "max_skipped_updates",
        25,
        lambda options: options.on_nonfinite == "raise",
        'with `on_nonfinite="raise"`, which ends training at the first such update. Choose one of them',
    ),
)


def warn_of_idle_options(options: Any, heads: Sequence[Head]) -> None:
    """Warns of options of `compile`, and of weights of heads, that do not change training.

    Args:
        options: The options, checked.
        heads: The heads.
    """
    for rule in _RULES:
        value = getattr(options, rule.option)
        if value != rule.default and rule.is_idle(options):
            _warn(f"`{rule.option}` has no effect {rule.why}, or omit `{rule.option}`. Received: {rule.option}={value!r}.")
    parts = [("encoder_", "", options.encoder_learning_rate, options.encoder_weight_decay)]
    parts += [("", f" of head {head.name!r}", head.learning_rate, head.weight_decay) for head in heads]
    for prefix, whose, rate, decay in parts:
        if rate == 0 and decay not in (0, 1):
            _warn(
                f"`{prefix}weight_decay`{whose} has no effect with `{prefix}learning_rate=0`, which freezes. Omit it. "
                f"Received: {prefix}weight_decay={decay!r}."
            )
    invariant = [method for method in (options.weighting, options.balancer) if method is not None and method.scale_invariant]
    weighted = [head for head in heads if head.has_weight_function or head.weight not in (0, 1)]
    if invariant and weighted:
        _warn(
            f"The weights of heads do not change the direction of the encoder's update with "
            f"{type(invariant[0]).__name__}, whatever their values above 0: {quoted(head.name for head in weighted)}. Omit "
            "them, or choose a method that depends on them, such as UPGrad."
        )


def warn_of_idle_rates(network: Network, encoder_rates: dict[str, Any]) -> None:
    """Warns of factors of learning rates and weight decay for parts that have no trainable variables.

    Args:
        network: The built network.
        encoder_rates: The encoder's factors, by the name of their argument.
    """
    parts = [("the encoder", len(network.variables.encoder), encoder_rates)]
    for head, own in zip(network.heads, network.own):
        rates = {"learning_rate": head.learning_rate, "weight_decay": head.weight_decay}
        parts.append((f"head {head.name!r}", len(own), rates))
    for whose, number, rates in parts:
        for argument, rate in rates.items():
            if not number and rate not in (0, 1):
                _warn(
                    f"`{argument}` of {whose} has no effect, since it has no trainable variables of its own. Omit it. "
                    f"Received: {argument}={rate!r}."
                )


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)
