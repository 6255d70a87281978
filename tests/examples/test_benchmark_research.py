"""The experiments run from their data to their tables. CI runs this every week."""

from __future__ import annotations

import csv
import gzip
import re

import keras
import numpy as np
import pytest

from benchmarks.research import census, digits, lag, molecules, tables, weights
from benchmarks.research.__main__ import main
from benchmarks.research.moments import by_head
from benchmarks.research.record import comparison, read
from multihead import Head, MultiHeadTrainer
from multihead.comparison import _run

pytestmark = [pytest.mark.programs, pytest.mark.thorough]


@pytest.fixture(autouse=True)
def quick_costs(monkeypatch):
    monkeypatch.setattr(_run, "ROUNDS", 1)
    monkeypatch.setattr(_run, "LEAST_SECONDS", 0.0)


def run(name, tmp_path, *arguments):
    """The lines of a quick run."""
    path = tmp_path / "lines.jsonl"
    folders = ["--runs", str(tmp_path / "runs"), "--results", str(path), "--data", str(tmp_path)]
    assert main([name, "--quick", *folders, *arguments]) == 0
    return read(path)


def test_tickets_and_what_is_recorded_of_them(tmp_path, capsys):
    (line,) = run("tickets", tmp_path)
    assert list(line["values"]) == ["alone", "plain sum", "topics 10"] and line["updates"]["alone"] == 3
    found = comparison(line, ["plain sum"])
    assert found.values("plain sum", "hours").tolist() == line["values"]["plain sum"]["hours"]
    assert found.values("alone", "topics", "validation").tolist() == line["validation"]["alone"]["topics"]
    (again,) = run("tickets", tmp_path, "--variants", "NormFloor 1")
    assert again["values"] == {**line["values"], "NormFloor 1": again["values"]["NormFloor 1"]}
    assert "| NormFloor 1 | " in capsys.readouterr().out


def test_weights_of_the_second_head_beside_balancers(tmp_path, capsys):
    variants = [*weights.WEIGHTS.values(), *weights.BALANCERS]
    (line,) = run("weights", tmp_path, "--variants", *variants)
    assert set(line["values"]) == {"alone", *variants}
    regrets = weights.regrets(line)
    both = np.array([tables.changes(line, variant).mean() for variant in weights.WEIGHTS.values()])
    assert regrets["worst weight"] == pytest.approx(both.max() - both.min())
    assert regrets["weight 1"] == pytest.approx(both.max() - both[4]) and both[4] == tables.changes(line, "plain sum").mean()
    assert "| study, price | " in capsys.readouterr().out
    weights.picture([line]).savefig(tmp_path / "weights.png")


def test_the_first_command_of_the_example(tmp_path, capsys):
    (line,) = run("replies", tmp_path)
    joint = [f"{variant}, equal cost" for variant in ("plain sum", "NormFloor 1", "price 0.3")]
    assert set(line["values"]) == {"alone", *joint}
    assert all(0 <= score <= 1 for heads in line["values"].values() for values in heads.values() for score in values)
    assert "| NormFloor 1, equal cost | " in capsys.readouterr().out


def test_more_updates_for_joint_models_and_a_wider_encoder(tmp_path, capsys):
    variants = ["plain sum", "NormFloor 1, sqrt(n) updates", "NormFloor, rates as alone, twice as wide"]
    (line,) = run("pace", tmp_path, "--sets", "mostly_missing", "--variants", *variants)
    assert set(line["values"]) == {"alone", *variants}
    assert "NormFloor 1, sqrt(n) updates, Adam" in capsys.readouterr().out
    assert np.isfinite([each for heads in line["values"].values() for values in heads.values() for each in values]).all()


def test_the_study_at_equal_cost(tmp_path):
    (line,) = run("equal_cost", tmp_path, "--variants", "plain sum", "NormFloor, as large")
    joint = [f"{name}{cost}" for cost in ("", ", equal cost") for name in ("plain sum", "NormFloor, as large")]
    assert list(line["values"]) == ["alone", *joint]
    assert line["costs"]["plain sum"]["size"] < 0.98 < line["costs"]["NormFloor, as large"]["size"] <= 1


def test_digits_without_their_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(digits, "SIZES", {"train": 2000, "validation": 500, "test": 500})
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (3000, 28, 28), np.uint8), rng.integers(0, 10, 3000, np.uint8)
    monkeypatch.setattr(keras.datasets.mnist, "load_data", lambda: ((x[:2500], y[:2500]), (x[2500:], y[2500:])))
    run("multimnist", tmp_path)
    assert "| plain sum | " in capsys.readouterr().out


