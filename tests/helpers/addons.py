"""TensorFlow Addons, without what it says of its end when it is imported."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from multihead.models import _addons_loops


def addons() -> Any:
    """The package `tensorflow_addons`; None where it cannot be used."""
    if not _addons_loops.is_installed():
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("tensorflow_addons")
