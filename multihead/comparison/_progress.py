"""The progress of a comparison: a line for every run."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from multihead._display.tables import plain
from multihead.comparison._data import VALIDATION
from multihead.comparison._study import TUNE, Job


class Progress:
    """Prints a line when a run is done, with an estimate of the time that is left.

    Args:
        verbose: 0 prints nothing.
    """

    def __init__(self, verbose: int) -> None:
        self._verbose = verbose
        self._total = self._known = self._done = 0
        self._since = time.monotonic()

    def expect(self, updates: int) -> None:
        """Begins, with the number of updates of all runs."""
        self._total, self._since = updates, time.monotonic()

    def say(self, text: str) -> None:
        """Prints a line."""
        if self._verbose:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    def skip(self, job: Job) -> None:
        """A run that was found in the file."""
        self._known += job.updates

    def done(self, job: Job, line: Mapping[str, Any], metrics: Mapping[str, Sequence[str]]) -> None:
        """A run that has been computed."""
        self._done += job.updates
        spent = time.monotonic() - self._since
        left = spent / self._done * max(self._total - self._known - self._done, 0)
        values = line["metrics"].get(VALIDATION, {})
        names = [metric for metric, _ in metrics.values() if values.get(metric) is not None]
        found = ", ".join(f"{name} {plain(values[name])}" for name in names) or "not finite"
        which = f"rate {job.rate:g}" if job.kind == TUNE else f"seed {job.seed}"
        share = (self._known + self._done) / max(self._total, 1)
        self.say(f"{share:4.0%} {job.label}, {which}: {found} ({line['seconds']:.0f} s; about {_duration(left)} left)")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{rest} s"
