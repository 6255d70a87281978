"""The pictures of a run: each is drawn, from the ledger that the run has written."""

from __future__ import annotations

import pytest

from examples import watching_a_run as program
from multihead import plots

pytestmark = pytest.mark.programs


@pytest.mark.usefixtures("eager_updates")
def test_every_picture_is_drawn(tmp_path, capsys):
    assert program.main(["--quick", "--output", str(tmp_path)]) == 0
    names = ["losses", "norms", "shares", "weights", "cosines", "model"]
    assert [line.split("/")[-1] for line in capsys.readouterr().out.split("wrote ")[1:]] == [f"{n}.png\n" for n in names]
    assert all((tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in names)
    run = plots.read(tmp_path / "run.jsonl")
    assert run.heads == ("topics", "hours", "urgent") and len(run.steps) == 8 and len(run.validation_steps) == 2
