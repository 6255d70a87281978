"""The options of `compile`, checked once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeVar, cast

import tensorflow as tf

from multihead import balancing, clipping, schedules
from multihead import weighting as weightings
from multihead._ground.keras import check_options_of_replicas, check_steps_at_once, overridden
from multihead._ground.optimizers import optimizer_arguments
from multihead._ground.types import Config, Given, Layer, Optimizer, Rate, Trainer
from multihead._ground.validation import check_choice, check_positive_whole, nearest, quoted
from multihead._trainer.checked_optimizer import INSTEAD, check_optimizer, check_weight_decay
from multihead._update.faults import ON_NONFINITE
from multihead.balancing import Balancer
from multihead.balancing._kinds import every
from multihead.heads import Head
from multihead.heads._named import NamedHead
from multihead.rates import check_rate
from multihead.telemetry import LEVELS

Compile = TypeVar("Compile", bound=Callable[..., None])
BALANCE_AT = ("representation", "parameters")
_OF_HEADS = {
    "loss": "loss",
    "metrics": "loss, metrics=[...]",
    "loss_weights": "loss, weight=...",
    "weighted_metrics": "loss, metrics=[...]",
}
"""The arguments of Keras's `compile` that ours does not have, with the argument of `add_head` that stands for each."""


def explains_arguments(compile_: Compile) -> Compile:
    """Lets `compile` say where an argument that it does not have belongs, if that is a head or the optimizer."""
    known = inspect.signature(compile_).parameters

    @wraps(compile_)
    def explained(self: Trainer, *given: Given, **options: Given) -> None:
        _refuse({**dict(zip(_OF_HEADS, given[1:])), **{name: options[name] for name in options if name not in known}})
        compile_(self, *given, **options)

    return cast(Compile, explained)


def _refuse(given: Config) -> None:
    """Says where arguments that `compile` does not have belong."""
    if not given:
        return
    of_heads = {name: f"loss, {name}=..." for name in inspect.signature(Head).parameters} | _OF_HEADS
    of_optimizers = {"lr": "learning_rate", **{name: name for name in optimizer_arguments()}}
    for name, value in given.items():
        if name in INSTEAD:
            raise TypeError(
                f"`{name}` is another argument of `compile`. Received: {name}={value!r}. Pass "
                f"`{INSTEAD[name].format(value=value)}`."
            )
        if name in of_optimizers:
            raise TypeError(
                f"`{name}` belongs to the optimizer, not to `compile`. Received: {name}={value!r}. Pass "
                f"`{of_optimizers[name]}` to the optimizer; learning rates and weight decays of the encoder and of heads "
                "are factors of the optimizer's."
            )
        if name in of_heads:
            raise TypeError(
                f"`{name}` belongs to a head, not to `compile`. Received: {name}={value!r}. Pass it for each head, as "
                f"`trainer.add_head(name, module, {of_heads[name]})`, before `compile`."
            )


