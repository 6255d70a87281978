"""The files that contributors start from: they parse, agree with each other, and name only what exists."""

from __future__ import annotations

import ast
import configparser
import doctest
import re
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import yaml

import multihead
from multihead import _compatibility, schedules
from multihead.testing import check_balancer, check_schedule
from tests.helpers.sources import ROOT

PAGES = [
    "CONTRIBUTING.md",
    "SECURITY.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
    "docs/developing/architecture.md",
    "docs/developing/decisions.md",
]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def workflow(name: str) -> dict[Any, Any]:
    return yaml.safe_load(read(f".github/workflows/{name}.yml"))


def rows() -> list[dict[str, str]]:
    return workflow("checks")["jobs"]["tests"]["strategy"]["matrix"]["include"]


# Workflows


def test_lower_bounds_are_those_of_the_package() -> None:
    required = dict(re.findall(r"^(\w+)>=(\S+)$", setup_cfg()["options"]["install_requires"], re.MULTILINE))
    keras_2, keras_3, first_with_keras_3 = (
        ".".join(map(str, numbers))
        for numbers in (_compatibility.KERAS_2, _compatibility.OLDEST_KERAS_3, _compatibility.OLDEST_KERAS_3_TENSORFLOW)
    )
    assert {row["changed"]: row["packages"] for row in rows() if row["packages"]} == {
        "lower bounds with Keras 2": f"tensorflow=={required['tensorflow']} keras=={keras_2}.0 numpy=={required['numpy']}.0",
        "lower bounds with Keras 3": f"tensorflow=={first_with_keras_3}.1 keras=={keras_3}.0 numpy=={required['numpy']}.0",
    }


# Releases


def test_release_refuses_a_tag_that_is_not_the_version() -> None:
    script = str(ROOT / ".ci" / "release")
    result = subprocess.run(["bash", script, "v999.0"], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    assert re.search(r"The tag must be v\S+, the version in multihead/_version\.py\. Received: v999\.0\.", result.stderr)


def test_citation_is_of_this_version() -> None:
    citation = yaml.safe_load(read("CITATION.cff"))
    assert citation["version"] == multihead.__version__
    assert citation["license"] == setup_cfg()["metadata"]["license"]
    assert citation["cff-version"] == "1.2.0" and citation["authors"] and citation["title"]


def test_the_command_that_shows_versions_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r'python -c "(.*)"', read(".github/ISSUE_TEMPLATE/bug.yml"))
    exec(compile(source, "bug.yml", "exec"), {})
    assert multihead.__version__ in capsys.readouterr().out


# What pages say


def named(page: str) -> list[str]:
    """What a page names in backticks, outside of blocks of code."""
    text = re.sub(r"^ *```.*?^ *```$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


def words() -> set[str]:
    """Every word of the sources."""
    folders = ("multihead", "models", "examples", "benchmarks", "tests", ".ci", ".github/workflows")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [ROOT / "setup.cfg", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"]
    texts = [path.read_text(encoding="utf-8") for path in files if path != Path(__file__) and path.suffix in SUFFIXES]
    return {word for text in texts for word in re.findall(r"\w+", text)}


SUFFIXES = {".py", ".cfg", ".toml", ".yml", ""}


@pytest.mark.parametrize("page", PAGES)
def test_paths_that_pages_name_exist(page: str) -> None:
    paths = [
        name for name in named(page) if re.fullmatch(r"[\w.-]*(/[\w.-]+)*/?", name) and re.search(r"/|\.(md|cff|cfg)$", name)
    ]
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_names_that_pages_name_exist(page: str) -> None:
    known = words()
    names = [re.sub(r"\(.*\)$", "", name) for name in named(page)]
    names = [name for name in names if re.fullmatch(r"[A-Za-z_][\w.]*", name) and not name.endswith((".md", ".cff", ".cfg"))]
    assert [name for name in names if not set(name.split(".")) - {""} <= known] == []


def test_map_has_a_line_for_each_folder() -> None:
    lines = [line for line in read("CONTRIBUTING.md").splitlines() if line.startswith("| `")]
    shown = {name for line in lines for name in re.findall(r"`(multihead/[^`]*)`", line.split("|")[1])}
    package = ROOT / "multihead"
    rooms = {f"multihead/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    rooms |= {f"multihead/{path.name}" for path in package.glob("*.py")} - {"multihead/__init__.py"}
    assert rooms and rooms == shown


def leaves(tree: Any) -> Iterator[str]:
    """The strings in nested lists and dicts."""
    if isinstance(tree, str):
        yield tree
    for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from leaves(branch)


def test_pages_are_in_the_navigation() -> None:
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(leaves(yaml.safe_load(read("mkdocs.yml"))["nav"]))


def block(heading: str) -> str:
    """The first block of Python under a heading of CONTRIBUTING.md."""
    text = read("CONTRIBUTING.md").partition(f"### {heading}\n")[2]
    return textwrap.dedent(re.search(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL).group(1))


def run_as(name: str, source: str, start: ModuleType | None = None) -> ModuleType:
    """A module made of a block of code, its examples run."""
    module = ModuleType(name)
    if start is not None:
        vars(module).update(vars(start), __name__=name)
    exec(compile(source, f"CONTRIBUTING.md, {name}", "exec"), vars(module))
    return module


def check_examples(module: ModuleType, cls: type) -> None:
    examples = doctest.DocTestParser().get_examples(cls.__doc__)
    assert any(example.want for example in examples)
    for example in examples:
        if example.want:
            received = np.asarray(eval(example.source, vars(module)), np.float64)
            np.testing.assert_allclose(received, ast.literal_eval(example.want), atol=5e-5)
        else:
            exec(example.source, vars(module))


@pytest.fixture
def registered_for_now() -> Iterator[None]:
    """Takes what a test registers with Keras away again."""
    registered = keras.saving.get_custom_objects()
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


@pytest.mark.usefixtures("registered_for_now")
def test_the_balancer_that_is_shown_keeps_the_contract() -> None:
    module = run_as("shown_balancer", block("A balancer"))
    check_examples(module, module.RootNorms)
    check_balancer(module.RootNorms(), num_heads=(1, 3))
    for part in ("Formula", "What it fixes:", "Size of the update:"):
        assert part in module.RootNorms.__doc__
    assert len(block("A balancer").splitlines()) <= 150


@pytest.mark.usefixtures("registered_for_now")
def test_the_schedule_that_is_shown_works() -> None:
    module = run_as("shown_schedule", block("A schedule"), schedules)
    check_examples(module, module.Rarely)
    schedule = module.Rarely("price", every=3)
    schedule.bind(["price", "reply"])
    check_schedule(schedule)
    with pytest.raises(ValueError, match="`head` must not be the only head"):
        schedule.bind(["price"])
    with pytest.raises(ValueError, match="`every` must be a whole number of at least 1"):
        module.Rarely("price", every=0)
    with pytest.raises(ValueError, match="`head`"):
        module.Rarely("price", every=2).bind(["reply"])
