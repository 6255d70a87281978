"""The parts of a trainer and its options, as tables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead import losses
from multihead._display.tables import as_text
from multihead._ground.layers import renamed


class Part(NamedTuple):
    """A module of a trainer.

    Attributes:
        name: `"encoder"`, or the head's name.
        kind: The class of the module.
        parameters: Its number of parameters; None before it is built.
        trained: How many of them are trained; None before it is built.
    """

    name: str
    kind: str
    parameters: int | None
    trained: int | None

    @property
    def size(self) -> str:
        """The number of parameters, in words."""
        if self.parameters is None:
            return "not built yet"
        return (
            f"{self.parameters:,}" if self.trained == self.parameters else f"{self.parameters:,} ({self.trained:,} trained)"
        )

    @property
    def in_words(self) -> str:
        """The size, in words."""
        return self.size if self.parameters is None else f"{self.size} parameters"


def part(name: str, module: Any, rate: Any) -> Part:
    """A module with its size.

    Args:
        name: `"encoder"`, or the head's name.
        module: The module.
        rate: The factor of its learning rate.
    """
    is_built = getattr(module, "built", True)
    total, trained = (sum(_size(v) for v in getattr(module, each, [])) for each in ("weights", "trainable_weights"))
    kind = type(module).__name__ if not inspect.isfunction(module) else "function"
    return Part(name, kind, total if is_built else None, (0 if rate == 0 else trained) if is_built else None)


def _size(variable: Any) -> int:
    return int(tf.TensorShape(variable.shape).num_elements() or 0)


def parts_of(trainer: Any) -> list[Part]:
    """The encoder, and the heads' modules."""
    rate = 1.0 if trainer.options is None else trainer.options.encoder_learning_rate_multiplier
    heads = [part(name, head.module, head.learning_rate_multiplier) for name, head in trainer.heads.items()]
    return [part("encoder", trainer.encoder, rate), *heads]


def described(method: Any) -> str:
    """A method with the options that differ from its defaults: `"CAGrad(c=0.5)"`."""
    defaults = {name: each.default for name, each in inspect.signature(type(method).__init__).parameters.items()}
    config = {name: value for name, value in method.get_config().items() if name in defaults and name != "name"}
    options = [f"{name}={value!r}" for name, value in config.items() if value != defaults[name]]
    return f"{type(method).__name__}({', '.join(options)})" if options else type(method).__name__


def loss_of(head: Any) -> str:
    """The name of a head's loss."""
    return "" if head.loss is None else losses.get(head.loss).name


def weight_of(head: Any) -> str:
    """A head's weight, in words."""
    if head.loss is None:
        return "not trained"
    return "a function of the step" if callable(head.weight) else f"{float(head.weight):g}"


def factor_of(rate: Any) -> str:
    """A factor of the learning rate, in words."""
    if isinstance(rate, (int, float)):
        return "frozen" if rate == 0 else f"{rate:g}"
    return "a function of the step" if inspect.isroutine(rate) else type(rate).__name__


def update_of(trainer: Any) -> list[tuple[str, str]]:
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


def balancing_of(trainer: Any) -> str:
    """How and where the heads' gradients are combined, in words."""
    options = trainer.options
    if options is None or options.balancer is None:
        return "plain sum of the heads' gradients"
    every = "" if options.balance_every == 1 else f", solved in every {options.balance_every}th update"
    return f"{described(options.balancer)}, at the {options.balance_at}{every}"


def passes_of(trainer: Any) -> str | None:
    """How often each batch, or micro-batch, runs through the encoder, in words.

    None for a trainer that is not built, and where it is once forward and once backward.
    """
    options, spec = trainer.options, trainer.update_spec
    if spec is None:
        return None
    passes = spec.passes(options.gradient_accumulation_steps, eagerly=trainer.run_eagerly, in_xla=bool(trainer.jit_compile))
    if passes.num_forward == 1 and not passes.per_head:
        return None
    words = "forward once and backward once for each head" if passes.per_head else "forward twice and backward once"
    words += ", or once where coefficients are reused" if passes.may_reuse else ""
    return f"{words}, for each micro-batch" if options.gradient_accumulation_steps * options.micro_batches > 1 else words


def _optimizer(optimizer: Any) -> str:
    rate = optimizer.learning_rate
    is_number = isinstance(rate, (int, float)) or hasattr(rate, "numpy")
    name = type(getattr(optimizer, "inner_optimizer", optimizer)).__name__
    return f"{name}, learning rate {float(rate):.4g}" if is_number else f"{name}, learning rate {type(rate).__name__}"


def tables(trainer: Any) -> list[tuple[str, list[str], list[list[str]]]]:
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
        rows.append(["together", "", f"{_total(trainer):,}", "", "", ""])
    of_modules = (f"Modules of {trainer.name!r}", ["part", "module", "parameters", "loss", "weight", "reads"], rows)
    update = update_of(trainer) or [("not compiled yet", "")]
    return [of_modules, ("One update", ["stage", ""], [list(stage) for stage in update])]


def _total(trainer: Any) -> int:
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    found = {id(v): v for module in modules for v in getattr(module, "weights", [])}
    return sum(_size(variable) for variable in found.values())


def print_summary(trainer: Any, arguments: dict[str, Any], of_keras: Callable[..., Any]) -> None:
    """Prints the tables and, if options of Keras's own summary are given, that too.

    Args:
        trainer: The trainer.
        arguments: The arguments of `summary` that were given.
        of_keras: Keras's own summary.
    """
    write = arguments.get("print_fn") or print
    for title, columns, rows in tables(trainer):
        write(as_text(title, columns, rows, numbers=("parameters",)))
    if arguments.keys() - {"print_fn"}:
        parts = [("encoder", trainer.encoder), *((name, head.module) for name, head in trainer.heads.items())]
        parts += [(name, getattr(trainer, name)) for name in ("weighting", "balancer", "head_schedule")]
        with renamed([(name, each) for name, each in parts if isinstance(each, keras.layers.Layer)]):
            of_keras(**arguments)
