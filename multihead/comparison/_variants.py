"""Variants of a comparison: the ways to train that are compared, as data that can be sent to another process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import keras

from multihead import balancing, weighting
from multihead._ground.validation import check_choice, did_you_mean, is_number, quoted
from multihead._trainer.options import CompileOptions

ALONE = "alone"
"""The variant of the single-task models: each head with an encoder of its own."""
AT_EQUAL_COST = ", equal cost"
"""What follows the name of a variant that is trained for the time of all single-task models together."""
WEIGHTS, BUILD, HEAD_RATES = "weights", "build", "head_rates"
OWN = (WEIGHTS, BUILD, HEAD_RATES)
"""What the dict of a variant may have besides options of `compile`."""
_RULES = ("balancer", "weighting", "head_schedule")
OF_JOINT_TRAINING = (*_RULES, "balance_at", "balance_every")
"""The options of joint training, which a single-task model does not have."""


@dataclass(frozen=True)
class Recipe:
    """How to make an object of a class with `get_config`, as often as needed.

    Attributes:
        kind: The class.
        config: Its configuration.
    """

    kind: Any
    config: Mapping[str, Any]

    def __str__(self) -> str:
        given = {name: value for name, value in self.config.items() if name != "name" and value is not None}
        return f"{self.kind.__name__}({', '.join(f'{name}={in_words(value)}' for name, value in sorted(given.items()))})"

    def make(self) -> Any:
        """A new object."""
        return self.kind.from_config(dict(self.config))


@dataclass(frozen=True)
class Variant:
    """One way to train.

    Attributes:
        name: Its name.
        weights: The weights of heads, by head name; those of the other heads are what `build` gave them.
        options: Options of `compile`; objects as recipes.
        build: Creates the trainer; None for that of the comparison.
        as_alone: Whether the own variables of each head have the learning rate that was chosen for the head alone.
    """

    name: str
    weights: Mapping[str, float] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    build: Callable[[], Any] | None = None
    as_alone: bool = False

    @property
    def is_fixed(self) -> bool:
        """Whether it differs from the plain sum only in weights: no rule, and no model or heads' rates of its own."""
        return self.build is None and not self.as_alone and all(self.options.get(name) is None for name in _RULES)

    @property
    def settings(self) -> dict[str, str]:
        """The variant in words, by which a later call sees that it is the same."""
        weights = {WEIGHTS: in_words(dict(self.weights))} if self.weights else {}
        build = {BUILD: in_words(self.build)} if self.build is not None else {}
        rates = {HEAD_RATES: ALONE} if self.as_alone else {}
        return {**weights, **build, **rates, **{name: in_words(value) for name, value in sorted(self.options.items())}}


def made(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `compile` with new objects for recipes."""
    return {name: value.make() if isinstance(value, Recipe) else value for name, value in options.items()}


def in_words(value: Any) -> str:
    """A value as text that is the same in every process."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {in_words(each)}" for name, each in sorted(value.items(), key=str)) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None or isinstance(value, (str, int, Recipe)):
        return str(value)
    inner = getattr(value, "func", None)  # of functools.partial
    if inner is not None:
        return f"{in_words(inner)}({in_words(list(value.args))}, {in_words(value.keywords)})"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def read_variants(variants: Any) -> dict[str, Variant]:
    """The variants by name, checked as far as this can be done without a trainer.

    Raises:
        ValueError: There is none, a name is reserved, or an option does not exist or cannot differ between variants.
        TypeError: They are no dict of dicts.
    """
    if not isinstance(variants, Mapping) or not variants:
        raise ValueError(
            "`variants` must be a dict of at least one variant, by its name. "
            f"Received: variants={variants!r}. "
            "Pass, for example, {'plain sum': {}, 'EqualNorms': {'balancer': 'EqualNorms'}}."
        )
    return {name: _read_variant(name, given) for name, given in variants.items()}


