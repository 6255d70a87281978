"""The options of `compile` and its optimizer, checked once; and subclasses of the trainer."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import keras
import tensorflow as tf

from multihead import balancing, clipping, schedules
from multihead import weighting as weightings
from multihead._ground import optimizers
from multihead._ground.keras import TUNES_STEPS, check_options_of_replicas
from multihead._ground.layers import check_initialized
from multihead._ground.types import Config, Function, Optimizer, Trainer
from multihead._ground.validation import check_choice, check_positive_whole, did_you_mean, in_short, nearest, quoted
from multihead._update.faults import ON_NONFINITE
from multihead.heads._named import NamedHead
from multihead.heads._value import Head
from multihead.rates import Rate, check_rate
from multihead.telemetry import LEVELS

_INSTEAD = {
    "clipnorm": "clip=clipping.ByNorm({value})",
    "clipvalue": "clip=clipping.ByValue({value})",
    "global_clipnorm": "clip=clipping.ByGlobalNorm({value})",
    "gradient_accumulation_steps": "gradient_accumulation_steps={value}",
}
"""What `compile` has instead of options of optimizers."""
_OF_HEADS = {argument.name for argument in fields(Head)}

_NOT_CALLED_BY_FIT = ("compute_loss", "compute_metrics", "get_metrics_result", "call", "build", "compute_mask")
"""The methods that `fit` and `evaluate` of Keras call, and ours do not."""

BALANCE_AT = ("representation", "parameters")


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The arguments of `MultiHeadTrainer.compile`, with methods in place of their names; see there."""

    weighting: weightings.Weighting | None
    balancer: balancing.Balancer | None
    balance_at: str
    balance_every: int
    head_schedule: schedules.Schedule
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
        """The checked options, with methods that are bound to the heads."""
        for argument, value, kind, module, example in (
            ("head_schedule", self.head_schedule, schedules.Schedule, schedules, "schedules.Alternate({...: 1, ...: 9})"),
            ("clip", self.clip, clipping.Clipping, clipping, "clipping.ByGlobalNorm(5.0)"),
        ):
            if value is not None and not isinstance(value, kind):
                hint = f"Pass an instance, for example {example}."
                if isinstance(value, str) and (near := nearest(value, module.__all__)) is not None:
                    hint = f"Pass an instance of {module.__name__.rpartition('.')[2]}.{near}."
                raise TypeError(
                    f"`{argument}` must be an instance of one of {quoted(module.__all__)} in {module.__name__}. Received: "
                    f"{argument}={value!r}. {hint}"
                )
            check_initialized(argument, value)
        check_choice("balance_at", self.balance_at, BALANCE_AT)
        check_choice("telemetry", self.telemetry, LEVELS)
        check_choice("jit_compile", self.jit_compile, (None, True, False, "auto"))
        check_choice("on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        if self.max_skipped_updates is not None:
            check_positive_whole("max_skipped_updates", self.max_skipped_updates)
        check_choice("check_labels", self.check_labels, (True, False))
        steps = self.steps_per_execution
        if not (TUNES_STEPS and steps == "auto"):
            steps = check_positive_whole("steps_per_execution", 1 if steps is None else steps)
        learning_rate, weight_decay = self.encoder_learning_rate_multiplier, self.encoder_weight_decay_multiplier
        accumulation_steps = self.gradient_accumulation_steps
        options = replace(
            self,
            balance_every=check_positive_whole("balance_every", self.balance_every),
            micro_batches=check_positive_whole("micro_batches", self.micro_batches),
            gradient_accumulation_steps=check_positive_whole("gradient_accumulation_steps", accumulation_steps),
            encoder_learning_rate_multiplier=check_rate("encoder_learning_rate_multiplier", learning_rate),
            encoder_weight_decay_multiplier=check_rate("encoder_weight_decay_multiplier", weight_decay),
            steps_per_execution=steps,
        )
        options._check_balancer()
        for method in (self.weighting, self.balancer, self.head_schedule):
            if method is not None:
                method.bind(head_names)
        return options

    @property
    def updates_at_once(self) -> int:
        """The number of updates after which Keras calls callbacks; 1 if it changes."""
        return 1 if isinstance(self.steps_per_execution, str) else int(self.steps_per_execution or 1)

    def for_keras(self) -> Config:
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
                "the gradients themselves, and at the representation a micro-batch has only its own. Received: "
                f"balance_at='representation' with {parts} micro-batches and {num_replicas} replicas. Change "
                "it, or use one batch without micro-batches, on one replica."
            )


