"""A trainer: its parts and options as tables, and as a plot."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from multihead import losses
from multihead._display.drawing import GREY, as_text, colour, needed, new_figure, title
from multihead._ground.layers import renamed
from multihead._ground.types import Axis, Config, Figure, Function, Given, Trainer, Variable
from multihead._method import Method


class Part(NamedTuple):
    """The encoder or a head's module, its class, and its number of parameters, and of those that are trained."""

    name: str
    kind: str
    parameters: int | None  # before it is built, none
    size: str  # as text

    def __str__(self) -> str:
        return self.size if self.parameters is None else f"{self.size} parameters"


def _size(variables: Sequence[Variable]) -> int:
    return sum(int(tf.TensorShape(variable.shape).num_elements() or 0) for variable in variables)


def parts_of(trainer: Trainer) -> list[Part]:
    """The encoder, and the heads' modules; one whose factor of the learning rate is 0 is frozen."""
    rate = 1.0 if trainer.options is None else trainer.options.encoder_learning_rate_multiplier
    modules = [("encoder", trainer.encoder, rate)]
    modules += [(name, head.module, head.learning_rate_multiplier) for name, head in trainer.heads.items()]
    found = []
    for name, module, rate in modules:
        kind = type(module).__name__ if not inspect.isfunction(module) else "function"
        if not getattr(module, "built", True):
            found.append(Part(name, kind, None, "not built yet"))
            continue
        total, trained = (_size(getattr(module, each, [])) for each in ("weights", "trainable_weights"))
        size = f"{total:,}" if trained == total and rate != 0 else f"{total:,} ({0 if rate == 0 else trained:,} trained)"
        found.append(Part(name, kind, total, size))
    return found


def described(method: Method) -> str:
    """A method with the options that differ from its defaults: `"CAGrad(c=0.5)"`."""
    defaults = {name: each.default for name, each in inspect.signature(type(method).__init__).parameters.items()}
    config = {name: value for name, value in method.get_config().items() if name in defaults and name != "name"}
    options = [f"{name}={value!r}" for name, value in config.items() if value != defaults[name]]
    return f"{type(method).__name__}({', '.join(options)})" if options else type(method).__name__


def loss_of(head: Given) -> str:
    """The name of a head's loss."""
    return "" if head.loss is None else losses.get(head.loss).name


def weight_of(head: Given) -> str:
    """A head's weight, as text."""
    if head.loss is None:
        return "not trained"
    return "a function of the step" if callable(head.weight) else f"{float(head.weight):g}"


def update_of(trainer: Trainer) -> list[tuple[str, str]]:
    """The stages of an update, as pairs of a name and a description; empty for a trainer that is not compiled."""
    options = trainer.options
    if options is None:
        return []
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    batches = "1 batch" if options.gradient_accumulation_steps == 1 else f"{options.gradient_accumulation_steps} batches"
    batches += f", each in {options.micro_batches} micro-batches" if options.micro_batches > 1 else ""
    batches += f", over {replicas} replicas" if replicas > 1 else ""
    schedule, spec, optimizer = described(options.head_schedule), trainer.update_spec, trainer.optimizer
    passes = []
    if spec is not None and spec.way.per_head:  # else once forward and once backward
        words = "forward once and backward once for each head"
        words += ", or once where coefficients are reused" if spec.way.may_reuse and not trainer.jit_compile else ""
        is_split = options.gradient_accumulation_steps * options.micro_batches > 1
        passes = [("encoder's passes", f"{words}, for each micro-batch" if is_split else words)]
    factor = options.encoder_learning_rate_multiplier
    of_factor = "a function of the step" if inspect.isroutine(factor) else type(factor).__name__
    if isinstance(factor, (int, float)):
        of_factor = "frozen" if factor == 0 else f"{factor:g}"
    rate, kind = optimizer.learning_rate, type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    is_number = isinstance(rate, (int, float)) or hasattr(rate, "numpy")
    return [
        ("examples", batches),
        ("heads that train", "all, in every update" if schedule == "Together" else schedule),
        ("total loss", "sum of weight * loss" if options.weighting is None else described(options.weighting)),
        ("encoder's gradient", balancing_of(trainer)),
        *passes,
        ("clipping", "none" if options.clip is None else repr(options.clip)),
        ("optimizer", f"{kind}, learning rate {f'{float(rate):.4g}' if is_number else type(rate).__name__}"),
        ("encoder's learning rate", f"factor {of_factor}"),
        ("telemetry", "none" if options.telemetry is None else options.telemetry),
    ]


def balancing_of(trainer: Trainer) -> str:
    """How and where the heads' gradients are combined, as text."""
    options = trainer.options
    if options is None or options.balancer is None:
        return "plain sum of the heads' gradients"
    every = "" if options.balance_every == 1 else f", solved in every {options.balance_every}th update"
    return f"{described(options.balancer)}, at the {options.balance_at}{every}"


def tables(trainer: Trainer) -> list[tuple[str, list[str], list[list[str]]]]:
    """Title, columns and rows of the tables that `summary` prints."""
    encoder, *of_heads = parts_of(trainer)
    rows = [["encoder", encoder.kind, encoder.size, "", "", ""]]
    for found, head in zip(of_heads, trainer.heads.values()):
        reads = "all" if head.reads is None else repr(head.reads)
        reads += "" if head.trains_encoder else ", does not train the encoder"
        scaling = "" if head.target_scaling is None else f" ({type(head.target_scaling).__name__})"
        rows.append([found.name, found.kind, found.size, loss_of(head) + scaling, weight_of(head), reads])
    parameters = [each.parameters for each in (encoder, *of_heads)]
    if None not in parameters:
        modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
        variables = {id(v): v for module in modules for v in getattr(module, "weights", [])}
        rows.append(["together", "", f"{_size(list(variables.values())):,}", "", "", ""])
    of_modules = (f"Modules of {trainer.name!r}", ["part", "module", "parameters", "loss", "weight", "reads"], rows)
    update = update_of(trainer) or [("not compiled yet", "")]
    return [of_modules, ("One update", ["stage", ""], [list(stage) for stage in update])]


