"""Who imports whom."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import multihead
from tests.helpers.sources import ROOT, imported, sources

pytestmark = pytest.mark.mathematics  # of texts

# The floors of the house, from the ground up: what stands on one imports from its own floor and from those below.
FLOORS = [
    {"_ground", "_version"},
    {"_data", "_method", "accumulation", "clipping", "losses", "mixing", "rates"},
    {"_display", "_runs", "balancing", "scaling", "schedules", "weighting"},
    {"heads", "plots", "testing"},
    {"_update", "callbacks"},
    {"_formats", "diagnosis", "telemetry"},
    {"_trainer"},
    {"trainer"},
    {"comparison"},
    {"__init__", "__main__"},
]


def module_of(path: Path) -> str:
    """The name of a file's module under `multihead`."""
    return ".".join(path.relative_to(ROOT / "multihead").with_suffix("").parts)


def modules_imported(path: Path) -> set[str]:
    """The modules of the package that a file imports, such as `_update.batch`; a package is its `__init__`."""
    modules = {module_of(source) for source in sources("multihead")}
    found = set()
    for name in imported(path):
        if name.startswith("multihead."):
            inner = name.removeprefix("multihead.")
            while inner and inner not in modules and f"{inner}.__init__" not in modules:
                inner = inner.rpartition(".")[0]
            found.add(inner if inner in modules else f"{inner}.__init__")
    return found - {module_of(path)}


def rooms_imported(path: Path) -> set[str]:
    """The files and folders directly under `multihead` that a file imports from."""
    return {module.split(".")[0] for module in modules_imported(path)}


@pytest.mark.parametrize("path", sources("multihead"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    floors = {name: number for number, names in enumerate(FLOORS) for name in names}
    room = module_of(path).split(".")[0]
    assert room in floors, f"give {room!r} its place in FLOORS"
    assert {name for name in rooms_imported(path) if floors[name] > floors[room]} == set()


def test_no_circle_of_imports_anywhere() -> None:
    """Between files of the package, wherever in a file the import stands."""
    uses = {module_of(path): modules_imported(path) for path in sources("multihead")}
    while uses:
        free = {name for name, used in uses.items() if not used & uses.keys()}
        assert free, f"a circle among {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in free}


def test_no_import_is_hidden() -> None:
    """None stands in a function or behind `TYPE_CHECKING`; only the check of versions must import late.

    Type checkers must know the names that the package imports when they are first used, besides `models`, which lies elsewhere.
    """
    hidden = {}
    for path in sources("multihead"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) and node.col_offset]
        if found:
            hidden[path.relative_to(ROOT / "multihead").as_posix()] = {name.name for node in found for name in node.names}
    del hidden["_ground/compatibility.py"]
    assert hidden == {"__init__.py": {*multihead._LATER, "compare"} - {"models"}}


def test_weighting_and_balancing_do_not_know_each_other() -> None:
    for one, other in (("weighting", "balancing"), ("balancing", "weighting")):
        for path in sources(f"multihead/{one}"):
            assert other not in rooms_imported(path), path


def test_package_and_reference_models_do_not_know_each_other() -> None:
    for path in sources("multihead"):
        assert "models" not in rooms_imported(path), path
    for path in sources("models"):
        allowed = {"models", "tensorflow", "tensorflow_addons", "keras", "numpy", *sys.stdlib_module_names}
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path


def test_one_file_imports_tensorflow_addons() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("multihead", "models", "examples", "benchmarks")
        for path in sources(folder)
        if any(name.split(".")[0] == "tensorflow_addons" for name in imported(path))
    }
    assert users <= {"models/_addons_loops.py"}


def test_core_imports_tensorflow_keras_numpy_and_the_standard_library_only() -> None:
    allowed = {"multihead", "tensorflow", "keras", "numpy", *sys.stdlib_module_names}
    for path in sources("multihead"):
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path


def test_no_step_leaves_the_graph() -> None:
    for folder in ("multihead", "models"):
        for path in sources(folder):
            assert not re.search(r"\b(numpy_function|py_function|py_func)\b", path.read_text(encoding="utf-8")), path
