"""The options of `compile`, checked once."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import tensorflow as tf

from multihead import balancing, schedules
from multihead import weighting as weightings
from multihead._ground.keras import check_options_of_replicas, check_steps_at_once
from multihead._ground.optimizers import get_optimizer, is_legacy_optimizer, optimizer_core, optimizer_takes_over
from multihead._ground.validation import check_choice, check_positive_whole, quoted
from multihead._update.faults import ON_NONFINITE
from multihead.balancing._every import every
from multihead.clipping import AbstractClipping
from multihead.heads import Head
from multihead.rates import check_rate
from multihead.telemetry import LEVELS

BALANCE_AT = ("representation", "parameters")
_INSTEAD = {
    "clipnorm": "clip=clipping.ByNorm({value})",
    "clipvalue": "clip=clipping.ByValue({value})",
    "global_clipnorm": "clip=clipping.ByGlobalNorm({value})",
    "gradient_accumulation_steps": "accumulate_steps={value}",
}
_OF_HEADS = {
    "loss": "loss",
    "metrics": "loss, metrics=[...]",
    "loss_weights": "loss, weight=...",
    "weighted_metrics": "loss, metrics=[...]",
}
"""What Keras's `compile` takes and ours does not, with the argument of `add_head` that stands for it."""


def refuse_options_of_heads(positional: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Explains where an argument of Keras's `compile` belongs.

    Args:
        positional: What `compile` was given after the optimizer, by position.
        options: What it was given by names that it does not have.

    Raises:
        TypeError: There is something.
    """
    given = {**dict(zip(_OF_HEADS, positional)), **options}
    for name, value in given.items():
        if name not in _OF_HEADS:
            raise TypeError(f"`compile` has no argument `{name}`. Received: {name}={value!r}. Correct its name, or omit it.")
        raise TypeError(
            f"`{name}` belongs to a head, not to `compile`. Received: {name}={value!r}. Pass it for each head, as "
            f"`trainer.add_head(name, module, {_OF_HEADS[name]})`, before `compile`."
        )


def check_optimizer(optimizer: Any) -> Any:
    """Returns a Keras optimizer for an optimizer or its name.

    Raises:
        ValueError: It is unknown or a legacy optimizer, or it clips or accumulates gradients itself.
    """
    received, problem = optimizer, None
    try:
        optimizer = get_optimizer(optimizer)
    except (ValueError, TypeError) as error:
        optimizer, problem = None, error
    if optimizer is None:  # as Keras 3 returns for None
        raise ValueError(
            f"`optimizer` must be a Keras optimizer or its name. Received: optimizer={received!r}. "
            "Pass, for example, 'adam'."
        ) from problem
    if is_legacy_optimizer(optimizer):
        raise ValueError(
            "`optimizer` must not be one of `keras.optimizers.legacy`. "
            f"Received: optimizer={received!r}. Use the optimizer of the same name in `keras.optimizers`."
        )
    for option, value in optimizer_takes_over(optimizer).items():
        raise ValueError(
            f"`optimizer` must leave clipping and accumulation to the trainer, which does them once per update, after the "
            f"sum over replicas. Received: an optimizer with {option}={value!r}. Omit this option and pass "
            f"`{_INSTEAD[option].format(value=value)}` to `compile`."
        )
    return optimizer


def _warn_of_idle_weights(options: CompileOptions, heads: Sequence[Head]) -> None:
    """Warns of weights of heads that do not change the encoder's update.

    Args:
        options: The options, checked.
        heads: The heads.
    """
    invariant = [method for method in (options.weighting, options.balancer) if method is not None and method.scale_invariant]
    weighted = [head for head in heads if head.has_weight_function or head.weight not in (0, 1)]
    if invariant and weighted:
        warnings.warn(
            f"The weights of heads do not change the direction of the encoder's update with "
            f"{type(invariant[0]).__name__}, whatever their values above 0: {quoted(head.name for head in weighted)}. Omit "
            "them, or choose a method that depends on them, such as UPGrad.",
            UserWarning,
            stacklevel=4,
        )


def _check_weight_decay(optimizer: Any, rates: Mapping[str, Any], heads: Sequence[Head]) -> None:
    """Checks that the optimizer has the weight decay that is to be multiplied.

    Args:
        optimizer: The optimizer.
        rates: The encoder's factors, by the name of their argument.
        heads: The heads.

    Raises:
        ValueError: A factor would have no effect.
    """
    given = {**rates, **{f"weight_decay of head {head.name!r}": head.weight_decay for head in heads}}
    for argument, rate in given.items():
        if rate not in (0, 1) and optimizer_core(optimizer).weight_decay is None:
            raise ValueError(
                f"`{argument}` must be 0 or 1 for an optimizer without weight decay: it is a factor of the optimizer's. "
                f"Received: {rate!r}, and {type(optimizer_core(optimizer)).__name__} without `weight_decay`. Pass "
                "`weight_decay` to the optimizer, for example keras.optimizers.AdamW(weight_decay=0.01)."
            )


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The arguments of `MultiHeadTrainer.compile`; see there."""

    weighting: Any
    balancer: Any
    balance_at: str
    balance_every: int
    schedule: Any
    clip: AbstractClipping | None
    micro_batches: int
    accumulate_steps: int
    encoder_learning_rate: Any
    encoder_weight_decay: Any
    telemetry: str | None
    layers_every: int
    on_nonfinite: str
    max_skipped_updates: int | None
    check_labels: bool
    run_eagerly: bool | None
    steps_per_execution: int | str | None
    jit_compile: bool | str | None

    def checked(self, head_names: Sequence[str]) -> CompileOptions:
        """The checked options, with names replaced by methods that are bound to the heads.

        Raises:
            ValueError: An option is out of range, or names an unknown method or head.
            TypeError: An option has the wrong type.
        """
        weighting = weightings.get(self.weighting)
        balancer = balancing.get(self.balancer)
        schedule = schedules.Together() if self.schedule is None else self.schedule
        if not isinstance(schedule, schedules.AbstractSchedule):
            raise TypeError(
                f"`schedule` must be one of multihead.schedules. Received: schedule={schedule!r}. "
                "Pass, for example, schedules.Alternate({'price': 1, 'reply': 9})."
            )
        if self.clip is not None and not isinstance(self.clip, AbstractClipping):
            raise TypeError(
                f"`clip` must be one of multihead.clipping. Received: clip={self.clip!r}. "
                "Pass, for example, clipping.ByGlobalNorm(5.0)."
            )
        check_choice("balance_at", self.balance_at, BALANCE_AT)
        telemetry = check_choice("telemetry", self.telemetry, LEVELS)
        check_choice("on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.max_skipped_updates is not None:
            check_positive_whole("max_skipped_updates", self.max_skipped_updates)
        whole = {
            name: check_positive_whole(name, getattr(self, name))
            for name in ("balance_every", "micro_batches", "accumulate_steps", "layers_every")
        }
        if not isinstance(self.check_labels, bool):
            raise TypeError(f"`check_labels` must be True or False. Received: check_labels={self.check_labels!r}. Pass one.")
        if balancer is not None:
            self._check_level(balancer)
            self._check_gathering(balancer, whole["balance_every"], whole["micro_batches"] * whole["accumulate_steps"])
        for method in (weighting, balancer, schedule):
            if method is not None:
                method.bind(head_names)
        rates = {name: check_rate(name, getattr(self, name)) for name in ("encoder_learning_rate", "encoder_weight_decay")}
        methods = {"weighting": weighting, "balancer": balancer, "schedule": schedule}
        others = {"telemetry": telemetry, "steps_per_execution": check_steps_at_once(self.steps_per_execution)}
        return CompileOptions(**{**self.by_name(), **methods, **whole, **rates, **others})

    @property
    def updates_at_once(self) -> int:
        """The number of updates after which Keras calls callbacks; 1 if it changes."""
        return 1 if isinstance(self.steps_per_execution, str) else int(self.steps_per_execution or 1)

    def by_name(self) -> dict[str, Any]:
        """The options by argument name of `compile`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def of_keras(self) -> dict[str, Any]:
        """The options that are passed on to the `compile` of Keras."""
        options: dict[str, Any] = {
            "run_eagerly": bool(self.run_eagerly),
            "steps_per_execution": self.steps_per_execution,
        }
        return options if self.jit_compile is None else {**options, "jit_compile": self.jit_compile}

    def balancer_to_use(self) -> Any:
        """The balancer, wrapped if `balance_every` is above 1; None for the plain sum."""
        return self.balancer if self.balancer is None else every(self.balancer, self.balance_every)

    def _check_level(self, balancer: Any) -> None:
        levels = ("parameters",) if balancer.num_folds > 1 else balancer.levels
        if self.balance_at not in levels:
            raise ValueError(
                f"`balance_at` must be one of {quoted(levels)} for {type(balancer).__name__}. "
                f"Received: balance_at={self.balance_at!r}. Change it, or choose another balancer."
            )

    def _check_gathering(self, balancer: Any, balance_every: int, num_micro_batches: int) -> None:
        """Checks that a balancer which needs gradients, not only inner products, can be used with these options."""
        if "gradients" not in balancer.uses:
            return
        name = type(balancer).__name__
        if balance_every > 1:
            raise ValueError(
                f"`balance_every` must be 1 for {name}, which has no coefficients to reuse. "
                f"Received: balance_every={balance_every}. Omit it."
            )
        num_replicas = tf.distribute.get_strategy().num_replicas_in_sync
        if self.balance_at == "representation" and (num_micro_batches > 1 or num_replicas > 1):
            raise ValueError(
                f"`balance_at` must be 'parameters' for {name} with several micro-batches, batches or replicas: it needs "
                "the gradients themselves, and at the representation each micro-batch has only its own. Received: "
                f"balance_at='representation' with {num_micro_batches} micro-batches and {num_replicas} replicas. Change "
                "it, or use one batch without micro-batches, on one replica."
            )


@dataclass(frozen=True)
class Setup:
    """What a user has decided about a trainer.

    Attributes:
        heads: The heads, in the order in which they were added.
        options: The options of `compile`; None before it, and again after `add_head` and `drop_head`.
    """

    heads: tuple[Head, ...] = ()
    options: CompileOptions | None = None


def check_compile(
    optimizer: Any, options: CompileOptions, heads: Sequence[Head], num_replicas: int
) -> tuple[Any, CompileOptions]:
    """The optimizer and the options of `compile`, checked together with the heads.

    Args:
        optimizer: The optimizer.
        options: The options.
        heads: The heads.
        num_replicas: The number of replicas of the trainer's strategy.

    Raises:
        ValueError: There is no head, an option is out of range, or the optimizer clips or accumulates gradients.
        TypeError: An option has the wrong type.
    """
    if not heads:
        raise ValueError("`compile` needs at least one head. Received: none. Call `add_head(name, module, loss)` first.")
    optimizer = check_optimizer(optimizer)
    checked = options.checked([head.name for head in heads])
    if num_replicas > 1 and not (options.run_eagerly or tf.config.functions_run_eagerly()):
        check_options_of_replicas(checked.jit_compile, checked.steps_per_execution, num_replicas)
    _warn_of_idle_weights(checked, heads)
    _check_weight_decay(optimizer, {"encoder_weight_decay": checked.encoder_weight_decay}, heads)
    return optimizer, checked
