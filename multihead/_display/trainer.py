"""A trainer: its parts and options as tables, and as a plot."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import keras
import tensorflow as tf

from multihead import losses
from multihead._display.drawing import GREY, colour, new_figure, title
from multihead._display.tables import as_text, needed
from multihead._ground.layers import renamed
from multihead._ground.types import Axis, Config, Figure, Function, Given, Layer, Optimizer, Trainer, Variable
from multihead._method import Method


class Part(NamedTuple):
    """A module of a trainer.

    Attributes:
        name: `"encoder"`, or the head's name.
        kind: The class of the module.
        parameters: Its number of parameters; None before it is built.
        size: The number of parameters, and of those that are trained, as text.
    """

    name: str
    kind: str
    parameters: int | None
    size: str

    @classmethod
    def of(cls, name: str, module: Layer, rate: Given) -> Part:
        """A module, which is frozen if the factor of its learning rate is 0."""
        kind = type(module).__name__ if not inspect.isfunction(module) else "function"
        if not getattr(module, "built", True):
            return cls(name, kind, None, "not built yet")
        total, trained = (sum(map(_size, getattr(module, each, []))) for each in ("weights", "trainable_weights"))
        trained = 0 if rate == 0 else trained
        return cls(name, kind, total, f"{total:,}" if trained == total else f"{total:,} ({trained:,} trained)")

    def __str__(self) -> str:
        return self.size if self.parameters is None else f"{self.size} parameters"


def _size(variable: Variable) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0)


def parts_of(trainer: Trainer) -> list[Part]:
    """The encoder, and the heads' modules."""
    rate = 1.0 if trainer.options is None else trainer.options.encoder_learning_rate_multiplier
    heads = [Part.of(name, head.module, head.learning_rate_multiplier) for name, head in trainer.heads.items()]
    return [Part.of("encoder", trainer.encoder, rate), *heads]


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


def factor_of(rate: Given) -> str:
    """A factor of the learning rate, as text."""
    if isinstance(rate, (int, float)):
        return "frozen" if rate == 0 else f"{rate:g}"
    return "a function of the step" if inspect.isroutine(rate) else type(rate).__name__


def update_of(trainer: Trainer) -> list[tuple[str, str]]:
    """The stages of an update, as pairs of a name and a description; empty for a trainer that is not compiled."""
    options = trainer.options
    if options is None:
        return []
    replicas = trainer.distribute_strategy.num_replicas_in_sync
    batches = "1 batch" if options.gradient_accumulation_steps == 1 else f"{options.gradient_accumulation_steps} batches"
    batches += f", each in {options.micro_batches} micro-batches" if options.micro_batches > 1 else ""
    batches += f", over {replicas} replicas" if replicas > 1 else ""
    schedule = described(options.head_schedule)
    passes = passes_of(trainer)
    return [
        ("examples", batches),
        ("heads that train", "all, in every update" if schedule == "Together" else schedule),
        ("total loss", "sum of weight * loss" if options.weighting is None else described(options.weighting)),
        ("encoder's gradient", balancing_of(trainer)),
        *([] if passes is None else [("encoder's passes", passes)]),
        ("clipping", "none" if options.clip is None else repr(options.clip)),
        ("optimizer", _optimizer(trainer.optimizer)),
        ("encoder's learning rate", f"factor {factor_of(options.encoder_learning_rate_multiplier)}"),
        ("telemetry", "none" if options.telemetry is None else options.telemetry),
    ]


def balancing_of(trainer: Trainer) -> str:
    """How and where the heads' gradients are combined, as text."""
    options = trainer.options
    if options is None or options.balancer is None:
        return "plain sum of the heads' gradients"
    every = "" if options.balance_every == 1 else f", solved in every {options.balance_every}th update"
    return f"{described(options.balancer)}, at the {options.balance_at}{every}"


