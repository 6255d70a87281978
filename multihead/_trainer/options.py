"""The options of `compile` and its optimizer, checked once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import TypeVar, cast

import keras
import tensorflow as tf

from multihead import balancing, clipping, schedules
from multihead import weighting as weightings
from multihead._ground.keras import TUNES_STEPS, check_options_of_replicas
from multihead._ground.optimizers import (
    APPLYING,
    BY_REPLICAS,
    NOT_CALLED,
    get_optimizer,
    has_loss_scaling,
    optimizer_classes,
    optimizer_core,
)
from multihead._ground.types import Config, Given, Layer, Optimizer, Rate, Trainer
from multihead._ground.validation import (
    check_choice,
    check_positive_whole,
    did_you_mean,
    in_short,
    is_number,
    nearest,
    quoted,
)
from multihead._update.faults import ON_NONFINITE
from multihead.heads import Head
from multihead.heads._named import NamedHead
from multihead.rates import check_rate
from multihead.telemetry import LEVELS

Compile = TypeVar("Compile", bound=Callable[..., None])
INSTEAD = {
    "clipnorm": "clip=clipping.ByNorm({value})",
    "clipvalue": "clip=clipping.ByValue({value})",
    "global_clipnorm": "clip=clipping.ByGlobalNorm({value})",
    "gradient_accumulation_steps": "gradient_accumulation_steps={value}",
}
"""What `compile` has instead of options of optimizers."""

_ONE = (
    "Pass one optimizer, which trains everything; `encoder_learning_rate_multiplier=` of `compile` and "
    "`learning_rate_multiplier=` of `add_head` are factors of its learning rate by part."
)
_BY_NAME = {
    "SGDW": "Use keras.optimizers.SGD(weight_decay=...).",
    "LAMB": "Keras 3 has keras.optimizers.Lamb. On Keras 2, keras.optimizers.AdamW is the nearest.",
    "LazyAdam": "Use keras.optimizers.Adam, which also updates the rows of an embedding that a batch does not contain.",
    "RectifiedAdam": "Use keras.optimizers.Adam with a learning rate that warms up, as CosineDecay(warmup_target=...) does.",
    "MultiOptimizer": _ONE,
    **dict.fromkeys(
        ("MovingAverage", "SWA", "AveragedOptimizerWrapper"),
        "Use the wrapped optimizer's class in keras.optimizers, with use_ema=True, which averages the variables.",
    ),
}
"""What to use instead of optimizers of TensorFlow Addons that Keras does not have under the same name."""
_WRITE_IT = (
    "Keras has no optimizer of this name. Use another one, such as keras.optimizers.AdamW, or write this one as a "
    "subclass of keras.optimizers.Optimizer with `build` and `update_step`."
)

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
    of_heads = {name: f"loss, {name}=..." for name in inspect.signature(Head).parameters} | _OF_HEADS

    @wraps(compile_)
    def explained(self: Trainer, *given: Given, **options: Given) -> None:
        others = {**dict(zip(_OF_HEADS, given[1:])), **{name: options[name] for name in options if name not in known}}
        classes = optimizer_classes().values() if others else ()
        of_optimizers = {name: name for each in classes for name in inspect.signature(each).parameters if name != "name"}
        of_optimizers["lr"] = "learning_rate"
        for name, value in others.items():
            if name in INSTEAD:
                raise TypeError(
                    f"`{name}` is another argument of `compile`. Received: {name}={value!r}. Pass "
                    f"`{INSTEAD[name].format(value=value)}`."
                )
            if name in of_optimizers:
                raise TypeError(
                    f"`{name}` belongs to the optimizer, not to `compile`. Received: {name}={value!r}. Pass "
                    f"`{of_optimizers[name]}` to the optimizer; learning rates and weight decays of the encoder and of "
                    "heads are factors of the optimizer's."
                )
            if name in of_heads:
                raise TypeError(
                    f"`{name}` belongs to a head, not to `compile`. Received: {name}={value!r}. Pass it for each head, as "
                    f"`trainer.add_head(name, module, {of_heads[name]})`, before `compile`."
                )
        compile_(self, *given, **options)

    return cast(Compile, explained)


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
        whole = ("balance_every", "micro_batches", "gradient_accumulation_steps")
        rates = ("encoder_learning_rate_multiplier", "encoder_weight_decay_multiplier")
        changed: Config = {"weighting": weighting, "balancer": balancer, "head_schedule": schedule}
        steps = self.steps_per_execution
        if not (TUNES_STEPS and steps == "auto"):
            changed["steps_per_execution"] = check_positive_whole("steps_per_execution", 1 if steps is None else steps)
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


def check_compile(
    optimizer: Optimizer, options: CompileOptions, heads: Sequence[NamedHead], strategy: tf.distribute.Strategy
) -> tuple[Optimizer, CompileOptions]:
    """The optimizer and the options of `compile`, checked together with the heads."""
    if not heads:
        raise ValueError(
            "`compile` needs at least one head with a loss. Received: none. Call `add_head(name, module, loss)` first."
        )
    num_replicas = strategy.num_replicas_in_sync
    optimizer = check_optimizer(optimizer, num_replicas)
    checked = options.checked([head.name for head in heads])
    if num_replicas > 1 and not (options.run_eagerly or tf.config.functions_run_eagerly()):
        check_options_of_replicas(checked.jit_compile, checked.steps_per_execution, strategy)
    coupled = [head.name for head in heads if head.loss.couples_rows]
    splits = (("micro_batches", checked.micro_batches, "Leave it out"), ("strategy", num_replicas, "Use one replica"))
    for name, number, remedy in splits:
        if coupled and number > 1:
            raise ValueError(
                f"`{name}` must not split the batches of head {quoted(coupled)}, whose rows are compared with each other "
                f"(couples_rows=True). Received: {number} parts. {remedy}, or train with smaller batches and "
                "`gradient_accumulation_steps`, which compares the rows of each batch."
            )
    table: list[tuple[str, Given, str, bool]] = [  # an option, its default, what it needs, and whether that is there
        ("balance_at", "representation", "`balancer`", checked.balancer is not None),
        ("balance_every", 1, "`balancer`", checked.balancer is not None),
    ]
    for name, default, needed, is_there in table:
        if (value := getattr(checked, name)) != default and not is_there:
            text = f"`{name}` has no effect without {needed}. Pass it, or omit `{name}`. Received: {name}={value!r}."
            warnings.warn(text, UserWarning, stacklevel=3)
    weighted = [head.name for head in heads if head.has_weight_function or head.weight not in (0, 1)]
    invariant = [each for each in (checked.weighting, checked.balancer) if each is not None and each.scale_invariant]
    if weighted and invariant:
        warnings.warn(
            "The weights of heads do not change the direction of the encoder's update with "
            f"{type(invariant[0]).__name__}, whatever their values above 0: {quoted(weighted)}. Omit them, or choose a "
            "method that depends on them, such as UPGrad.",
            UserWarning,
            stacklevel=3,
        )
    core = optimizer_core(optimizer)
    decays = {f"weight_decay_multiplier of head {head.name!r}": head.weight_decay_multiplier for head in heads}
    for argument, rate in {"encoder_weight_decay_multiplier": checked.encoder_weight_decay_multiplier, **decays}.items():
        if rate not in (0, 1) and core.weight_decay is None:
            raise ValueError(
                f"`{argument}` must be 0 or 1 for an optimizer without weight decay: it is a factor of the optimizer's. "
                f"Received: {rate!r}, and {type(core).__name__} without `weight_decay`. Pass "
                "`weight_decay` to the optimizer, for example keras.optimizers.AdamW(weight_decay=0.01)."
            )
    return optimizer, checked


def check_optimizer(optimizer: Optimizer, num_replicas: int = 1) -> Optimizer:
    """Returns a Keras optimizer for an optimizer, its name or its configuration."""
    received, problem = optimizer, None
    try:
        optimizer = get_optimizer(optimizer)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        optimizer, problem = None, error
    if optimizer is None:  # as Keras 3 returns for None
        raise ValueError(
            f"`optimizer` must be a Keras optimizer, its name or its configuration; the names are "
            f"{quoted(optimizer_classes())}. Received: optimizer={received!r}. {_remedy(received, problem)}"
        ) from problem
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(getattr(optimizer, "optimizer", optimizer))  # Keras 2 wraps those of TensorFlow 1
        names = (kind.__name__, kind.__name__.removesuffix("Optimizer"))  # as the names of TensorFlow 1 end
        known = [name for name in names if isinstance(getattr(keras.optimizers, name, None), type)]
        remedy = f"Use keras.optimizers.{known[0]}." if known else _BY_NAME.get(kind.__name__, _WRITE_IT)
        raise ValueError(
            "`optimizer` must be a `keras.optimizers.Optimizer`, whose state of idle heads an update can restore. Received: "
            f"{kind.__name__} of {kind.__module__}, a legacy optimizer. {remedy}"
        )
    attributes = vars(optimizer_core(optimizer)).values()
    parts = tf.nest.flatten([list(each.values()) if isinstance(each, dict) else each for each in attributes])
    if any(isinstance(each, keras.optimizers.Optimizer) for each in parts):  # whose slots it does not create itself
        raise ValueError(
            "`optimizer` must be one optimizer, whose state of idle heads an update can restore. Received: "
            f"{type(optimizer_core(optimizer)).__name__}, which contains another one. {_ONE}"
        )
    for option, instead in INSTEAD.items():
        value = getattr(optimizer_core(optimizer), option, None)
        if value:
            raise ValueError(
                f"`optimizer` must leave clipping and accumulation to the trainer, which does them once per update, after "
                f"the sum over replicas. Received: an optimizer with {option}={value!r}. Omit this option and pass "
                f"`{instead.format(value=value)}` to `compile`."
            )
    _check_methods(optimizer, num_replicas)
    return optimizer


def _remedy(received: Given, problem: Exception | None) -> str:
    """What to pass instead of what is no optimizer."""
    if isinstance(received, type) or (callable(received) and not isinstance(received, keras.layers.Layer)):
        if isinstance(received, keras.optimizers.schedules.LearningRateSchedule):
            return "Pass it to an optimizer, as in keras.optimizers.Adam(schedule)."
        return f"Pass what it returns, as in {getattr(received, '__name__', 'make')}()."
    if is_number(received):
        return f"Pass it to an optimizer, as in keras.optimizers.Adam({received!r})."
    if isinstance(received, Mapping) and "class_name" in received:
        if nearest(received["class_name"], optimizer_classes()) == str(received["class_name"]).lower():
            return f"Correct its 'config'. Keras says: {in_short(problem) if problem else ''}"
        otherwise = "Register its class with Keras, or pass an instance."
        return did_you_mean([received["class_name"]], optimizer_classes(), otherwise)
    if isinstance(received, (list, tuple, Mapping)):
        parts = received.values() if isinstance(received, Mapping) else received
        if any(isinstance(part, keras.optimizers.Optimizer) for part in parts):
            return _ONE
        return "Pass an instance, or a dict with 'class_name' and 'config', as `keras.optimizers.serialize` returns it."
    return did_you_mean([received], optimizer_classes(), "Pass one of these.")


def _check_methods(optimizer: Optimizer, num_replicas: int) -> None:
    """Checks that an optimizer overrides only methods that an update calls."""
    core = optimizer_core(optimizer)
    not_called = NOT_CALLED if num_replicas == 1 else (*NOT_CALLED, *BY_REPLICAS)
    of_keras = keras.optimizers.Optimizer
    found = [name for name in not_called if getattr(type(core), name, None) is not getattr(of_keras, name, None)]
    # Methods of the instance would apply to a copy of it, on several replicas.
    found += [name for name in (*not_called, *(() if num_replicas == 1 else APPLYING)) if name in vars(core)]
    if found:
        raise ValueError(
            f"`optimizer` must not override {quoted(found)}, which updates do not call: the trainer computes, scales and "
            f"sums gradients. Received: {type(core).__name__}. Change gradients in `apply_gradients` of a "
            "subclass, or by a `clip=` of your own, and losses by `weighting=`."
        )
    if has_loss_scaling(optimizer) and not type(optimizer).__module__.startswith("keras."):
        raise ValueError(
            "`optimizer` must be Keras's own LossScaleOptimizer if it scales losses: updates use its scale, not its methods."
            f" Received: {type(optimizer).__name__}, a subclass. Override methods of the optimizer inside of it instead."
        )
