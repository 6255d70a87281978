"""Files that a crash must not leave half written, and that only one process may write; a checkpoint is one of them.

It is either whole or refused: arrays and a description, with a digest over both.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import itertools
import json
import os
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multihead._ground.types import Config

_KIND, _FORMAT = b"multihead checkpoint ", b"2"
_MAGIC = _KIND + _FORMAT + b"\n"
_DESCRIPTION = "description"
_EXCLUSIVE_OR_ERROR = 2 | 4  # `LOCK_EX | LOCK_NB` of fcntl, which is not there on every system


class Snapshot(NamedTuple):
    """The contents of a checkpoint: what can be written as JSON, and arrays by name."""

    description: Config
    arrays: dict[str, np.ndarray]


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    """Writes a file that replaces the previous one only when it is complete and on the disk."""
    text = json.dumps(snapshot.description).encode()
    arrays = {_DESCRIPTION: np.frombuffer(text, np.uint8), **snapshot.arrays}
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_drafts(path)
        with open(draft, "w+b") as file:
            digest = hashlib.sha256()
            file.write(_MAGIC + bytes(digest.digest_size))
            # As `np.savez` does, but without a copy of everything in memory.
            with zipfile.ZipFile(file, "w") as entries:
                for name, array in arrays.items():
                    with entries.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
            file.seek(len(_MAGIC) + digest.digest_size)
            for part in iter(lambda: file.read(2**20), b""):
                digest.update(part)
            file.seek(len(_MAGIC))
            file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        if os.name == "posix":  # which can open folders: the renaming is on the disk, too
            number = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(number)
            finally:
                os.close(number)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        size = sum(array.nbytes for array in arrays.values())
        raise RuntimeError(
            f"`directory` must take a checkpoint of {size:,} bytes. Received: {str(path.parent)!r}, with {error}. "
            "The checkpoint before it, if there is one, is whole: free space, and call `fit` again to continue."
        ) from error


def remove_drafts(path: Path) -> None:
    """Removes the drafts of a file that were left behind by processes which were killed while they wrote it."""
    for other in path.parent.glob(f"{path.name}.*.tmp"):
        if re.fullmatch(r"\d+", other.name[len(path.name) + 1 : -len(".tmp")]):
            other.unlink(missing_ok=True)


def read_snapshot(path: Path) -> Snapshot:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ValueError(_refusal(path, f"which cannot be read: {error}", "Change its permissions")) from error
    start = len(_MAGIC) + hashlib.sha256().digest_size
    content = raw[start:]
    other_format = re.match(re.escape(_KIND) + rb"(\d{1,9})\n", raw)
    if other_format is not None and other_format[1] != _FORMAT:
        received = f"a file of format {other_format[1].decode()}, while this is {_FORMAT.decode()}"
        raise ValueError(_refusal(path, received, "End the run with the version that began it, or choose another folder"))
    if not raw.startswith(_MAGIC):
        raise ValueError(_refusal(path, f"a file that begins with {raw[:24]!r}", "Pass the folder of a `Checkpoint`"))
    if hashlib.sha256(content).digest() != raw[len(_MAGIC) : start]:
        received = f"{len(raw)} bytes whose digest differs from the saved one: the file is damaged"
        raise ValueError(_refusal(path, received, "Delete it, to begin again, or restore it from a copy"))
    with zipfile.ZipFile(io.BytesIO(raw)) as entries:
        names = [(name, name.removesuffix(".npy")) for name in entries.namelist()]
        arrays = {name: np.lib.format.read_array(entries.open(entry), allow_pickle=False) for entry, name in names}
    return Snapshot(json.loads(arrays.pop(_DESCRIPTION).tobytes()), arrays)


def _refusal(path: Path, received: str, remedy: str) -> str:
    return f"The checkpoint must be a whole file of this library. Received: {path}, {received}. {remedy}."


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's text atomically: a reader sees the old text or the new one. Line ends are kept."""
    draft = free_path(path.with_name(f"{path.name}.{os.getpid()}.tmp"))
    with open(draft, "x", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(draft, path)


def free_path(path: Path) -> Path:
    """A path that does not exist: this one, or with a number before its suffix."""
    names = (path.with_name(f"{path.stem}.{number}{path.suffix}") for number in itertools.count(1))
    return path if not path.exists() else next(name for name in names if not name.exists())


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """A context in which no other process can lock the same file; whether it is locked now.

    The system removes the lock with the process, however that ends. Where there are no such locks, nothing is locked.
    """
    with open(path, "a+b") as file:
        try:
            if os.name == "posix":
                importlib.import_module("fcntl").lockf(file, _EXCLUSIVE_OR_ERROR)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                yield False
                return
        yield True
