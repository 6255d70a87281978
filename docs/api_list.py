"""Writes `docs/api.txt`: every public name with its parameters and defaults, one to a line.

`python docs/api_list.py` rewrites the file. A test compares it with the code, so that a change of the public API is seen in
review.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OF_KERAS = re.compile(r"build|call|.*_config|.*_own_variables|.*_step|make_.*_function|on_.*|.*_run_state")
"""Methods that Keras calls."""

PATH = ROOT / "docs" / "api.txt"


def lines() -> Iterator[str]:
    """One line for each public name, in alphabetical order; what has two names stands under the shorter one."""
    import multihead

    yield from (name + text for name, text in sorted(_names("multihead", multihead, set())))


def _names(path: str, module: ModuleType, seen: set[int]) -> Iterator[tuple[str, str]]:
    for name in sorted(module.__all__, key=lambda name: inspect.ismodule(getattr(module, name))):
        value = getattr(module, name)
        if inspect.ismodule(value):
            yield from _names(f"{path}.{name}", value, seen) if hasattr(value, "__all__") else ()
        elif callable(value) and id(value) in seen:
            continue
        elif inspect.isclass(value):
            seen.add(id(value))
            yield f"{path}.{name}", _parameters(value)
            yield from ((f"{path}.{name}.{member}", text) for member, text in _members(value))
        else:
            seen.add(id(value))
            yield f"{path}.{name}", _parameters(value) if callable(value) else ""


def _members(owner: type) -> Iterator[tuple[str, str]]:
    """The public methods and properties that a class and the parts of the trainer define, without those that Keras calls."""
    parts = [kind for kind in owner.__mro__ if kind is owner or kind.__module__.startswith("multihead._trainer.")]
    for name, value in [item for kind in parts for item in vars(kind).items()]:
        function = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
        if name.startswith("_") or OF_KERAS.fullmatch(name):
            continue
        if inspect.isfunction(function):
            yield name, _parameters(function)
        elif isinstance(value, property) or name in inspect.get_annotations(owner):
            yield name, ""


def _parameters(function: Any) -> str:
    signature = inspect.signature(function)
    shown = [_plain(each) for each in signature.parameters.values() if each.name not in ("self", "cls")]
    return str(signature.replace(parameters=shown, return_annotation=signature.empty))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    """A parameter without its type, and with the name of a class that is its default."""
    default = parameter.default
    if default is parameter.empty:
        return parameter.replace(annotation=parameter.empty)
    if inspect.isclass(default):
        default = _Name(default.__name__)
    elif repr(default).startswith("<"):  # of a dataclass: made for each instance
        default = _Name("...")
    return parameter.replace(annotation=parameter.empty, default=default)


class _Name(str):
    def __repr__(self) -> str:
        return str(self)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PATH.write_text("\n".join(lines()) + "\n", encoding="utf-8")
