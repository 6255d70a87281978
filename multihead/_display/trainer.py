"""A trainer: its parts and options as tables, and as a plot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import keras
import tensorflow as tf

from multihead import losses
from multihead._display.drawing import GREY, colour, new_figure, table_as_text, title
from multihead._ground.layers import distinct, renamed
from multihead._ground.types import Figure, Layer, Trainer, Variable
from multihead._method import Method
from multihead.rates import Rate


def describe_method(method: Method) -> str:
    """A method with the options that differ from its defaults: `"CAGrad(c=0.5)"`."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(method).__init__).parameters.items()}
    config = {name: value for name, value in method.get_config().items() if name in defaults and name != "name"}
    options = [f"{name}={value!r}" for name, value in config.items() if value != defaults[name]]
    return f"{type(method).__name__}({', '.join(options)})" if options else type(method).__name__


def modules_of(trainer: Trainer) -> list[list[str]]:
    """The encoder and the heads: name, class, number of parameters, loss, weight, and what a head reads.

    A module whose factor of the learning rate is 0 is frozen.
    """
    rate = 1.0 if trainer.options is None else trainer.options.encoder_learning_rate_multiplier
    rows = [["encoder", *_kind_and_size(trainer.encoder, rate), "", "", ""]]
    for name, head in trainer.heads.items():
        loss = "" if head.loss is None else losses.get(head.loss).name
        loss += "" if head.target_scaling is None else f" ({type(head.target_scaling).__name__})"
        weight = "a function of the step" if callable(head.weight) else f"{float(head.weight):g}"
        reads = "all" if head.reads is None else repr(head.reads)
        reads += "" if head.trains_encoder else ", does not train the encoder"
        kind_and_size = _kind_and_size(head.module, head.learning_rate_multiplier)
        rows.append([name, *kind_and_size, loss, "not trained" if head.loss is None else weight, reads])
    return rows


def _kind_and_size(module: Layer, rate: Rate) -> tuple[str, str]:
    kind = "function" if inspect.isfunction(module) else type(module).__name__
    if not getattr(module, "built", True):
        return kind, "not built yet"
    total, trained = (size_of(getattr(module, attribute, [])) for attribute in ("weights", "trainable_weights"))
    trained = 0 if rate == 0 else trained
    return kind, f"{total:,}" if trained == total else f"{total:,} ({trained:,} trained)"


def size_of(variables: Iterable[Variable]) -> int:
    """The number of elements of variables, without duplicates."""
    return sum(int(tf.TensorShape(variable.shape).num_elements() or 0) for variable in distinct(variables))


def update_of(trainer: Trainer) -> list[tuple[str, str]]:
    """The stages of an update, as pairs of a name and a description; empty for a trainer that is not compiled."""
    options = trainer.options
    if options is None:
        return []
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    batches = "1 batch" if options.gradient_accumulation_steps == 1 else f"{options.gradient_accumulation_steps} batches"
    batches += f", each in {options.micro_batches} micro-batches" if options.micro_batches > 1 else ""
    batches += f", over {replicas} replicas" if replicas > 1 else ""
    spec, optimizer, rate = trainer.update_spec, trainer.optimizer, trainer.optimizer.learning_rate
    passes = []
    backward = None if spec is None else spec.methods.backward
    if backward is not None and backward.passes:  # else once forward and once backward
        words = backward.passes
        words += ", or once where coefficients are reused" if backward.may_reuse and not trainer.jit_compile else ""
        is_split = options.gradient_accumulation_steps * options.micro_batches > 1
        passes = [("encoder's passes", f"{words}, for each micro-batch" if is_split else words)]
    factor, kind = options.encoder_learning_rate_multiplier, type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    is_number = isinstance(rate, (int, float)) or hasattr(rate, "numpy")
    return [
        ("examples", batches),
        ("heads that train", describe_method(options.head_schedule)),
        ("total loss", "sum of weight * loss" if options.weighting is None else describe_method(options.weighting)),
        ("encoder's gradient", balancing_of(trainer)),
        *passes,
        ("clipping", "none" if options.clip is None else repr(options.clip)),
        ("optimizer", f"{kind}, learning rate {f'{float(rate):.4g}' if is_number else type(rate).__name__}"),
        (
            "encoder's learning rate",
            f"factor {f'{factor:g}' if isinstance(factor, (int, float)) else type(factor).__name__}",
        ),
        ("telemetry", "none" if options.telemetry is None else options.telemetry),
    ]


