"""What the command lines of the programs share: one-line errors and the check for extras. It imports nothing slow."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

# The extra that installs a module; TensorFlow and NumPy are dependencies of the library itself.
EXTRAS = {
    "matplotlib": "examples",
    "rich": "examples",
    "gymnasium": "examples",
    "sklearn": "benchmarks",
    "keras_hub": "hub",
    "fastapi": "serving",
    "uvicorn": "serving",
}


class InputError(ValueError):
    """Invalid user input; the message is one line for the user."""


class Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line.

    Args:
        program: The program's name, as in `python -m PROGRAM`.
        **options: Arguments of `argparse.ArgumentParser`.
    """

    def __init__(self, program: str, **options: Any) -> None:
        super().__init__(f"python -m {program}", allow_abbrev=False, **options)
        self._program = program

    def error(self, message: str) -> NoReturn:
        self.exit(fail(self._program, message))


def fail(program: str, message: str) -> int:
    """Prints an error in one line to standard error, and returns the exit status 2."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def what_to_install(needs: Sequence[str]) -> str | None:
    """A sentence about modules of the extras that are not installed; None if all are installed."""
    absent = [name for name in needs if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    extras = ",".join(dict.fromkeys(["examples", *(EXTRAS[name] for name in absent)]))
    return f"needs {' and '.join(absent)}. Install the extra: pip install -e '.[{extras}]'"


def shown(value: float, form: str) -> str:
    """A number in a format; `-` for NaN, which stands for what does not exist."""
    return "-" if math.isnan(value) else f"{value:{form}}"


def whole(least: int, below: float = math.inf) -> Callable[[str], int]:
    """A type for `argparse`: whole numbers of at least `least` and below `below`."""
    rule = f"at least {least}" + (f" and below {below}" if below < math.inf else "")

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < below:
            raise argparse.ArgumentTypeError(f"must be a whole number of {rule}. Received: {text!r}.")
        return int(text)

    return convert
