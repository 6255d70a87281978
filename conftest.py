"""Collects the package and `models/` under the names by which they are installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

MODELS = Path(__file__).parent / "models"
PACKAGE = Path(__file__).parent / "multihead"

pytest_plugins = ["tests.helpers.selection"]


def pytest_configure() -> None:
    """Checks, without importing TensorFlow, that `multihead.models` is this checkout's."""
    package = importlib.util.find_spec("multihead")
    path = package.submodule_search_locations if package else None
    found = (finder.find_spec("multihead.models", path) for finder in sys.meta_path)
    if str(MODELS / "__init__.py") not in [spec.origin for spec in found if spec]:
        raise pytest.UsageError("`multihead.models` is not installed from this checkout. Run `pip install -e .` in it.")


def pytest_collect_file(file_path: Path) -> None:
    """Imports the package before one of its files, and a file of `models/` as part of `multihead.models`.

    By its path alone pytest would import a file a second time, and register its classes with Keras twice.
    """
    if PACKAGE in file_path.parents:
        importlib.import_module("multihead")
    if file_path.parent == MODELS and file_path.suffix == ".py":
        name = "models" if file_path.stem == "__init__" else f"models.{file_path.stem}"
        sys.modules[name] = importlib.import_module(f"multihead.{name}")
