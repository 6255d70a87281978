"""The callbacks of a run that is saved, and their state as JSON with arrays: no code, and no pickle."""

from __future__ import annotations

import csv
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import choose_direction, steps_at_once, tensor_variable
from multihead._ground.random import random_numbers, restore_random_numbers
from multihead._ground.types import Callback, Config, Given, Logs, Nested, Trainer
from multihead._runs.checkpoint import Checkpoint
from multihead._runs.files import replace_text
from multihead._runs.snapshot import Snapshot

_LEFT_OUT = {"model", "params", "validation_data"}


class _NoData(Exception):
    """A value that is neither numbers, strings nor arrays."""


def _encode(value: Given, arrays: dict[str, np.ndarray], name: str) -> Given:
    """A value as JSON; arrays are added to `arrays`, under names that begin with `name`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype != object:
        key = f"{name}/{len(arrays)}"
        arrays[key] = np.asarray(value)
        return {"kind": "scalar" if isinstance(value, np.generic) else "array", "name": key}
    if isinstance(value, dict):
        items = [[_encode(part, arrays, name) for part in item] for item in value.items()]
        return {"kind": "dict", "items": items}
    if type(value) in (list, tuple):
        return {"kind": type(value).__name__, "items": [_encode(each, arrays, name) for each in value]}
    raise _NoData


def _decode(value: Given, arrays: Mapping[str, np.ndarray]) -> Given:
    """The value that `_encode` has written."""
    if not isinstance(value, dict):
        return value
    if value["kind"] in ("array", "scalar"):
        array = arrays[value["name"]]
        return array[()] if value["kind"] == "scalar" else array.copy()
    items = value["items"]
    if value["kind"] == "dict":
        return {_decode(key, arrays): _decode(each, arrays) for key, each in items}
    return (list if value["kind"] == "list" else tuple)(_decode(each, arrays) for each in items)


def _encoded(callback: Callback, place: int) -> dict[str, tuple[Given, dict[str, np.ndarray]]]:
    """The attributes of a callback that can be written as JSON, each with its own arrays."""
    state = callback.get_run_state() if hasattr(callback, "get_run_state") else vars(callback)
    found = {}
    for name, value in state.items():
        own: dict[str, np.ndarray] = {}
        if name not in _LEFT_OUT:
            value = np.asarray(tensor_variable(value)) if _is_variable(value) else value
            with suppress(_NoData):
                found[name] = _encode(value, own, f"callback/{place}/{name}"), own
    return found


def _is_variable(value: Given) -> bool:
    return isinstance(tensor_variable(value), tf.Variable)


def _is_same(one: Given, other: Given) -> bool:
    if one is None or other is None or repr(one[0]) != repr(other[0]):
        return False
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one[1].values(), other[1].values()))


class CallbackStates:
    """The state of callbacks: the attributes that training changes. Options are not part of it."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = [each for each in callbacks if not isinstance(each, keras.callbacks.ProgbarLogger)]
        self._first = list(map(_encoded, self._callbacks, range(len(self._callbacks))))

    def save(self, arrays: dict[str, np.ndarray]) -> list[Config]:
        """The changed attributes, as JSON; arrays are added to `arrays`."""
        saved = []
        for place, (callback, first) in enumerate(zip(self._callbacks, self._first)):
            state = {}
            for name, (value, own) in _encoded(callback, place).items():
                if hasattr(callback, "get_run_state") or not _is_same((value, own), first.get(name)):
                    state[name] = value
                    arrays.update(own)
            saved.append({"class": type(callback).__name__, "state": state})
        return saved

    def restore(self, saved: Sequence[Config], arrays: Mapping[str, np.ndarray]) -> None:
        """Gives each callback the state of the saved one of the same class, in order."""
        left = list(saved)
        for callback in self._callbacks:
            found = next((each for each in left if each["class"] == type(callback).__name__), None)
            if found is None:
                continue
            left.remove(found)
            state = {name: _decode(value, arrays) for name, value in found["state"].items()}
            if hasattr(callback, "set_run_state"):
                callback.set_run_state(state)
                continue
            if "min_delta" in state:
                choose_direction(callback)
            for attribute, value in state.items():
                present = vars(callback).get(attribute)
                if _is_variable(present):
                    tensor_variable(present).assign(value)
                else:
                    vars(callback)[attribute] = value


def _continue_files(callbacks: Sequence[Callback], epoch: int) -> None:
    """Makes the loggers of a resumed run append to their files, from which the rows of later epochs are removed."""
    for callback in callbacks:
        path = Path(os.fspath(callback.filename)) if isinstance(callback, keras.callbacks.CSVLogger) else None
        if path is None or not path.is_file():
            continue
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter=callback.sep))
        whole = [row for row in rows[1:] if len(row) == len(rows[0]) and row[0].isdigit()]
        kept = [*rows[:1], *(row for row in whole if int(row[0]) < epoch)]
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=callback.sep).writerows(kept)
        replace_text(path, text.getvalue())
        callback.append = True