def only_own_options(method: Function) -> Function:
    """The method `compile`, with an error, which says what to do, for options that it does not have, such as Keras's."""
    known = list(inspect.signature(method).parameters)[1:]
    arguments_of_keras = list(inspect.signature(keras.Model.compile).parameters)[1:]

    @functools.wraps(method)
    def checked(self: Trainer, *args: object, **options: object) -> None:
        others = dict(zip(arguments_of_keras[1:], args[1:])) | {
            name: value for name, value in options.items() if name not in known
        }
        for name, value in others.items():
            rule = f"`{name}` must not be passed to `compile`"
            if name in ("loss", "loss_weights", "metrics", "weighted_metrics"):
                raise TypeError(
                    f"{rule}: each head has its own loss, weight and metrics. Received: {name}={value!r}. For a Keras model "
                    "with several outputs that is compiled with them, write `trainer = MultiHeadTrainer.from_model(model)` "
                    'and then `trainer.compile(balancer="NormFloor")`; otherwise pass them to '
                    "`Head(module, loss, weight=..., metrics=[...])` or to `add_head`."
                )
            hint = did_you_mean([name], known, "Leave it out.")
            if name in _OF_HEADS:
                hint = f"Pass `{name}` to `add_head` or `Head`."
            if name == "ignore_label":
                hint += " After `from_model`, write NaN in place of the labels that are missing."
            raise TypeError(f"{rule}, which does not have it. Received: {name}={value!r}. {hint}")
        method(self, *args[:1], **options)

    return checked


