"""Which tests a command runs: the quick ones where none is named, else all that is named, wherever the clone lies."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tests.helpers.sources import ROOT

FILE = """
import pytest

def test_plain(): pass

@pytest.mark.mathematics
def test_mathematics(): pass

@pytest.mark.programs
def test_program(): pass

@pytest.mark.parametrize("runs", [1, pytest.param(99, marks=pytest.mark.thorough)])
def test_many(runs): pass

@pytest.mark.first_cases(2)
@pytest.mark.parametrize("case", range(3))
def test_first(case): pass
"""
FIRST = ["test_first[0]", "test_first[1]", "test_first[2]"]
QUICK = ["test_plain", "test_mathematics", "test_many[1]", *FIRST[:2]]
ALL = ["test_plain", "test_mathematics", "test_program", "test_many[1]", "test_many[99]", *FIRST]


@pytest.fixture
def clone(pytester: pytest.Pytester) -> Path:
    """A small project with this one's markers and selection, in folders whose names mean something in this one."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    section = parser["tool:pytest"]
    root = pytester.path / "models" / "tests" / "examples" / "clone"
    for folder in ("tests/unit", "tests/examples"):
        (root / folder).mkdir(parents=True)
        (root / folder / "test_any.py").write_text(FILE)
    (root / "conftest.py").write_text("from tests.helpers.selection import *\n")
    markers = section["markers"].replace("\n", "\n    ")
    options = "--strict-markers --import-mode=importlib"
    (root / "pytest.ini").write_text(f"[pytest]\ntestpaths = tests\naddopts = {options}\nmarkers ={markers}\n")
    return root


def selected(pytester: pytest.Pytester, folder: Path, *arguments: str) -> list[str]:
    """The names of the tests that run, by file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = pytester.inline_run(*arguments, "-p", "no:xdist", "-q")
    assert not result.getfailures() and result.ret == 0
    return [
        report.nodeid.partition("::")[2] for report in result.getreports("pytest_runtest_logreport") if report.when == "call"
    ]


def test_where_nothing_is_named_the_quick_tests_run(pytester: pytest.Pytester, clone: Path) -> None:
    assert selected(pytester, clone) == 2 * QUICK


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["tests"], 2 * ALL),
        (["tests/examples"], ALL),
        (["tests/unit/test_any.py"], ALL),
        (["tests/unit/test_any.py::test_program", "tests/unit/test_any.py::test_many"], ["test_program", *ALL[3:5]]),
        (["-k", "many"], 2 * ALL[3:5]),
        (["-m", "programs"], 2 * ["test_program"]),
        (["-m", "not mathematics and not programs and not thorough"], 2 * ["test_plain", "test_many[1]", *FIRST[:2]]),
        (["tests/unit", "-k", "many", "-m", "thorough"], ["test_many[99]"]),
    ],
)
def test_what_is_named_runs_whole(pytester: pytest.Pytester, clone: Path, arguments: list[str], expected: list[str]) -> None:
    assert selected(pytester, clone, *arguments) == expected


def test_a_folder_in_which_pytest_starts_runs_whole(pytester: pytest.Pytester, clone: Path) -> None:
    assert selected(pytester, clone / "tests" / "examples") == ALL


@pytest.mark.parametrize("expression", ["not programs and not thorough", "programs and not thorough"])
def test_files_without_a_selected_test_are_not_imported(pytester: pytest.Pytester, clone: Path, expression: str) -> None:
    broken = "import pytest\n\npytestmark = {}\n\nraise RuntimeError\n"
    kept, left_out = ("mathematics", "programs")[:: 1 if expression.startswith("not") else -1]
    (clone / "tests" / "unit" / "test_broken.py").write_text(broken.format(f"pytest.mark.{left_out}"))
    assert selected(pytester, clone, "-m", expression) == (2 * QUICK if kept == "mathematics" else 2 * ["test_program"])


@pytest.mark.thorough
def test_processes_of_their_own_run_the_same(
    pytester: pytest.Pytester, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(clone)
    pytester.runpytest_subprocess("-n", "1", "--dist", "loadfile").assert_outcomes(passed=10)
    pytester.runpytest_subprocess("-n", "1", "--dist", "loadfile", "tests").assert_outcomes(passed=16)
