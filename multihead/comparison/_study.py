"""What is the same for all runs of a comparison, and what one run is, as data that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from multihead._ground.keras import STACK
from multihead._ground.validation import check_positive_whole, check_whole, did_you_mean, is_number, quoted
from multihead.comparison._variants import ALONE, AT_EQUAL_COST, check_build, in_words

TUNE, FINAL = "tune", "final"


@dataclass(frozen=True)
class Study:
    """What is the same for all runs.

    Attributes:
        build: Creates the trainer with all heads.
        data: The parts of the data, or a function of the seed that returns them.
        optimizer: Creates an optimizer from a learning rate.
        options: Options of `compile` for all variants, the single-task models among them.
        batch_size: The number of examples in a batch of arrays.
        measure: Further metrics of a trainer, or None for those of `evaluate`.
        accumulate: The number of batches of one update.
    """

    build: Callable[[], Any]
    data: Any
    optimizer: Callable[[Any], Any]
    options: Mapping[str, Any]
    batch_size: int
    measure: Callable[[Any, Any], Mapping[str, float]] | None
    accumulate: int = 1


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        kind: `"tune"` or `"final"`.
        variant: The variant's name, `"alone"` for single-task models.
        head: The head of a single-task model; empty for a variant with all heads.
        seed: The seed of the initial weights, the order of the data and all else.
        rate: The learning rate, which decays to zero.
        updates: The number of updates.
        at_equal_cost: Whether the number of updates is that of the time of all single-task models.
        weights: The heads' weights.
        options: Options of `compile` of the variant.
        budget: The number of updates without equal cost, by which places in the order of the data are marked.
        build: Creates the trainer of the variant; None for that of the study.
        head_rates: By head name, the learning rate of the head's own variables; empty for `rate`.
    """

    kind: str
    variant: str
    head: str
    seed: int
    rate: float
    updates: int
    at_equal_cost: bool = False
    weights: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: int = 1
    build: Callable[[], Any] | None = None
    head_rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The variant in tables."""
        return label_of(self.variant, self.head, at_equal_cost=self.at_equal_cost)

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the run from all others."""
        of_heads = tuple(sorted(self.head_rates.items()))
        return (self.kind, self.variant, self.head, self.seed, self.rate, self.updates, self.at_equal_cost, of_heads)


def label_of(variant: str, head: str = "", *, at_equal_cost: bool = False) -> str:
    """A variant's name in tables."""
    if variant == ALONE:
        return f"{head} alone" if head else ALONE
    return variant + AT_EQUAL_COST if at_equal_cost else variant


@dataclass(frozen=True)
class Plan:
    """The checked numbers of a comparison.

    Attributes:
        seeds: The reported seeds.
        tuning_seeds: The seeds of the choice of the learning rates.
        rates: The grid of learning rates, ascending.
        budget: `"updates"` or `"epochs"`, and how many.
    """

    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    rates: tuple[float, ...]
    budget: tuple[str, int]


def read_plan(seeds: Any, tuning_seeds: Any, rates: Any, budget: Any) -> Plan:
    """The checked numbers.

    Raises:
        ValueError: One is out of range.
    """
    found = list(range(seeds)) if isinstance(seeds, int) and not isinstance(seeds, bool) else seeds
    numbers = [check_whole("seeds", seed) for seed in found] if isinstance(found, Sequence) and len(found) else []
    if not numbers or len(set(numbers)) < len(numbers) or min(numbers) < 0 or isinstance(found, str):
        raise ValueError(
            "`seeds` must be a number of seeds, at least 1, or a list of different whole numbers of at least 0. "
            f"Received: seeds={seeds!r}. Pass, for example, 5."
        )
    several = isinstance(tuning_seeds, Sequence) and not isinstance(tuning_seeds, str)
    own = [check_whole("tuning_seeds", seed) for seed in (tuning_seeds if several else [tuning_seeds])]
    if not own or len(set(own)) < len(own) or set(own) & set(numbers) or min(own) < 0:
        raise ValueError(
            "`tuning_seeds` must be a seed of its own, at least 0, or a list of different ones, so that the learning rates "
            f"are not chosen on the reported seeds. Received: tuning_seeds={tuning_seeds!r} with seeds {quoted(numbers)}. "
            "Choose another."
        )
    grid = [rates] if is_number(rates) else rates
    if not isinstance(grid, Sequence) or not grid or not all(is_number(rate) and rate > 0 for rate in grid):
        raise ValueError(
            "`rates` must be a grid of learning rates: finite numbers above 0. "
            f"Received: rates={rates!r}. Pass, for example, (1e-3, 3e-3, 1e-2)."
        )
    return Plan(tuple(numbers), tuple(own), tuple(sorted({float(rate) for rate in grid})), _read_budget(budget))


def _read_budget(budget: Any) -> tuple[str, int]:
    if isinstance(budget, Mapping):
        if len(budget) != 1 or not set(budget) <= {"updates", "epochs"}:
            hint = did_you_mean(budget, ("updates", "epochs"), "Pass, for example, {'epochs': 10}.")
            raise ValueError(
                "`budget` must be a number of updates, or a dict with one of 'updates' and 'epochs'. "
                f"Received: budget={budget!r}. {hint}"
            )
        ((unit, number),) = budget.items()
        return unit, check_positive_whole(f"budget[{unit!r}]", number)
    return "updates", check_positive_whole("budget", budget)


def check_callables(build: Any, optimizer: Any, measure: Any) -> None:
    """Checks what must be functions.

    Raises:
        TypeError: One is not.
    """
    check_build("build", build)
    if not callable(optimizer) or isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a class of optimizers, or a function of the learning rate that returns one. "
            f"Received: optimizer={optimizer!r}. Pass, for example, keras.optimizers.Adam, without calling it."
        )
    if measure is not None and not callable(measure):
        raise TypeError(
            "`measure` must be a function of a trainer and a part of the data that returns metrics by name. "
            f"Received: measure={measure!r}. Omit it to use `evaluate`."
        )


def settings_of(study: Study, plan: Plan, probed: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same when a comparison goes on in another call, except `rates` and further tuning seeds."""
    return {
        "heads": list(probed["metrics"]),
        "metrics": {head: list(metric) for head, metric in probed["metrics"].items()},
        "split": probed["split"],
        "updates": probed["updates"],
        "rates": list(plan.rates),
        "tuning_seeds": list(plan.tuning_seeds),
        "batch_size": study.batch_size,
        "optimizer": in_words(study.optimizer),
        "options": {name: in_words(value) for name, value in sorted(study.options.items())},
        "measure": in_words(study.measure),
        "start": probed["start"],
        "first_batch": probed["first_batch"],
        "keras": f"{STACK}, {keras.__version__}",
    }
