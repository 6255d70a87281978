"""What is compared, as data that can be sent to another process: the study, its variants, and one run of one of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import keras

from multihead import balancing, weighting
from multihead._ground.keras import STACK
from multihead._ground.types import Config, Dataset, Given, Optimizer, Rate, Trainer
from multihead._ground.validation import check_choice, check_positive_whole, check_whole, did_you_mean, is_number, quoted
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
    optimizer: Callable[[Rate], Optimizer]
    options: Config
    batch_size: int
    measure: Callable[[Trainer, Dataset], Mapping[str, float]] | None
    seeds: Given = (0,)
    tuning_seeds: Given = (1000,)
    rates: Given = (1e-3,)
    budget: Given = ("updates", 1)

    @property
    def batches_per_update(self) -> int:
        """The number of batches of one update."""
        return int(self.options.get("gradient_accumulation_steps", 1))


@dataclass(frozen=True)
class Variant:
    """One way to train: weights of heads by name, options of `compile`, a `build` or None for that of the study.

    With `as_alone`, the own variables of each head have the learning rate that was chosen for the head alone.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    options: Config = field(default_factory=dict)
    build: Callable[[], Trainer] | None = None
    as_alone: bool = False

    @property
    def build_argument(self) -> str:
        """What `build` is called in messages."""
        return f"variants[{self.name!r}]['build']"

    @property
    def is_fixed(self) -> bool:
        """Whether it differs from the plain sum only in weights: no rule, and no model or heads' rates of its own."""
        return self.build is None and not self.as_alone and all(self.options.get(name) is None for name in _RULES)

    @property
    def settings(self) -> dict[str, str]:
        """The variant as text, by which a later call sees that it is the same."""
        own = {"weights": self.weights or None, "build": self.build, "head_rates": ALONE if self.as_alone else None}
        given = {name: value for name, value in own.items() if value is not None}
        return {name: as_text(value) for name, value in (*given.items(), *sorted(self.options.items()))}


@dataclass(frozen=True)
class Job:
    """One run of a variant, to choose a rate (`"tune"`) or to report (`"final"`).

    Attributes:
        head: The head of a single-task model; empty for a variant with all heads.
        budget: The number of updates without equal cost, by which places in the order of the data are marked.
        head_rates: By head name, the learning rate of the head's own variables; empty for `rate`.
    """

    kind: str
    variant: Variant
    head: str
    seed: int
    rate: float
    updates: int = 1
    at_equal_cost: bool = False
    budget: int = 1
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


def as_text(value: Given) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {as_text(each)}" for name, each in sorted(value.items(), key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(as_text, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, (str, int)):
        return str(value)
    if callable(getattr(type(value), "get_config", None)):
        given = {name: each for name, each in value.get_config().items() if name != "name" and each is not None}
        return f"{type(value).__name__}({', '.join(f'{name}={as_text(each)}' for name, each in sorted(given.items()))})"
    inner = getattr(value, "func", None)  # of functools.partial
    if inner is not None:
        return f"{as_text(inner)}({as_text(list(value.args))}, {as_text(value.keywords)})"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def copied(options: Config) -> Config:
    """Options of `compile` with new objects, so that no run changes those of another or of the user."""
    have = {name for name, value in options.items() if callable(getattr(type(value), "get_config", None))}
    return {name: type(each).from_config(each.get_config()) if name in have else each for name, each in options.items()}


def settings_of(study: Study, probed: Config) -> Config:
    """What must be the same when a comparison goes on in another call, except `rates` and further tuning seeds."""
    return {
        "heads": list(probed["metrics"]),
        "metrics": {head: list(metric) for head, metric in probed["metrics"].items()},
        "split": probed["split"],
        "updates": probed["updates"],
        "rates": list(study.rates),
        "tuning_seeds": list(study.tuning_seeds),
        "batch_size": study.batch_size,
        "optimizer": as_text(study.optimizer),
        "options": {name: as_text(value) for name, value in sorted(study.options.items())},
        "measure": as_text(study.measure),
        "start": probed["start"],
        "first_batch": probed["first_batch"],
        "keras": f"{STACK}, {keras.__version__}",
    }


# What `compare` is given


def checked(study: Study) -> Study:
    """The arguments of `compare` in one form; those that are out of range or of a wrong type are errors."""
    seeds, tuning_seeds, rates, optimizer = study.seeds, study.tuning_seeds, study.rates, study.optimizer
    _check_build("build", study.build)
    if not callable(optimizer) or isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a class of optimizers, or a function of the learning rate that returns one. "
            f"Received: optimizer={optimizer!r}. Pass, for example, keras.optimizers.Adam, without calling it."
        )
    if study.measure is not None and not callable(study.measure):
        raise TypeError(
            "`measure` must be a function of a trainer and a part of the data that returns metrics by name. "
            f"Received: measure={study.measure!r}. Omit it to use `evaluate`."
        )
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
    budget = study.budget if isinstance(study.budget, Mapping) else {"updates": study.budget}
    if len(budget) != 1 or not set(budget) <= {"updates", "epochs"}:
        hint = did_you_mean(budget, ("updates", "epochs"), "Pass, for example, {'epochs': 10}.")
        raise ValueError(
            "`budget` must be a number of updates, or a dict with one of 'updates' and 'epochs'. "
            f"Received: budget={budget!r}. {hint}"
        )
    ((unit, number),) = budget.items()
    argument = f"budget[{unit!r}]" if isinstance(study.budget, Mapping) else "budget"
    options = _read_options("options", study.options or {}, without=_OF_JOINT_TRAINING)
    check_positive_whole("options['gradient_accumulation_steps']", options.get("gradient_accumulation_steps", 1))
    return replace(
        study,
        options=options,
        batch_size=check_positive_whole("batch_size", study.batch_size),
        seeds=tuple(numbers),
        tuning_seeds=tuple(own),
        rates=tuple(sorted({float(rate) for rate in grid})),
        budget=(unit, check_positive_whole(argument, number)),
    )


