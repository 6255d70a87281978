"""Which optimizers can be used: one of Keras's own kind, whose methods an update calls as Keras does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import keras
import tensorflow as tf

from multihead._ground.keras import overridden
from multihead._ground.optimizers import (
    APPLYING,
    BY_REPLICAS,
    NOT_CALLED,
    get_optimizer,
    has_loss_scaling,
    is_legacy_optimizer,
    optimizer_core,
    optimizer_names,
    optimizer_takes_over,
)
from multihead._ground.types import Config, Given, Optimizer
from multihead._ground.validation import did_you_mean, in_short, is_number, nearest, quoted
from multihead.heads._named import NamedHead

INSTEAD = {
    "clipnorm": "clip=clipping.ByNorm({value})",
    "clipvalue": "clip=clipping.ByValue({value})",
    "global_clipnorm": "clip=clipping.ByGlobalNorm({value})",
    "gradient_accumulation_steps": "gradient_accumulation_steps={value}",
}
"""What `compile` has instead of options of optimizers."""

_ONE = (
    "Pass one optimizer, which trains everything; `encoder_learning_rate_multiplier=` of `compile` and "
    "`learning_rate_multiplier=` of `add_head` "
    "are factors of its learning rate by part."
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
            f"{quoted(optimizer_names())}. Received: optimizer={received!r}. {_remedy(received, problem)}"
        ) from problem
    if is_legacy_optimizer(optimizer):
        inner = getattr(optimizer, "optimizer", optimizer)  # Keras 2 wraps those of TensorFlow 1
        raise ValueError(
            "`optimizer` must be a `keras.optimizers.Optimizer`, whose state of idle heads an update can restore. Received: "
            f"{type(inner).__name__} of {type(inner).__module__}, a legacy optimizer. {_instead_of(type(inner).__name__)}"
        )
    if _contains_optimizers(optimizer_core(optimizer)):
        raise ValueError(
            "`optimizer` must be one optimizer, whose state of idle heads an update can restore. Received: "
            f"{type(optimizer_core(optimizer)).__name__}, which contains another one. {_ONE}"
        )
    for option, value in optimizer_takes_over(optimizer).items():
        raise ValueError(
            f"`optimizer` must leave clipping and accumulation to the trainer, which does them once per update, after the "
            f"sum over replicas. Received: an optimizer with {option}={value!r}. Omit this option and pass "
            f"`{INSTEAD[option].format(value=value)}` to `compile`."
        )
    _check_methods(optimizer, num_replicas)
    return optimizer


def _contains_optimizers(optimizer: Optimizer) -> bool:
    """Whether an optimizer applies gradients by others, whose slots it does not create itself."""
    found = tf.nest.flatten([list(each.values()) if isinstance(each, dict) else each for each in vars(optimizer).values()])
    return any(isinstance(each, keras.optimizers.Optimizer) for each in found)


def _remedy(received: Given, problem: Exception | None) -> str:
    """What to pass instead of what is no optimizer."""
    if isinstance(received, type) or (callable(received) and not isinstance(received, keras.layers.Layer)):
        if isinstance(received, keras.optimizers.schedules.LearningRateSchedule):
            return "Pass it to an optimizer, as in keras.optimizers.Adam(schedule)."
        return f"Pass what it returns, as in {getattr(received, '__name__', 'make')}()."
    if is_number(received):
        return f"Pass it to an optimizer, as in keras.optimizers.Adam({received!r})."
    if isinstance(received, Mapping) and "class_name" in received:
        if nearest(received["class_name"], optimizer_names()) == str(received["class_name"]).lower():
            return f"Correct its 'config'. Keras says: {in_short(problem) if problem else ''}"
        otherwise = "Register its class with Keras, or pass an instance."
        return did_you_mean([received["class_name"]], optimizer_names(), otherwise)
    if isinstance(received, (list, tuple, Mapping)):
        parts = received.values() if isinstance(received, Mapping) else received
        if any(isinstance(part, keras.optimizers.Optimizer) for part in parts):
            return _ONE
        return "Pass an instance, or a dict with 'class_name' and 'config', as `keras.optimizers.serialize` returns it."
    return did_you_mean([received], optimizer_names(), "Pass one of these.")


def _instead_of(name: str) -> str:
    """What to use instead of a legacy optimizer with this name of a class."""
    for each in (name, name.removesuffix("Optimizer")):  # as the names of TensorFlow 1 end
        if isinstance(getattr(keras.optimizers, each, None), type):
            return f"Use keras.optimizers.{each}."
    return _BY_NAME.get(
        name,
        "Keras has no optimizer of this name. Use another one, such as keras.optimizers.AdamW, or write this one as a "
        "subclass of keras.optimizers.Optimizer with `build` and `update_step`.",
    )


def _check_methods(optimizer: Optimizer, num_replicas: int) -> None:
    """Checks that an optimizer overrides only methods that an update calls."""
    core = optimizer_core(optimizer)
    not_called = NOT_CALLED if num_replicas == 1 else (*NOT_CALLED, *BY_REPLICAS)
    found = overridden(type(core), not_called, keras.optimizers.Optimizer)
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


def check_weight_decay(optimizer: Optimizer, rates: Config, heads: Sequence[NamedHead]) -> None:
    """Checks that the optimizer has the weight decay that is to be multiplied."""
    given = {**rates, **{f"weight_decay_multiplier of head {head.name!r}": head.weight_decay_multiplier for head in heads}}
    for argument, rate in given.items():
        if rate not in (0, 1) and optimizer_core(optimizer).weight_decay is None:
            raise ValueError(
                f"`{argument}` must be 0 or 1 for an optimizer without weight decay: it is a factor of the optimizer's. "
                f"Received: {rate!r}, and {type(optimizer_core(optimizer)).__name__} without `weight_decay`. Pass "
                "`weight_decay` to the optimizer, for example keras.optimizers.AdamW(weight_decay=0.01)."
            )
