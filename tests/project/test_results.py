"""The tables of the pages of results are what the recorded lines say."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import PAGES, with_tables
from benchmarks.research import pages
from benchmarks.research.__main__ import recorded_tables
from benchmarks.research.record import EQUAL_COST, RESULTS, comparison, read
from tests.helpers.letters import small_letters
from tests.helpers.sources import ROOT


@pytest.mark.programs
def test_tables_of_the_results_are_those_of_the_lines() -> None:
    for path, page in pages.with_tables(recorded_tables()).items():
        assert path.read_text(encoding="utf-8") == page, "run `python -m benchmarks.research write`"
        assert page.count("<!-- end -->") == page.count("--table -->") + page.count("<!-- short: ") > 0


@pytest.mark.programs
def test_tables_of_the_speed_are_those_of_the_lines() -> None:
    for path, page in with_tables().items():
        assert path.read_text(encoding="utf-8") == page, "run `python -m benchmarks write`"
        assert page.count("<!-- end -->") == page.count("<!-- python -m benchmarks ") > 0


def test_the_page_of_the_speed_has_no_other_tables() -> None:
    page = re.sub(
        r"<!-- python -m benchmarks \w+ -->\n.*?<!-- end -->\n", "", PAGES[0].read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert "| ---" not in page and "<!-- " not in page, "record the line, and run `python -m benchmarks write`"


def test_the_page_for_users_is_short() -> None:
    assert len(pages.SHORT.read_text(encoding="utf-8").split()) <= 1200


def test_the_numbers_of_the_readme_are_those_of_the_lines() -> None:
    page, (line,) = (ROOT / "README.md").read_text(encoding="utf-8"), read(RESULTS / "replies.jsonl")
    plain, balanced = (
        comparison(line, [f"{variant}{EQUAL_COST}"]).values(f"{variant}{EQUAL_COST}", "reply").mean()
        for variant in ("plain sum", "NormFloor 1")
    )
    assert f"{100 * balanced:.0f} % exact replies instead of {100 * plain:.0f} %" in page


@pytest.mark.programs
def test_the_pictures_of_the_results_have_letters_for_a_phone_and_whole_names() -> None:
    made = {name: picture for name, picture in pages.pictures().items() if picture is not None}
    assert len(made) >= 7 and {name: small for name, each in made.items() if (small := small_letters(each))} == {}
    shown = [label.get_text() for axis in made["molecules.png"].axes for label in axis.get_yticklabels()]
    whole = [name for name in shown if name and not name.endswith("...")]
    assert "congenital familial and\ngenetic disorders" in whole and len(whole) >= len(set(filter(None, shown))) - 1
