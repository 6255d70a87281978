"""The file of a ledger: a line of JSON per update."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from multihead._ground.validation import nearest
from multihead._runs.files import replace_text


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a ledger. A last line that a crash has cut off is left out.

    Raises:
        ValueError: The file is no ledger.
        FileNotFoundError: There is no such file.
    """
    if not os.path.exists(path):
        folder = Path(path).parent
        near = nearest(Path(path).name, [file.name for file in folder.iterdir()] if folder.is_dir() else [])
        hint = f"Did you mean {str(folder / near)!r}?" if near else "Pass a file of `callbacks.UpdateLogger`."
        raise FileNotFoundError(f"`path` must be a file. Received: {os.fspath(path)!r}, which does not exist. {hint}")
    with open(path, encoding="utf-8") as file:
        return list(_parsed(file.read().split("\n"), path))


def _parsed(lines: list[str], path: Any) -> Iterator[dict[str, Any]]:
    for number, text in enumerate(lines):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError:
            line = None
        if isinstance(line, dict) and "step" in line:
            yield line
        elif number + 1 < len(lines):  # what ends without a line break was cut off
            raise ValueError(
                "`path` must be the file of a ledger, with a JSON object per line. Received: "
                f"{os.fspath(path)!r}, whose line {number + 1} is {text[:60]!r}. Pass a file of `callbacks.UpdateLogger`."
            )


def keep_until(path: Path, step: int) -> list[dict[str, Any]]:
    """Drops the lines of later updates from a file, if it exists, and returns those that stay; at step 0 there are none."""
    if not path.exists():
        return []
    lines = [line for line in read(path) if line["step"] <= step and step > 0]
    replace_text(path, "".join(as_text(line) for line in lines))
    return lines


def cut(path: Path, size: int) -> bool:
    """Cuts a file to so many bytes; False if it has fewer."""
    if not path.is_file() or path.stat().st_size < size:
        return False
    with writing(path), open(path, "r+b") as file:
        file.truncate(size)
    return True


def on_disk(path: Path) -> int:
    """The length in bytes of a file, all of which is on the disk afterwards; 0 without a file."""
    if not path.exists():
        return 0
    with writing(path), open(path, "rb+") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A context in which errors of the disk name the file.

    Raises:
        RuntimeError: The file cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"`path` must be a file that can be written. Received: {os.fspath(path)!r}, with {error}. Free space, or choose "
            "another file; with a `Checkpoint`, the same program then continues where it stopped."
        ) from error


def as_text(line: Mapping[str, Any]) -> str:
    """A line of the file; non-finite numbers are null, and numbers have as many digits as float32 needs."""
    return json.dumps(_plain(line), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, float):
        return float(str(np.float32(value))) if math.isfinite(value) else None
    return value
