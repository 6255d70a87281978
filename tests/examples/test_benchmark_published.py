"""The benchmarks beside published tables: their data, their figures, and `--quick` from the data to the tables."""

from __future__ import annotations

import csv
import gzip
import json
import re

import keras
import numpy as np
import pytest

from benchmarks import _molecules_table, _multimnist_table, _published, molecules, multimnist
from examples._command_line import InputError

pytestmark = pytest.mark.programs


def test_variants_are_found_by_name():
    special = {"CAGrad": {"balancer": "its own"}}
    names = ["plain sum", "EqualNorms", "EqualNorms, parameters", "CAGrad, parameters", "FAMO", "cl 0.3"]
    assert _published.variants_of(names, ["cl", "rr"], special) == {
        "plain sum": {},
        "EqualNorms": {"balancer": "EqualNorms"},
        "EqualNorms, parameters": {"balancer": "EqualNorms", "balance_at": "parameters"},
        "CAGrad, parameters": {"balancer": "its own", "balance_at": "parameters"},
        "FAMO": {"weighting": "FAMO"},
        "cl 0.3": {"weights": {"cl": 0.3}},
    }
    assert set(_published.variants_of(multimnist.METHODS, ["cl", "rr"], multimnist.SPECIAL)) == set(multimnist.METHODS)
    for name, hint in (
        ("EqualNorm", "Did you mean 'EqualNorms'?"),
        ("cr 0.3", "Pass the name of"),
        ("FAMO, parameters", ""),
        ("get", ""),
    ):
        with pytest.raises(InputError, match=rf"`--variants` must be names of variants. Received: '{name}'. {hint}"):
            _published.variants_of([name], ["cl", "rr"])


def test_the_area_is_that_of_scikit_learn_without_missing_labels():
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(0)
    labels, scores = rng.choice([0.0, 1.0, np.nan], (200, 1)), rng.integers(0, 9, (200, 1)) / 9  # many equal scores
    known = np.isfinite(labels)
    assert molecules.area(labels, scores) == pytest.approx(metrics.roc_auc_score(labels[known], scores[known]), abs=1e-12)
    assert np.isnan(molecules.area(np.ones(3), np.arange(3)))
    assert np.isnan(molecules.area(np.array([0, 1]), np.array([np.nan, 1])))


def test_positives_count_as_much_as_negatives():
    labels = np.array([[1.0], [0.0], [0.0], [0.0], [np.nan]], np.float32)
    weights = molecules.balanced(labels)
    assert weights[0] == pytest.approx(weights[1:4].sum()) == pytest.approx(2.0)


def test_two_digits_are_joined_pixel_by_pixel():
    left, right = np.random.default_rng(0).integers(0, 256, (2, 3, 28, 28), np.uint8)
    found = multimnist.joined(left, right)
    for row, column in np.ndindex(28, 28):
        y, x = (int((place + 0.5) * 36 / 28) for place in (row, column))
        ours = left[:, y, x] if y < 28 and x < 28 else np.zeros(3, np.uint8)
        theirs = right[:, y - 6, x - 6] if 6 <= y < 34 and 6 <= x < 34 else np.zeros(3, np.uint8)
        np.testing.assert_array_equal(found[:, row, column], np.maximum(ours, theirs))


@pytest.fixture
def digits(monkeypatch):
    """Few digits instead of MNIST."""
    monkeypatch.setattr(multimnist, "SIZES", {"train": 60, "validation": 20, "test": 20})
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (100, 28, 28), np.uint8), rng.integers(0, 10, 100, np.uint8)
    return (x[:80], y[:80]), (x[80:], y[80:])


def test_targets_are_those_of_the_pairs(digits, tmp_path):
    (x, y), (x_test, y_test) = digits
    pairs = np.arange(60)[::-1], np.arange(60, 80)[::-1], np.arange(20)[::-1]
    names = {f"pairs_{part}": each for part, each in zip(("train", "val", "test"), pairs)}
    np.savez(tmp_path / "multimnist.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test, **names)
    found = multimnist.data_of(multimnist.read(tmp_path), ("cl", "cr", "rr"))
    for part, (left, right) in {"train": (0, 59), "validation": (60, 79)}.items():
        images, targets = found[part]
        assert images.shape[1:] == (28, 28, 1) and targets["cl"][0] == y[left] and targets["cr"][0] == y[right]
        np.testing.assert_allclose(targets["rr"][0], (x[right].reshape(-1) / 255 - 0.1307) / 0.3081, atol=1e-5)
        assert images.dtype == targets["rr"].dtype == np.float32
    assert found["test"][1]["cr"].tolist() == y_test[::-1].tolist()


def test_without_the_file_keras_has_the_digits_or_the_error_says_what_to_do(digits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: digits)
    found = multimnist.read(tmp_path)
    sizes = {"train": 60, "validation": 20, "test": 20}
    assert {part: len(pairs) for part, (_, _, pairs) in found.items()} == sizes
    assert all(len(images) > pairs.max() for images, _, pairs in found.values())

    def offline():
        raise Exception("URL fetch failure.")

    monkeypatch.setattr(keras.datasets.mnist, "load_data", offline)
    with pytest.raises(SystemExit):
        multimnist.main(["--quick", "--data", str(tmp_path), "--results", str(tmp_path)])
    assert "`--data` must be a folder with multimnist.npz" in capsys.readouterr().err


def test_quick_trains_the_variants_of_digits_and_prints_their_table(digits, tmp_path, monkeypatch, capsys, without_graphs):
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: digits)
    arguments = ["--tasks", "cl_rr", "--data", str(tmp_path), "--results", str(tmp_path)]
    assert multimnist.main(["--quick", *arguments]) == 0
    printed = capsys.readouterr().out
    (path,) = tmp_path.glob("*.jsonl")
    assert path.name == "multimnist_cl_rr_6x1.jsonl"
    assert "6 images, 1 epochs, rate 0.002, 1 seed, test data" in printed
    assert multimnist.main(["--table", *arguments]) == 0
    table = capsys.readouterr().out
    assert printed.endswith(table)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    assert [row[0] for row in rows[:5]] == ["variant", "---", "alone", "plain sum", "EqualNorms"]
    assert {row[0] for row in rows[3:]} == set(_multimnist_table.CHANGES)
    assert rows[3][-2:] == ["-1.04, -16.86", "-8.95"]
    assert [axis.get_xlabel()[:11] for axis in _multimnist_table.draw(tmp_path).axes] == ["cl_accuracy"]


