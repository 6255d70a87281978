"""The table of cells in the benchmarks' README is what the recorded lines say."""

from __future__ import annotations

import json

from tests.helpers.sources import ROOT


def test_the_table_of_cells_is_that_of_the_lines() -> None:
    lines = (ROOT / "benchmarks" / "results" / "restaurants_cells.jsonl").read_text(encoding="utf-8").splitlines()
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines]
    assert [(row["cell"], row["rows"]) for row in rows] == [("gru", 8000), ("transformer", 8000), ("transformer", 33525)]
    for row in rows:
        statistics = [f"{row[name]:.3f}" for name in ("price_accuracy", "reply_exact", "reply_slot_f1")]
        assert f"| {row['cell']} | {row['rows']:,} | {' | '.join(statistics)} |\n" in page
