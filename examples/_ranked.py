"""Rankings over HTTP: one request and its items become rows of raw columns, which exported heads score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples._command_line import InputError

EXAMPLE = '{"request": {"user": 17}, "items": [{"item": 3}, {"item": 8}]}'
Row = dict[str, Any]


class Refused(Exception):
    """A request that is not answered: its HTTP status, and what is wrong and what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def decoded(body: bytes, example: str) -> Any:
    """The JSON of a body.

    Raises:
        Refused: It is not JSON in UTF-8.
    """
    try:
        return json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body must be JSON in UTF-8: {error}. Send, for example, {example}.") from error


class Columns:
    """Exported heads that read raw columns: strings, whole numbers and numbers, one of each a row.

    Args:
        models: The SavedModels by name, all with the same inputs.
        by: The heads by the product of whose outputs items are ranked.

    Raises:
        InputError: The inputs are no columns, the exports differ in them, or `by` are not names of heads.
    """

    def __init__(self, models: Mapping[str, Any], by: Sequence[str]) -> None:
        import tensorflow as tf

        self._constant, self._models = tf.constant, models
        signatures = [model.signatures["serving_default"] for model in models.values()]
        takes = [inputs_of(model) for model in models.values()]
        self.dtypes = {name: takes[0][name].dtype for name in sorted(takes[0])}
        known = (tf.string, tf.int32, tf.int64, tf.float32, tf.float64)
        for specs in takes:
            if specs.keys() != takes[0].keys() or any(s.shape.rank != 1 or s.dtype not in known for s in specs.values()):
                raise InputError(
                    "`--export` must be a folder of exported heads that take texts, or the same columns: strings, whole "
                    f"numbers or numbers of shape [rows]. Received: heads that take {specs}. Export the heads with such "
                    "inputs."
                )
        self.heads = sorted({name for each in signatures for name in each.structured_outputs})
        self._signatures = signatures
        unknown = [name for name in by if name not in self.heads]
        if unknown or not by:
            raise InputError(
                "`--by` must name heads; items are ranked by the product of what these predict. Received: "
                f"{', '.join(unknown) or 'none'}. The heads are {', '.join(self.heads)}."
            )
        self.by = list(by)

    @property
    def example(self) -> list[Row]:
        """Rows to warm up on."""
        return [{name: "" if dtype.name == "string" else 0 for name, dtype in self.dtypes.items()}]

    def answer(self, rows: Sequence[Row]) -> list[Row]:
        """What the heads predict for each row, and its `score`."""
        columns = {name: self._constant([row[name] for row in rows], dtype) for name, dtype in self.dtypes.items()}
        found = {}
        for signature in self._signatures:
            found.update({name: tensor.numpy() for name, tensor in signature(**columns).items()})
        answers = [{name: _plain(values[place]) for name, values in found.items()} for place in range(len(rows))]
        for answer in answers:
            answer["score"] = float(np.prod([answer[name] for name in self.by]))
        return answers

    def read(self, body: bytes, most: int, characters: int) -> list[Row]:
        """The rows of a body: each item with what it shares with the others of the request.

        Args:
            body: JSON, `{"request": {...}, "items": [{...}, ...]}`.
            most: The largest number of items.
            characters: The largest number of characters of a string.

        Raises:
            Refused: It is anything else, or a row lacks a column, has another, or a value of another type.
        """
        asked = decoded(body, EXAMPLE)
        received = f"Received: {json.dumps(asked)[:60]}"
        shared = asked.get("request", {}) if isinstance(asked, dict) else None
        items = asked.get("items") if isinstance(asked, dict) and {*asked} <= {"request", "items"} else None
        if not isinstance(shared, dict) or not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
            rule = "The body must be an object with `items`, a list of objects, and perhaps `request`, an object"
            raise Refused(422, f"{rule}. {received}. Send, for example, {EXAMPLE}.")
        if not 1 <= len(items) <= most:
            raise Refused(422, f"`items` must hold 1 to {most} items. Received: {len(items)}. Send several requests.")
        rows = [{**shared, **item} for item in items]
        for place, row in enumerate(rows):
            missing, unknown = (
                [name for name in self.dtypes if name not in row],
                [name for name in row if name not in self.dtypes],
            )
            if missing or unknown:
                told = f"no {', '.join(missing)}" if missing else ", ".join(unknown)
                rule = f"`request` and an item together must have the columns {', '.join(self.dtypes)}, and no others"
                raise Refused(422, f"{rule}. Received: {told} in item {place}. Add the columns, or leave them out.")
            for name, dtype in self.dtypes.items():
                row[name] = _value(name, row[name], dtype, characters)
        return rows


def ranked(answers: Sequence[Row]) -> list[Row]:
    """The answers with the highest scores first, each with its `place` among the items of the request, from 0."""
    placed = [{"place": place, **answer} for place, answer in enumerate(answers)]
    return sorted(placed, key=lambda answer: -answer["score"])


def _value(name: str, value: Any, dtype: Any, characters: int) -> Any:
    """The value of a column, checked; null is a missing number.

    Raises:
        Refused: It has another type, or is out of range.
    """
    if dtype.name == "string":
        rule = f"a string of at most {characters} characters, no half of a surrogate pair"
        is_right = (
            isinstance(value, str) and len(value) <= characters and not any("\ud800" <= each <= "\udfff" for each in value)
        )
    elif dtype.is_integer:
        rule = f"a whole number of {dtype.name}"
        is_right = type(value) is int and int(dtype.min) <= value <= int(dtype.max)
    else:
        rule = "a number, or null if it is missing"
        value = math.nan if value is None else value
        is_right = type(value) in (int, float) and not abs(value) > float(dtype.max)
    if not is_right:
        raise Refused(422, f"`{name}` must be {rule}. Received: {json.dumps(value)[:40]}. Correct it.")
    return value


def _plain(value: Any) -> Any:
    """An output of a row as JSON has it: a number if it is one."""
    return value.item() if np.size(value) == 1 else value.tolist()


def inputs_of(model: Any) -> Mapping[str, Any]:
    """The specs of a SavedModel's inputs by name."""
    specs: Mapping[str, Any] = model.signatures["serving_default"].structured_input_signature[1]
    return specs


def saved_models(folder: Path) -> dict[str, Any]:
    """The SavedModels in the folders of a folder, by name."""
    import tensorflow as tf

    folders = sorted(path.parent for path in folder.glob("*/saved_model.pb"))
    return {path.name: tf.saved_model.load(str(path)) for path in folders}
