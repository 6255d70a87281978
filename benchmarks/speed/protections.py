"""What the protections of an update cost a small step, which a custom training loop does without.

The step of two small dense heads of `step`, with the losses only in the logs, relative to the custom loop: as it
is, without each of its protections, and without all. Apart from the check of labels they cannot be turned off: functions of
the library are replaced while the step is traced. Each ratio is the median over rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import tensorflow as tf

from benchmarks.speed._record import Line, Table, finish, relative_table, rows_of
from benchmarks.speed._shared import in_turns, parsed, parser_of
from benchmarks.speed.step import by_hand, small_workload, step_of_trainer
from multihead._update import apply, faults

LABELS = "the check of labels"
REPLACED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "what keeps the variables and slots of a head without labels": (apply, "_restored", lambda *_: nullcontext()),
    "the condition around the optimizer": (tf, "cond", lambda _, then, otherwise: then()),
    "the test of gradients for finite values": (faults, "is_finite", lambda _: tf.constant(True)),
}
"""By protection: where a function stands, its name, and what takes its place."""


def without(names: Sequence[str]) -> tuple[Any, Any]:
    """The training step without some protections, traced, and its batch."""
    with ExitStack() as stack:
        for name in names:
            if name != LABELS:
                stack.enter_context(patch.object(*REPLACED[name]))
        step, batch = step_of_trainer(small_workload, telemetry=None, check_labels=LABELS not in names)
        step(batch)
    return step, batch


def tables(lines: Sequence[Line]) -> list[Table]:
    return [relative_table(lines, "A step without", "without")]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(parser_of("protections", __doc__, rounds=25, steps=100), arguments)
    protections = [LABELS, *REPLACED]
    variants = {"nothing": [], **{name: [name] for name in protections}, "all four": protections}
    runs = {"custom training loop": by_hand(small_workload)}
    runs |= {name: partial(*without(names)) for name, names in variants.items()}
    finish(options, rows_of(in_turns(runs, options.rounds, options.steps), "without"), tables)
