"""`benchmarks.peers`: the same model in other libraries, and what its lines say."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from benchmarks import _peers_keras, _peers_table, peers
from benchmarks._peers_problem import PARAMETERS, PLAIN, REPRESENTATION, STEPS, Problem

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_quick_prints_the_table_and_says_that_pytorch_is_not_there(tmp_path, capsys):
    path = tmp_path / "lines.jsonl"
    assert peers.main(["--quick", "--cache", str(tmp_path / "torch"), "--results", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "without PyTorch, which is not in" in printed
    settings, (line,) = _peers_table.read(path)
    assert settings["threads"] == 2 and set(settings["versions"]) == {"TensorFlow", "Keras"}
    (row,) = [each for each in printed.splitlines() if each.startswith("| dense")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "2"
    time, processor = map(float, cells[4].strip(")").split(" ("))
    assert time == pytest.approx(_peers_table.ratio(line, "Keras"), abs=0.01)
    assert processor == pytest.approx(_peers_table.ratio(line, "Keras", "processor"), abs=0.01)
    assert cells[5:] == ["", "", ""]
    assert peers.main(["--table", "--results", str(path)]) == 0
    assert printed.endswith(capsys.readouterr().out)
    assert [axis.get_title("left") for axis in _peers_table.draw(path).axes] == ["dense"]


@pytest.mark.parametrize("model", list(STEPS))
def test_encoders_have_the_shapes_of_the_weights_that_all_libraries_get(model):
    problem = Problem(model, 2, 1)
    encoder = _peers_keras.encoder_of(model)
    assert [weight.shape for weight in encoder.get_weights()] == problem.encoder_shapes()
    arrays = problem.arrays()
    assert len(arrays["x"]) == len(arrays["y_1"]) == 2 * problem.batch
    assert all(np.array_equal(array, again) for array, again in zip(arrays.values(), problem.arrays().values()))


def test_models_that_are_not_the_same_are_an_error():
    problem, names = Problem("GRU", 2, 1), (f"ours, {PLAIN}", f"PyTorch, {PLAIN}", f"PyTorch, {PARAMETERS}")

    def figures(*values):
        return dict(zip(names, values))

    same = figures(7, 7, 7), figures(4.6, 4.6001, 4.6), figures(4.0, 4.01, 9.0)
    peers.check_same(problem, *same)
    for place, values in enumerate((figures(7, 7, 8), figures(4.6, 4.7, 4.6), figures(4.0, 4.1, 4.0))):
        other = [*same[:place], values, *same[place + 1 :]]
        with pytest.raises(RuntimeError, match="The models of GRU with 2 heads are not the same. Parameters: {'ours"):
            peers.check_same(problem, *other)


def test_a_python_without_pytorch_is_named(tmp_path, capsys):
    assert peers.main(["--torch-python", str(tmp_path / "python"), "--results", str(tmp_path / "lines.jsonl")]) == 2
    assert "`--torch-python` must be a Python with torch, torchjd and quadprog. Received: " in capsys.readouterr().err
    assert not (tmp_path / "lines.jsonl").exists()


def test_a_process_that_ends_says_why(monkeypatch):
    monkeypatch.setitem(peers.MODULES, "TensorFlow", "benchmarks.no_such_module")
    with pytest.raises(RuntimeError, match=r"has ended:\n(.|\n)*No module named benchmarks.no_such_module"):
        peers.Process("TensorFlow", sys.executable, 1)


def test_lines_become_ratios_and_a_figure(tmp_path):
    times = {f"ours, {PLAIN}": [1.0, 2.0, 4.0], f"Keras, {PLAIN}": [2.0, 6.0, 4.0], f"PyTorch, {PLAIN}": [3.0, 6.0, 2.0]}
    times |= {f"ours, {PARAMETERS}": [1.0] * 3, f"ours, {REPRESENTATION}": [0.5] * 3, f"PyTorch, {PARAMETERS}": [4.0] * 3}
    lines = [{"settings": {"versions": {"Keras": "0"}, "threads": 2}}]
    for model in STEPS:
        for heads in (2, 8):
            lines.append({"model": model, "heads": heads, "parameters": 7, "seconds": times, "processor": times})
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert "| LSTM | 8 | 7 | 2000.0 | 2.00 (2.00) | 3.00 (3.00) | 4.00 (4.00) | 8.00 (8.00) |" in _peers_table.table(path)
    axes = _peers_table.draw(path).axes
    assert [axis.get_title("left") for axis in axes] == list(STEPS)
    assert {text.get_text() for text in axes[-1].texts} == {"ours", *_peers_table.COLORS}
    assert "peers.png" in _peers_table.link(path)


def test_without_lines_there_is_no_table(tmp_path):
    path = tmp_path / "none.jsonl"
    assert _peers_table.table(path) == "No run is recorded yet.\n"
    assert _peers_table.draw(path) is None and _peers_table.link(path) == ""
