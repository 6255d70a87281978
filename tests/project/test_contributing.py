"""The files that contributors start from: they parse, agree with each other, and name only what exists."""

from __future__ import annotations

import configparser
import itertools
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import multihead
from multihead import _compatibility

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def workflow(name: str) -> dict[Any, Any]:
    return yaml.safe_load(read(f".github/workflows/{name}.yml"))


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job.get("steps", ()) if "run" in step]


def rows() -> list[dict[str, str]]:
    return workflow("checks")["jobs"]["tests"]["strategy"]["matrix"]["include"]


# Workflows


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_scripts_that_exist_and_pin_what_they_use(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job.get("steps", ())]
    used = [step["uses"] for step in steps if "uses" in step] + [job["uses"] for job in jobs.values() if "uses" in job]
    for name in used:
        assert (ROOT / name).exists() if name.startswith("./") else re.search(r"@(v\d+|release/v\d+)$", name), name
    for script in re.findall(r"\.ci/\w+", path.read_text(encoding="utf-8")):
        assert os.access(ROOT / script, os.X_OK), script


def test_checks_run_everything_that_is_run_by_hand() -> None:
    jobs = workflow("checks")["jobs"]
    assert commands(jobs["all"]) == ["bash .ci/run"]
    assert commands(jobs["tests"])[-1] == "python -m pytest"


def test_checks_cover_every_python_that_is_offered() -> None:
    stated = re.findall(r"Python :: (3\.\d+)", setup_cfg()["metadata"]["classifiers"])
    assert stated
    (both,) = (step["with"] for step in workflow("checks")["jobs"]["all"]["steps"] if "with" in step)
    assert sorted({*both["python-version"].split(), *(row["python"] for row in rows())}) == sorted(stated)


def test_each_row_changes_one_thing() -> None:
    def kind(python: str, extras: str, packages: str) -> tuple[str, bool, str]:
        return python, "addons" in extras, packages

    known = {kind("3.11", "addons", ""), kind("3.13", "", "")}  # the two stacks of .ci/run
    waiting = {kind(row["python"], row["extras"], row["packages"]) for row in rows()}
    assert len(waiting) == len(rows()) and not waiting & known
    while waiting:
        near = {
            each
            for each, other in itertools.product(waiting, known)
            if sum(one != another for one, another in zip(each, other)) == 1
        }
        assert near, f"more than one thing changed: {waiting}"
        known |= near
        waiting -= near


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


def test_release_publishes_what_was_checked_and_built_and_keeps_no_token() -> None:
    release = workflow("release")
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as a boolean
    jobs = release["jobs"]
    assert set(jobs["publish"]["needs"]) == set(jobs) - {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in read(".github/workflows/release.yml")


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


# Forms and hooks


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_issue_forms_ask_for_something(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert form["name"] and form["description"]
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert any(field.get("validations", {}).get("required") for field in form["body"])


def test_the_command_that_shows_versions_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (source,) = re.findall(r'python -c "(.*)"', read(".github/ISSUE_TEMPLATE/bug.yml"))
    exec(compile(source, "bug.yml", "exec"), {})
    assert multihead.__version__ in capsys.readouterr().out


def test_hooks_are_pinned_and_lint_as_ci_does() -> None:
    repositories = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    assert all(re.fullmatch(r"v\d+\.\d+\.\d+", repository["rev"]) for repository in repositories)
    hooks = {hook["id"] for repository in repositories for hook in repository["hooks"]}
    assert {"ruff-check", "ruff-format", "trailing-whitespace"} <= hooks
