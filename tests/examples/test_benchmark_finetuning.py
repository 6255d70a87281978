"""The benchmark of fine-tuning runs from the pretrained encoder to its table."""

from __future__ import annotations

import json

import pytest

from benchmarks import finetuning
from examples.seq2seq_price import batches

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_a_small_benchmark_writes_the_figures_of_its_variants(tmp_path, capsys, monkeypatch, without_graphs):
    monkeypatch.setattr(batches, "NUM_BUCKETS", (2, 1))  # fewer batches
    sizes = ["--orders", "60", "--priced", "40", "--held-out", "20", "--units", "8", "--seeds", "1"]
    epochs = ["--pretraining-epochs", "1", "--epochs", "2", "--variants", "frozen, then trained"]
    finetuning.main([*sizes, *epochs, "--output", str(tmp_path / "results.json")])
    (figures,) = json.loads((tmp_path / "results.json").read_text())["frozen, then trained"]
    assert set(figures) == set(finetuning.FIGURES) and all(0 <= value <= 1 for value in figures.values())
    assert "60 orders, 40 with a price" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_step_with_a_frozen_encoder_costs_less(capsys):
    ratios = finetuning.cost(5, finetuning.Console())
    assert ratios["all trained"] == pytest.approx(1) and ratios["frozen, without norms"] < 0.9
    assert "frozen: " in capsys.readouterr().out
