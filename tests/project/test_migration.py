"""Both sides of each migration page run, and train the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multihead.models import _addons_loops
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs

PAGES = [
    page for page in sorted((ROOT / "docs" / "migration").glob("*.md")) if "```diff" in page.read_text(encoding="utf-8")
]


def side_of(page: Path, mark: str) -> str:
    """The program before (`-`) or after (`+`) the change."""
    (block,) = re.findall(r"^```diff\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return "\n".join(line[1:] for line in block.splitlines() if line[:1] in ("", " ", mark))


def run(page: Path, mark: str) -> Any:
    namespace: dict[str, Any] = {"__name__": page.stem}
    exec(compile(side_of(page, mark), f"{page.name} {mark}", "exec"), namespace)
    return namespace["result"]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.addons] * (page.stem == "addons"), id=page.stem) for page in PAGES]
)
def test_both_sides_of_a_migration_give_the_same(page: Path) -> None:
    after = run(page, "+")
    if page.stem == "addons":
        source = np.array([[4, 5, 6, 3], [7, 8, 3, 0], [5, 3, 0, 0]] * 8)
        np.testing.assert_array_equal(after, source)
        if not _addons_loops.is_installed():
            return
        before = np.asarray(run(page, "-"))
        np.testing.assert_array_equal(np.where(source != 0, before, 0), source)
        return
    before = run(page, "-")
    assert len(before) == len(after) > 2
    for one, other in zip(before, after):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_pages_are_found() -> None:
    assert {page.stem for page in PAGES} == {"addons", "gradient_tape", "keras", "two_optimizers"}
