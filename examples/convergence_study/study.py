"""Runs the chosen variants on all seeds, and summarizes the results."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from examples.convergence_study.network import Network
from examples.convergence_study.training import (
    Batches,
    Curve,
    LibraryRun,
    final,
    make_batches,
    make_run,
    make_trainer,
    updates_until,
)
from examples.convergence_study.variants import BOTH, GRID, REFERENCES, TUNED, Variant, all_variants, references
from examples.seq2seq_price.data import Data
from multihead.diagnosis import Diagnosis

TUNING_SEED = 1000
"""The seed on which the weight is tuned; it is not used for results."""
MARGIN = 0.05
"""Relative tolerance, both for reaching the performance of a head alone and for needing as many updates."""
DIAGNOSED_BATCHES = 8
Advance = Callable[[], None]


@dataclass
class Result:
    """A variant and its curves.

    Attributes:
        variant: The variant.
        curves: One learning curve per seed.
        trials: For the tuned weight, the result of each candidate on the tuning seed.
        summary: See `summarize`.
    """

    variant: Variant
    curves: list[Curve]
    trials: dict[str, float] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All results as JSON data."""
        described = {
            key: value for key, value in asdict(self.variant).items() if isinstance(value, (str, float, bool, tuple))
        }
        return {**described, "summary": self.summary, "trials": self.trials, "curves": self.curves}


def chosen_variants(options: Namespace) -> list[Variant]:
    """The variants named in the options, preceded by each head alone with every optimizer that they use."""
    variants = [variant for name, variant in all_variants(options.optimizer).items() if name in options.variants]
    used = dict.fromkeys([options.optimizer, *(variant.optimizer for variant in variants)])
    return [*(variant for name in used for variant in references(name, options.optimizer)), *variants]


class Study:
    """The network, its batches for every seed, and the length of training.

    Args:
        options: The command-line options.
        data: The data to train and evaluate on.

    Raises:
        InputError: The batches are too large for the data.
    """

    def __init__(self, options: Namespace, data: Data) -> None:
        self.variants = chosen_variants(options)
        self.network = Network(data, units=options.units, embedding=options.embedding)
        self._rows = options.batch_size
        self._epochs = min(options.measurements, options.updates)
        self._every = options.updates // self._epochs
        self._train = data.splits["train"]
        self._batches = [self._make_batches(seed) for seed in range(options.seeds)]
        for seed in range(options.seeds):  # drawn here, outside of the timed runs
            self.network.draw(seed)

    @property
    def references(self) -> int:
        """The number of references among the variants; they come first."""
        return sum(variant.group == REFERENCES for variant in self.variants)

    @property
    def total(self) -> int:
        """The total number of updates."""
        runs = len(self.variants) * len(self._batches) + len(GRID) * any(variant.name == TUNED for variant in self.variants)
        return runs * self._every * self._epochs

    def run(self, variant: Variant, advance: Advance) -> Result:
        """Trains a variant on every seed."""
        trials: dict[str, float] = {}
        if variant.name == TUNED:
            trials = self._try_weights(variant, advance)
            weight = float(min(trials, key=lambda tried: trials[tried]))
            variant = replace(variant, price_weight=weight, about=f"{variant.about}: {weight:g}")
        runner = make_run(self.network, variant, self._batches[0])
        curves = [
            runner.run(seed, batches, self._every, self._epochs, advance) for seed, batches in enumerate(self._batches)
        ]
        return Result(variant, curves, trials)

    def diagnose(self, optimizer: str) -> Diagnosis:
        """The library's diagnosis of a price loss that is summed over the batch, before training."""
        variant = all_variants(optimizer)[f"unreduced_{optimizer}"]
        self.network.set(self.network.draw(0))
        return make_trainer(self.network, variant, self._rows).diagnose(self._batches[0], batches=DIAGNOSED_BATCHES)

    def _try_weights(self, variant: Variant, advance: Advance) -> dict[str, float]:
        """The product of both heads' losses for each weight; it does not depend on the units of either loss."""
        batches = self._make_batches(TUNING_SEED)
        found = {}
        for weight in GRID:
            runner = LibraryRun(self.network, replace(variant, price_weight=weight), batches)
            curve = runner.run(TUNING_SEED, batches, self._every, self._epochs, advance)
            found[f"{weight:g}"] = final(curve, "reply_loss") * final(curve, "price_loss")
        return found

    def _make_batches(self, seed: int) -> Batches:
        updates = self._every * self._epochs
        return make_batches(self._train, self.network.vectorizers, batch_size=self._rows, updates=updates, seed=seed)


# ------------------------------------------------------------------------------------------------ summary


