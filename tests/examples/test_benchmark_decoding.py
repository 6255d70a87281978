"""The decoding benchmark runs at a small size."""

from __future__ import annotations

import re

import pytest

from benchmarks.decoding import main, report

pytestmark = pytest.mark.programs


def test_both_tables_are_printed(capsys, without_graphs):
    sizes = ["--vocabulary", "30", "--embedding", "4", "--units", "6", "--source-length", "4", "--maximum-length", "5"]
    main([*sizes, "--batches", "2", "--train-batches", "2", "--beam", "2", "--steps", "1", "--rounds", "1"])
    printed = capsys.readouterr().out
    assert "differ" not in printed
    for line in (r"greedy, batch 2", r"beam 2, batch 2", r"batch 2"):
        assert re.search(rf"^\| {line} \| [0-9.]+ \|", printed, re.MULTILINE)
    assert len(re.findall(r"^\| (?:greedy|beam 2), batch 2 \| [0-9.]+ \|$", printed, re.MULTILINE)) == 2


def test_ratios_are_medians_of_the_rounds_ratios(capsys):
    report("title", 6, {"one": [1.0, 2.0, 10.0], "other": [4.0, 2.0, 3.0]})
    assert capsys.readouterr().out == "| title | 3.0 | 2.0 | 1.00 |\n"
