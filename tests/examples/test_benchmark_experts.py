"""The benchmark of experts: its data correlate as told, its models are of one size, and the page has the recorded tables."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import experts
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs


@pytest.mark.parametrize("correlation", [1.0, 0.5, 0.0])
def test_targets_are_one_function_of_two_directions(correlation):
    x, targets = experts.draw(correlation, 3, {"train": 4000})["train"]
    directions = [np.linalg.lstsq(x, targets[head][:, 0], rcond=None)[0] for head in experts.HEADS]
    one, two = (direction / np.linalg.norm(direction) for direction in directions)
    assert one @ two == pytest.approx(correlation, abs=0.1)  # of the slopes, which noise and waves blur
    z = x @ np.linalg.qr(np.random.default_rng(3).normal(size=(100, 2)))[0][:, 0]
    waves = z + np.sin(z) + np.sin(2 * z + 1) + np.sin(3 * z + 2) + np.sin(4 * z + 3)
    assert np.std(targets["first"][:, 0] - waves) == pytest.approx(0.1, rel=0.06)


def test_the_models_have_as_many_weights_below_the_heads_gates_aside():
    x = np.ones((2, experts.FEATURES), "float32")
    sizes = {}
    for name, build in experts.MODELS.items():
        trainer = build()
        trainer(x)
        modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
        variables = {id(v): v for module in modules for v in module.trainable_variables}.values()
        sizes[name] = sum(int(np.prod(v.shape)) for v in variables if "gate" not in v.name)
    assert max(sizes.values()) < 1.1 * min(sizes.values()), sizes


@pytest.mark.thorough
def test_a_quick_run_goes_on_where_it_stopped_and_prints_the_tables(tmp_path, capsys):
    output = ["--quick", "--output", str(tmp_path / "lines.jsonl")]
    assert experts.main(output) == 0
    printed, written = capsys.readouterr().out, (tmp_path / "lines.jsonl").read_text()
    assert written.count("\n") == 1 + len(experts.MODELS) * 2 * 3 and "| CGC |" in printed
    assert experts.main(output) == 0 and (tmp_path / "lines.jsonl").read_text() == written
    with pytest.raises(ValueError, match="`--output` must have these settings"):
        experts.Runs(tmp_path / "lines.jsonl", {})


def test_the_page_has_the_tables_of_the_recorded_lines():
    page = (ROOT / "docs" / "howto" / "experts.md").read_text(encoding="utf-8")
    settings, *lines = experts.read(experts.RESULTS)
    assert settings["rates"] == list(experts.RATES) and settings["rows"] == experts.PARTS
    for table in experts.tables(lines):
        assert "\n".join(table) in page


def test_a_model_that_is_not_finished_is_left_out():
    def line(model, correlation, seed, value):
        left = {"validation": {"first": value, "second": value}, "test": {"first": value, "second": value}}
        return {"model": model, "correlation": correlation, "seed": seed, "rate": 0.01, **left}

    seeds = (experts.TUNING_SEED, 0, 1)
    lines = [line(experts.SHARED, p, seed, 0.1 + (seed == 1) * 0.2 + p) for p in (1.0, 0.0) for seed in seeds]
    lines += [line("MMoE", 1.0, seed, 0.1) for seed in seeds]
    absolute, more, less = experts.tables(lines)
    assert absolute[2:] == ["| shared bottom | 1.200 ± 0.141 | 0.200 ± 0.141 |"]
    assert more[2:] == ["| shared bottom | 0 | -1.000 (-1.000 to -1.000) |"] and less[2:] == []
    lines += [line("MMoE", 0.0, seed, 0.1) for seed in seeds]
    assert experts.tables(lines)[2][2].startswith("| MMoE | +1.100 (")
