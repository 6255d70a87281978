"""Files that a crash must not leave half written, and that only one process may write."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Replaces a file's text atomically: a reader sees the old text or the new one. Line ends are kept."""
    draft = path.with_name(path.name + ".tmp")
    draft.write_text(text, encoding="utf-8", newline="")
    os.replace(draft, path)


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


_EXCLUSIVE_OR_ERROR = 2 | 4  # `LOCK_EX | LOCK_NB` of fcntl, which is not there on every system
