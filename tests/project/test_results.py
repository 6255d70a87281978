"""The tables of the pages of results are what the recorded lines say."""

from __future__ import annotations

import pytest

from benchmarks.research import pages, tables
from benchmarks.research.__main__ import EXPERIMENTS
from benchmarks.research.record import RESULTS, comparison, read
from tests.helpers.sources import ROOT


@pytest.mark.programs
def test_tables_of_the_results_are_those_of_the_lines() -> None:
    made = {name: each.tables(read(RESULTS / f"{name}.jsonl")) for name, each in EXPERIMENTS.items()}
    for path, page in pages.with_tables(made).items():
        assert path.read_text(encoding="utf-8") == page, "run `python -m benchmarks.research write`"
        assert page.count("<!-- end -->") == page.count("--table -->") + page.count("<!-- short: ") > 0


def test_the_page_for_users_is_short() -> None:
    assert len(pages.SHORT.read_text(encoding="utf-8").split()) <= 1200


def test_the_table_of_the_readme_is_that_of_the_lines() -> None:
    page, (line,) = (ROOT / "README.md").read_text(encoding="utf-8"), read(RESULTS / "tickets.jsonl")
    for variant in ("alone", "plain sum", "topics 100", "NormFloor", "NormFloor 1"):
        found = comparison(line, [variant])
        cells = [tables.spread(found.values(variant, head)) for head in found.heads]
        assert " | ".join(cells) in page.replace("**", ""), variant