def check_compile(
    optimizer: Optimizer, options: CompileOptions, heads: Sequence[NamedHead], strategy: tf.distribute.Strategy
) -> tuple[Optimizer, CompileOptions]:
    """The optimizer and the options of `compile`, checked together with the heads."""
    if not heads:
        raise ValueError(
            "`compile` needs at least one head with a loss. Received: none. Call `add_head(name, module, loss)` first; for "
            "`from_model(model)`, call `model.compile` with one loss per output before."
        )
    num_replicas = strategy.num_replicas_in_sync
    optimizer = check_optimizer(optimizer, num_replicas)
    checked = options.checked([head.name for head in heads])
    if num_replicas > 1 and not (options.run_eagerly or tf.config.functions_run_eagerly()):
        check_options_of_replicas(checked.jit_compile, checked.steps_per_execution, strategy)
    coupled = [head.name for head in heads if head.loss.couples_rows]
    undeclared = [head.name for head in heads if head.loss.is_undeclared]
    splits = (("micro_batches", checked.micro_batches, "Leave it out"), ("strategy", num_replicas, "Use one replica"))
    for name, number, remedy in splits:
        if coupled and number > 1:
            raise ValueError(
                f"`{name}` must not split the batches of head {quoted(coupled)}, whose rows are compared with each other "
                f"(couples_rows=True). Received: {number} parts. {remedy}, or train with smaller batches and "
                "`gradient_accumulation_steps`, which compares the rows of a batch."
            )
        if undeclared and number > 1:
            raise ValueError(
                f"`couples_rows` of head {quoted(undeclared)} must be set where `{name}` splits a batch: its loss is none "
                f"of Keras's and may compare rows. Received: couples_rows=None with {number} parts. Pass "
                "`couples_rows=False` to `add_head` if its values depend on their own labels alone. "
                f"Otherwise: {remedy[0].lower()}{remedy[1:]}."
            )
    if undeclared and checked.jit_compile is True:
        raise ValueError(
            f"`couples_rows` of head {quoted(undeclared)} must be set with `jit_compile`: its loss is none of Keras's and "
            "gets the rows that have a label, which XLA cannot select. Received: couples_rows=None with jit_compile=True. "
            "Pass `couples_rows=False` to `add_head` if its values depend on the labels and the predictions at their "
            "own places alone, or omit `jit_compile`."
        )
    for name, default in (("balance_at", "representation"), ("balance_every", 1)):
        if checked.balancer is None and (value := getattr(checked, name)) != default:
            text = f"`{name}` has no effect without `balancer`. Pass it, or omit `{name}`. Received: {name}={value!r}."
            warnings.warn(text, UserWarning, stacklevel=5)
    weighted = [head.name for head in heads if head.has_weight_function or head.weight not in (0, 1)]
    methods = (checked.weighting, checked.balancer)
    invariant = [method for method in methods if method is not None and method.scale_invariant]
    if weighted and invariant:
        warnings.warn(
            "The weights of heads do not change the direction of the encoder's update with "
            f"{type(invariant[0]).__name__}, whatever their values above 0: {quoted(weighted)}. Omit them, or choose a "
            "method that depends on them, such as UPGrad.",
            UserWarning,
            stacklevel=5,
        )
    core = optimizers.optimizer_core(optimizer)
    decays = {f"weight_decay_multiplier of head {head.name!r}": head.weight_decay_multiplier for head in heads}
    for argument, rate in {"encoder_weight_decay_multiplier": checked.encoder_weight_decay_multiplier, **decays}.items():
        if rate not in (0, 1) and core.weight_decay is None:
            raise ValueError(
                f"`{argument}` must be 0 or 1 for an optimizer without weight decay: it is a factor of the optimizer's. "
                f"Received: {rate!r}, and {type(core).__name__} without `weight_decay`. Pass "
                "`weight_decay` to the optimizer, for example keras.optimizers.AdamW(weight_decay=0.01)."
            )
    return optimizer, checked


