"""What the benchmarks of speed share: flags, ways that take turns, other processes that stand still, and tables."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from examples._command_line import Parser, whole

ROOT = Path(__file__).resolve().parents[2]
RESULTS = Path(__file__).resolve().parent / "results"


def parser_of(name: str, text: str | None, *, rounds: int, steps: int | None = None) -> Parser:
    """A parser with the flags that all benchmarks have.

    Args:
        name: The name of the benchmark.
        text: Its docstring.
        rounds: The default number of rounds.
        steps: The default number of steps of each way in a round; None if the benchmark has no such flag.
    """
    parser = Parser(f"benchmarks {name}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=whole(1), default=rounds, metavar="N", help=f"rounds (default: {rounds})")
    if steps is not None:
        parser.add_argument(
            "--steps", type=whole(1), default=steps, metavar="N", help=f"steps in a round (default: {steps})"
        )
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    return parser


def parsed(parser: Parser, arguments: Sequence[str] | None, **quick: Any) -> argparse.Namespace:
    """The flags; with `--quick` one round, one step and the given values.

    Args:
        parser: The parser.
        arguments: The command line.
        **quick: Values of flags with `--quick`.
    """
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update({"rounds": 1, **({"steps": 1} if hasattr(options, "steps") else {}), **quick})
    return options


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


def print_ratios(title: str, seconds: Mapping[str, Sequence[float]], digits: int = 2) -> None:
    """Prints a table of times relative to the first way, whose milliseconds stand in the title."""
    first = 1e3 * statistics.median(next(iter(seconds.values())))
    rows = [[name, f"{value:.{digits}f}"] for name, value in ratios(seconds).items()]
    print("\n" + markdown([f"{title} ({first:.3g} ms)", "ratio"], rows), end="", flush=True)


def versions() -> str:
    """The versions of TensorFlow and Keras."""
    import keras
    import tensorflow as tf

    return f"TensorFlow {tf.__version__}, Keras {keras.__version__}"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are aligned to the right."""
    bars = ["---", *["---:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, bars, *rows))


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file; none if there is no such file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def filled(page: str, command: str, table: str) -> str:
    """A page with a table between `<!-- command -->` and `<!-- end -->`.

    Args:
        page: The text of the page.
        command: What prints the table.
        table: The table, in Markdown.
    """
    begin, end = f"<!-- {command} -->\n", "<!-- end -->\n"
    before, mark, rest = page.partition(begin)
    _, closed, after = rest.partition(end)
    return f"{before}{begin}\n{table}\n{end}{after}" if mark and closed else page