def test_molecules_and_the_models_of_scikit_learn(tmp_path, capsys):
    pytest.importorskip("rdkit")
    pytest.importorskip("sklearn")
    rng, path = np.random.default_rng(0), tmp_path / "molecules" / "clintox.csv.gz"
    path.parent.mkdir()
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", "smiles", "Is long", "Has oxygen"])
        for row in range(900):
            length, oxygen = rng.integers(2, 12), int(rng.integers(2))
            smiles = "" if row == 10 else "C" * length + "N" * (row % 3 == 0) + "O" * oxygen
            writer.writerow([row, smiles, int(length > 6), "" if rng.random() < 0.3 else oxygen])
    (line,) = run("molecules", tmp_path, "--sets", "clintox")
    assert {"alone", "plain sum", molecules.LINEAR, molecules.FOREST} <= set(line["values"])
    assert "| random forest | " in capsys.readouterr().out


def test_census(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(census, "NUM_HELD_OUT", 100)
    rng = np.random.default_rng(0)
    for name, size in (("train", 900), ("dev", 200)):
        with gzip.open(tmp_path / f"census_{name}.csv.gz", "wt", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["age", "education", "marital_status", "instance_weight", "year", "income"])
            for age in rng.integers(1, 90, size):
                married = "Never married" if age < rng.integers(60) else "Widowed"
                writer.writerow([age, "Children", married, 1.5, 94, "50000+" if age > rng.integers(90) else "- 50000"])
    (line,) = run("census", tmp_path, "--variants", "MMoE")
    assert list(line["values"]) == ["alone", "MMoE", "MMoE, equal cost"] and set(line["values"]["MMoE"]) == {
        "income",
        "never_married",
    }
    assert all(0 <= value <= 1 for by_head in line["values"].values() for values in by_head.values() for value in values)
    assert "| income | never_married | " in capsys.readouterr().out


def test_norms_of_this_update_beside_those_of_the_updates_before(tmp_path):
    variants = "NormFloor", "NormFloor, this update"
    (line,) = run("lag", tmp_path, "--sets", "model 24", "--variants", *variants)
    assert list(line["values"]) == ["alone", *variants]
    assert lag.table([line]).count("model 24") == len(line["directions"]) == 2
    rows = np.random.default_rng(0).normal(size=(3, 5)) * [[1], [10], [100]]
    norms = np.linalg.norm(rows, axis=1)
    expected = (rows / norms[:, None]).sum(axis=0) * np.linalg.norm(norms) / np.sqrt(3)
    np.testing.assert_allclose(lag.FromThisUpdate(1.0, beta=0.0)(rows), expected, rtol=1e-6)


def test_moments_by_head_are_those_of_adam_in_numpy():
    keras.utils.set_random_seed(0)
    heads = {name: Head(keras.layers.Dense(1), "mse") for name in ("a", "b")}
    trainer = by_head(MultiHeadTrainer(keras.layers.Dense(3, use_bias=False), heads))
    trainer.compile(keras.optimizers.Adam(0.01))
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(8, 2)), {"a": rng.normal(size=(8, 1)), "b": 9 * rng.normal(size=(8, 1))}) for _ in range(3)]
    trainer.head_gradients(batches[0])  # creates the variables
    kernel = trainer.encoder.kernel
    expected = np.asarray(kernel, "float64")
    first, second = np.zeros((2, 2, 3)), np.zeros((2, 2, 3))
    for step, batch in enumerate(batches, 1):
        by_name = trainer.head_gradients(batch, at="parameters")
        gradients = np.array([by_name[name][0] for name in heads])
        first, second = 0.9 * first + 0.1 * gradients, 0.999 * second + 0.001 * gradients**2
        root = np.sqrt(second / (1 - 0.999**step))
        expected -= (0.01 * (first / (1 - 0.9**step)) / (root + 1e-7)).sum(axis=0)
        trainer.fit(*batch, batch_size=8, verbose=0)
        np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-6)
    assert [int(optimizer.iterations) for optimizer in (*trainer.by_head, trainer.optimizer)] == [3, 3, 3]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["molecules", "--sets", "tox21"], "`--data` must be a folder with the file molecules/tox21.csv.gz"),
        (["pace", "--sets", "beer"], "`--sets` must be among 'healthy', .* Received: 'beer'"),
        (["tickets", "--variants", "EqualNorm"], "`--variants` must be names of variants. Received: 'EqualNorm'"),
    ],
)
def test_what_is_wrong_is_named(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--data", str(tmp_path), "--runs", str(tmp_path)])
    assert re.search(message, capsys.readouterr().err)
