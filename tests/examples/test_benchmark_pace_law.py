"""The benchmark of the law of the pace: each head alone, verdicts against it, and what the page shows."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import _problems, norm_floor, pace_law
from tests.helpers.sources import ROOT


def line(variant, **heads):
    return {"problem": "wine", "optimizer": "Adam", "variant": variant, "heads": heads}


def test_alone_the_encoder_learns_from_one_head_only():
    problem = _problems.healthy(0)
    changed = problem._replace(
        heads={**problem.heads, "b": problem.heads["b"]._replace(labels=problem.heads["b"].labels[::-1])}
    )
    rules = {"alone a": pace_law.alone(0), "plain sum": norm_floor.plain_sum}
    encoders = []
    for each in (problem, changed):
        networks = norm_floor.Networks([each], [0], rules)
        networks.train(norm_floor.orders_of(each, [0], 3))
        encoders.append([v.numpy() for v in networks.variables[: networks.num_encoder]])
    for one, other, start in zip(*encoders, networks.start):
        np.testing.assert_array_equal(one[0], other[0])
        assert (one[1] != other[1]).any() and (one[0] != start[0]).any()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_the_encoder_and_each_head_may_have_learning_rates_of_their_own(optimizer):
    problem, rules = _problems.healthy(0), {"plain sum": norm_floor.plain_sum, "floor 1": norm_floor.VARIANTS["floor 1"]}

    def trained(rates):
        networks = norm_floor.Networks([problem], [0], rules)
        networks.train(norm_floor.orders_of(problem, [0], 3), optimizer, np.array(rates))
        return networks

    one, same = trained([0.01, 0.02]), trained([[0.01] * 4, [0.02] * 4])
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(one.variables, same.variables, strict=True))
    frozen = trained([[0.0, 0.01, 0.0, 0.01], [0.01, 0.0, 0.01, 0.01]])
    moved = [
        (variable.numpy() != np.tile(start, (2, 1, 1))).any(axis=(1, 2))
        for variable, start in zip(frozen.variables, frozen.start)
    ]
    parts = [moved[i] for i in (0, *range(frozen.num_encoder, len(moved), 2))]  # the kernels
    assert np.array(parts).tolist() == [[False, True], [True, False], [False, True], [True, True]]
    assert pace_law._with(np.array([1.0, 2.0]), np.array([3.0, 4.0])).tolist() == [[1, 3, 4], [2, 3, 4]]


def test_heads_count_against_alone_and_what_is_not_finite_is_worse():
    lines = [
        line("alone", a=[0.5, 0.5, 0.5], b=[0.5, 0.5, 0.5], c=[0.5, 0.4, 0.6], d=[None, 0.5, 0.5], e=[0.1, 0.1, 0.1]),
        line("floor 1", a=[0.6, 0.6, 0.61], b=[0.4, 0.4, 0.41], c=[0.4, 0.5, 0.6], d=[0.1, 0.1, 0.1], e=[None, 0.1, 0.1]),
    ]
    assert pace_law.verdicts(lines, "wine", "floor 1") == (4, 1, 2, -np.inf)


def test_batches_of_n_times_the_size_cover_each_epoch_once():
    problem = _problems.few_labels(0)
    orders = norm_floor.orders_of(problem, [0, 1], 5, 3 * norm_floor.BATCH)
    assert orders.shape == (5, 2, 96) and norm_floor.orders_of(problem, [0], 5).shape == (5, 1, 32)
    per_epoch = problem.train // 96
    assert len(set(orders[:per_epoch, 0].ravel().tolist())) == 96 * min(per_epoch, 5)
    assert norm_floor.orders_of(problem, [0], 2, 10**6).shape == (2, 1, problem.train)


def test_a_learning_rate_is_judged_by_what_the_variant_trains():
    figures = {"a": np.array([0.5, 0.7]), "b": np.array([-100.0, np.nan])}
    assert pace_law._score("alone a", figures) == pytest.approx(0.6)
    assert pace_law._score("plain sum", figures) == pytest.approx((0.6 - 1.0) / 2)


@pytest.mark.programs
def test_the_benchmark_runs_and_repeats_nothing(tmp_path, capsys):
    output = tmp_path / "lines.jsonl"
    options = ["--problems", "few_labels", "--optimizers", "SGD", "--seeds", "2", "--quick", "--output", str(output)]
    pace_law.main(options)
    lines = pace_law.read(output)
    assert [each["variant"] for each in lines][:4] == ["alone", *(f"{variant}: 1" for variant in pace_law.VARIANTS)]
    pace_law.main(options)
    assert pace_law.read(output) == lines
    (whole,) = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    kept = {variant: values for variant, values in whole["variants"].items() if not variant.endswith("batch n")}
    assert len(kept) == len(whole["variants"]) - len(pace_law.VARIANTS)
    output.write_text(json.dumps({**whole, "variants": kept}) + "\n", encoding="utf-8")
    pace_law.main(options)  # which adds what the line lacks
    assert pace_law.read(output) == lines
    with pytest.raises(SystemExit):
        pace_law.main([*options[:5], "3", *options[6:]])
    assert "`--seeds` must be as in `--output`. Received: 3, and 2 of few_labels." in capsys.readouterr().err
    pace_law.main(options)
    assert "| SGD, sqrt(n), wide | " in capsys.readouterr().out


def test_the_page_shows_what_the_lines_say():
    page = (ROOT / "docs" / "concepts" / "pace.md").read_text(encoding="utf-8")
    lines = pace_law.read(pace_law.LINES)
    assert {each["problem"] for each in lines} == set(norm_floor.PROBLEMS)
    assert pace_law.summary(lines) in page
    assert pace_law.by_problem(lines) in page