class Drawing:
    """A step of Keras that only draws its batches, and returns the same logs each time: of a run before its checkpoint."""

    def __init__(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        self._trainer = trainer
        self._logs = logs

    def __call__(self, iterator: Iterator[Nested]) -> dict[str, float]:
        next(iterator)
        for _ in range(steps_at_once(self._trainer) - 1):
            next(iterator, None)
        return dict(self._logs)


class RunCallbacks(keras.callbacks.CallbackList):
    """The callbacks of a run: they are called from the place of its checkpoint on, and the run is saved after them.

    Args:
        trainer: The trainer.
        checkpoint: Where and when the run is saved.
        start: What holds of the whole run.
        snapshot: What the run continues from, whose variables are already loaded; None in a new run.
        callbacks: The other callbacks.
        is_over: Whether the run has ended with the snapshot.
        **params: The parameters of callbacks, as Keras sets them.
    """

    callbacks: list[Callback]

    def __init__(
        self,
        trainer: Trainer,
        checkpoint: Checkpoint,
        start: Config,
        snapshot: Snapshot | None,
        callbacks: Callback | Sequence[Callback],
        *,
        is_over: bool,
        **params: object,
    ) -> None:
        self._trainer = trainer
        self._checkpoint = checkpoint
        self._start = start
        self._snapshot = snapshot
        self._place = (0, 0) if snapshot is None else tuple(snapshot.description["place"])
        self._is_over = is_over
        self.was_interrupted = False
        self._epoch, self._batch, self._since = 0, 0, 0
        self._is_replaying = False
        super().__init__(callbacks, add_history=True, add_progbar=params["verbose"] != 0, model=trainer, **params)
        self._called = self.callbacks

    def on_train_begin(self, logs: Logs = None) -> None:
        """Called by Keras."""
        if self._snapshot is not None:
            _continue_files(self.callbacks, self._place[0])
        super().on_train_begin(logs)
        self._states = CallbackStates(self.callbacks)
        if self._is_over:
            self._reach()
            if self.params["verbose"]:
                folder = self._checkpoint.directory
                sys.stdout.write(f"The run in {folder} has ended; its result is loaded, and nothing is trained.\n")
        elif self._snapshot is not None:
            self._replay()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        self._epoch, self._batch = epoch, 0
        if self._is_replaying and (epoch, 0) == self._place:
            self._reach()
            for metric in self._trainer.metrics:
                metric.reset_state()
        if epoch == self._place[0]:
            self.callbacks = self._called
        super().on_epoch_begin(epoch, logs)
        if self._is_replaying:
            self.callbacks = []

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        done, self._batch = batch + 1 - self._batch, batch + 1
        if self._is_replaying:
            if (self._epoch, self._batch) >= self._place:
                self._reach()
            return
        super().on_train_batch_end(batch, logs)
        self._since += done
        if self.was_interrupted or self._checkpoint.is_due(self._since):
            self._save(self._epoch, self._batch)
        self._end_if_interrupted()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        if not self._is_replaying:
            self._save(epoch + 1, 0)
            self._end_if_interrupted()

    def on_train_end(self, logs: Logs = None) -> None:
        """Called by Keras."""
        self.callbacks = self._called
        super().on_train_end(logs)
        self._checkpoint.end(self._trainer)

    def _replay(self) -> None:
        """From here on, steps only draw their batches, and no callback is called."""
        self._is_replaying, self.callbacks = True, []
        self._steps = self._trainer.train_function, self._trainer.test_function
        logs = self._trainer.log_metrics
        self._trainer.train_function = Drawing(self._trainer, dict.fromkeys([] if logs is None else logs.names(), 0.0))
        self._trainer.test_function = Drawing(self._trainer, {})

    def _end_replay(self) -> None:
        if self._is_replaying:
            self._is_replaying, self.callbacks = False, self._called
            self._trainer.train_function, self._trainer.test_function = self._steps

    def _reach(self) -> None:
        """Restores everything: from here on, the run continues."""
        snapshot = self._snapshot
        assert snapshot is not None  # noqa: S101
        self._end_replay()
        self._checkpoint.assign(self._trainer, snapshot)
        self._states.restore(snapshot.description["callbacks"], snapshot.arrays)
        restore_random_numbers(snapshot.description["random"])
        self._trainer.stop_training = snapshot.description["stopped"]

    def _save(self, epoch: int, batch: int) -> None:
        self._since = 0
        arrays: dict[str, np.ndarray] = {}
        self._checkpoint.save(
            self._trainer,
            {
                "place": [epoch, batch],
                "updates": self._trainer.num_updates,
                "stopped": bool(self._trainer.stop_training),
                "callbacks": self._states.save(arrays),
                "random": random_numbers(),
                "start": dict(self._start),
            },
            arrays,
        )

    def _end_if_interrupted(self) -> None:
        if self.was_interrupted:
            place = f"epoch {self._epoch + 1}, batch {self._batch}"
            raise KeyboardInterrupt(
                f"Interrupted after {place}. The run is saved in {self._checkpoint.directory}: "
                "the same call of `fit`, with a `Checkpoint` of this folder, continues it."
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context in which Ctrl-C ends the run after the present step, when it is saved; a second one ends it at once."""
        with ExitStack() as stack:
            stack.callback(self._end_replay)
            if threading.current_thread() is threading.main_thread():
                before: Any = signal.getsignal(signal.SIGINT)
                stack.callback(signal.signal, signal.SIGINT, before)

                def note(number: int, frame: object) -> None:
                    self.was_interrupted = True
                    signal.signal(signal.SIGINT, before)

                signal.signal(signal.SIGINT, note)
            try:
                yield
            except KeyboardInterrupt as error:
                if error.args:
                    sys.stderr.write(f"\n{error}\n")
                raise
