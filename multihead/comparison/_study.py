"""What is compared, as data that can be sent to another process: the study, its variants, and one run of one of them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras

from multihead._ground.types import Config, Dataset, Optimizer, Trainer
from multihead._ground.validation import check_copied, check_positive_whole, check_whole, did_you_mean, is_number, quoted
from multihead.trainer import MultiHeadTrainer

ALONE = "alone"
"""The variant of the single-task models: each head with an encoder of its own."""
AT_EQUAL_COST = ", equal cost"
"""What follows the name of a variant that is trained for the time of all single-task models together."""
TUNE, FINAL = "tune", "final"
_OWN = ("weights", "build", "head_rates")
"""What the dict of a variant may have besides options of `compile`."""
_RULES = ("balancer", "weighting", "head_schedule")
_OF_JOINT_TRAINING = (*_RULES, "balance_at", "balance_every")
"""The options of joint training, which a single-task model does not have."""


@dataclass(frozen=True)
class Study:
    """What is the same for all runs: checked arguments of `compare`. `budget` is `"updates"` or `"epochs"`, and how many."""

    build: Callable[[], Trainer]
    data: Dataset
    optimizer: Callable[[float], Optimizer]
    options: Config
    batch_size: int
    measure: Callable[[Trainer, Dataset], Mapping[str, float]] | None
    seeds: tuple[int, ...]
    tuning_seeds: tuple[int, ...]
    rates: tuple[float, ...]
    budget: tuple[str, int]

    @property
    def batches_per_update(self) -> int:
        return int(self.options.get("gradient_accumulation_steps", 1))


@dataclass(frozen=True)
class Variant:
    """One way to train: weights of heads by name, options of `compile`, a `build` or None for that of the study.

    With `as_alone`, the heads' own variables have the learning rates that were chosen for the heads alone.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    options: Config = field(default_factory=dict)
    build: Callable[[], Trainer] | None = None
    as_alone: bool = False

    @property
    def build_argument(self) -> str:
        """The name of `build` in messages."""
        return f"variants[{self.name!r}]['build']"

    @property
    def is_fixed(self) -> bool:
        """Whether it differs from the plain sum only in weights: no rule, and no model or heads' rates of its own."""
        rules = (*_RULES, "target_scaling")
        return self.build is None and not self.as_alone and all(self.options.get(name) is None for name in rules)

    @property
    def settings(self) -> Config:
        """The variant as text, by which a later call sees that it is the same."""
        own = {"weights": self.weights, "build": self.build, "head_rates": ALONE if self.as_alone else None}
        nonempty = {name: value for name, value in own.items() if value}
        return {name: as_text(value) for name, value in (*nonempty.items(), *sorted(self.options.items()))}


@dataclass(frozen=True)
class Job:
    """One run of a variant, to choose a rate (`"tune"`) or to report (`"final"`)."""

    kind: str
    variant: Variant
    head: str  # that of a single-task model; empty for a variant with all heads
    seed: int
    rate: float
    updates: int = 1
    at_equal_cost: bool = False
    # By head name, the learning rate of the head's own variables; empty for `rate`
    head_rates: Mapping[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The variant in tables."""
        return label_of(self.variant.name, self.head, at_equal_cost=self.at_equal_cost)

    @property
    def line(self) -> Config:
        """The part of the run's line in the file that says which run it is."""
        return {
            "run": self.kind,
            "variant": self.variant.name,
            "head": self.head,
            "at_equal_cost": self.at_equal_cost,
            "seed": self.seed,
            "rate": self.rate,
            "updates": self.updates,
            **({"head_rates": dict(self.head_rates)} if self.head_rates else {}),
        }


def label_of(variant: str, head: str = "", *, at_equal_cost: bool = False) -> str:
    """A variant's name in tables."""
    if variant == ALONE:
        return f"{head} alone" if head else ALONE
    return variant + AT_EQUAL_COST if at_equal_cost else variant


def as_text(value: Any) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_text(item)}" for name, item in sorted(value.items(), key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_text, value)) + "]"
    if value is None or isinstance(value, (str, int, float)):
        return str(value)
    if callable(getattr(type(value), "get_config", None)):
        config = {name: option for name, option in value.get_config().items() if name != "name" and option is not None}
        return f"{type(value).__name__}({as_text(config) if config else ''})"
    if isinstance(value, functools.partial):
        return f"{as_text(value.func)}({as_text(value.args)}, {as_text(value.keywords)})"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def copied_options(options: Config) -> Config:
    """Options of `compile` with new objects, so that no run changes those of another or of the user."""
    copies = {}
    for name, value in options.items():
        has_config = callable(getattr(type(value), "get_config", None))
        copies[name] = type(value).from_config(value.get_config()) if has_config else value
        if has_config:
            check_copied(name, value, copies[name], "because every run has one of its own")
        if isinstance(value, Mapping):
            copies[name] = copied_options(dict(value))
    return copies


# The arguments of `compare`


