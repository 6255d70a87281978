"""The benchmark of many heads: it runs, certifies, and so do its recorded lines."""

from __future__ import annotations

import pytest

from benchmarks.speed import _record, many_heads

pytestmark = pytest.mark.programs


def test_a_short_run_solves_and_certifies(monkeypatch, capsys):
    lines = []
    tables = many_heads.tables
    monkeypatch.setattr(many_heads, "tables", lambda found: (lines.extend(found), tables(found))[1])
    many_heads.main(["--quick"])
    rows = lines[0]["rows"]
    assert {(row["method"], row["kind"], row["heads"]) for row in rows} == {
        (name, kind, 32) for name in ("DualProj", "MGDA") for kind in ("independent", "dependent")
    }
    assert all(row["gap"] < 1e-5 and row["least_cosine"] >= -1e-5 for row in rows)
    assert many_heads.markdown_of(rows) in capsys.readouterr().out
    many_heads.main(["--heads", "129", "--methods", "UPGrad", "--kinds", "independent", "--plain"])
    assert "| `UPGrad` | independent | too many |" in capsys.readouterr().out


def test_what_is_recorded_keeps_the_promises():
    (line,) = _record.newest(_record.read(_record.path_of("many_heads")), ["method"], {})
    promised = [row for row in line["rows"] if row["method"] in ("UPGrad", "DualProj", "MGDA", "NashMTL") and "ms" in row]
    assert len(promised) == 24 and all(row["least_cosine"] >= -1e-5 for row in promised)
    unsolvable = ("IMTLG", "ConFIG")  # whose equations have no solution where gradients depend on each other
    certified = [row["gap"] for row in line["rows"] if "gap" in row and row["method"] not in unsolvable]
    assert max(certified) < 3e-3
