"""A comparison that a file of Python describes."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import Any

from multihead._ground.validation import did_you_mean, quoted
from multihead.comparison._compare import compare
from multihead.comparison._result import Comparison

_NEEDED = ("build", "data", "variants", "seeds", "budget")


def compare_config(path: str, **given: Any) -> Comparison:
    """Runs the comparison of a file whose variables are the arguments of `compare`.

    The file is imported under its name without `.py`, from its folder, so that further processes can import it, too.

    Args:
        path: The file.
        **given: Arguments of `compare` that replace those of the file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It lacks an argument, or has the name of another module.
    """
    module = _imported(Path(path))
    arguments = list(inspect.signature(compare).parameters)
    found = {name: getattr(module, name) for name in arguments if hasattr(module, name)}
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        own = [name for name in vars(module) if not name.startswith("_")]
        hints = [name for name in own if name not in found]
        raise ValueError(
            f"`config` must define {quoted(_NEEDED)}, arguments of `multihead.compare`, as variables. Received: {path!r}, "
            f"without {quoted(missing)}. {did_you_mean(missing, hints, 'Add them.')}"
        )
    return compare(**{**found, **given})


def _imported(path: Path) -> Any:
    if not path.is_file() or path.suffix != ".py" or not path.stem.isidentifier():
        raise FileNotFoundError(
            "`config` must be a file of Python whose name can be imported, such as `my_study.py`. "
            f"Received: {str(path)!r}. Correct the path, or rename the file."
        )
    folder = str(path.resolve().parent)
    known = importlib.util.find_spec(path.stem) if path.stem not in sys.modules else sys.modules[path.stem].__spec__
    origin = None if known is None else known.origin
    if known is not None and (origin is None or Path(origin).resolve() != path.resolve()):
        raise ValueError(
            f"`config` must not have the name of another module. Received: {str(path)!r}, and {path.stem!r} is imported "
            f"from {origin}. Rename the file."
        )
    sys.path.insert(0, folder)
    return importlib.import_module(path.stem)