def _hint(given: Given, module: Layer, example: str) -> str:
    """What to pass for an option that must be an instance of a class of a module."""
    name = module.__name__.rpartition(".")[2]
    near = nearest(given, module.__all__) if isinstance(given, str) else None
    return f"Pass, for example, {name}.{example}." if near is None else f"Pass an instance, as in {name}.{near}(...)."


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The arguments of `MultiHeadTrainer.compile`; see there."""

    weighting: Given
    balancer: Given
    balance_at: str
    balance_every: int
    head_schedule: Given
    clip: clipping.Clipping | None
    micro_batches: int
    gradient_accumulation_steps: int
    encoder_learning_rate_multiplier: Rate
    encoder_weight_decay_multiplier: Rate
    telemetry: str | None
    layers_every: int
    on_nonfinite: str
    max_skipped_updates: int | None
    check_labels: bool
    run_eagerly: bool | None
    steps_per_execution: int | str | None
    jit_compile: bool | str | None

    def checked(self, head_names: Sequence[str]) -> CompileOptions:
        """The checked options, with names replaced by methods that are bound to the heads."""
        weighting = weightings.get(self.weighting)
        balancer = balancing.get(self.balancer)
        schedule = schedules.Together() if self.head_schedule is None else self.head_schedule
        if not isinstance(schedule, schedules.Schedule):
            raise TypeError(
                f"`head_schedule` must be one of multihead.schedules: {quoted(schedules.__all__)}. Received: "
                f"head_schedule={schedule!r}. {_hint(schedule, schedules, 'Alternate({...: 1, ...: 9})')}"
            )
        if self.clip is not None and not isinstance(self.clip, clipping.Clipping):
            raise TypeError(
                f"`clip` must be one of multihead.clipping: {quoted(clipping.__all__)}. Received: clip={self.clip!r}. "
                f"{_hint(self.clip, clipping, 'ByGlobalNorm(5.0)')} It limits the gradients of the whole model; to clip a "
                "part of it, change the gradients between `compute_gradients` and `apply_gradients`."
            )
        check_choice("balance_at", self.balance_at, BALANCE_AT)
        check_choice("telemetry", self.telemetry, LEVELS)
        check_choice("jit_compile", self.jit_compile, (None, True, False, "auto"))
        check_choice("on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.max_skipped_updates is not None:
            check_positive_whole("max_skipped_updates", self.max_skipped_updates)
        if not isinstance(self.check_labels, bool):
            raise TypeError(f"`check_labels` must be True or False. Received: check_labels={self.check_labels!r}. Pass one.")
        whole = ("balance_every", "micro_batches", "gradient_accumulation_steps", "layers_every")
        rates = ("encoder_learning_rate_multiplier", "encoder_weight_decay_multiplier")
        changed: Config = {"weighting": weighting, "balancer": balancer, "head_schedule": schedule}
        changed["steps_per_execution"] = check_steps_at_once(self.steps_per_execution)
        changed.update({name: check_positive_whole(name, getattr(self, name)) for name in whole})
        changed.update({name: check_rate(name, getattr(self, name)) for name in rates})
        found = replace(self, **changed)
        found._check_balancer()
        for method in (weighting, balancer, schedule):
            if method is not None:
                method.bind(head_names)
        return found

    @property
    def updates_at_once(self) -> int:
        """The number of updates after which Keras calls callbacks; 1 if it changes."""
        return 1 if isinstance(self.steps_per_execution, str) else int(self.steps_per_execution or 1)

    def of_keras(self) -> Config:
        """The options that are passed on to the `compile` of Keras."""
        options = {"run_eagerly": bool(self.run_eagerly), "steps_per_execution": self.steps_per_execution}
        return options if self.jit_compile is None else {**options, "jit_compile": self.jit_compile}

    def balancer_to_use(self) -> Balancer | None:
        """The balancer, wrapped if `balance_every` is above 1; None for the plain sum."""
        return self.balancer if self.balancer is None else every(self.balancer, self.balance_every)

    def _check_balancer(self) -> None:
        """Checks that the balancer, if it needs gradients and not only inner products, can be used with the options."""
        name = type(self.balancer).__name__
        if self.balancer is not None and self.balance_at not in self.balancer.levels:
            raise ValueError(
                f"`balance_at` must be one of {quoted(self.balancer.levels)} for {name}. "
                f"Received: balance_at={self.balance_at!r}. Change it, or choose another balancer."
            )
        if self.balancer is None or "gradients" not in self.balancer.uses:
            return
        if self.balance_every > 1:
            raise ValueError(
                f"`balance_every` must be 1 for {name}, which has no coefficients to reuse. "
                f"Received: balance_every={self.balance_every}. Omit it."
            )
        parts = self.micro_batches * self.gradient_accumulation_steps
        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self.balance_at == "representation" and (parts > 1 or num_replicas > 1):
            raise ValueError(
                f"`balance_at` must be 'parameters' for {name} with several micro-batches, batches or replicas: it needs "
                "the gradients themselves, and at the representation each micro-batch has only its own. Received: "
                f"balance_at='representation' with {parts} micro-batches and {num_replicas} replicas. Change "
                "it, or use one batch without micro-batches, on one replica."
            )


_INSTEAD_OF_METHODS = {
    "compute_loss": "pass a loss of your own to `add_head`",
    "compute_metrics": "pass metrics of your own to `add_head`",
    "get_metrics_result": "change the logs in `train_step` and `test_step`",
    "call": "change predictions in the encoder, in a head's module or in `predict_step`",
    "build": "build layers in the encoder or in a head's module",
    "compute_mask": "compute masks in the encoder or in a head's module",
}
"""The methods that `fit` and `evaluate` of Keras call, and ours do not, with what to do instead."""


def check_methods(kind: type, base: type) -> None:
    """Checks that a subclass of a trainer overrides only methods that are called."""
    for name in overridden(kind, _INSTEAD_OF_METHODS, base):
        raise ValueError(
            f"`{name}` must not be overridden: `fit` and `evaluate` run the encoder and each head by themselves, and do not "
            f"call it. Received: {kind.__name__}, which overrides it. Instead, {_INSTEAD_OF_METHODS[name]}."
        )


def _check_coupled_rows(options: CompileOptions, heads: Sequence[NamedHead], num_replicas: int) -> None:
    """Checks that nothing splits the batches of heads that couple rows."""
    coupled = [head.name for head in heads if head.loss.couples_rows]
    for name, number, remedy in (
        ("micro_batches", options.micro_batches, "Leave it out"),
        ("strategy", num_replicas, "Use one replica"),
    ):
        if coupled and number > 1:
            raise ValueError(
                f"`{name}` must not split the batches of head {quoted(coupled)}, whose rows are compared with each other "
                f"(couples_rows=True). Received: {number} parts. {remedy}, or train with smaller batches and "
                "`gradient_accumulation_steps`, which compares the rows of each batch."
            )


@dataclass(frozen=True)
class Setup:
    """What a user has decided about a trainer.

    Attributes:
        heads: The heads, in the order in which they were added.
        options: The options of `compile`; None before it, and again after `add_head` and `remove_head`.
    """

    heads: tuple[NamedHead, ...] = ()
    options: CompileOptions | None = None

    @property
    def trained(self) -> tuple[NamedHead, ...]:
        """The heads that have a loss."""
        return tuple(head for head in self.heads if head.is_trained)

    @property
    def measured(self) -> tuple[NamedHead, ...]:
        """The heads that have none."""
        return tuple(head for head in self.heads if not head.is_trained)

    def head(self, name: str) -> NamedHead:
        """The head of a name."""
        return next(head for head in self.heads if head.name == name)

    @property
    def all_names(self) -> list[str]:
        """The names of all heads."""
        return [head.name for head in self.heads]

    @property
    def names(self) -> list[str]:
        """The names of the heads that have a loss."""
        return [head.name for head in self.trained]


def _warn_of_idle(options: CompileOptions, heads: Sequence[NamedHead]) -> None:
    """Warns of options, and of weights of heads, that do not change training."""
    table: list[tuple[str, Given, str, bool]] = [  # an option, its default, what it needs, and whether that is there
        ("balance_at", "representation", "`balancer`", options.balancer is not None),
        ("balance_every", 1, "`balancer`", options.balancer is not None),
        ("layers_every", 100, '`telemetry="full"`', options.telemetry == "full"),
    ]
    for name, default, needed, is_there in table:
        if (value := getattr(options, name)) != default and not is_there:
            text = f"`{name}` has no effect without {needed}. Pass it, or omit `{name}`. Received: {name}={value!r}."
            warnings.warn(text, UserWarning, stacklevel=4)
    weighted = [head.name for head in heads if head.has_weight_function or head.weight not in (0, 1)]
    invariant = [each for each in (options.weighting, options.balancer) if each is not None and each.scale_invariant]
    if weighted and invariant:
        warnings.warn(
            "The weights of heads do not change the direction of the encoder's update with "
            f"{type(invariant[0]).__name__}, whatever their values above 0: {quoted(weighted)}. Omit them, or choose a "
            "method that depends on them, such as UPGrad.",
            UserWarning,
            stacklevel=4,
        )


def check_compile(
    optimizer: Optimizer, options: CompileOptions, heads: Sequence[NamedHead], strategy: tf.distribute.Strategy
) -> tuple[Optimizer, CompileOptions]:
    """The optimizer and the options of `compile`, checked together with the heads."""
    if not heads:
        raise ValueError(
            "`compile` needs at least one head with a loss. Received: none. Call `add_head(name, module, loss)` first."
        )
    optimizer = check_optimizer(optimizer, strategy.num_replicas_in_sync)
    checked = options.checked([head.name for head in heads])
    if strategy.num_replicas_in_sync > 1 and not (options.run_eagerly or tf.config.functions_run_eagerly()):
        check_options_of_replicas(checked.jit_compile, checked.steps_per_execution, strategy)
    _check_coupled_rows(checked, heads, strategy.num_replicas_in_sync)
    _warn_of_idle(checked, heads)
    check_weight_decay(optimizer, {"encoder_weight_decay_multiplier": checked.encoder_weight_decay_multiplier}, heads)
    return optimizer, checked
