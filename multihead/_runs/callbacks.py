"""The state of the callbacks of a run, as JSON with arrays: no code, and no pickle."""

from __future__ import annotations

import csv
import io
import os
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import choose_direction, runs_code_of_users, tensor_variable
from multihead._ground.types import Callback, Config
from multihead._runs.snapshot import replace_text

_LEFT_OUT = {"model", "params", "validation_data"}

_SEQUENCES = {"list": list, "tuple": tuple, "set": set, "deque": deque}
"""Collections of values by the names of their classes."""
_COLLECTIONS = (dict, list, tuple, set, frozenset, deque, np.ndarray)
_REPORTED = "reported"


class _NoData(Exception):
    """A value that is not made of numbers, strings and arrays."""


def _encode(value: Any, arrays: dict[str, np.ndarray], name: str) -> Any:
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
    if type(value) in _SEQUENCES.values():
        return {"kind": type(value).__name__, "items": [_encode(item, arrays, name) for item in value]}
    raise _NoData


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if not isinstance(value, dict):
        return value
    if value["kind"] in ("array", "scalar"):
        array = arrays[value["name"]]
        return array[()] if value["kind"] == "scalar" else array.copy()
    items = value["items"]
    if value["kind"] == "dict":
        return {_decode(key, arrays): _decode(item, arrays) for key, item in items}
    return _SEQUENCES[value["kind"]](_decode(item, arrays) for item in items)


def _encoded_state(callback: Callback, place: int) -> dict[str, tuple[object, dict[str, np.ndarray]]]:
    """The attributes of a callback that can be written as JSON, with their own arrays."""
    state = callback.get_run_state() if hasattr(callback, "get_run_state") else vars(callback)
    encoded = {}
    for name, value in state.items():
        own: dict[str, np.ndarray] = {}
        if name not in _LEFT_OUT:
            value = np.asarray(tensor_variable(value)) if isinstance(tensor_variable(value), tf.Variable) else value
            with suppress(_NoData):
                encoded[name] = _encode(value, own, f"callback/{place}/{name}"), own
    return encoded


def _not_encoded(callback: Callback, encoded: Mapping[str, object]) -> dict[str, str]:
    """As text, the collections that a callback of the user's has as attributes, beside its encoded state."""
    if not runs_code_of_users(callback) or hasattr(callback, "get_run_state"):
        return {}
    others = {name: value for name, value in vars(callback).items() if name not in encoded}
    return {name: repr(value) for name, value in others.items() if isinstance(value, _COLLECTIONS)}


def _warn_of_lost(callback: Callback, collections: Mapping[str, str], known: dict[str, str]) -> None:
    """Warns of what training changes and cannot be saved, once per attribute."""
    for name, text in collections.items():
        if known.setdefault(name, "") not in (text, _REPORTED):
            known[name] = _REPORTED
            warnings.warn(
                f"`Checkpoint` cannot save `{name}` of {type(callback).__name__}, which training changes. Received: "
                f"{type(getattr(callback, name)).__name__} of other values than numbers, strings and arrays; a resumed "
                "run begins with a new one. Give the callback `get_run_state()` and `set_run_state(state)`.",
                RuntimeWarning,
                stacklevel=2,
            )


class CallbackStates:
    """The state of callbacks: the attributes that training changes. Options are not part of it."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._callbacks = [callback for callback in callbacks if not isinstance(callback, keras.callbacks.ProgbarLogger)]
        self._first = list(map(_encoded_state, self._callbacks, range(len(self._callbacks))))
        self._not_saved = list(map(_not_encoded, self._callbacks, self._first))

    def save(self, arrays: dict[str, np.ndarray]) -> list[Config]:
        """The changed attributes, as JSON; arrays are added to `arrays`."""
        saved = []
        for place, (callback, first) in enumerate(zip(self._callbacks, self._first)):
            state, encoded = {}, _encoded_state(callback, place)
            for name, (value, own) in encoded.items():
                before, arrays_before = first.get(name, (None, {}))
                is_same = name in first and repr(value) == repr(before)
                is_same &= all(
                    np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(own.values(), arrays_before.values())
                )
                if hasattr(callback, "get_run_state") or not is_same:
                    state[name] = value
                    arrays.update(own)
            saved.append({"class": type(callback).__name__, "state": state})
            _warn_of_lost(callback, _not_encoded(callback, encoded), self._not_saved[place])
        return saved

    def restore(self, saved: Sequence[Config], arrays: Mapping[str, np.ndarray]) -> None:
        """Gives the callbacks the states of the saved ones of the same classes, in order."""
        remaining = list(saved)
        for callback in self._callbacks:
            entry = next((candidate for candidate in remaining if candidate["class"] == type(callback).__name__), None)
            if entry is None:
                continue
            remaining.remove(entry)
            state = {name: _decode(value, arrays) for name, value in entry["state"].items()}
            if hasattr(callback, "set_run_state"):
                callback.set_run_state(state)
                continue
            if "min_delta" in state:
                choose_direction(callback)
            for attribute, value in state.items():
                current = vars(callback).get(attribute)
                if isinstance(tensor_variable(current), tf.Variable):
                    tensor_variable(current).assign(value)
                elif isinstance(current, dict) and isinstance(value, dict):  # whose class may add a default
                    current.clear()
                    current.update(value)
                elif isinstance(current, deque) and isinstance(value, deque):  # which may have a maximum length
                    current.clear()
                    current.extend(value)
                else:
                    vars(callback)[attribute] = value


def continue_files(callbacks: Sequence[Callback], epoch: int) -> None:
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
