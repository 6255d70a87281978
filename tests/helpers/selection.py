"""Which tests run where no test is named."""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest

QUICK = "not programs and not thorough"


def pytest_configure(config: pytest.Config) -> None:
    """Leaves whole programs and long repetitions out of a run for which no path, no `-k` and no `-m` is given.

    A path, be it `tests`, asks for all that lies there. The processes of pytest-xdist get the expression with the options.
    """
    asked = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if not (asked or config.option.keyword or config.option.markexpr or config.getoption("lf", False)):
        config.option.markexpr = QUICK


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not import a file of which `-m` leaves no test: its tests all have a marker that is rejected, or none that is asked for."""
    asked = config.option.markexpr
    if collection_path.suffix != ".py" or not asked:
        return None
    text = collection_path.read_text(encoding="utf-8")
    if "(addons or not programs)" in asked and "mark.addons" not in text:
        asked = asked.replace("(addons or not programs)", "not programs")
    terms = asked.split(" and ")
    of_all = re.search(r"^pytestmark = .*", text, re.MULTILINE)
    refused = any(f"not {name}" in terms and of_all and f"mark.{name}" in of_all[0] for name in ("programs", "mathematics"))
    return True if refused or ("programs" in terms and "mark.programs" not in text) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks as thorough all but the first cases of a test that says how many of them are quick."""
    seen: collections.Counter[str] = collections.Counter()
    for item in items:
        marker = item.get_closest_marker("first_cases")
        if marker and not item.get_closest_marker("thorough"):
            test = item.nodeid.partition("[")[0]
            seen[test] += 1
            if seen[test] > marker.args[0]:
                item.add_marker("thorough")