def summarize(results: dict[str, Result], main: str) -> None:
    """Adds summary statistics over seeds to each result.

    Final metrics are pairs of mean and standard deviation. `reply_updates` is the number of updates needed to reach the
    final loss of the decoder alone plus 5 percent, with the same optimizer and seed; `reply_slowness` is that number
    divided by what the decoder alone needed; `price_updates` is the number of updates needed to get within 5 percent of
    the accuracy of the price alone. These are means over the seeds that got there, `reply_reached` and `price_reached` in
    number. `reply_pace` covers all seeds: the number of updates after which the decoder alone reaches the variant's final
    loss, divided by all updates, at most 1.
    """
    for result in results.values():
        reply, price = (results[reference.name] for reference in references(result.variant.optimizer, main))
        summary: dict[str, Any] = {"seconds": _spread([final(curve, "seconds") for curve in result.curves])}
        if "reply" in result.variant.heads:
            targets = [(1 + MARGIN) * final(curve, "reply_loss") for curve in reply.curves]
            alone = [updates_until(c, "reply_loss", t, falling=True) for c, t in zip(reply.curves, targets)]
            taken = [updates_until(c, "reply_loss", t, falling=True) for c, t in zip(result.curves, targets)]
            slowness = [a / b for a, b in zip(taken, alone) if a is not None and b]
            summary |= _reached("reply", taken)
            summary["reply_slowness"] = float(np.mean(slowness)) if slowness else None
            summary["reply_pace"] = float(np.mean([_pace(c, a) for c, a in zip(result.curves, reply.curves)]))
            for figure in ("reply_loss", "reply_exact"):
                summary[figure] = _spread([final(curve, figure) for curve in result.curves])
        if "price" in result.variant.heads:
            goals = [(1 - MARGIN) * final(curve, "price_accuracy") for curve in price.curves]
            taken = [updates_until(c, "price_accuracy", t, falling=False) for c, t in zip(result.curves, goals)]
            summary |= _reached("price", taken)
            for figure in ("price_loss", "price_accuracy"):
                summary[figure] = _spread([final(curve, figure) for curve in result.curves])
        if result.variant.heads == BOTH:
            points = [point for curve in result.curves for point in curve[1:]]
            summary |= {name: float(np.mean([p[name] for p in points])) for name in ("reply_norm", "price_norm", "cosine")}
        result.summary = summary


def keeps_both(result: Result, results: dict[str, Result], main: str) -> bool:
    """Whether both heads learn as well as alone: the decoder within 5 percent of its updates, the price as accurate."""
    _, price = references(result.variant.optimizer, main)
    summary = result.summary
    slowness, everywhere = summary["reply_slowness"], summary["reply_reached"] == len(result.curves)
    accurate = summary["price_accuracy"][0] >= results[price.name].summary["price_accuracy"][0]
    return bool(everywhere and slowness is not None and slowness <= 1 + MARGIN and accurate)


def conclude(results: dict[str, Result], main: str) -> list[str]:
    """The conclusions, one sentence each."""
    said = []
    joint = {name: result for name, result in results.items() if result.variant.heads == BOTH}
    for result in joint.values():
        if result.variant.unreduced or result.variant.by_hand:
            said.append(_of_both(result, results, main))
    if "turns" in joint:
        said.append(f"Alternating: {_of_reply(joint['turns'], results, main)}; {_of_price(joint['turns'], results, main)}.")
    others = {name: result for name, result in joint.items() if not result.variant.by_hand}
    good = [name for name, result in others.items() if keeps_both(result, results, main)]
    by_weight = [name for name in good if others[name].variant.price_weight != 1 or name == TUNED]
    by_itself = [name for name in good if name not in by_weight]
    said.append(
        f"Both heads as good as alone, without a weight: {', '.join(by_itself) or 'no variant'}"
        f"; with a weight: {', '.join(by_weight) or 'no variant'}."
    )
    balanced = [
        result for result in others.values() if result.variant.balancer is not None and result.variant.optimizer == main
    ]
    if "sum" in others and balanced:
        better = [result.variant.name for result in balanced if _dominates(result, others["sum"])]
        said.append(f"At least as good as the plain sum for both heads: {', '.join(better) or 'no balancer'}.")
    return said


def _dominates(result: Result, other: Result) -> bool:
    return bool(
        result.summary["reply_loss"][0] <= other.summary["reply_loss"][0]
        and result.summary["price_accuracy"][0] >= other.summary["price_accuracy"][0]
    )


def _of_both(result: Result, results: dict[str, Result], main: str) -> str:
    return f"{result.variant.name}: {_of_reply(result, results, main)}; {_of_price(result, results, main)}."


def _of_reply(result: Result, results: dict[str, Result], main: str) -> str:
    alone = results[references(result.variant.optimizer, main)[0].name].summary["reply_loss"][0]
    reached = result.summary["reply_loss"][0]
    slowness = result.summary["reply_slowness"]
    got_there = "" if slowness is None else f", in {slowness:.2f} times the updates if it gets there"
    return f"the decoder ends at a loss of {reached:.3f} (alone {alone:.3f}){got_there}"


def _of_price(result: Result, results: dict[str, Result], main: str) -> str:
    alone = results[references(result.variant.optimizer, main)[1].name].summary["price_accuracy"][0]
    return f"the price ends at an accuracy of {result.summary['price_accuracy'][0]:.3f} (alone {alone:.3f})"


def _spread(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values))


def _pace(curve: Curve, alone: Curve) -> float:
    total = final(alone, "updates")
    taken = updates_until(alone, "reply_loss", final(curve, "reply_loss"), falling=True)
    return (total if taken is None else taken) / total


def _reached(head: str, taken: list[float | None]) -> dict[str, Any]:
    there = [updates for updates in taken if updates is not None]
    return {f"{head}_updates": float(np.mean(there)) if there else None, f"{head}_reached": len(there)}
