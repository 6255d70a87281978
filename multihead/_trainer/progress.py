"""What Keras's progress line shows of the logs: each head's loss and first metric."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras

from multihead._data.arguments import Call
from multihead._ground.keras import ProgressLine, callbacks_of
from multihead.telemetry._logs import LogMetrics


def with_progress(call: Call, metrics: Callable[[], LogMetrics | None]) -> Call:
    """The call with a progress line that can be read.

    Args:
        call: The call. It stays as it is if nothing is printed, or if it has a progress line or a `CallbackList` of its own.
        metrics: Returns the trainer's metrics, or None before they exist.
    """
    callbacks = call.others.get("callbacks")
    given, is_silent = callbacks_of(callbacks), call.others.get("verbose", "auto") == 0
    has_own = any(isinstance(callback, keras.callbacks.ProgbarLogger) for callback in given)
    if is_silent or has_own or isinstance(callbacks, keras.callbacks.CallbackList):
        return call
    return call.with_others(callbacks=[*given, ProgressLine(lambda logs: shown(logs, metrics()))])


def shown(logs: Mapping[str, Any], metrics: LogMetrics | None) -> dict[str, Any]:
    """The part of the logs that the progress line shows.

    That is each head's loss and first metric, in training and in validation; `skipped_updates` if there are any; and
    everything that callbacks have added to the logs.
    """
    if metrics is None:
        return dict(logs)
    first = metrics.main_names
    wanted = [*first, *(f"val_{name}" for name in first)]
    hidden = set(metrics.names()) - set(first)
    hidden |= {f"val_{name}" for name in hidden}
    if "skipped_updates" in logs and float(logs["skipped_updates"]) > 0:
        hidden.remove("skipped_updates")
    names = [name for name in wanted if name in logs]
    return {name: logs[name] for name in [*names, *(name for name in logs if name not in hidden and name not in names)]}
