"""What the protections of an update cost a small step, which a custom training loop does without.

    python -m benchmarks.protections --help

The step of two small dense heads of `benchmarks.step`, with the losses only in the logs, relative to the custom loop: as it
is, without each of its protections, and without all. Apart from the check of labels they cannot be turned off: functions of
the library are replaced while the step is traced. The variants alternate; each ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest.mock import patch

import keras
import tensorflow as tf

from benchmarks._timing import measure
from benchmarks.step import by_hand, small_workload, step_of_trainer
from multihead._update import apply, faults

LABELS = "the check of labels"
REPLACED: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "what keeps the variables and slots of a head without labels": (apply, "_may_stay", lambda *_: []),
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


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="number of rounds (default: 25)")
    parser.add_argument("--steps", type=int, default=100, help="steps per round and variant (default: 100)")
    parser.add_argument("--quick", action="store_true", help="one round of one step, to see that it runs")
    options = parser.parse_args(arguments)
    protections = [LABELS, *REPLACED]
    variants = {"nothing": [], **{name: [name] for name in protections}, "all four": protections}
    runs = {"custom training loop": by_hand(small_workload)}
    runs |= {name: partial(*without(names)) for name, names in variants.items()}
    rounds, steps = (1, 1) if options.quick else (options.rounds, options.steps)
    ratios = measure(runs, rounds, steps, time.perf_counter)
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}; a step without, relative to the custom loop")
    print(f"\n| without ({ratios.pop('milliseconds'):.2f} ms) | ratio |\n| --- | ---: |")
    for name in variants:
        print(f"| {name} | {ratios[name]:.2f} |")


if __name__ == "__main__":
    main()
