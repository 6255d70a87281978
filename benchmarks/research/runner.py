"""What all experiments share: a data set with its model, variants by name, and how they are trained and recorded."""

from __future__ import annotations

import functools
import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multihead
from benchmarks.research.lag import FLOORS, THIS, FromThisUpdate
from benchmarks.research.moments import ADATASK, by_head
from benchmarks.research.record import ALONE, LARGE, MORE, PLAIN, RATES, WIDE, Line, line_of
from benchmarks.research.weights import EXPONENTS, SECOND, ByExponent
from examples._command_line import InputError
from multihead import MultiHeadTrainer, balancing, clipping, weighting

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
AT_PARAMETERS = ", parameters"
CONSTANT = "Adam at a constant rate"


def at_constant_rate(rate: Any) -> keras.optimizers.Adam:
    """Adam without the decay of the learning rate."""
    return keras.optimizers.Adam(rate.initial_learning_rate)


OPTIMIZERS: Mapping[str, Callable[..., Any]] = {
    CONSTANT: at_constant_rate,
    "Adam": keras.optimizers.Adam,
    "AdamW": keras.optimizers.AdamW,
    "SGD": functools.partial(keras.optimizers.SGD, momentum=0.9),
}
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "NormFloor 1": {"balancer": balancing.NormFloor(1.0)},
    **{f"{name}{THIS}": {"balancer": FromThisUpdate(floor)} for name, floor in FLOORS.items()},
    **{name: {"balancer": ByExponent(number)} for name, number in EXPONENTS.items()},
    "CAGrad 0.8": {"balancer": balancing.CAGrad(c=0.8)},
    "FAMO decayed": {"weighting": weighting.FAMO(weight_decay=1e-4)},
    "MGDA loss+": {"balancer": balancing.MGDA("loss+")},
}
"""Variants with options of their own."""

Part = tuple[np.ndarray, dict[str, np.ndarray]]


@dataclass(frozen=True)
class DataSet:
    """A data set and its model.

    Attributes:
        make: Makes the trainer for a width of the representation.
        width: The width of single-task models.
        data: The training, validation and test data, or a function of the seed, as `multihead.compare` takes them.
        metrics: Each head's metric and its direction.
        updates: The number of updates of a single-task model.
        batch_size: The number of examples of a batch.
        rates: By optimizer, the grid of learning rates.
        measure: Computes the metrics; None for those of `evaluate`.
        clip: The limit on the global norm of an update's gradients; None for no clipping.
        builds: Variants with another encoder: by name, what makes their trainer.
    """

    make: Callable[[int], MultiHeadTrainer]
    width: int
    data: Any
    metrics: Mapping[str, tuple[str, str]]
    updates: int
    batch_size: int
    rates: Mapping[str, tuple[float, ...]]
    measure: Callable[..., dict[str, float]] | None = None
    clip: float | None = None
    builds: Mapping[str, Callable[[], MultiHeadTrainer]] = field(default_factory=dict)

    def as_large(self) -> int:
        """The largest width with which a joint model has at most the parameters of all single-task models."""
        encoder, heads = self._parameters(self.width)
        most, number = len(self.metrics) * encoder + heads, len(self.metrics)
        low, high = self.width, self.width * number + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if sum(self._parameters(middle)) <= most else (low, middle)
        return low

    def _parameters(self, width: int) -> tuple[int, int]:
        """The number of parameters of the encoder, and of all heads."""
        trainer = self.make(width)
        trainer.compile("sgd", run_eagerly=True)
        x, y = (self.data(0) if callable(self.data) else self.data)["train"][:2]
        trainer.compute_gradients((x[:2], {head: labels[:2] for head, labels in y.items()}))  # creates the variables
        heads = sum(head.module.count_params() for head in trainer.heads.values())
        return trainer.encoder.count_params(), heads


def halves(part: Part) -> dict[str, Part]:
    """Every second example for validation, the others for the test."""
    x, y = part
    names = enumerate(("validation", "test"))
    return {name: (x[begin::2], {head: each[begin::2] for head, each in y.items()}) for begin, name in names}


