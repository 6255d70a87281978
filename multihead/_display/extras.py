"""Optional packages, which are imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any


def optional(module: str) -> Any:
    """An optional module, or None if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        return None


def needed(module: str, extra: str, what: str) -> Any:
    """An optional module.

    Args:
        module: Its name.
        extra: The extra of this package that installs it.
        what: What needs it, for the message.

    Raises:
        ImportError: It is not installed.
    """
    found = optional(module)
    if found is None:
        package = module.partition(".")[0]
        raise ImportError(f"{what} needs {package}. Received: none installed. Run `pip install 'multihead[{extra}]'`.")
    return found
