"""The variants of the study: the ways of combining the losses and gradients of the two heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras

from multihead import balancing, clipping, schedules

BOTH = ("reply", "price")
RATES = {"adam": 12e-3, "adadelta": 1.0, "sgd": 1.0}
"""Learning rate of each optimizer; the same for all variants that use it."""
CLIP = 1.0
"""The limit on the global norm of an update's gradients."""
GRID = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Candidate weights of the price loss, compared on a separate seed."""
REFERENCES = "references"
"""The group of the variants that train one head alone."""
TUNED = "tuned_weight"
DEVIATION = 0.35
"""The standard deviation of the initial weights in the original setup."""


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: Its name in `--variants` and in all results.
        about: What it does, in a few words.
        group: Its column in the figure.
        heads: The heads that it trains.
        optimizer: A key of `RATES`; empty for the optimizer of the whole study.
        price_weight: Factor of the mean price loss.
        unreduced: Whether the price loss is summed over the batch, which multiplies it by the batch size.
        balancer: Creates a balancer; None for the plain sum.
        schedule: Creates a schedule; None to train all heads at every update.
        by_part: Whether the gradients of the encoder and of each head are clipped separately, not all together.
        by_hand: Whether it uses a custom training loop with one optimizer per head, without the library.
        deviation: The standard deviation of the initial weights; None for the layers' own initializers.
    """

    name: str
    about: str
    group: str
    heads: tuple[str, ...] = BOTH
    optimizer: str = ""
    price_weight: float = 1.0
    unreduced: bool = False
    balancer: Callable[[], Any] | None = None
    schedule: Callable[[], Any] | None = None
    by_part: bool = False
    by_hand: bool = False
    deviation: float | None = None


class ByPart(clipping.Clipping):
    """Limits the global norm of the encoder's gradients and of each head's own gradients separately.

    Args:
        limit: The largest norm of each.
        sizes: The number of variables of the encoder and of each head, in the trainer's order.
    """

    def __init__(self, limit: float, sizes: Sequence[int]) -> None:
        super().__init__(limit)
        self._sizes = list(sizes)
        self._together = clipping.ByGlobalNorm(limit)

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        clipped: list[Any] = []
        for size in self._sizes:
            clipped += self._together(gradients[len(clipped) : len(clipped) + size])
        return clipped

    def get_config(self) -> dict[str, Any]:
        return {"limit": self.limit, "sizes": list(self._sizes)}


def make_optimizer(variant: Variant) -> Any:
    """Creates an optimizer for a variant."""
    makers = {"adam": keras.optimizers.Adam, "adadelta": keras.optimizers.Adadelta, "sgd": keras.optimizers.SGD}
    return makers[variant.optimizer](RATES[variant.optimizer])


def references(optimizer: str, main: str) -> tuple[Variant, Variant]:
    """The variants that train each head alone with an optimizer."""
    ending = "" if optimizer == main else f"_{optimizer}"
    return (
        Variant(f"decoder_alone{ending}", "the decoder alone", REFERENCES, ("reply",), optimizer),
        Variant(f"price_alone{ending}", "the price alone", REFERENCES, ("price",), optimizer),
    )


def all_variants(main: str) -> dict[str, Variant]:
    """All variants except the references, by name, with their optimizers filled in.

    Args:
        main: The study's optimizer, a key of `RATES`.
    """
    together = "one total loss"
    first = Variant("two_optimizers", "two optimizers, price loss summed over the batch", "ways", optimizer="adadelta")
    variants = [
        replace(first, unreduced=True, by_hand=True, deviation=DEVIATION),
        Variant("two_optimizers_mean", "two optimizers, mean losses", "ways", by_hand=True),
        Variant("turns", "one update for the price, nine for the decoder", "ways", schedule=_turns),
        Variant("while_conflicting", "alternating while gradients conflict", "ways", schedule=schedules.WhileConflicting),
        Variant("sum", f"{together}, plain sum", "ways"),
    ]
    for optimizer in RATES:
        variant = Variant(
            f"unreduced_{optimizer}", f"price loss summed, {optimizer}", "summed", optimizer=optimizer, unreduced=True
        )
        repaired = replace(
            variant, name=f"repaired_{optimizer}", about=f"the same, EqualNorms, clipped separately, {optimizer}"
        )
        variants += [variant, replace(repaired, balancer=balancing.EqualNorms, by_part=True)]
    variants += [
        Variant("equal_norms", "EqualNorms", "balancers", balancer=balancing.EqualNorms),
        Variant("norm_budget", "NormBudget, at most half for the price", "balancers", balancer=_budget),
        Variant("upgrad", "UPGrad", "balancers", balancer=balancing.UPGrad),
        Variant("nash_mtl", "NashMTL", "balancers", balancer=balancing.NashMTL),
        Variant("imtlg", "IMTLG", "balancers", balancer=balancing.IMTLG),
        Variant("meta_balance", "MetaBalance, for the decoder", "balancers", balancer=_for_the_decoder),
        *(Variant(f"weight_{w}", f"{together}, price weight {w}", "weights and clips", price_weight=w) for w in (4, 16, 64)),
        Variant(TUNED, f"{together}, tuned weight", "weights and clips"),
        Variant("clip_by_part", f"{together}, encoder and heads clipped separately", "weights and clips", by_part=True),
    ]
    return {variant.name: variant if variant.optimizer else replace(variant, optimizer=main) for variant in variants}


def _turns() -> Any:
    return schedules.Alternate({"price": 1, "reply": 9})


def _budget() -> Any:
    return balancing.NormBudget({"price": 0.5})


def _for_the_decoder() -> Any:
    return balancing.MetaBalance("reply")