def balancing_of(trainer: Trainer) -> str:
    """How and where the heads' gradients are combined, as text."""
    options = trainer.options
    if options is None or options.balancer is None:
        return "plain sum of the heads' gradients"
    every = "" if options.balance_every == 1 else f", solved in every {options.balance_every}th update"
    return f"{describe_method(options.balancer)}, at the {options.balance_at}{every}"


def print_summary(trainer: Trainer, write: Callable[[str], object]) -> None:
    rows, modules = modules_of(trainer), _named_modules(trainer)
    if all(getattr(module, "built", True) for _, module in modules):
        total = size_of(variable for _, module in modules for variable in getattr(module, "weights", []))
        rows.append(["together", "", f"{total:,}", "", "", ""])
    columns = ["part", "module", "parameters", "loss", "weight", "reads"]
    write(table_as_text(f"Modules of {trainer.name!r}", columns, rows, numbers=("parameters",)) + "\n")
    update = update_of(trainer) or [("not compiled yet", "")]
    write(table_as_text("One update", ["stage", ""], update, numbers=()))


def modules_by_role(trainer: Trainer) -> AbstractContextManager[None]:
    """A context in which the layers of a trainer have the names of their roles, for Keras's own summary."""
    methods = [(name, getattr(trainer, name)) for name in ("weighting", "balancer", "head_schedule")]
    parts = [*_named_modules(trainer), *methods]
    return renamed([(name, part) for name, part in parts if isinstance(part, keras.layers.Layer)])


def _named_modules(trainer: Trainer) -> list[tuple[str, Layer]]:
    return [("encoder", trainer.encoder), *((name, head.module) for name, head in trainer.heads.items())]


def draw_model(trainer: Trainer) -> Figure:
    (_, kind, size, *_), *heads = modules_of(trainer)
    figure, axes = new_figure("`plots.model`", 1, 1, (6.2, 1.5 + 1.05 * len(heads)))
    axis, middle = axes[0, 0], (len(heads) - 1) / 2
    box = {"boxstyle": "round,pad=0.6", "fc": "white", "lw": 2}
    centred = {"ha": "center", "va": "center", "fontsize": 9}
    for k, (name, module, number, loss, weight, reads) in enumerate(heads):
        loss_text = f"{loss}\nweight {weight}" if loss else weight
        text = f"{name}\n{module}, {number} parameters\n{loss_text}, reads {reads}"
        arrow = {"arrowstyle": "<|-", "color": colour(k), "lw": 1.5}
        axis.annotate(text, (1, middle), (2, k), bbox={**box, "ec": colour(k)}, arrowprops=arrow, **centred)
    axis.plot([0, 1], [middle, middle], "-o", color="black", markevery=[1])
    at, dotted = ", at the parameters" not in balancing_of(trainer), {"arrowstyle": "-", "ls": ":", "color": GREY}
    text = f"heads' gradients:\n{balancing_of(trainer)}"
    axis.annotate(text, (at, middle), (at, middle + len(heads) / 2), arrowprops=dotted, **centred)
    axis.text(0, middle, f"encoder\n{kind}, {size} parameters", bbox=box, **centred)
    axis.set(xlim=(-0.6, 2.7), ylim=(len(heads), -0.5))
    axis.set_axis_off()
    stages = dict(update_of(trainer))
    detail = f"one update is of {stages['examples']}, by {stages['optimizer']}" if stages else ""
    title(axis, f"One encoder, {len(heads)} head{'' if len(heads) == 1 else 's'}", detail)
    return figure
