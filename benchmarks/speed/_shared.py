"""What the benchmarks of speed share: flags, ways that take turns, and other processes that stand still."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples._command_line import Parser, whole

ROOT = Path(__file__).resolve().parents[2]


MEASURED = ("multihead", "models", "benchmarks", "examples")
"""Folders with the code that is measured."""


def parser_of(name: str, text: str | None, *, rounds: int | None, steps: int | None = None) -> Parser:
    """A parser with the flags that all benchmarks have.

    Args:
        name: The name of the benchmark.
        text: Its docstring.
        rounds: The default number of rounds; None if nothing is measured, so that nothing can be recorded either.
        steps: The default number of steps of each way in a round; None if the benchmark has no such flag.
    """
    parser = Parser(f"benchmarks {name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if rounds is not None:
        parser.add_argument("--rounds", type=whole(1), default=rounds, metavar="N", help=f"rounds (default: {rounds})")
        parser.add_argument(
            "--record", action="store_true",
            help=f"append what is measured to benchmarks/speed/results/{name}.jsonl; `python -m benchmarks write` "
            "makes the tables of the pages from it",
        )  # fmt: skip
        parser.set_defaults(program=name)
    if steps is not None:
        parser.add_argument(
            "--steps", type=whole(1), default=steps, metavar="N", help=f"steps in a round (default: {steps})"
        )
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    return parser


def parsed(parser: Parser, arguments: Sequence[str] | None, **quick: Any) -> argparse.Namespace:
    """The flags, and `command` and `commit` for a recorded line; with `--quick` one round, one step and the given values.

    Args:
        parser: The parser.
        arguments: The command line.
        **quick: Values of flags with `--quick`.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if getattr(options, "record", False) and options.quick:
        parser.error("`--record` must not be given with `--quick`, which shows only that a program runs. Omit one of them.")
    if hasattr(options, "record"):
        words = [word for word in given if word != "--record"]
        options.command = shlex.join(["python", "-m", "benchmarks", options.program, *words])
        try:
            options.commit = commit() if options.record else None
        except RuntimeError as error:
            parser.error(str(error))
    if options.quick:
        vars(options).update({**{name: 1 for name in ("rounds", "steps") if hasattr(options, name)}, **quick})
    return options


def commit() -> str:
    """The commit whose code is measured.

    Raises:
        RuntimeError: The code differs from the commit, or git has none.
    """

    def git(*command: str) -> str:
        done = subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"`--record` writes which commit is measured, and git knows none: {done.stderr.strip()}")
        return done.stdout.rstrip()

    changed = git("status", "--porcelain", "--", *(f"{folder}/*.py" for folder in MEASURED))
    if changed:
        raise RuntimeError(f"`--record` writes which commit is measured. Commit the files that differ from it: {changed}")
    return git("rev-parse", "--short=8", "HEAD")


def finished(result: Any) -> None:
    """Waits for a result."""
    import tensorflow as tf

    tf.nest.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else t, result)


def in_turns(
    runs: Mapping[str, Callable[[], Any]],
    rounds: int,
    steps: int | Mapping[str, int] = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of a step of each way, `[rounds]`. The ways take turns, so that a change of the machine's speed affects all.

    Args:
        runs: By name, what makes a step; each is called twice before, since the first call traces.
        rounds: The number of rounds. Each begins with another way.
        steps: How many steps a way makes in a round, for all ways or by name.
        clock: Returns seconds: `time.perf_counter`, or `time.process_time`, on which other programs have less effect.
    """
    for run in (*runs.values(), *runs.values()):
        finished(run())
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            count = steps if isinstance(steps, int) else steps[name]
            start = clock()
            for _ in range(count):
                result = runs[name]()
            finished(result)
            seconds[name].append((clock() - start) / count)
    return seconds


def enough_steps(runs: Mapping[str, Callable[[], Any]], least: float) -> dict[str, int]:
    """By name, how many steps of a way take so many seconds at least; the first call, which traces, is not timed."""
    counts = {}
    for name, run in runs.items():
        finished(run())
        start = time.perf_counter()
        finished(run())
        counts[name] = min(100, max(1, int(least / (time.perf_counter() - start))))
    return counts


def ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median over rounds of the ratio of two ways' times."""
    return statistics.median(one / other for one, other in zip(times, others, strict=True))


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The time of each way relative to the first."""
    first = next(iter(seconds.values()))
    return {name: ratio(times, first) for name, times in seconds.items()}


@contextmanager
def stopped(*processes: subprocess.Popen[Any]) -> Iterator[None]:
    """Lets no thread of some child processes run while the context lasts, so that what is timed in it runs alone.

    An idle process may take a core, too: the threads of OpenMP spin while they wait, and those of TensorFlow for a moment.
    """
    for process in processes:
        process.send_signal(signal.SIGSTOP)
        if process.returncode is None:
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)  # until all of its threads have stopped
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGCONT)


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are aligned to the right."""
    bars = ["---", *["---:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, bars, *rows))


def filled(page: str, command: str, table: str) -> str:
    """A page with a table between `<!-- command -->` and `<!-- end -->`; the page itself if it has no such marks.

    Args:
        page: The text of the page.
        command: What prints the table.
        table: The table, in Markdown.
    """
    begin, end = f"<!-- {command} -->\n", "<!-- end -->\n"
    before, mark, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}" if mark and closed else page
