"""Small and one-sided tables: each ends in a result, with `-` for what does not exist, or in one sentence."""

from __future__ import annotations

import csv

import pytest

from examples import intents
from examples.ranking import command as ranking
from examples.ranking import model as ranking_model
from examples.seq2seq_price import command as seq2seq_price

pytestmark = pytest.mark.programs

# For each program: the columns of its tables, those of labels, rows, options, and how it is run.
PROGRAMS = {
    "ranking": (
        ["a", "b", "n", "bought"],
        ["bought", "n"],
        [["u", "1", "3.5", "1"], ["v", "2", "1", "0"], ["u", "3.5", "2", "1"], ["w", "", "9", "0"]],
        ["--label", "bought=1", "--label", "n=number", "--updates", "1"],
        ranking.main,
    ),
    "intents": (
        ["text", "tags", "intent"],
        ["tags", "intent"],
        [["play ane now", "O B-artist O", "Play"], ["stop", "O", "Stop"], ["go on", "O O", "Play"]],
        ["--updates", "1"],
        intents.main,
    ),
    "seq2seq_price": (
        ["text", "meaning", "price_range"],
        ["meaning", "price_range"],
        [["a b", "x y", "low"], ["c", "y", "high"], ["a c", "x", "low"]],
        ["--epochs", "1", "--units", "4", "--embedding", "3"],
        seq2seq_price.main,
    ),
}


def blank(rows, places):
    return [["" if place in places else cell for place, cell in enumerate(row)] for row in rows]


def alike(rows, places):
    return [[rows[0][place] if place in places else cell for place, cell in enumerate(row)] for row in rows]


# What is changed in a table, from its rows and the places of its labels and of its inputs.
CHANGES = {
    "one label": lambda rows, labels, inputs: alike(rows, labels),
    "no labels": lambda rows, labels, inputs: blank(rows, labels),
    "long cells": lambda rows, labels, inputs: [[" ".join([cell] * 9) for cell in row] for row in rows],
    "one row": lambda rows, labels, inputs: rows[:1],
    "all as they are": lambda rows, labels, inputs: rows,
    "one input": lambda rows, labels, inputs: alike(rows, inputs),
    "no inputs": lambda rows, labels, inputs: blank(rows, inputs),
    "one kind of label": lambda rows, labels, inputs: blank(rows, labels[:1]),
    "the other kind": lambda rows, labels, inputs: blank(rows, labels[1:]),
    "no rows": lambda rows, labels, inputs: [],
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch, without_graphs):
    monkeypatch.setattr(ranking_model, "PARTS", 1)
    monkeypatch.setattr(ranking, "BALANCED", {})
    monkeypatch.setattr(ranking.MultiHeadTrainer, "export", lambda *args, **options: None)
    monkeypatch.setattr(intents, "PARTS", 1)
    monkeypatch.setattr(intents.Encoder.__init__, "__defaults__", (4,))


def outcome(program, tables, folder, capsys):
    """The exit status, and what was printed."""
    columns, _, _, options, main = PROGRAMS[program]
    for name, rows in tables.items():
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([columns, *rows])
    files = [part for name in tables for part in (f"--{name}", str(folder / f"{name}.csv"))]
    status = main([*files, *options, "--output", str(folder / "out")])
    printed = capsys.readouterr()
    if status:
        assert status == 2 and printed.err.count("\n") == 1 and "Received: " in printed.err
    return status, printed.out.lower()


@pytest.mark.first_cases(12)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("part", ["dev", "train"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_table_ends_in_a_result_or_in_one_sentence(program, part, change, tmp_path, capsys):
    columns, labels, rows, *_ = PROGRAMS[program]
    labels = [columns.index(name) for name in labels]
    inputs = [place for place in range(len(columns)) if place not in labels]
    changed = CHANGES[change]([[*row] for row in rows], labels, inputs)
    status, told = outcome(program, {"train": rows, "dev": rows, part: changed}, tmp_path, capsys)
    assert "nan" not in told.replace(str(tmp_path), "")
    if change == "all as they are" or (part, change) == ("dev", "one row"):
        assert status == 0


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("cell", ["gru", "transformer"])
@pytest.mark.parametrize("longer", ["dev", "test"])
def test_targets_to_compare_with_may_be_longer_than_those_of_training(longer, cell, tmp_path, capsys, monkeypatch):
    rows = PROGRAMS["seq2seq_price"][2]
    monkeypatch.setitem(
        PROGRAMS, "seq2seq_price", (*PROGRAMS["seq2seq_price"][:3], ["--cell", cell, "--epochs", "1"], seq2seq_price.main)
    )
    tables = {"train": rows, "dev": rows, "test": rows, longer: [["a b", " ".join(["x"] * 40), "low"]]}
    status, told = outcome("seq2seq_price", tables, tmp_path, capsys)
    assert status == 0 and "reply_loss" in told
