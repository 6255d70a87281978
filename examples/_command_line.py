"""What do the programs' command lines share? Errors in one line, the check of extras; nothing slow is imported."""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

# Which extra brings a module; TensorFlow and NumPy come with the library itself.
EXTRAS = {"matplotlib": "examples", "rich": "examples", "gymnasium": "examples", "tensorboard": "tensorboard"}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line.

    Args:
        program: The program's name, as it stands after `python -m`.
        **options: What `argparse.ArgumentParser` takes.
    """

    def __init__(self, program: str, **options: Any) -> None:
        super().__init__(f"python -m {program}", allow_abbrev=False, **options)
        self._program = program

    def error(self, message: str) -> NoReturn:
        self.exit(fail(self._program, message))


def fail(program: str, message: str) -> int:
    """Tells an error in one line on standard error, and returns the exit status, 2."""
    print(f"{program}: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def what_to_install(needs: Sequence[str]) -> str | None:
    """A sentence on the modules of the extras that are not installed; None if they all are."""
    absent = [name for name in needs if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    extras = ",".join(dict.fromkeys(["examples", *(EXTRAS[name] for name in absent)]))
    return f"needs {' and '.join(absent)}. Install the extra: pip install -e '.[{extras}]'"


def whole(least: int, below: float = math.inf) -> Callable[[str], int]:
    """A type for `argparse`: whole numbers from `least` on and below `below`."""
    rule = f"at least {least}" + (f" and below {below}" if below < math.inf else "")

    def convert(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < below:
            raise argparse.ArgumentTypeError(f"must be a whole number of {rule}. Received: {text!r}.")
        return int(text)

    return convert
