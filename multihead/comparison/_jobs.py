"""How runs are computed, in this process or in several at once, and the file of lines that keeps what is known."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from multihead._display.runs import read_lines
from multihead._ground.types import Config, Function
from multihead._runs.snapshot import locked, replace_text
from multihead.comparison._study import Study

Line = Config
Compute = Callable[[Function, Iterable[Any]], Iterator[tuple[Any, Any]]]
"""Calls a function with the study and one of several arguments at a time; yields arguments and results as they are ready."""
_STUDY: list[Study] = []
"""In a worker process: the study."""


def read_file(path: str | os.PathLike[str]) -> list[Line]:
    """The lines of a comparison, settings first. A last line that a crash has cut off is left out."""
    kind, hint = "a comparison, with one JSON object per line", "Pass the `file` of a `multihead.compare`."
    return read_lines(path, kind, "settings", lambda line, number: number > 1 or "settings" in line, hint)


def lines_by_name(lines: Sequence[Line], kind: str) -> dict[str, Line]:
    """By variant or single-task model, its last line of a kind: `"chosen"`, `"cost"` or `"variant"`."""
    return {line[kind]: line for line in lines if kind in line and "run" not in line}


def key_of(line: Line) -> str:
    """What distinguishes a run from all others, as text."""
    names = ("run", "variant", "head", "seed", "rate", "updates", "at_equal_cost", "head_rates")
    return json.dumps([line.get(name) for name in names], sort_keys=True)


class Lines:
    """The lines of a comparison, in memory and, if there is a path, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[Line] = []
        if path is not None and path.exists():
            self.lines = read_file(path)
            replace_text(path, "".join(map(_as_json, self.lines)))  # without a line that was cut off

    def begin(self, settings: Config) -> None:
        """Writes the settings into a new file, and compares them with those of another."""
        if not self.lines:
            self.append({"settings": settings})
        before = self.lines[0]["settings"]
        differ = [name for name in settings if before.get(name) != settings[name]]
        if differ:
            shown = "; ".join(f"{name}: {before.get(name)!r} in the file, {settings[name]!r} now" for name in differ)
            raise ValueError(
                "`file` must belong to the same settings, start and data. Received: "
                f"{os.fspath(self._path or '')!r}, which differs. {shown}. Pass another file, or set this back."
            )

    def append(self, line: Line) -> Line:
        """Adds a line, which is on the disk afterwards, and returns it as it will be read."""
        text = _as_json(line)
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self.lines.append(json.loads(text))
        return self.lines[-1]

    def runs(self) -> dict[str, Line]:
        """The lines of runs by `key_of`."""
        return {key_of(line): line for line in self.lines if "run" in line}


@contextmanager
def open_lines(path: str | os.PathLike[str] | None) -> Iterator[Lines]:
    """A context with the lines of a file, to which no other process writes in it."""
    if path is None:
        yield Lines(None)
        return
    file = Path(path)
    if not file.parent.is_dir() or file.is_dir():
        raise ValueError(
            f"`file` must be a file in a folder that exists. Received: {os.fspath(path)!r}. Create the folder, or choose "
            "another file."
        )
    with locked(file.with_name(file.name + ".lock")) as is_mine:
        if not is_mine:
            raise ValueError(
                f"`file` must not be in use. Received: {os.fspath(path)!r}, to which another process writes. Wait for it, "
                "or choose another file."
            )
        yield Lines(file)


def _as_json(line: Line) -> str:
    return json.dumps(line, ensure_ascii=False) + "\n"


@contextmanager
def workers(study: Study, processes: int, variants: Sequence[object] = ()) -> Iterator[Compute]:
    """A context in which runs are computed: in this process, or in several new ones, which import the program again."""
    if processes == 1:
        yield lambda function, arguments: ((argument, function(study, argument)) for argument in arguments)
        return
    try:
        ForkingPickler.dumps((study, variants))
    except Exception as error:  # noqa: BLE001 - whatever an object of the user raises
        raise ValueError(
            "`build`, `data`, `variants`, `optimizer`, `measure` and `options` must be importable with `processes` above 1: "
            f"functions at the top level of a file. Received: processes={processes!r}, and {error}. Move them there, or "
            "omit it."
        ) from error
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(study, _switches())
    )

    def compute(function: Function, arguments: Iterable[object]) -> Iterator[tuple[object, object]]:
        waiting = {pool.submit(_run_in_worker, function, argument): argument for argument in arguments}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()

    try:
        yield compute
    except BrokenProcessPool as error:
        raise RuntimeError(
            "The processes of `compare` must run to their end, but one has stopped. Received: "
            f"{error} Its own message is above. Start the program again: runs in `file` are not repeated. If memory is "
            "short, lower `processes`; if it cannot import `build`, put that into a file, and the call of `compare` under "
            "`if __name__ == '__main__':`."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _switches() -> list[tuple[Function, object]]:
    """The functions that set global switches of TensorFlow and Keras that change results, with the current values."""
    threads, optimizer = tf.config.threading, tf.config.optimizer
    return [
        (threads.set_intra_op_parallelism_threads, threads.get_intra_op_parallelism_threads()),
        (threads.set_inter_op_parallelism_threads, threads.get_inter_op_parallelism_threads()),
        (optimizer.set_experimental_options, optimizer.get_experimental_options()),
        (optimizer.set_jit, optimizer.get_jit()),
        (tf.config.run_functions_eagerly, tf.config.functions_run_eagerly()),
        (keras.backend.set_floatx, keras.backend.floatx()),
        (keras.mixed_precision.set_global_policy, keras.mixed_precision.global_policy().name),
    ]


def _begin(study: Study, switches: Sequence[tuple[Function, object]]) -> None:
    """The beginning of a new process: the study, and the switches of the process that made it."""
    threading.Thread(target=_end_with, args=[multiprocessing.parent_process()], daemon=True).start()
    for set_switch, value in switches:
        set_switch(value)
    _STUDY[:] = [study]


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    """Ends this process when its parent ends, even if that was killed."""
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)


def _run_in_worker(function: Function, argument: object) -> object:
    return function(_STUDY[0], argument)
