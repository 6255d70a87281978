"""Who imports whom."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from multihead import balancing, models
from tests.helpers.sources import ROOT, imported, sources

# Imports go from a later line to an earlier one, or within a line; never to a later one.
LAYERS = [
    {"_compatibility", "_version"},
    {"_keras", "_validation", "_draws"},
    {"losses", "schedules", "clipping", "accumulation", "_gradients", "_data", "_windows", "mixing"},
    {"_method", "heads", "weighting", "balancing"},
    {"_backward", "_meeting", "_step", "_update", "_weighing", "telemetry"},
    {"_exporting", "_plan", "trainer", "testing", "diagnosis"},
    {"__init__"},
]


def modules_imported(path: Path) -> set[str]:
    """The modules directly under `multihead` that a file of the package imports."""
    return {name.split(".")[1] for name in imported(path) if name.startswith("multihead.")}


def module_of(path: Path) -> str:
    return path.relative_to(ROOT / "multihead").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sources("multihead"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    module = module_of(path)
    assert module in layer, f"give {module!r} its place in LAYERS"
    used = modules_imported(path) - {module}
    assert {name for name in used if layer.get(name, len(LAYERS)) > layer[module]} == set()


def test_modules_of_the_package_import_each_other_without_circles() -> None:
    uses: dict[str, set[str]] = {}
    for path in sources("multihead"):
        uses.setdefault(module_of(path), set()).update(modules_imported(path) - {module_of(path)})
    while uses:
        free = {name for name, used in uses.items() if not used & uses.keys()}
        assert free, f"a circle among {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in free}


def test_weighting_and_balancing_do_not_know_each_other() -> None:
    for one, other in (("weighting", "balancing"), ("balancing", "weighting")):
        for path in sources(f"multihead/{one}"):
            assert other not in modules_imported(path), path


def test_package_and_reference_models_do_not_know_each_other() -> None:
    for path in sources("multihead"):
        assert "models" not in modules_imported(path), path
    for path in sources("models"):
        allowed = {"models", "tensorflow", "tensorflow_addons", "keras", "numpy", *sys.stdlib_module_names}
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path


def test_models_are_imported_by_the_name_under_which_they_are_installed() -> None:
    folders = ("multihead", "models", "examples", "benchmarks", "tests", "docs")
    texts = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    for path in [*texts, *ROOT.glob("*.py"), *ROOT.glob("*.md")]:
        bare = re.findall(r"^[>\s]*(?:import|from) models\b.*", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert bare == [], f"{path}: import `multihead.models`"


def test_doctests_of_models_see_the_installed_classes(request: pytest.FixtureRequest) -> None:
    collect = request.config.hook.pytest_collect_file
    collectors = collect(file_path=ROOT / "models" / "encoder.py", parent=request.session)
    (example,) = [item for collector in collectors for item in collector.collect()]
    assert example.dtest.globs["Seq2SeqEncoder"] is models.Seq2SeqEncoder


def test_one_file_imports_tensorflow_addons() -> None:
    users = {
        path.relative_to(ROOT).as_posix()
        for folder in ("multihead", "models", "examples", "benchmarks")
        for path in sources(folder)
        if any(name.split(".")[0] == "tensorflow_addons" for name in imported(path))
    }
    assert users <= {"models/_addons.py"}


def test_core_imports_tensorflow_keras_numpy_and_the_standard_library_only() -> None:
    allowed = {"multihead", "tensorflow", "keras", "numpy", *sys.stdlib_module_names}
    for path in sources("multihead"):
        assert {name.split(".")[0] for name in imported(path)} <= allowed, path


def test_trainer_knows_no_method_by_name() -> None:
    words = set(re.findall(r"\w+", (ROOT / "multihead" / "trainer.py").read_text(encoding="utf-8")))
    assert words & (set(balancing.__all__) - {"Balancer", "balance", "get"}) == set()


def test_no_step_leaves_the_graph() -> None:
    for folder in ("multihead", "models"):
        for path in sources(folder):
            assert not re.search(r"\b(numpy_function|py_function|py_func)\b", path.read_text(encoding="utf-8")), path