def print_summary(trainer: Trainer, arguments: Config, of_keras: Function) -> None:
    """Prints the tables and, if arguments of Keras's own summary are given, that summary, `of_keras`, too."""
    write = arguments.get("print_fn") or print
    for heading, columns, rows in tables(trainer):
        write(as_text(heading, columns, rows, numbers=("parameters",)))
    if arguments.keys() - {"print_fn"}:
        parts = [("encoder", trainer.encoder), *((name, head.module) for name, head in trainer.heads.items())]
        parts += [(name, getattr(trainer, name)) for name in ("weighting", "balancer", "head_schedule")]
        with renamed([(name, each) for name, each in parts if isinstance(each, keras.layers.Layer)]):
            of_keras(**arguments)


WIDTH, HEIGHT, GAP = 2.6, 0.8, 0.35


def draw_model(trainer: Trainer) -> Figure:
    """See `multihead.plots.model`."""
    heads = trainer.heads
    figure, axes = new_figure("`plots.model`", 1, 1, (10, 1.9 + (HEIGHT + GAP) * len(heads) * 0.75))
    axis = axes[0, 0]
    encoder, *of_heads = parts_of(trainer)
    height = len(heads) * (HEIGHT + GAP) - GAP
    middle, lowest = height / 2, min(-0.1, height / 2 - 0.85)
    _box(axis, (0, middle - 0.6), 1.2, "encoder", f"{encoder.kind}\n{encoder}", edge="#333333")
    axis.annotate("inputs", (0, middle), (-0.9, middle), ha="center", va="center", color=GREY, arrowprops=_arrow(GREY))
    node = WIDTH + 1.2
    axis.annotate("", (node, middle), (WIDTH, middle), arrowprops=_arrow("#333333"))
    axis.text((WIDTH + node) / 2, middle + 0.12, "representation", ha="center", va="bottom", fontsize=8, color=GREY)
    left, right = node + 1.3, node + 1.3 + WIDTH
    for k, (found, head) in enumerate(zip(of_heads, heads.values())):
        bottom, edge = height - HEIGHT - k * (HEIGHT + GAP), colour(k)
        centre = bottom + HEIGHT / 2
        axis.annotate("", (left, centre), (node, middle), arrowprops=_arrow(edge))
        if head.reads is not None:
            text = _short(repr(head.reads))
            axis.text(left - 0.1, centre + 0.08, text, ha="right", va="bottom", fontsize=8, color=GREY)
        _box(axis, (left, bottom), HEIGHT, found.name, f"{found.kind}, {found}", edge=edge)
        loss = f"{loss_of(head)}\nweight {weight_of(head)}" if head.loss is not None else "not trained"
        axis.annotate(loss, (right, centre), (right + 0.5, centre), va="center", fontsize=9, arrowprops=_arrow(GREY, "<-"))
    axis.plot([node], [middle], "o", color="#333333", ms=9, zorder=3)
    options = trainer.options
    at_parameters = options is not None and options.balancer is not None and options.balance_at == "parameters"
    point = (WIDTH / 2, middle - 0.6) if at_parameters else (node, middle)
    dotted = {"arrowstyle": "-", "color": GREY, "ls": ":"}
    of_balancing = balancing_of(trainer).replace(", ", ",\n")
    axis.annotate(
        f"heads' gradients:\n{of_balancing}", point, (point[0], lowest), ha="center", va="top", fontsize=9, arrowprops=dotted
    )
    axis.set_xlim(-1.4, node + 1.3 + WIDTH + 2.4)
    axis.set_ylim(lowest - 0.65, height + 0.1)
    axis.set_axis_off()
    total = sum(each.parameters or 0 for each in (encoder, *of_heads))
    stages = dict(update_of(trainer))
    of_update = f"; one update is of {stages['examples']}, by {stages['optimizer']}" if stages else ""
    number = f"{len(heads)} heads" if len(heads) > 1 else "1 head"
    title(axis, f"One encoder, {number}", f"{total:,} parameters{of_update}")
    return figure


def _box(axis: Axis, corner: tuple[float, float], height: float, name: str, text: str, *, edge: str) -> None:
    patches = needed("matplotlib.patches", "plots", "`plots.model`")
    left, bottom = corner
    shape = patches.FancyBboxPatch(
        (left, bottom), WIDTH, height, boxstyle="round,pad=0,rounding_size=0.08", fc="white", ec=edge, lw=2, zorder=2
    )
    axis.add_patch(shape)
    axis.text(
        left + 0.15, bottom + height - 0.12, _short(name, 26), va="top", fontsize=11, fontweight="bold", color=edge, zorder=3
    )
    axis.text(left + 0.15, bottom + 0.12, text, va="bottom", fontsize=9, color="black", zorder=3)


def _arrow(of_arrow: str, style: str = "-|>") -> Config:
    return {"arrowstyle": style, "color": of_arrow, "lw": 1.5, "shrinkA": 0, "shrinkB": 0}


def _short(text: str, length: int = 18) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
