"""Callbacks: a progress bar with metrics per head, and restoring the weights of the best epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_EVERY_SECONDS = 0.2


class ProgressBar(keras.callbacks.Callback):
    """Shows the progress of an epoch, and each head's loss, share of the encoder's update and accuracy.

    Args:
        console: The console to print to.
        steps: Batches per epoch.
    """

    def __init__(self, console: Console, steps: int) -> None:
        super().__init__()
        self.console = console
        self.steps = steps
        self._started = self._shown = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )

    def get_run_state(self) -> dict[str, Any]:
        """Nothing: the times and the bar are of this process."""
        return {}

    def set_run_state(self, state: dict[str, Any]) -> None:
        """Nothing is restored in a resumed run."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._started = time.perf_counter()
        self._progress.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        name = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._task = self._progress.add_task(name, total=self.steps, figures="")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if now - self._shown > _EVERY_SECONDS:
            self._shown = now
            self._progress.update(self._task, completed=batch + 1, figures=_figures(logs, self.model.heads))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.remove_task(self._task)
        seconds = time.perf_counter() - self._started
        line = f"epoch {epoch + 1}/{self.params['epochs']}  {seconds:.0f} s  {_figures(logs, self.model.heads)}"
        self.console.print(line, soft_wrap=True, highlight=False)

    def on_train_end(self, logs: Any = None) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar from the screen."""
        self._progress.stop()


class BestWeights(keras.callbacks.Callback):
    """Stores the weights of the epoch with the lowest validation loss, and stops when it no longer decreases.

    Keras's `EarlyStopping` also stores and restores the number of updates; this callback only the trained variables.

    Args:
        patience: Number of epochs without a lower loss after which to stop; None trains for all epochs.
    """

    def __init__(self, patience: int | None) -> None:
        super().__init__()
        self.patience = patience
        self.best_epoch = 0
        """The best epoch, counted from 1; 0 before the end of the first epoch."""
        self._loss = math.inf
        self._values: list[np.ndarray] = []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        loss = logs["val_loss"] if math.isfinite(logs["val_loss"]) else math.inf
        if loss < self._loss or not self._values:
            self._loss, self.best_epoch = loss, epoch + 1
            self._values = [variable.numpy() for variable in self.model.trainable_variables]
        elif self.patience is not None and epoch + 1 - self.best_epoch >= self.patience:
            self.model.stop_training = True

    def restore(self) -> None:
        """Restores the weights of the best epoch; does nothing before the end of the first epoch."""
        for variable, value in zip(self.model.trainable_variables, self._values):
            variable.assign(value)


def _figures(logs: Any, heads: Iterable[str]) -> str:
    """`reply loss 0.21 share 62 % token_accuracy 0.95 (0.96) | price ...`, with validation metrics in parentheses."""
    logs = logs or {}
    parts = []
    for head in [name for name in heads if f"{name}_loss" in logs]:
        part = [head, f"loss {_pair(logs, f'{head}_loss')}"]
        if f"{head}_share" in logs:
            part.append(f"share {logs[f'{head}_share']:.0%}")
        part += [
            f"{key.removeprefix(f'{head}_').replace('_', ' ')} {_pair(logs, key)}"
            for key in logs
            if key.startswith(f"{head}_") and key.endswith("accuracy")
        ]
        parts.append(" ".join(part))
    return " | ".join(parts)


def _pair(logs: Any, key: str) -> str:
    validation = f" ({logs[f'val_{key}']:.3f})" if f"val_{key}" in logs else ""
    return f"{logs[key]:.3f}{validation}"
