"""Times of variants that alternate, so that changes in the machine's speed affect all of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def finished(result: Any) -> None:
    """Waits for a result."""
    tf.nest.map_structure(lambda t: t.numpy() if hasattr(t, "numpy") else t, result)


def measure(runs: Mapping[str, Callable[[], Any]], rounds: int, steps: int, clock: Callable[[], float]) -> dict[str, float]:
    """The median over rounds of each variant's time relative to the first, and `milliseconds`, the time of the first.

    Args:
        runs: What makes a step of each variant; each is run twice before, since the first run traces.
        rounds: The number of rounds.
        steps: The steps of each variant in a round.
        clock: Returns seconds: `time.perf_counter`, or `time.process_time`.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in (*runs.values(), *runs.values()):
        finished(run())
    for _ in range(rounds):
        for name, run in runs.items():
            start = clock()
            for _ in range(steps):
                result = run()
            finished(result)
            times[name].append((clock() - start) / steps)
    first = next(iter(times.values()))
    ratios = {name: statistics.median(a / b for a, b in zip(values, first)) for name, values in times.items()}
    return {**ratios, "milliseconds": 1e3 * statistics.median(first)}
