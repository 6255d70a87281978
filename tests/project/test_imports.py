"""Who imports whom."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from multihead import balancing, models
from tests.helpers.sources import ROOT, imported, sources

# Imports go from a later line to an earlier one, or within a line; never to a later one.
LAYERS = [
    {"_compatibility", "_extras", "_files", "_version"},
    {"_keras", "_stages", "_known_losses", "_stopping", "_validation", "_snapshot"},
    {"_keras_optimizers", "_gradients", "_replicas", "_random", "_earlier", "_reads", "_tables", "_drawing"},
    {"_head_weights", "_method", "_encode"},
    {"losses", "schedules", "clipping", "accumulation", "mixing", "rates"},
    {"_labels", "_metrics"},
    {"heads", "weighting", "balancing"},
    {"_directions", "_best", "_recorded"},
    {"_backup", "_run_state", "_callback_state"},
    {"_checkpoint", "_per_head"},
    # The stages of one update.
    {"_update"},
    {"_update.batch"},
    {"_update.loops"},
    {"_update.network"},
    {"_update.faults"},
    {"_update.rates"},
    {"_update.representation"},
    {"_update.labels"},
    {"_update.weights"},
    {"_update.micro_batches"},
    {"_update.head_gradients"},
    {"_update.encoder_gradients"},
    {"_update.backward"},
    {"_update.combine"},
    {"_update.layers"},
    {"_update.spec"},
    {"_update.scale"},
    {"_update.apply"},
    {"_update.pipeline"},
    {"_update.drop", "_guarded"},
    {"_figures"},
    {"telemetry"},
    {"_board", "_ledger", "_per_update"},
    {"callbacks"},
    {"_custom_loop", "_options", "diagnosis", "_export", "_data", "_progress"},
    {"_resuming"},
    {"_build", "_trace"},
    {"_building"},
    {"_configuration"},
    {"_saving", "_summary"},
    {"trainer", "testing"},
    {"_drawing_models"},
    {"plots"},
    {"__init__"},
    {"__main__"},
]


def place_of(module: str) -> str:
    """Where a module stands: the stages of an update by themselves, other packages as one."""
    parts = module.split(".")
    return ".".join(parts[:2] if parts[0] == "_update" else parts[:1])


def places_imported(path: Path) -> set[str]:
    """The places of what a file of the package imports from the package."""
    modules = {".".join(source.relative_to(ROOT / "multihead").with_suffix("").parts) for source in sources("multihead")}
    found = set()
    for name in imported(path):
        if name.startswith("multihead."):
            inner = name.removeprefix("multihead.")
            while inner not in modules and f"{inner}.__init__" not in modules:
                inner = inner.rpartition(".")[0]
            found.add(place_of(inner))
    return found


def modules_imported(path: Path) -> set[str]:
    """The modules directly under `multihead` that a file of the package imports."""
    return {place.split(".")[0] for place in places_imported(path)}


def place_of_file(path: Path) -> str:
    return place_of(".".join(path.relative_to(ROOT / "multihead").with_suffix("").parts).removesuffix(".__init__"))


@pytest.mark.parametrize("path", sources("multihead"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    place = place_of_file(path)
    assert place in layer, f"give {place!r} its place in LAYERS"
    used = places_imported(path) - {place}
    assert {name for name in used if layer.get(name, len(LAYERS)) > layer[place]} == set()


def test_no_circle_of_imports_anywhere() -> None:
    """Between files of the package, wherever in a file the import stands."""
    files = {".".join(path.relative_to(ROOT / "multihead").with_suffix("").parts): path for path in sources("multihead")}
    uses: dict[str, set[str]] = {}
    for module, path in files.items():
        found = set()
        for name in imported(path):
            inner = name.removeprefix("multihead.") if name.startswith("multihead.") else ""
            while inner and inner not in files and f"{inner}.__init__" not in files:
                inner = inner.rpartition(".")[0]
            found.add(inner if inner in files else f"{inner}.__init__")
        uses[module] = (found & files.keys()) - {module}
    while uses:
        free = {name for name, used in uses.items() if not used & uses.keys()}
        assert free, f"a circle among {sorted(uses)}"
        uses = {name: used for name, used in uses.items() if name not in free}


def test_no_import_is_hidden() -> None:
    """None stands in a function or behind `TYPE_CHECKING`; only the check of versions must import late."""
    for path in sources("multihead"):
        if path.name != "_compatibility.py":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            hidden = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)) and node.col_offset]
            assert [node.lineno for node in hidden] == [], path


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
    assert users <= {"models/_addons_loops.py"}


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
