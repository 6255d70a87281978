"""The same model on the same data in plain Keras, in PyTorch with TorchJD, and in this library: time per training step.

2, 4 and 8 heads, each a dense layer of 10 classes, on one encoder: two dense layers, two convolutions, a GRU or an LSTM. All
start from the same weights and see the same batches, with Adam. Keras and this library are trained by `compile` and `fit` on
arrays, with their defaults; PyTorch in eager mode by a loop over tensors. UPGrad at the parameters is what TorchJD computes;
TorchJD differentiates all heads at once or one after the other, whichever takes less time. Numbers of parameters must be
equal, and losses before the first update and over the first steps close, or it stops.

TensorFlow and PyTorch run in two processes, with the threads that they start by default. They take turns, and while one is
timed, the other one is stopped (SIGSTOP): even an idle process may keep a core busy. Each turn begins with a step that is
not timed; a ratio is the median over rounds. PyTorch is installed into an environment of its own, once; `--torch-python`
names another one.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from benchmarks.speed._peers_problem import PARAMETERS, PLAIN, REPRESENTATION, STEPS, VARIANTS, Problem
from benchmarks.speed._record import Line, Row, Table, finish, newest
from benchmarks.speed._shared import ROOT, markdown, parsed, parser_of, ratio, stopped
from examples._command_line import InputError, Parser, fail, whole

REQUIREMENTS = ("torch==2.13.0", "torchjd[quadprog-projector]==0.18.0")
HAS_BOTH = "import torch, torchjd, quadprog"
MODULES = {"TensorFlow": "benchmarks.speed._peers_keras", "PyTorch": "benchmarks.speed._peers_torch"}
LIBRARIES = {"TensorFlow": ("ours", "Keras"), "PyTorch": ("PyTorch",)}
"""The libraries in each process."""
RATIOS = {
    "Keras": (f"Keras, {PLAIN}", f"ours, {PLAIN}"),
    "PyTorch": (f"PyTorch, {PLAIN}", f"ours, {PLAIN}"),
    "TorchJD's UPGrad": (f"PyTorch, {PARAMETERS}", f"ours, {PARAMETERS}"),
    "TorchJD's UPGrad / ours at the representation": (f"PyTorch, {PARAMETERS}", f"ours, {REPRESENTATION}"),
}
"""What is compared: a variant, and ours."""


class Process:
    """A process that trains models of one or two libraries.

    Args:
        name: A name in `MODULES`.
        python: Its Python.
    """

    def __init__(self, name: str, python: str) -> None:
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [python, "-m", MODULES[name]], cwd=ROOT, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._stdin, self._stdout = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        self.variants = [(who, how) for who in LIBRARIES[name] for how in VARIANTS[who]]
        self.versions = self._reply()

    def ask(self, **request: Any) -> Any:
        """The reply to a request."""
        print(json.dumps(request), file=self._stdin, flush=True)
        return self._reply()

    def _reply(self) -> Any:
        line = self._stdout.readline()
        if not line:
            self._errors.seek(0)
            errors = self._errors.read()[-4000:]
            self.close()
            raise RuntimeError(f"The process of {self.process.args} has ended:\n{errors}")
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        if not self._errors.closed:
            self.process.communicate()  # closes its input
            self._errors.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def torch_python(given: Path | None, folder: Path, *, make: bool) -> str | None:
    """The Python of an environment with PyTorch and TorchJD.

    Args:
        given: The Python of `--torch-python`; None for the environment in `folder`.
        folder: The folder of the environment.
        make: Whether to make it if it is not there; otherwise the result is None.

    Raises:
        InputError: The given Python lacks one of them.
    """
    python = given or folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    found = python.exists() and subprocess.run([python, "-c", HAS_BOTH], capture_output=True, check=False).returncode == 0
    if not found and given is not None:
        raise InputError(
            f"`--torch-python` must be a Python with torch, torchjd and quadprog. Received: {given}. Install them there "
            f"with `pip install {' '.join(REQUIREMENTS)}`, or omit the option."
        )
    if not found and make:
        print(f"installing {' and '.join(REQUIREMENTS)} in {folder}", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
    return str(python) if found or make else None


@contextmanager
def on_disk(problem: Problem) -> Iterator[str]:
    """The path of a file of the problem's arrays."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "problem.npz")
        np.savez(path, **problem.arrays())  # type: ignore[arg-type]
        yield path


def alone(process: Process, processes: Sequence[Process], **request: Any) -> Any:
    """The reply of a process to a request, during which the other ones are stopped."""
    with stopped(*(each.process for each in processes if each is not process)):
        return process.ask(**request)


