"""Runs in this process, or in several new ones at once."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import keras
import tensorflow as tf

from multihead.comparison._study import Study

Each = Callable[[Callable[..., Any], Iterable[Any]], Iterator[tuple[Any, Any]]]
"""Calls a function with the study and each of some arguments; yields arguments and results, as they are ready."""
_STUDY: list[Study] = []
"""In a process of its own: the study."""


@contextmanager
def workers(study: Study, processes: int, others: Sequence[Any] = ()) -> Iterator[Each]:
    """A context in which runs are computed.

    Args:
        study: What is the same for all runs.
        processes: How many at once. With 1, in this process; with more, in new processes, each of which imports the
            program again.
        others: What else will be sent to them.

    Raises:
        ValueError: The study cannot be sent to another process.
        RuntimeError: A process has ended.
    """
    if processes == 1:
        yield lambda function, arguments: ((argument, function(study, argument)) for argument in arguments)
        return
    try:
        ForkingPickler.dumps((study, others))
    except Exception as error:  # noqa: BLE001 - whatever an object of the user raises
        raise ValueError(
            "`build`, `data`, `variants`, `optimizer`, `measure` and `options` must be importable with `processes` above 1: "
            f"functions at the top level of a file. Received: processes={processes!r}, and {error}. Move them there, or "
            "omit it."
        ) from error
    pool = concurrent.futures.ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(study, _switches())
    )

    def each(function: Callable[..., Any], arguments: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
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


def _switches() -> dict[str, Any]:
    """Global switches of TensorFlow and Keras that change results, and that a new process does not have."""
    threading_now = tf.config.threading
    return {
        "threads": (threading_now.get_intra_op_parallelism_threads(), threading_now.get_inter_op_parallelism_threads()),
        "optimizer": tf.config.optimizer.get_experimental_options(),
        "jit": tf.config.optimizer.get_jit(),
        "policy": keras.mixed_precision.global_policy().name,
        "floatx": keras.backend.floatx(),
        "eager": tf.config.functions_run_eagerly(),
    }


def _begin(study: Study, switches: dict[str, Any]) -> None:
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


def _call(function: Callable[..., Any], argument: Any) -> Any:
    return function(_STUDY[0], argument)