def read_variants(variants: Given) -> dict[str, Variant]:
    """The variants by name, checked as far as this can be done without a trainer."""
    if not isinstance(variants, Mapping) or not variants:
        raise ValueError(
            "`variants` must be a dict of at least one variant, by its name. "
            f"Received: variants={variants!r}. Pass, for example, {{'plain sum': {{}}}}."
        )
    found = {}
    for name, given in variants.items():
        if not isinstance(name, str) or not name or name == ALONE or name.endswith(AT_EQUAL_COST):
            raise ValueError(
                f"The name of a variant in `variants` must be a string other than {ALONE!r}, which is always compared, and "
                f"not end in {AT_EQUAL_COST!r}. Received: {name!r}. Choose another name."
            )
        if not isinstance(given, Mapping):
            raise TypeError(
                f"`variants[{name!r}]` must be a dict of options of `compile`, `weights`, `build` and `head_rates`. "
                f"Received: {given!r}. Pass, for example, {{'balancer': 'EqualNorms'}}; {{}} is the plain sum with the "
                "weights of `build`."
            )
        weights, build, as_alone = (given.get(own) for own in _OWN)
        if not isinstance(weights or {}, Mapping) or not all(is_number(w) and w >= 0 for w in (weights or {}).values()):
            raise ValueError(
                f"`variants[{name!r}]['weights']` must be a dict of numbers of at least 0, by head name. "
                f"Received: {weights!r}. Pass, for example, {{'price': 0.3}}."
            )
        if build is not None:
            _check_build(f"variants[{name!r}]['build']", build)
        if as_alone not in (None, ALONE):
            raise ValueError(
                f"`variants[{name!r}]['head_rates']` must be {ALONE!r}: each head's own variables then use the learning "
                f"rate that was chosen for that head alone. Received: {as_alone!r}. Give other rates to "
                "`add_head(learning_rate_multiplier=)` in a `build` of the variant's own."
            )
        options = {option: value for option, value in given.items() if option not in _OWN}
        options = _read_options(f"variants[{name!r}]", options, _OWN, ("gradient_accumulation_steps",))
        found[name] = Variant(name, dict(weights or {}), options, build, as_alone == ALONE)
    return found


def _check_build(argument: str, build: Given) -> None:
    is_function = callable(build) and not isinstance(build, keras.layers.Layer)
    try:
        if is_function:
            inspect.signature(build).bind()
    except TypeError:
        is_function = False
    except ValueError:  # a function of C that does not say what it takes
        pass
    if not is_function:
        raise TypeError(
            f"`{argument}` must be a function without arguments that returns a `MultiHeadTrainer` with its heads. "
            f"Received: {build!r}. Pass the function itself, so that each run has a trainer of its own; "
            "`functools.partial` gives it arguments."
        )


def _read_options(argument: str, options: Config, others: Sequence[str] = (), without: Sequence[str] = ()) -> Config:
    """Options of `compile`: those that are not in `without`; the same dict may also have `others`."""
    if not isinstance(options, Mapping):
        raise TypeError(
            f"`{argument}` must be a dict of options of `compile`. Received: {options!r}. Pass, for example, "
            "{'clip': clipping.ByGlobalNorm(1.0)}."
        )
    parameters = inspect.signature(MultiHeadTrainer.compile).parameters.values()
    known = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    known = [name for name in known if name not in (*without, "target_scaling")]
    for name in options:
        if name not in known:
            hint = did_you_mean([name], [*known, *others], "Correct its name, or omit it.")
            if name in (*without, "optimizer"):
                hint = f"`{name}` is the same for all variants: it is an argument of `compare`, or belongs in its `options`."
            raise ValueError(
                f"`{argument}` must have options of `compile` that a variant can choose: {quoted([*others, *known])}. "
                f"Received: {name!r}. {hint}"
            )
    for name, module in (("balancer", balancing), ("weighting", weighting)):
        if isinstance(options.get(name), str):
            module.get(options[name])  # a misspelt name is an error here, before anything is trained
    return copied(options)


def chosen(equal_cost: Given, variants: Mapping[str, Variant]) -> list[str]:
    """The names of the variants that are trained at equal cost, too."""
    if isinstance(equal_cost, bool):
        return list(variants) if equal_cost else []
    if isinstance(equal_cost, str) or not isinstance(equal_cost, Sequence):
        raise TypeError(
            "`equal_cost` must be True, False or a list of names of variants. "
            f"Received: equal_cost={equal_cost!r}. Pass, for example, {list(variants)[:1]!r}."
        )
    return [check_choice("equal_cost", name, list(variants)) for name in equal_cost]