def passes_of(trainer: Trainer) -> str | None:
    """How often each batch, or micro-batch, runs through the encoder, as text.

    None for a trainer that is not built, and where it is once forward and once backward.
    """
    options, spec = trainer.options, trainer.update_spec
    if spec is None:
        return None
    way = spec.way
    if not way.per_head:
        return None
    words = "forward once and backward once for each head"
    words += ", or once where coefficients are reused" if way.may_reuse and not trainer.jit_compile else ""
    return f"{words}, for each micro-batch" if options.gradient_accumulation_steps * options.micro_batches > 1 else words


def _optimizer(optimizer: Optimizer) -> str:
    rate = optimizer.learning_rate
    is_number = isinstance(rate, (int, float)) or hasattr(rate, "numpy")
    name = type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    return f"{name}, learning rate {float(rate):.4g}" if is_number else f"{name}, learning rate {type(rate).__name__}"


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
        rows.append(["together", "", f"{sum(map(_size, variables.values())):,}", "", "", ""])
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
    middle = height / 2
    lowest = min(-0.1, middle - 0.85)
    _box(axis, (0, middle - 0.6), 1.2, "encoder", f"{encoder.kind}\n{encoder}", edge="#333333")
    axis.annotate("inputs", (0, middle), (-0.9, middle), ha="center", va="center", color=GREY, arrowprops=_arrow(GREY))
    node = WIDTH + 1.2
    axis.annotate("", (node, middle), (WIDTH, middle), arrowprops=_arrow("#333333"))
    axis.text((WIDTH + node) / 2, middle + 0.12, "representation", ha="center", va="bottom", fontsize=8, color=GREY)
    for k, (found, head) in enumerate(zip(of_heads, heads.values())):
        _draw_head(axis, found, head, (node, middle), height - HEIGHT - k * (HEIGHT + GAP), colour(k))
    axis.plot([node], [middle], "o", color="#333333", ms=9, zorder=3)
    point = (WIDTH / 2, middle - 0.6) if _balances_parameters(trainer) else (node, middle)
    dotted = {"arrowstyle": "-", "color": GREY, "ls": ":"}
    of_balancing = balancing_of(trainer).replace(", ", ",\n")
    how = f"heads' gradients:\n{of_balancing}"
    axis.annotate(how, point, (point[0], lowest), ha="center", va="top", fontsize=9, arrowprops=dotted)
    axis.set_xlim(-1.4, node + 1.3 + WIDTH + 2.4)
    axis.set_ylim(lowest - 0.65, height + 0.1)
    axis.set_axis_off()
    total = sum(each.parameters or 0 for each in (encoder, *of_heads))
    stages = dict(update_of(trainer))
    of_update = f"; one update is of {stages['examples']}, by {stages['optimizer']}" if stages else ""
    detail = f"{total:,} parameters{of_update}"
    number = f"{len(heads)} heads" if len(heads) > 1 else "1 head"
    title(axis, f"One encoder, {number}", detail)
    return figure


def _balances_parameters(trainer: Trainer) -> bool:
    options = trainer.options
    return options is not None and options.balancer is not None and options.balance_at == "parameters"


def _draw_head(axis: Axis, found: Part, head: Given, node: tuple[float, float], bottom: float, edge: str) -> None:
    """The box of a head, the arrow to it from the representation, and its loss."""
    left, centre = node[0] + 1.3, bottom + HEIGHT / 2
    axis.annotate("", (left, centre), node, arrowprops=_arrow(edge))
    if head.reads is not None:
        axis.text(left - 0.1, centre + 0.08, _short(repr(head.reads)), ha="right", va="bottom", fontsize=8, color=GREY)
    _box(axis, (left, bottom), HEIGHT, found.name, f"{found.kind}, {found}", edge=edge)
    loss, right = f"{loss_of(head)}\nweight {weight_of(head)}" if head.loss is not None else "not trained", left + WIDTH
    axis.annotate(loss, (right, centre), (right + 0.5, centre), va="center", fontsize=9, arrowprops=_arrow(GREY, "<-"))


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