def check_optimizer(received: Optimizer, num_replicas: int = 1) -> Optimizer:
    """Returns a Keras optimizer for an optimizer, its name or its configuration, checked."""
    optimizer, problem = None, ""
    try:
        optimizer = optimizers.get_optimizer(received)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        problem = f" Keras says: {in_short(error)}"
    if optimizer is None:  # as Keras 3 returns for None
        hint = did_you_mean(
            [received], optimizers.optimizer_classes(), "Pass an instance, as in keras.optimizers.Adam(0.001)."
        )
        raise ValueError(
            f"`optimizer` must be a Keras optimizer, its name or its configuration; the names are "
            f"{quoted(optimizers.optimizer_classes())}. Received: optimizer={received!r}. {hint}{problem}"
        )
    values = vars(optimizers.optimizer_core(optimizer)).values()
    parts = tf.nest.flatten([list(value.values()) if isinstance(value, dict) else value for value in values])
    if any(isinstance(part, optimizers.ANY_OPTIMIZER) for part in parts):  # whose slots it does not create itself
        raise ValueError(
            "`optimizer` must be one optimizer, whose state of idle heads an update can restore. Received: "
            f"{type(optimizer).__name__}, which contains another one. Pass one optimizer, which trains everything; "
            "`encoder_learning_rate_multiplier=` of `compile` and `learning_rate_multiplier=` of `add_head` are factors of "
            "its learning rate by part."
        )
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        kind = type(getattr(optimizer, "optimizer", optimizer))  # Keras 2 wraps those of TensorFlow 1
        raise ValueError(
            "`optimizer` must be a `keras.optimizers.Optimizer`, whose state of idle heads an update can restore. Received: "
            f"{kind.__name__} of {kind.__module__}, a legacy optimizer. Use its counterpart in keras.optimizers, or write a "
            "subclass of keras.optimizers.Optimizer with `build` and `update_step`."
        )
    core = optimizers.optimizer_core(optimizer)
    if isinstance(core, optimizers.COUNTS_IN_PYTHON):
        raise ValueError(
            "`optimizer` must keep its whole state in variables. Received: Nadam of Keras 2, which counts steps in Python: "
            "in a graph it does not compute Nadam, and a saved one does not go on. Pass Adam or AdamW, or install Keras 3."
        )
    for option, instead in _INSTEAD.items():
        value = getattr(core, option, None)
        if value:
            raise ValueError(
                f"`optimizer` must leave clipping and accumulation to the trainer, which does them once per update, after "
                f"the sum over replicas. Received: an optimizer with {option}={value!r}. Omit this option and pass "
                f"`{instead.format(value=value)}` to `compile`."
            )
    not_called = optimizers.NOT_CALLED if num_replicas == 1 else (*optimizers.NOT_CALLED, *optimizers.BY_REPLICAS)
    changed = overridden(type(core), not_called, keras.optimizers.Optimizer)
    # Methods of the instance would apply to a copy of it, on several replicas.
    changed += [name for name in (*not_called, *(() if num_replicas == 1 else optimizers.APPLYING)) if name in vars(core)]
    if changed:
        raise ValueError(
            f"`optimizer` must not override {quoted(changed)}, which updates do not call: the trainer computes, scales and "
            f"sums gradients. Received: {type(core).__name__}. Change gradients in `apply_gradients` of a "
            "subclass, or by a `clip=` of your own, and losses by `weighting=`."
        )
    if optimizers.has_loss_scaling(optimizer) and not type(optimizer).__module__.startswith("keras."):
        raise ValueError(
            "`optimizer` must be Keras's own LossScaleOptimizer if it scales losses: updates use its scale, not its methods."
            f" Received: {type(optimizer).__name__}, a subclass. Override methods of the optimizer inside of it instead."
        )
    return optimizer


def overridden(kind: type, methods: Sequence[str], base: type) -> list[str]:
    """Those of some methods that a class does not have from a base class."""
    return [name for name in methods if getattr(kind, name, None) is not getattr(base, name, None)]


def check_trainer(kind: type, base: type) -> None:
    """Checks that a subclass of the trainer overrides only methods that are called."""
    for name in overridden(kind, _NOT_CALLED_BY_FIT, base):
        raise ValueError(
            f"`{name}` must not be overridden: `fit` and `evaluate` run the encoder and the heads by themselves, and do not "
            f"call it. Received: {kind.__name__}, which overrides it. Instead, pass losses and metrics of your own to "
            "`add_head`, change the encoder or a head's module, or override `train_step`, `test_step` or `predict_step`."
        )
    if overridden(kind, ("train_step",), base):
        return
    for name in overridden(kind, ("compute_gradients", "apply_gradients"), base):
        raise ValueError(
            f"`{name}` must be called by a `train_step` of your own if it is overridden: the trainer's does not call it. "
            f"Received: {kind.__name__}, which overrides it without `train_step`. Pass a `clip=` of your own class to "
            "`compile` to change gradients, or write `train_step(self, data)`, which calls `self.apply_gradients("
            "self.compute_gradients(data))` and returns logs."
        )


def initialized(init: Function) -> Function:
    """The `__init__` of a trainer's class, with an error if it does not call that of its base class."""

    @functools.wraps(init)
    def checked(self: Trainer, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        if "_state" not in vars(self):
            raise TypeError(
                f"`{type(self).__name__}` must be initialized as a trainer. Received: an `__init__` that does not call that "
                "of its base class. Begin it with `super().__init__(encoder, heads)`."
            )

    vars(checked)["__signature__"] = inspect.signature(init)  # Keras 3 does not look at what is wrapped
    return checked