def _read_variant(name: Any, given: Any) -> Variant:
    if not isinstance(name, str) or not name or name == ALONE or name.endswith(AT_EQUAL_COST):
        raise ValueError(
            f"The name of a variant in `variants` must be a string other than {ALONE!r}, which is always compared, and not "
            f"end in {AT_EQUAL_COST!r}. Received: {name!r}. Choose another name."
        )
    if not isinstance(given, Mapping):
        raise TypeError(
            f"`variants[{name!r}]` must be a dict of options of `compile`, `weights`, `build` and `head_rates`. "
            f"Received: {given!r}. Pass, for example, {{'balancer': 'EqualNorms'}}; {{}} is the plain sum with the weights "
            "of `build`."
        )
    weights = given.get(WEIGHTS) or {}
    if not isinstance(weights, Mapping) or not all(is_number(value) and value >= 0 for value in weights.values()):
        raise ValueError(
            f"`variants[{name!r}]['weights']` must be a dict of numbers of at least 0, by head name. "
            f"Received: {weights!r}. Pass, for example, {{'price': 0.3}}."
        )
    build = given.get(BUILD)
    if build is not None:
        check_build(f"variants[{name!r}]['build']", build)
    as_alone = given.get(HEAD_RATES)
    if as_alone not in (None, ALONE):
        raise ValueError(
            f"`variants[{name!r}]['head_rates']` must be {ALONE!r}: each head's own variables then use the learning rate "
            f"that was chosen for that head alone. Received: {as_alone!r}. Give other rates to "
            "`add_head(learning_rate_multiplier=)` "
            "in a `build` of the variant's own."
        )
    options = {option: value for option, value in given.items() if option not in OWN}
    return Variant(name, dict(weights), read_options(f"variants[{name!r}]", options, OWN), build, as_alone == ALONE)


def check_build(argument: str, build: Any) -> None:
    """Checks that something can be called to make a trainer.

    Raises:
        TypeError: It cannot.
    """
    if not callable(build) or isinstance(build, keras.layers.Layer) or not _needs_nothing(build):
        raise TypeError(
            f"`{argument}` must be a function without arguments that returns a `MultiHeadTrainer` with its heads. "
            f"Received: {build!r}. Pass the function itself, so that each run has a trainer of its own; "
            "`functools.partial` gives it arguments."
        )


def _needs_nothing(build: Callable[..., Any]) -> bool:
    """Whether something can be called without arguments, as far as Python knows."""
    try:
        inspect.signature(build).bind()
    except TypeError:
        return False
    except ValueError:  # a function of C that does not say
        return True
    return True


def read_options(
    argument: str, options: Any, others: Sequence[str] = (), without: Sequence[str] = ("gradient_accumulation_steps",)
) -> dict[str, Any]:
    """Options of `compile`, with recipes for objects.

    Args:
        argument: The name of the argument, for messages.
        options: The options.
        others: What the same dict may also have, for messages.
        without: The options that it must not have.

    Raises:
        ValueError: An option does not exist, or is set elsewhere.
        TypeError: They are no dict.
    """
    if not isinstance(options, Mapping):
        raise TypeError(
            f"`{argument}` must be a dict of options of `compile`. Received: {options!r}. Pass, for example, "
            "{'clip': clipping.ByGlobalNorm(1.0)}."
        )
    known = [each.name for each in fields(CompileOptions) if each.name not in without]
    for name in options:
        if name not in known:
            elsewhere = (
                f"`{name}` is the same for all variants: it is an argument of `compare`, or belongs in its `options`."
            )
            is_common = name in (*without, "optimizer")
            hint = elsewhere if is_common else did_you_mean([name], [*known, *others], "Correct its name, or omit it.")
            raise ValueError(
                f"`{argument}` must have options of `compile` that a variant can choose: {quoted([*others, *known])}. "
                f"Received: {name!r}. {hint}"
            )
    for name, module in (("balancer", balancing), ("weighting", weighting)):
        if isinstance(options.get(name), str):
            module.get(options[name])  # a misspelt name is an error here, before anything is trained
    is_object = {name: callable(getattr(type(value), "get_config", None)) for name, value in options.items()}
    return {name: Recipe(type(value), value.get_config()) if is_object[name] else value for name, value in options.items()}


def chosen(equal_cost: Any, variants: Mapping[str, Variant]) -> list[str]:
    """The names of the variants that are trained at equal cost, too.

    Raises:
        ValueError: One is not the name of a variant.
        TypeError: It is neither True, False nor a list of names.
    """
    if isinstance(equal_cost, bool):
        return list(variants) if equal_cost else []
    if isinstance(equal_cost, str) or not isinstance(equal_cost, Sequence):
        raise TypeError(
            "`equal_cost` must be True, False or a list of names of variants. "
            f"Received: equal_cost={equal_cost!r}. Pass, for example, {list(variants)[:1]!r}."
        )
    return [check_choice("equal_cost", name, list(variants)) for name in equal_cost]
