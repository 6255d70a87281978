"""How runs are computed, in this process or in several at once, and the file of lines that keeps what is known."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import keras
import tensorflow as tf

from multihead._display.runs import read_lines
from multihead._ground.types import Config, Function, Given
from multihead._runs.snapshot import locked, replace_text
from multihead.comparison._study import Study

Line = Config
Each = Callable[[Function, Iterable[Given]], Iterator[tuple[Given, Given]]]
"""Calls a function with the study and each of some arguments; yields arguments and results, as they are ready."""
_OPEN = ("rates", "tuning_seeds")
"""The settings that may change when a comparison goes on."""
_STUDY: list[Study] = []
"""In a process of its own: the study."""


def read_file(path: str | os.PathLike[str]) -> list[Line]:
    """The lines of a comparison, settings first. A last line that a crash has cut off is left out."""
    kind, hint = "a comparison, with a JSON object in each line", "Pass the `file` of a `multihead.compare`."
    return read_lines(path, kind, lambda line, number: number > 1 or "settings" in line, hint)


def last_of(lines: Sequence[Line], name: str) -> Given:
    """The value in the last line with a name; None without such a line."""
    return next((line[name] for line in reversed(lines) if name in line), None)


def chosen_rates(lines: Sequence[Line]) -> dict[str, Line]:
    """The last line of a choice of learning rates for each variant and each single-task model."""
    return {line["chosen"]: line for line in lines if "chosen" in line}


def key_of(line: Line) -> tuple[Hashable, ...]:
    """What tells a run from all others."""
    names = ("run", "variant", "head", "seed", "rate", "updates", "at_equal_cost")
    return (*(line[name] for name in names), tuple(sorted(line.get("head_rates", {}).items())))


class Lines:
    """The lines of a comparison, in memory and, if there is a path, in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[Line] = []
        if path is not None and path.exists():
            self.lines = read_file(path)
            replace_text(path, "".join(map(_as_json, self.lines)))  # without a line that was cut off

    def begin(self, settings: Config) -> None:
        """Writes the settings into a new file, and compares them with those of another.

        Its grid of rates may differ, and the seeds on which they are chosen, but for the first, whose start is in the
        settings: that leaves each run as it is.
        """
        now = json.loads(json.dumps(dict(settings)))
        if not self.lines:
            self.append({"settings": now})
            return
        before = self.lines[0]["settings"]
        changed = [name for name in now if before.get(name) != now[name]]
        differ = [name for name in changed if name not in _OPEN]
        if before["tuning_seeds"][0] != now["tuning_seeds"][0]:
            differ = ["tuning_seeds", *differ]
        if differ:
            shown = "; ".join(f"{name}: {before.get(name)!r} in the file, {now[name]!r} now" for name in differ)
            raise ValueError(
                "`file` must belong to the same settings, start and data. Received: "
                f"{os.fspath(self._path or '')!r}, which differs. {shown}. Pass another file, or set this back."
            )
        if changed and self._path is not None:
            replace_text(self._path, "".join(map(_as_json, [{"settings": now}, *self.lines[1:]])))
        self.lines[0] = {"settings": now}

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

    def runs(self) -> dict[tuple[Hashable, ...], Line]:
        """The lines of runs by what tells them apart."""
        return {key_of(line): line for line in self.lines if "run" in line}

    def named(self, kind: str) -> dict[str, Line]:
        """The lines of a kind (`"cost"`, `"variant"`) by the variant's name."""
        return {line[kind]: line for line in self.lines if kind in line and "run" not in line}


@contextmanager
def opened(path: str | os.PathLike[str] | None) -> Iterator[Lines]:
    """The lines of a file that no other process writes meanwhile."""
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
def workers(study: Study, processes: int, variants: Sequence[Given] = ()) -> Iterator[Each]:
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

    def each(function: Function, arguments: Iterable[Given]) -> Iterator[tuple[Given, Given]]:
        waiting = {pool.submit(_call, function, argument): argument for argument in arguments}
        for future in concurrent.futures.as_completed(waiting):
            yield waiting[future], future.result()

    try:
        yield each
    except BrokenProcessPool as error:
        raise RuntimeError(
            "The processes of `compare` must run to their end, but one has stopped. Received: "
            f"{error} Its own message is above. Start the program again: runs in `file` are not repeated. If memory is "
            "short, lower `processes`; if it cannot import `build`, put that into a file, and the call of `compare` under "
            "`if __name__ == '__main__':`."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _switches() -> Config:
    """Global switches of TensorFlow and Keras that change results, and that a new process does not have."""
    threads = tf.config.threading
    return {
        "threads": (threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads()),
        "optimizer": tf.config.optimizer.get_experimental_options(),
        "jit": tf.config.optimizer.get_jit(),
        "policy": keras.mixed_precision.global_policy().name,
        "floatx": keras.backend.floatx(),
        "eager": tf.config.functions_run_eagerly(),
    }


def _begin(study: Study, switches: Config) -> None:
    """The beginning of a new process: the study, and the switches of the process that made it."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    tf.config.threading.set_intra_op_parallelism_threads(switches["threads"][0])
    tf.config.threading.set_inter_op_parallelism_threads(switches["threads"][1])
    tf.config.optimizer.set_experimental_options(switches["optimizer"])
    tf.config.optimizer.set_jit(switches["jit"])
    tf.config.run_functions_eagerly(switches["eager"])
    keras.backend.set_floatx(switches["floatx"])
    keras.mixed_precision.set_global_policy(switches["policy"])
    _STUDY[:] = [study]


def _end_with_parent() -> None:
    """Ends this process with the one that made it, even if that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)


def _call(function: Function, argument: Given) -> Given:
    return function(_STUDY[0], argument)
