"""What a run shows: its progress and its metrics."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from rich.table import Table

from examples._command_line import shown

WIDTH = 79


class Clock:
    """Estimates the time that is left of so many updates, from that of the updates so far."""

    def __init__(self, updates: int) -> None:
        self.updates, self.done, self._begun = updates, 0, time.perf_counter()

    def __str__(self) -> str:
        seconds = (time.perf_counter() - self._begun) / max(self.done, 1) * max(self.updates - self.done, 0)
        return f"{seconds // 60:.0f}:{int(seconds % 60):02} left"


class Progress(keras.callbacks.Callback):
    """Prints a line for each epoch, with each head's accuracy or loss; on a terminal, the line of the epoch changes."""

    def __init__(self, clock: Clock, name: str = "", *, quiet: bool = False) -> None:
        super().__init__()
        self.clock, self.name, self.quiet = clock, name, quiet
        self._epoch, self._shown = 0, 0.0

    def get_run_state(self) -> dict[str, Any]:
        """Nothing: the times are of this process."""
        return {}

    def set_run_state(self, state: dict[str, Any]) -> None:
        """Nothing is restored in a run that goes on."""

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch + 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.clock.done += 1
        if sys.stdout.isatty() and not self.quiet and time.perf_counter() - self._shown > 0.5:
            self._shown = time.perf_counter()
            print(f"\r{self.line(logs)}", end="", flush=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.quiet:
            print(f"\r{self.line(logs)}" if sys.stdout.isatty() else self.line(logs).rstrip(), flush=True)

    def line(self, logs: Any) -> str:
        """For example `plain sum    epoch  3/8  reply 0.62  price 0.81  1:10 left`; of validation data, if there are any."""
        epochs = str(self.params["epochs"])
        parts = [f"{self.name:11}" if self.name else "", f"epoch {self._epoch:{len(epochs)}}/{epochs}"]
        for head in self.model.heads:
            names = [f"{prefix}{head}_{kind}" for prefix in ("val_", "") for kind in ("token_accuracy", "accuracy", "loss")]
            name = next((name for name in names if name in (logs or {})), None)
            parts += [f"{head}{' loss' * name.endswith('loss')} {shown(logs[name], '.2f')}"] if name else []
        left = f"  {self.clock}"
        return f"{'  '.join(filter(None, parts))[: WIDTH - len(left)]}{left}".ljust(WIDTH)


def replies(rows: Sequence[tuple[str, str, str]], copied: Callable[[list[str]], list[list[str]]], most: int = 10) -> str:
    """A few replies, wrong ones first, with what was copied; `rows` are texts, references and replies.

    Rows without a reference are left out.
    """
    ordered = sorted((row for row in rows if row[1].strip()), key=lambda row: row[1].split() == row[2].split())[:most]
    lines = []
    for (text, wanted, received), words in zip(ordered, copied([text for text, _, _ in ordered])):
        verdict = "right" if wanted.split() == received.split() else "wrong"
        # A decoder that has hardly been trained may repeat a word until its reply is full.
        short = [textwrap.shorten(each, 3 * WIDTH, placeholder=" ...") for each in (received, " ".join(words))]
        lines += [f"{verdict}  {text}", f"       {wanted}"] + [f"    -> {short[0]}"] * (verdict == "wrong")
        lines += [f"       copied: {short[1]}"] if words else []
    return "\n".join(lines)


def metrics_table(splits: Mapping[str, Mapping[str, float]]) -> Table:
    """A table with one row per metric and one column per split."""
    table = Table("metric", *splits)
    for name in dict.fromkeys(name for metrics in splits.values() for name in metrics):
        table.add_row(name, *(shown(metrics.get(name, math.nan), ".4g") for metrics in splits.values()))
    return table
