"""The benchmark of many heads: it runs, certifies, and the page shows what its lines say."""

from __future__ import annotations

import json

import pytest

from benchmarks.speed import many_heads
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs


def test_a_short_run_solves_and_writes_lines(tmp_path, capsys):
    output = tmp_path / "lines.jsonl"
    many_heads.main(["--quick", "--write", str(output)])
    lines = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {(line["method"], line["kind"], line["heads"]) for line in lines} == {
        (name, kind, 32) for name in ("DualProj", "MGDA") for kind in ("independent", "dependent")
    }
    assert all(line["gap"] < 1e-5 and line["least_cosine"] >= -1e-5 for line in lines)
    assert many_heads.table(lines) in capsys.readouterr().out
    many_heads.main(["--heads", "129", "--methods", "UPGrad", "--kinds", "independent", "--plain"])
    assert "| `UPGrad` | independent | too many |" in capsys.readouterr().out


def test_the_page_shows_what_the_lines_say():
    lines = [json.loads(line) for line in many_heads.RESULTS.read_text(encoding="utf-8").splitlines()]
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- many heads: begin -->\n\n")[2].partition("\n<!-- many heads: end -->")[0]
    assert shown == many_heads.table(lines), (
        "run `python -m benchmarks many_heads --read benchmarks/speed/results/many_heads.jsonl`"
    )
    promised = [line for line in lines if line["method"] in ("UPGrad", "DualProj", "MGDA", "NashMTL") and "ms" in line]
    assert len(promised) == 24 and all(line["least_cosine"] >= -1e-5 for line in promised)
    unsolvable = ("IMTLG", "ConFIG")  # whose equations have no solution where gradients depend on each other
    certified = [line["gap"] for line in lines if "gap" in line and line["method"] not in unsolvable]
    assert max(certified) < 3e-3
