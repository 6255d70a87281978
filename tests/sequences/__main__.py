"""Random sequences for some minutes: `python -m tests.sequences --minutes 60`.

Prints how many sequences, calls and updates were tried, and of each fault the smallest sequence that shows it; Ctrl-C ends it.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import traceback
import warnings
from contextlib import suppress
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import keras
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test
from tensorflow.python.framework import ops

from tests.helpers import prepared  # noqa: F401 - TensorFlow as the tests want it
from tests.sequences.machine import Machine


def name_of(error: BaseException) -> str:
    """What tells a fault from others: the type of its error, and the beginning of the text without numbers."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "multihead" in frame.filename or "tests" in frame.filename
    ]
    place = frames[-1].name if frames else ""
    lines = [line for line in str(error).split("\n") if line and not line.startswith("Not equal to tolerance")]
    text = re.sub(r"[0-9]+", "#", lines[0] if lines else "")[:100]
    return f"{type(error).__name__} in {place}: {text}"


def free_memory(before: set[str]) -> None:
    """As after each file of the tests."""
    gradients = ops.gradient_registry._registry
    for name in set(gradients) - before:
        del gradients[name]
    keras.backend.clear_session()


def run(number: int, machine: type, steps: int, shrinks: bool) -> BaseException | None:
    """Sequences of one seed; the error of the smallest one that fails."""
    phases = [Phase.generate, Phase.shrink] if shrinks else [Phase.generate]
    options: Any = {"deadline": None, "suppress_health_check": list(HealthCheck), "database": None, "print_blob": False}
    chosen = settings(max_examples=5, stateful_step_count=steps, phases=phases, report_multiple_bugs=False, **options)
    seeded = type(f"{machine.__name__}{number}", (machine,), {})
    try:
        run_state_machine_as_test(seed(number)(seeded), settings=settings(chosen, verbosity=Verbosity.normal))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a fault
        return error
    return None


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sequences", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--steps", type=int, default=20, help="the most calls of a sequence")
    parser.add_argument("--shrink", type=float, default=60, help="seconds for making a failing sequence small")
    parser.add_argument("--eager", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--faults", type=int, default=20, help="end after so many")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    engine.MAX_SHRINKING_SECONDS = given.shrink
    machine = type("Machine", (Machine,), {"eager": {"yes": True, "no": False, "both": None}[given.eager]})
    begin, number, faults, gradients = time.monotonic(), given.seed, dict[str, str](), set(ops.gradient_registry._registry)
    with suppress(KeyboardInterrupt):
        while time.monotonic() - begin < 60 * given.minutes and len(faults) < given.faults:
            error = run(number, machine, given.steps, shrinks=given.shrink > 0)
            if error is not None and (name := name_of(error)) not in faults:
                faults[name] = "\n".join(getattr(error, "__notes__", []))
                frames = [each for each in traceback.extract_tb(error.__traceback__) if "packages" not in each.filename]
                trace = "".join(traceback.format_list(frames[-3:]))
                print(f"\nFAULT, seed {number}: {name}\n{trace}{error}\n{faults[name]}", flush=True)
            free_memory(gradients)
            number += 1
    seconds = time.monotonic() - begin
    print(
        f"Keras {keras.__version__}: {Machine.counts}, seeds {given.seed} to {number - 1}, {seconds:.0f} seconds, {len(faults)} faults"
    )
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
