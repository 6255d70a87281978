"""The population of models on which the advice of `diagnose` is judged: a sample of it, and its tables."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from benchmarks.research import advice, population
from benchmarks.research.__main__ import main
from tests.helpers.cases import quick

pytestmark = pytest.mark.programs
PLANTED = ("units", "out of reach", "no probabilities", "few common rows")


@pytest.mark.parametrize("number", quick(1, [5, 7, 8, 0, *range(9, 25)]))
def test_what_is_planted_is_found_and_nothing_else_of_its_kind(number):
    drawn = population.model(number)
    keras.utils.set_random_seed(0)
    trainer = drawn.build()
    trainer.compile("adam")
    report = trainer.diagnose(*drawn.data()["train"], batch_size=96)
    said = {(each.kind, head) for each in report.findings for head in each.heads if each.kind in PLANTED}
    assert said == drawn.planted
    trainer.compile("adam", **report.suggestion)


def test_a_model_is_the_same_in_every_call():
    one, other = (population.model(3) for _ in range(2))
    assert list(one.tasks) == list(other.tasks) and one.planted == other.planted and one.lacking == "disjoint"
    for first, second in zip(one.data()["train"][1].values(), other.data()["train"][1].values(), strict=True):
        np.testing.assert_array_equal(first, second)
    labelled = [~np.isnan(labels).any(axis=1) for labels in one.data()["train"][1].values()]
    assert np.sum(labelled, axis=0).max() == 1


def test_the_command_goes_on_where_it_stopped(tmp_path, capsys):
    file = tmp_path / "advice.jsonl"
    arguments = ["advice", "--models", "9-9", "--quick", "--results", str(file)]
    assert main(arguments) == 0 and main(arguments) == 0
    (line,) = [json.loads(each) for each in file.read_text(encoding="utf-8").splitlines()]
    assert line["model"] == 9 and {"plain sum", "suggestion", "NormFloor always"} <= set(line["values"])
    assert all(len(values) == 1 for heads in line["values"].values() for values in heads.values())
    assert "| `units` | 1 | 1.00 |" in capsys.readouterr().out


def test_a_head_that_seems_worse_is_trained_again_with_new_seeds(monkeypatch):
    drawn = population.model(9)
    head = next(iter(drawn.tasks))
    sign = -1 if drawn.tasks[head].metric[1] == "max" else 1

    def trained(drawn, data, seed, updates, options):
        return {name: 1.0 + 0.001 * seed + (sign if options and name == head else 0) for name in drawn.tasks}

    monkeypatch.setattr(advice, "_trained", trained)
    line = advice.measure(9)
    assert set(line["again"]) == {"plain sum", "suggestion", "NormFloor always"}
    assert line["again"]["plain sum"][head] == pytest.approx([1.003, 1.004, 1.005, 1.006, 1.007])
    assert f"model 9, `{head}`" in advice.tables([line])


def test_tables_count_heads_beyond_two_standard_errors():
    values = {
        "plain sum": {"a": [1.0, 1.1, 1.2], "b": [0.5, 0.6, 0.7], "c": [3.0, 3.0, 3.0]},
        "suggestion": {"a": [0.5, 0.62, 0.7], "b": [0.4, 0.51, 0.6], "c": [3.0001, 3.0, 2.9999]},
    }
    heads = {"a": ["raw", "mae", "min"], "b": ["two", "auc", "max"], "c": ["noise", "mae", "min"]}
    line = {"model": 7, "heads": heads, "values": values, "planted": [["units", "a"]], "findings": [["units", ["a", "c"]]]}
    found = {head: z for _, head, z in advice.compared([line], "suggestion")}
    difference = np.array([0.5, 0.48, 0.5])
    assert found["a"] == pytest.approx(difference.mean() / (difference.std(ddof=1) / np.sqrt(3)))
    assert found["a"] > 2 and found["b"] < -2 and abs(found["c"]) < 2
    assert "| suggestion | 3 | 1 | 1 | none |" in advice.tables([line])
    tables = advice.tables([{**line, "again": values}])
    assert "| suggestion | 3 | 1 | 1 | model 7, `b` |" in tables and "| `units` | 1 | 1.00 | 2 | 0.50 |" in tables
