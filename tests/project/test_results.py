"""The tables of the pages of results are what the recorded lines say."""

from __future__ import annotations

import importlib.util

from tests.helpers.sources import ROOT


def test_tables_of_the_results_are_those_of_the_lines() -> None:
    specification = importlib.util.spec_from_file_location("results_tables", ROOT / "docs" / "results_tables.py")
    maker = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(maker)
    pages = [page.read_text(encoding="utf-8") for page in maker.PAGES]
    assert [maker.filled(page) for page in pages] == pages, "run `python docs/results_tables.py`"
    written = "\n".join(pages)
    for command, tables in maker.tables().items():
        assert f"<!-- python -m {command} --table -->\n" in written
        assert tables.strip() in written