def read_study(
    *,
    build: Callable[[], Trainer],
    data: Dataset,
    optimizer: Callable[[float], Optimizer],
    options: Config,
    batch_size: int,
    measure: Callable[[Trainer, Dataset], Mapping[str, float]] | None,
    seeds: int | Sequence[int],
    tuning_seeds: int | Sequence[int],
    rates: float | Sequence[float],
    budget: int | Mapping[str, int],
) -> Study:
    """The arguments of `compare` in one form; those that are out of range or of a wrong type are errors."""
    _check_build("build", build)
    if not callable(optimizer) or isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a class of optimizers, or a function of the learning rate that returns one. "
            f"Received: optimizer={optimizer!r}. Pass, for example, keras.optimizers.Adam, without calling it."
        )
    reported = _read_seeds("seeds", seeds, range(seeds) if isinstance(seeds, int) else seeds)
    tuned = tuning_seeds if isinstance(tuning_seeds, Sequence) else [tuning_seeds]
    grid = rates if isinstance(rates, Sequence) else [rates]
    if not grid or not all(is_number(rate) and rate > 0 for rate in grid):
        raise ValueError(
            "`rates` must be a grid of learning rates: finite numbers above 0. "
            f"Received: rates={rates!r}. Pass, for example, (1e-3, 3e-3, 1e-2)."
        )
    budgets = budget if isinstance(budget, Mapping) else {"updates": budget}
    if len(budgets) != 1 or not set(budgets) <= {"updates", "epochs"}:
        hint = did_you_mean(budgets, ("updates", "epochs"), "Pass, for example, {'epochs': 10}.")
        raise ValueError(
            "`budget` must be a number of updates, or a dict with one of 'updates' and 'epochs'. "
            f"Received: budget={budgets!r}. {hint}"
        )
    ((unit, number),) = budgets.items()
    checked_options = _read_options("options", options, (), (*_OF_JOINT_TRAINING, "target_scaling"))
    check_positive_whole("options['gradient_accumulation_steps']", checked_options.get("gradient_accumulation_steps", 1))
    return Study(
        build=build,
        data=data,
        optimizer=optimizer,
        options=checked_options,
        batch_size=check_positive_whole("batch_size", batch_size),
        measure=measure,
        seeds=reported,
        tuning_seeds=_read_seeds("tuning_seeds", tuning_seeds, tuned, reported),
        rates=tuple(sorted({float(rate) for rate in grid})),
        budget=(unit, check_positive_whole("budget", number)),
    )


def _read_seeds(argument: str, received: object, candidates: object, others: Sequence[int] = ()) -> tuple[int, ...]:
    seeds = tuple(check_whole(argument, seed) for seed in candidates) if isinstance(candidates, Sequence) else ()
    if not seeds or len({*seeds, *others}) < len(seeds) + len(others) or min(seeds) < 0:
        rule = "a number of seeds, at least 1, or a list of different whole numbers of at least 0"
        if others:
            rule = f"a seed, or a list of different ones, of at least 0 and none of `seeds`, {quoted(others)}"
        raise ValueError(f"`{argument}` must be {rule}. Received: {argument}={received!r}. Choose others.")
    return seeds


def read_variants(variants: object, build: Callable[[], Trainer]) -> dict[str, Variant]:
    """The variants by name, checked as far as this can be done without a trainer."""
    if not isinstance(variants, Mapping) or not variants:
        raise ValueError(
            "`variants` must be a dict of at least one variant, by its name. "
            f"Received: variants={variants!r}. Pass, for example, {{'plain sum': {{}}}}."
        )
    by_name = {}
    for name, settings in variants.items():
        if not isinstance(name, str) or not name or name == ALONE or name.endswith(AT_EQUAL_COST):
            raise ValueError(
                f"The name of a variant in `variants` must be a string other than {ALONE!r}, which is always compared, and "
                f"not end in {AT_EQUAL_COST!r}. Received: {name!r}. Choose another name."
            )
        weights, own, as_alone = (settings.get(key) if isinstance(settings, Mapping) else None for key in _OWN)
        if not isinstance(settings, Mapping) or not isinstance(weights or {}, Mapping):
            raise TypeError(
                f"`variants[{name!r}]` must be a dict of options of `compile`, `weights`, `build` and `head_rates`, and "
                f"`weights` a dict by head name. Received: {settings!r}. Pass, for example, {{'balancer': 'EqualNorms'}}; "
                "{} is the plain sum with the weights of `build`."
            )
        if own is not None:
            _check_build(f"variants[{name!r}]['build']", own)
        if as_alone not in (None, ALONE):
            raise ValueError(
                f"`variants[{name!r}]['head_rates']` must be {ALONE!r}: a head's own variables then use the learning "
                f"rate that was chosen for that head alone. Received: {as_alone!r}. Give other rates to "
                "`add_head(learning_rate_multiplier=)` in a `build` of the variant's own."
            )
        options = {option: value for option, value in settings.items() if option not in _OWN}
        options = _read_options(f"variants[{name!r}]", options, _OWN, ("gradient_accumulation_steps",))
        by_name[name] = Variant(name, dict(weights or {}), options, None if own is build else own, as_alone == ALONE)
    return by_name


def _check_build(argument: str, build: object) -> None:
    if not callable(build) or isinstance(build, keras.layers.Layer):
        raise TypeError(
            f"`{argument}` must be a function without arguments that returns a `MultiHeadTrainer` with its heads. "
            f"Received: {build!r}. Pass the function itself, so that each run has a trainer of its own; "
            "`functools.partial` gives it arguments."
        )


def _read_options(argument: str, options: Config, others: Sequence[str], without: Sequence[str]) -> Config:
    """Options of `compile`: those that are not in `without`; the same dict may also have `others`."""
    excluded = ("self", "optimizer", *without)
    known = [name for name in inspect.signature(MultiHeadTrainer.compile).parameters if name not in excluded]
    unknown = [name for name in options if name not in known]
    if unknown:
        otherwise = (
            "What is the same for all variants is an argument of `compare` or belongs in its `options`, what concerns joint "
            "training in `variants`; a `target_scaling` for all belongs in `add_head`."
        )
        raise ValueError(
            f"`{argument}` must have only these options of `compile`: {quoted([*others, *known])}. "
            f"Received: {quoted(unknown)}. {did_you_mean(unknown, [*known, *others], otherwise)}"
        )
    return copied_options(options)
