"""The file of a comparison: its settings, and a line of JSON for each measurement of cost and each run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from multihead._ground.validation import nearest
from multihead._runs.files import locked, replace_text

Line = dict[str, Any]
_OPEN = ("rates", "tuning_seeds")
"""The settings that may change when a comparison goes on."""
_RUN = ("run", "variant", "head", "seed", "rate", "updates", "at_equal_cost")


def read_lines(path: str | os.PathLike[str]) -> list[Line]:
    """The lines of a comparison, settings first. A last line that a crash has cut off is left out.

    Raises:
        ValueError: The file is none of a comparison.
        FileNotFoundError: There is no such file.
    """
    if not os.path.exists(path):
        folder = Path(path).parent
        near = nearest(Path(path).name, [file.name for file in folder.iterdir()] if folder.is_dir() else [])
        hint = f"Did you mean {str(folder / near)!r}?" if near else "Pass the `file` of a `multihead.compare`."
        raise FileNotFoundError(f"`path` must be a file. Received: {os.fspath(path)!r}, which does not exist. {hint}")
    with open(path, encoding="utf-8") as file:
        *texts, _ = file.read().split("\n")  # what ends without a line break was cut off
    found = [_parsed(text) for text in texts]
    if found and (None in found or "settings" not in (found[0] or {})):
        number = 1 if "settings" not in (found[0] or {}) else found.index(None) + 1
        raise ValueError(
            "`path` must be the file of a comparison, with a JSON object in each line. Received: "
            f"{os.fspath(path)!r}, whose line {number} is {texts[number - 1][:60]!r}. Pass the `file` of `compare`."
        )
    return [line for line in found if line is not None]


def _parsed(text: str) -> Line | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) else None


class Lines:
    """The lines of a comparison, in memory and, if there is a path, in a file.

    Args:
        path: The file, which is created; lines that are there already are read. None for memory alone.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.lines: list[Line] = []
        if path is not None and path.exists():
            self.lines = read_lines(path)
            replace_text(path, "".join(map(_as_text, self.lines)))  # without a line that was cut off

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Writes the settings into a new file, and compares them with those of another.

        Its grid of rates may differ, and the seeds on which they are chosen, but for the first, whose start is in the
        settings: that leaves each run as it is.

        Raises:
            ValueError: The file belongs to other settings.
        """
        now = json.loads(json.dumps({"settings": dict(settings)}))
        if not self.lines:
            self.append(now)
            return
        before = self.lines[0]["settings"]
        changed = [name for name in now["settings"] if before.get(name) != now["settings"][name]]
        differ = [name for name in changed if name not in _OPEN]
        if before["tuning_seeds"][0] != now["settings"]["tuning_seeds"][0]:
            differ = ["tuning_seeds", *differ]
        if differ:
            shown = "; ".join(f"{name}: {before.get(name)!r} in the file, {now['settings'][name]!r} now" for name in differ)
            raise ValueError(
                "`file` must belong to the same settings, start and data. Received: "
                f"{os.fspath(self._path or '')!r}, which differs. {shown}. Pass another file, or set this back."
            )
        if changed:
            self.lines[0] = {"settings": {**before, **{name: now["settings"][name] for name in _OPEN}}}
            if self._path is not None:
                replace_text(self._path, "".join(map(_as_text, self.lines)))

    def append(self, line: Mapping[str, Any]) -> Line:
        """Adds a line, which is on the disk afterwards, and returns it as it will be read."""
        text = _as_text(line)
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        self.lines.append(json.loads(text))
        return self.lines[-1]

    def remember(self, name: str, value: Any) -> Any:
        """Writes down what a name stands for, unless that is there or empty, and returns it as it will be read."""
        known = last_of(self.lines, name)
        if known == value or (known is None and not value):
            return value
        return self.append({name: value})[name]

    def choose(self, label: str, rate: float, grid: Sequence[float], head_rates: Mapping[str, float]) -> None:
        """Writes down the learning rates for the seeds of a variant, and the grid, unless they are there."""
        of_heads = {"head_rates": dict(head_rates)} if head_rates else {}
        line = {"chosen": label, "rate": rate, "rates": list(grid), **of_heads}
        if chosen_rates(self.lines).get(label) != line:
            self.append(line)

    def runs(self) -> dict[tuple[Any, ...], Line]:
        """The lines of runs by what tells them apart."""
        return {key_of(line): line for line in self.lines if "run" in line}

    def named(self, kind: str) -> dict[str, Line]:
        """The lines of a kind (`"cost"`, `"variant"`) by the variant's name."""
        return {line[kind]: line for line in self.lines if kind in line and "run" not in line}


def last_of(lines: Sequence[Line], name: str) -> Any:
    """What the last line with a name says; None without one."""
    return next((line[name] for line in reversed(lines) if name in line), None)


def chosen_rates(lines: Sequence[Line]) -> dict[str, Line]:
    """The last line of a choice of learning rates for each variant and each single-task model."""
    return {line["chosen"]: line for line in lines if "chosen" in line}


def key_of(line: Mapping[str, Any]) -> tuple[Any, ...]:
    """What tells a run from all others; as `Job.key`."""
    return (*(line[name] for name in _RUN), tuple(sorted(line.get("head_rates", {}).items())))


@contextmanager
def opened(path: str | os.PathLike[str] | None) -> Iterator[Lines]:
    """The lines of a file that no other process writes meanwhile.

    Raises:
        ValueError: Another process does, or the folder does not exist.
    """
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


def _as_text(line: Mapping[str, Any]) -> str:
    """A line of the file; non-finite numbers are null."""
    return json.dumps(_plain(line), ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