def measure(processes: Sequence[Process], problem: Problem, rounds: int) -> dict[str, Any]:
    """One line of the results: the times of each variant of a problem.

    Args:
        processes: The processes, the one with this library first.
        problem: The problem.
        rounds: The number of rounds.
    """
    owner: dict[str, Process] = {}
    parameters: dict[str, int] = {}
    with on_disk(problem) as path:
        for process in processes:
            found = alone(process, processes, problem=problem, path=path, variants=process.variants)
            owner.update(dict.fromkeys(found, process))
            parameters.update(found)
    first = {name: process.ask(train=name, steps=0)["loss"] for name, process in owner.items()}
    epoch = {name: process.ask(train=name, steps=problem.steps)["loss"] for name, process in owner.items()}
    check_same(problem, parameters, first, epoch)
    times: dict[str, dict[str, list[float]]] = {kind: {name: [] for name in owner} for kind in ("seconds", "processor")}
    names = list(owner)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found = alone(owner[name], processes, train=name, steps=problem.steps)
            for kind, values in times.items():
                values[name].append(float(f"{found[kind]:.4g}"))
    return {
        "model": problem.model,
        "heads": problem.heads,
        "parameters": parameters[f"ours, {PLAIN}"],
        "first_loss": first,
        "epoch_loss": epoch,
        **times,
    }


def check_same(problem: Problem, parameters: dict[str, int], first: dict[str, float], epoch: dict[str, float]) -> None:
    """Raises an error if the models of a problem are not the same model.

    Args:
        problem: The problem.
        parameters: The number of trainable parameters by variant.
        first: The loss before the first update by variant.
        epoch: The mean loss over an epoch after it by variant. Those of the plain sum must be close.
    """
    plain = {name: value for name, value in epoch.items() if name.endswith(PLAIN)}
    (shared, loss, later) = (next(iter(each.values())) for each in (parameters, first, plain))
    if (
        set(parameters.values()) != {shared}
        or any(abs(value / loss - 1.0) > 1e-4 for value in first.values())
        or any(abs(value / later - 1.0) > 1e-2 for value in plain.values())
    ):
        raise RuntimeError(
            f"The models of {problem.model} with {problem.heads} heads are not the same. Parameters: {parameters}. Losses "
            f"before the first update: {first}; over an epoch: {epoch}."
        )


def tables(lines: Sequence[Line]) -> list[Table]:
    return [Table("", [line], markdown_of(line["rows"])) for line in newest(lines, ["model"], {})]


def markdown_of(rows: Sequence[Row]) -> str:
    """A table in Markdown: times of the others divided by ours, with those of processor time in brackets."""
    made = []
    for row in rows:
        seconds = row["seconds"]
        cells = []
        for one, other in RATIOS.values():
            both = [ratio(row[kind][one], row[kind][other]) for kind in ("seconds", "processor") if one in seconds]
            cells.append("{:.2f} ({:.2f})".format(*both) if both else "")
        ours = 1e3 * statistics.median(seconds[f"ours, {PLAIN}"])
        made.append([row["model"], f"{row['heads']}", f"{row['parameters']:,}", f"{ours:.1f}", *cells])
    columns = ["model", "heads", "parameters", "ours, ms", *(name if "/" in name else f"{name} / ours" for name in RATIOS)]
    return markdown(columns, made)


def parser() -> Parser:
    made = parser_of("peers", __doc__, rounds=9)
    add = made.add_argument
    add("--models", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="MODEL", help="models (default: all)")
    add("--heads", nargs="+", type=whole(2), default=[2, 4, 8], metavar="N", help="numbers of heads (default: 2 4 8)")
    add("--torch-python", type=Path, metavar="PATH", help="Python of an environment with torch and torchjd")
    add("--cache", type=Path, default=Path("runs/torch"), metavar="FOLDER",
        help="folder of the environment that is made otherwise (default: runs/torch)")  # fmt: skip
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(parser(), arguments, models=["dense"], heads=[2])
    try:
        python = torch_python(options.torch_python, options.cache, make=not options.quick)
    except InputError as error:
        return fail("benchmarks peers", str(error))
    if python is None:
        print(f"without PyTorch, which is not in {options.cache}: run it without --quick, or name one by --torch-python")
    pythons = {"TensorFlow": sys.executable, **({} if python is None else {"PyTorch": python})}
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(name, pythons[name])) for name in pythons]
        versions = {name: version for process in processes for name, version in process.versions.items()}
        steps = dict.fromkeys(STEPS, 3) if options.quick else STEPS
        problems = [Problem(model, heads, steps[model]) for model in options.models for heads in options.heads]
        rows = [measure(processes, problem, options.rounds) for problem in problems]
    finish(options, rows, tables, versions)
    return 0
