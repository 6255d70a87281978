"""The equal-cost benchmark: its data sets, its results and their tables, and `--quick` from the data to the table."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from benchmarks import _equal_cost_front, _equal_cost_sets, _equal_cost_table, equal_cost, multimnist
from examples.seq2seq_price.columns import NO_LABEL
from multihead.comparison import _run

pytestmark = pytest.mark.programs


def line(name, optimizer, alone, joint):
    """A line of results with an error `a` and an accuracy `b`."""
    figures = {"alone": alone, "plain sum": joint, "plain sum, equal cost": joint}
    updates = {"alone": 100, "plain sum": 100, "plain sum, equal cost": 180}
    return {
        "set": name,
        "optimizer": optimizer,
        "seeds": [0, 1, 2],
        "directions": {"a": "min", "b": "max"},
        "metrics": {"a": "a_loss", "b": "b_accuracy"},
        "updates": updates,
        "rates": {},
        "costs": {},
        "figures": {variant: dict(zip("ab", values)) for variant, values in figures.items()},
    }


@pytest.fixture
def results(tmp_path):
    """Two data sets: in one, both heads are better together; in the other, `b` is worse."""
    path = tmp_path / "results.jsonl"
    alone = [[0.5, 0.5, 0.5], [0.8, 0.8, 0.8]]
    equal_cost.keep(path, line("one", "Adam", alone, [[0.4, 0.4, 0.41], [0.84, 0.84, 0.85]]))
    equal_cost.keep(path, line("two", "Adam", alone, [[0.2, 0.2, 0.21], [0.6, 0.61, 0.6]]))
    return path


def test_changes_count_errors_that_fall_as_gains(results):
    one, two = _equal_cost_table.read(results)
    found = _equal_cost_table.of_heads(one, "plain sum, equal cost")
    assert found["a"].mean == pytest.approx(100 * np.mean([0.2, 0.2, 0.18]))
    assert found["b"].mean == pytest.approx(100 * np.mean([0.05, 0.05, 0.0625]))
    assert _equal_cost_table.change(one, "plain sum").mean == pytest.approx((found["a"].mean + found["b"].mean) / 2)
    assert _equal_cost_table.verdicts(one, "plain sum") == (2, 0)
    assert _equal_cost_table.verdicts(two, "plain sum") == (1, 1)


def test_the_last_table_says_where_nobody_pays(results, capsys):
    assert equal_cost.main(["--table", "--results", str(results)]) == 0
    printed = capsys.readouterr().out
    assert "; 1, 1 of 2; 1.80 |" in printed
    assert "| plain sum | 2 | 2 | 1 | 1 | -24.6 % (b of two, Adam) |" in printed


def test_larger_encoders_are_compared_with_the_others_at_the_seeds_of_both(results):
    alone = [[0.5, 0.5, 0.5, 0.9], [0.8, 0.8, 0.8, 0.1]]
    more = line("one", "Adam", alone, [[0.3, 0.3, 0.31, 0.3], [0.84, 0.84, 0.85, 0.8]])
    more["figures"] = {
        "alone": more["figures"]["alone"],
        "plain sum, as large, equal cost": more["figures"].pop("plain sum"),
    }
    more["updates"] = {"alone": 100, "plain sum, as large, equal cost": 150}
    equal_cost.keep(results, {**more, "seeds": [0, 1, 2, 3]})
    found = _equal_cost_table.against(
        _equal_cost_table.read(results)[1], "plain sum, as large, equal cost", "plain sum, equal cost"
    )
    assert found.seeds == 3 and found.mean == pytest.approx(100 * 0.1 / 0.5 / 2)  # `a` alone differs, by 0.1
    assert "| one | Adam | +10.0 (+10.0 to +10.0); 3 seeds |" in _equal_cost_table.tables(results)


def test_a_line_takes_the_place_of_the_one_before(results):
    alone = [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    made = line("one", "Adam", alone, alone)
    del made["figures"]["plain sum"]
    equal_cost.keep(results, made)
    assert [each["set"] for each in _equal_cost_table.read(results)] == ["two", "one"]
    found = _equal_cost_table.read(results)[1]["figures"]
    assert found["alone"] == dict(zip("ab", alone)) and found["plain sum"]["a"] == [0.4, 0.4, 0.41]  # which stays
    equal_cost.keep(results, {**made, "seeds": [1]})  # other seeds cannot be paired
    assert "plain sum" not in _equal_cost_table.read(results)[1]["figures"]


def test_variants_with_fewer_seeds_are_compared_at_these(results):
    alone = [[0.5, 0.5, 0.5, 0.9], [0.8, 0.8, 0.8, 0.1]]
    more = line("one", "Adam", alone, [[0.4, 0.4, 0.4, 0.4], [0.8, 0.8, 0.8, 0.8]])
    more["figures"] = {"alone": more["figures"]["alone"], "NormFloor, equal cost": more["figures"].pop("plain sum")}
    more["updates"] = {"alone": 100, "NormFloor, equal cost": 180}
    before = _equal_cost_table.read(results)[0]
    equal_cost.keep(results, {**more, "seeds": [0, 1, 2, 3]})
    found = _equal_cost_table.read(results)[1]
    assert found["seeds"] == [0, 1, 2, 3] and set(found["figures"]) == {*before["figures"], "NormFloor, equal cost"}
    assert _equal_cost_table.change(found, "plain sum").mean == _equal_cost_table.change(before, "plain sum").mean
    assert _equal_cost_table.verdicts(found, "NormFloor, equal cost") == (1, 0)
    assert "; 1.80; 3 seeds |" in _equal_cost_table.tables(results)
    equal_cost.keep(results, before)  # with fewer seeds: nothing is lost
    assert _equal_cost_table.read(results)[1] == found
    again = {**before, "figures": {**before["figures"], "plain sum": {"a": [0.3] * 3, "b": [0.9] * 3}}}
    equal_cost.keep(results, again)  # as many seeds of this variant, though fewer than others have: the new figures
    figures = _equal_cost_table.read(results)[1]["figures"]
    assert figures == {**found["figures"], "plain sum": again["figures"]["plain sum"]}


def test_the_validation_data_choose_how_the_time_is_spent(results):
    rule = f"{_equal_cost_table.RULE}{_equal_cost_table.RATES}"
    alone, better, worse = (
        [[0.5, 0.5, 0.5], [0.8, 0.81, 0.8]],
        [[0.4, 0.4, 0.41], [0.82, 0.83, 0.81]],
        [[0.6] * 3, [0.7] * 3],
    )
    tests = {"alone": alone, rule: better, f"{rule}, as large": alone, f"{rule}, equal cost": worse}
    on_validation = {"alone": alone, rule: alone, f"{rule}, as large": worse, f"{rule}, equal cost": better}
    made = line("three", "SGD", alone, alone)
    made["figures"], made["validation"] = (
        {variant: dict(zip("ab", each)) for variant, each in of_variants.items()} for of_variants in (tests, on_validation)
    )
    made["updates"] = {variant: 180 if variant.endswith("cost") else 100 for variant in tests}
    equal_cost.keep(results, made)
    assert _equal_cost_table.chosen(made) == f"{rule}, equal cost"  # though it is the worst on the test data
    printed = _equal_cost_table.tables(results)
    assert "| three | SGD | 3 | as wide | as alone | 1.80 | -16.4 (" in printed and "| 0, 2 of 2 | -20.0 (a) |" in printed
    assert "1 in all: delta-m is above 0 in 0, with an interval above 0 in 0; no head is worse in 0." in printed
    assert _equal_cost_table.chosen(_equal_cost_table.read(results)[0]) is None  # of an earlier line


def test_the_validation_data_choose_the_floor(results):
    rules = _equal_cost_table.RULE, _equal_cost_table.EQUAL
    alone, better = [[0.5, 0.5, 0.5], [0.8, 0.81, 0.8]], [[0.4, 0.4, 0.41], [0.82, 0.83, 0.81]]
    made = line("four", "SGD", alone, alone)
    figures = dict(zip(("alone", *rules), (alone, alone, better)))
    made["figures"] = made["validation"] = {variant: dict(zip("ab", each)) for variant, each in figures.items()}
    made["updates"] = dict.fromkeys(figures, 100)
    equal_cost.keep(results, made)
    assert _equal_cost_table.chosen(made, rules) == rules[1] and _equal_cost_table.chosen(made) == rules[0]
    assert "| four | SGD | 3 | 1 | as wide | one | 1.00 | +10.7 (" in _equal_cost_table.tables(results)
    del made["validation"][rules[1]]
    assert _equal_cost_table.chosen(made, rules) is None


def test_how_far_a_rule_is_beyond_the_fixed_weights(results):
    alone = [[0.5, 0.5, 0.5], [0.8, 0.8, 0.8]]
    made = {**line(*_equal_cost_front.STUDY, alone, alone), "keras": "Keras"}
    head, other = made["directions"]
    # Relative changes: (-20, 0), (-10, -10) and (0, -20) percent for the weights; the rules at (-5, -5) and (-15, -15).
    weights = {f"{other} 2": (0.6, 0.8), "plain sum": (0.55, 0.72), f"{head} 3": (0.5, 0.64)}
    rules = {"ahead": (0.525, 0.76), "behind": (0.575, 0.68)}
    of_variants = {"alone": (0.5, 0.8), **weights, **rules}
    made["figures"] = {variant: {head: [a] * 3, other: [b] * 3} for variant, (a, b) in of_variants.items()}
    assert _equal_cost_front.beyond(made, "ahead") == pytest.approx((5, 5, 5), abs=0.2)
    assert _equal_cost_front.beyond(made, "behind") == pytest.approx((-5, -5, -5), abs=0.2)
    made["figures"]["ahead"] = {head: [0.524, 0.525, 0.526], other: [0.76] * 3}
    middle, low, high = _equal_cost_front.beyond(made, "ahead")
    assert 4.7 < low < middle < high < 5.3
    equal_cost.keep(results, made)
    printed = _equal_cost_table.tables(results)
    assert f"| {other} 2 | 0.600 ± 0.000 | 0.800 ± 0.000 |  |  |  |" in printed and "| alone |" in printed
    assert "-5.0 (-5.0 to -5.0) |" in printed and printed.index(f"{other} 2") < printed.index(f"{head} 3")
    assert _equal_cost_front.front_of([made], ("study", "SGD")) == ""
    del made["figures"]["plain sum"]
    assert _equal_cost_front.front_of([made], _equal_cost_front.STUDY) == ""  # two weights are no front


def test_results_are_in_the_order_of_the_data_sets_and_optimizers(results):
    alone = [[0.5, 0.5, 0.5], [0.8, 0.81, 0.8]]
    for name, optimizer in (("tox21", "Adam"), ("study", "SGD"), ("study", "Adam"), ("clintox", "AdamW")):
        equal_cost.keep(results, line(name, optimizer, alone, alone))
    found = [(each["set"], each["optimizer"]) for each in _equal_cost_table.read(results)]
    assert found[:4] == [("study", "Adam"), ("study", "SGD"), ("clintox", "AdamW"), ("tox21", "Adam")]


def test_the_figure_has_a_panel_for_each_optimizer(results, tmp_path):
    pytest.importorskip("matplotlib")
    equal_cost.keep(results, line("one", "SGD", [[1.0, 1.0], [1.0, 1.1]], [[1.1, 1.0], [1.0, 1.2]]))
    figure = _equal_cost_table.draw(results)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Adam", "SGD"]
    assert _equal_cost_table.draw(tmp_path / "none.jsonl") is None


def test_orders_are_padded_and_the_longest_left_out(tmp_path):
    found = _equal_cost_sets.study(tmp_path, every=50)
    for ids, labels in found.data.values():
        assert ids.shape[1] <= _equal_cost_sets.LONGEST and len(ids) == len(labels["reply"]) == len(labels["price"])
        assert (ids[:, 0] != 0).all() and set(np.unique(labels["price"])) <= {NO_LABEL, *range(20)}
    assert not set(map(bytes, found.data["validation"][0])) & set(map(bytes, found.data["train"][0]))
    assert list(found.build().heads) == list(found.metrics) == ["reply", "price"]


def test_quick_trains_the_variants_and_prints_their_table(monkeypatch, tmp_path, capsys, without_graphs):
    monkeypatch.setattr(_run, "ROUNDS", 1)
    monkeypatch.setattr(_run, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(multimnist, "SIZES", {"train": 200, "validation": 100, "test": 100})
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (400, 28, 28), np.uint8), rng.integers(0, 10, 400, np.uint8)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: ((x[:300], y[:300]), (x[300:], y[300:])))
    large = f"plain sum{equal_cost.LARGE}"
    arguments = [
        "--sets",
        "multimnist_cl_rr",
        "--variants",
        "plain sum",
        large,
        "--runs",
        str(tmp_path),
        "--data",
        str(tmp_path),
    ]
    assert equal_cost.main(["--quick", *arguments]) == 0
    printed = capsys.readouterr().out
    (result,) = map(json.loads, (tmp_path / "equal_cost.jsonl").read_text(encoding="utf-8").splitlines())
    assert list(result["figures"]) == [
        "alone",
        *(each + end for end in ("", ", equal cost") for each in ("plain sum", large)),
    ]
    assert result["costs"]["plain sum"]["size"] < 0.99 < result["costs"][large]["size"] <= 1
    assert result["updates"]["alone"] == 3 and result["rates"]["plain sum"] == 2e-3
    assert (tmp_path / "multimnist_cl_rr_Adam.jsonl").exists()
    assert "| multimnist_cl_rr | Adam | 1 | " in printed