def rule_of(variant: str) -> str:
    """The name of a variant without what is said of its encoder, its learning rates and its updates."""
    for ending in (MORE, WIDE, LARGE, RATES):
        variant = variant.removesuffix(ending)
    return variant


def options_of(name: str, heads: Sequence[str]) -> dict[str, Any]:
    """The options of `compile`, or the weights, of a variant.

    Args:
        name: `"plain sum"`; a balancer or a weighting of the library by the name of its class; a balancer with
            `", parameters"`, which acts there; `"{head} {weight}"`, the plain sum with another weight of one head, or of the
            `second` one; or one of `SPECIAL`.
        heads: The heads.

    Raises:
        InputError: There is no such variant.
    """
    base = name.removesuffix(AT_PARAMETERS)
    level = {"balance_at": "parameters"} if base != name else {}
    if base in SPECIAL:
        return {**SPECIAL[base], **level}
    if name == PLAIN:
        return {}
    if base in balancing.__all__ and base[0].isupper():
        return {"balancer": base, **level}
    if name in weighting.__all__ and name[0].isupper():
        return {"weighting": name}
    found = re.fullmatch(r"(.+) (\d+(?:\.\d+)?)", name)
    by_name = {**dict(zip((SECOND,), heads[1:])), **dict(zip(heads, heads))}
    if found and found[1] in by_name:
        return {"weights": {by_name[found[1]]: float(found[2])}}
    raise InputError(
        f"`--variants` must be names of variants. Received: {name!r}. Pass {PLAIN!r}, the name of a balancer or a weighting "
        f"of the library, {heads[0]!r} and a weight, or one of {', '.join(map(repr, SPECIAL))}."
    )


def variants_of(found: DataSet, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The variants of a data set by their names, as `multihead.compare` takes them."""
    builds = {ADATASK: lambda: by_head(found.make(found.width)), **found.builds}
    variants = {}
    for name in names:
        if name in builds:
            variants[name] = {"build": builds[name]}
            continue
        variants[name] = options_of(rule_of(name), list(found.metrics))
        if RATES in name:
            variants[name]["head_rates"] = ALONE
        if LARGE in name or WIDE in name:
            width = found.as_large() if LARGE in name else 2 * found.width
            variants[name]["build"] = functools.partial(found.make, width)
    return variants


def run(name: str, found: DataSet, optimizer: str, options: Namespace) -> Line:
    """Trains the variants of a data set with an optimizer, and returns their line.

    Args:
        name: The name of the data set.
        found: The data set.
        optimizer: The name of the optimizer.
        options: The flags of the command.
    """
    rates = found.rates[optimizer]
    more = [variant for variant in options.variants if variant.endswith(MORE)]
    line: Line = {}
    for variants, factor, ending in ((options.variants, 1.0, ""), (more, len(found.metrics) ** 0.5, "_more")):
        names = [variant for variant in variants if factor > 1 or variant not in more]
        if not names:
            continue
        made = multihead.compare(
            functools.partial(found.make, found.width),
            found.data,
            variants_of(found, names),
            options.seeds,
            3 if options.quick else round(factor * found.updates),
            metrics=found.metrics,
            optimizer=OPTIMIZERS[optimizer],
            rates=rates[:1] if options.quick else rates,
            tuning_seeds=[1000 + seed for seed in range(options.tuning_seeds)],
            batch_size=found.batch_size,
            options={} if found.clip is None else {"clip": clipping.ByGlobalNorm(found.clip)},
            equal_cost=[variant for variant in options.equal_cost if variant in names],
            measure=found.measure,
            file=options.runs / f"{name}_{optimizer}{ending}.jsonl",
        )
        now = line_of(name, optimizer, made)
        if line:  # of the longer training, each head alone is no baseline
            for part in ("updates", "rates", "costs", "values", "validation"):
                line[part] = {**now[part], **line[part]}
        else:
            line = now
    return line