@pytest.mark.thorough
def test_every_variant_of_digits_trains(digits, tmp_path, monkeypatch, capsys, without_graphs):
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: digits)
    arguments = ["--tasks", "cl_rr", "--data", str(tmp_path), "--results", str(tmp_path)]
    assert multimnist.main(["--quick", "--variants", *multimnist.METHODS, *arguments]) == 0
    rows = [line.split(" | ")[0].strip("| ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert set(multimnist.METHODS) <= set(rows)


def test_published_figures_are_means_over_heads():
    for variant, (left, right, mean) in _multimnist_table.CHANGES.items():
        assert (left + right) / 2 == pytest.approx(mean, abs=0.011), variant
    sets = _molecules_table.PUBLISHED
    assert {tuple(figures) for figures in sets.values()} == {tuple(sets["tox21"])}


@pytest.fixture
def made_molecules(tmp_path):
    """A file of 900 molecules, some of which have no label or cannot be read."""
    rng, path = np.random.default_rng(0), tmp_path / "molecules" / "clintox.csv.gz"
    path.parent.mkdir()
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "smiles", "Is long", "Has oxygen"])
        for row in range(900):
            length, oxygen = rng.integers(2, 12), int(rng.integers(2))
            smiles = "" if row == 10 else "C" * length + "N" * (row % 3 == 0) + "O" * oxygen
            writer.writerow([row, smiles, int(length > 6), "" if rng.random() < 0.3 else oxygen])
    return tmp_path


def test_quick_trains_the_variants_of_molecules_and_prints_their_table(made_molecules, tmp_path, capsys, without_graphs):
    pytest.importorskip("rdkit")
    pytest.importorskip("sklearn")
    arguments = ["--sets", "clintox", "--data", str(made_molecules), "--results", str(tmp_path)]
    assert molecules.main(["--quick", *arguments]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"clintox: 1 molecules not read, [1-9]\d? validation labels of the rarest class", printed)
    lines = [json.loads(line) for line in (tmp_path / "clintox.jsonl").read_text().splitlines()]
    assert {line["variant"] for line in lines if "run" in line} == {"alone", "plain sum", "EqualNorms"}
    models = [json.loads(line)["model"] for line in (tmp_path / "clintox_sklearn.jsonl").read_text().splitlines()]
    assert models == ["logistic regression", "logistic regression, C = 1", "random forest"]
    assert molecules.main(["--table", *arguments]) == 0
    table = capsys.readouterr().out
    assert printed.endswith(table)
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[:8]] == [
        "| model", "| ---", "| logistic regression", "| logistic regression, C = 1", "| random forest", "| each assay alone",
        "| plain sum, as the multi-task net", "| EqualNorms",
    ]  # fmt: skip
    assert rows[6][1] == "0.832"
    (axis,) = _molecules_table.draw(tmp_path).axes
    assert {tick.get_text() for tick in axis.get_yticklabels()} == {"is_long", "has_oxygen"}


def test_without_lines_there_are_the_published_figures(tmp_path):
    assert "| multi-task net | 0.630 |" in _molecules_table.tables(tmp_path, ["sider"])
    assert "| CAGrad | -1.69 | -2.59 | -2.14 |" in _multimnist_table.tables(tmp_path, ["cl_rr"])
    assert "| MGDA | 97.26 | 95.90 |" in _multimnist_table.tables(tmp_path, ["cl_cr"])
    recorded = (_published.RESULTS / "clintox.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "sider.jsonl").write_text("".join(recorded[:4]), encoding="utf-8")  # one head alone, and no more
    assert "| multi-task net | 0.630 |" in _molecules_table.tables(tmp_path, ["sider"])
    assert _molecules_table.draw(tmp_path) is None and _multimnist_table.draw(tmp_path) is None


def test_what_is_missing_is_named(tmp_path, capsys):
    for arguments, message in (
        (["--sets", "tox21"], "`--data` must be a folder with the file molecules/tox21.csv.gz"),
        (["--sets", "beer"], "invalid choice: 'beer'"),
    ):
        with pytest.raises(SystemExit):
            molecules.main([*arguments, "--data", str(tmp_path), "--results", str(tmp_path)])
        assert message in capsys.readouterr().err
