"""The ranking example: its scores against all pairs, its log against its probabilities, its tables, its model, its program."""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples._command_line import InputError
from examples.ranking import command, model, report, scores, shop, tables
from tests.helpers.tiny import tensor_variable

pytestmark = pytest.mark.programs

COLUMNS = {
    "item": np.array([3, 3, 4, 3, 3, 4, 4, 4, 4, 3], "int64"),
    "color": np.array(["red", "blue"] * 5),
    "size": np.array([0.0, 1.0, 2.0, np.nan, 4.0, 0.0, 0.0, 1.0, 2.0, -1.0], "float32"),
}


# Scores


def auc_of_pairs(labels, values):
    pairs = [(a > b) + 0.5 * (a == b) for a in values[labels == 1] for b in values[labels == 0]]
    return np.mean(pairs) if pairs else np.nan


def test_scores_are_those_of_all_pairs():
    random = np.random.default_rng(0)
    labels, requests = (random.random(300) < 0.3).astype("float32"), random.integers(0, 40, 300)
    values, others = np.round(random.normal(size=300) + labels, 1), random.normal(size=300)  # with equal ones
    assert scores.auc(labels, values) == pytest.approx(auc_of_pairs(labels, values))
    assert np.isnan(scores.auc(labels[labels == 1], values[labels == 1])) and np.isnan(scores.auc_within(*np.zeros((3, 4))))
    within = [auc_of_pairs(labels[requests == each], values[requests == each]) for each in range(40)]
    assert scores.auc_within(labels, values, requests) == pytest.approx(np.nanmean(within)) and np.isnan(within).any()
    mean, error = scores.difference(labels, values, others)
    assert mean == pytest.approx(auc_of_pairs(labels, values) - auc_of_pairs(labels, others))
    drawn = []  # the same examples, drawn again: of the positive ones, as the standard error has it
    for _ in range(300):
        places = np.concatenate([random.choice(np.flatnonzero(labels == 1), int(labels.sum())), np.flatnonzero(labels == 0)])
        drawn.append(scores.auc(labels[places], values[places]) - scores.auc(labels[places], others[places]))
    assert error == pytest.approx(np.std(drawn), rel=0.15)
    assert scores.calibration(labels, np.full(300, 0.5)) == pytest.approx(150 / labels.sum())


# The log


def test_the_log_is_drawn_from_its_probabilities():
    log = shop.draw_log(20_000, seed=0)
    click, purchase, price = (log.targets[name] for name in ("click", "purchase", "price"))
    assert log.truth["click"].mean() == pytest.approx(0.03) and click.mean() == pytest.approx(0.03, rel=0.03)
    bought = log.truth["bought"].sum() / log.truth["click"].sum()
    assert bought == pytest.approx(0.08) and np.nanmean(purchase) == pytest.approx(0.08, abs=0.011)  # three standard errors
    np.testing.assert_array_equal(np.isnan(purchase), click == 0)
    np.testing.assert_array_equal(np.isnan(price), np.nan_to_num(purchase) == 0)
    sold = ~np.isnan(price)
    factors = np.log(price[sold] / log.truth["price"][sold])
    assert abs(np.median(factors)) < 0.02 and np.std(factors) == pytest.approx(shop.SPREAD, rel=0.1)
    assert 0.75 < scores.auc(click, log.truth["click"]) < 0.85
    again, other = shop.draw_log(20, seed=0), shop.draw_log(20, seed=1)
    assert all((again.inputs[name] == shop.draw_log(20, seed=0).inputs[name]).all() for name in again.inputs)
    assert (again.inputs["item"] != other.inputs["item"]).any()


# Tables


TRAIN = "rank,weird name,price,paid,seen,day\n" + "".join(
    f"{k % 7},{'abc'[k % 3]},{k}.5,{'' if k % 2 else 3 * k + 1},{'yes' if k % 3 else 'no'},{k % 4}\n" for k in range(40)
)
DEV = "day,seen,weird name,rank,price,paid\n9,no,new,?,1,2\n1,,a,2,,\n2,yes,b,3,4,5\n"
LABELS = ["--label", "seen=yes", "--label", "paid=price"]


@pytest.fixture
def files(tmp_path):
    (tmp_path / "train.csv.gz").write_bytes(gzip.compress(TRAIN.encode()))
    (tmp_path / "dev.csv").write_text(DEV, encoding="utf-8")
    return ["--train", str(tmp_path / "train.csv.gz"), "--dev", str(tmp_path / "dev.csv")]


def read(arguments):
    parser = argparse.ArgumentParser()
    for name, described in tables.OPTIONS.items():
        parser.add_argument(name, **described)
    told = []
    return tables.read_files(parser.parse_args(arguments), told.append), "\n".join(told)


def test_labels_and_inputs_are_made_of_columns(files):
    more = ["--label", "late:day=2|3", "--category", "rank", "--request", "day"]
    (train, dev, kinds), told = read([*files, *LABELS, *more])
    assert kinds == {"seen": "probability", "paid": "price", "late": "probability"}
    assert {name: cells.dtype.kind for name, cells in train.inputs.items()} == {"rank": "U", "weird_name": "U", "price": "f"}
    np.testing.assert_array_equal(dev.inputs["rank"], ["?", "2", "3"])
    np.testing.assert_array_equal(dev.inputs["price"], np.array([1, np.nan, 4], "float32"))
    np.testing.assert_array_equal(dev.targets["seen"], np.array([0, np.nan, 1], "float32"))
    np.testing.assert_array_equal(dev.targets["paid"], np.array([2, np.nan, 5], "float32"))
    np.testing.assert_array_equal(dev.targets["late"], np.array([0, 0, 1], "float32"))
    assert dev.requests.tolist() == [2, 0, 1] and train.requests.max() == 3
    assert "2 columns of strings, 1 of numbers: price" in told
    (_, dev, _), told = read([*files, "--label", "seen=yes|soon", "--drop", "paid", "weird name"])
    assert list(dev.inputs) == ["rank", "price", "day"] and np.isnan(dev.inputs["rank"][0])
    assert "1 cells of 'rank'" in told and "are not numbers, and are read as missing" in told
    assert told.count("seen: no cell of") == 2 and "is 'soon'" in told


WRONG = {
    "no label": ([], r"Options of files need .* Received: --train, --dev\. Pass both files, and a label"),
    "a column that is none": (["--label", "bought=1"], r"`--label` must name columns of .* Received: 'bought'\. The columns are"),
    "a dropped one": ([*LABELS, "--drop", "x", "day"], r"`--drop` must name columns of .* Received: 'x'\. The columns are 'rank'"),
    "a category": ([*LABELS, "--category", "x"], r"`--category` must name columns .* Received: 'x'"),
    "a request": ([*LABELS, "--request", "x"], r"`--request` must name columns .* Received: 'x'"),
    "no cell": (["--label", "seen=Yes"], r"`--label seen` must count some cells.* Received: 'Yes'; the cells .* are 'no', 'yes'\."),
    "every cell": (["--label", "seen=yes|no"], r"`--label seen` must count some cells .* as 1 and others as 0"),
    "no number": (["--label", "seen=number"], r"`--label seen` must have a number, .* Received: 'no' on line 2 of .* Correct"),
    "no price": (["--label", "rank=price"], r"`--label rank` must have a number above 0.* Received: '0' on line 2"),
    "one name twice": (["--label", "seen=yes", "--label", "seen:day=1"], r"must have distinct names\. Received: seen, seen"),
    "nothing left": ([*LABELS, "--drop", "rank", "weird name", "price", "day"], r"`--drop` must leave columns .* Drop fewer"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_said_of_options_that_do_not_fit(case, files):
    arguments, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        read([*files, *arguments])


@pytest.mark.parametrize("text", ["seen", "=yes", "seen=", "seen=a||b", "a b:seen=yes", "weird name=a", ":seen=yes"])
def test_what_is_said_of_a_label_that_cannot_be_read(text, tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["--label", text, "--output", str(tmp_path)])
    assert (
        "error: argument --label: must " in (error := capsys.readouterr().err)
        and f"Received: {text!r}" in error
        or "name" in error
    )


def test_columns_whose_names_would_be_the_same_are_refused():
    assert tables.input_names(["a b", "1", "class", "ä"]) == {
        "a b": "a_b",
        "1": "column_1",
        "class": "column_class",
        "ä": "column_",
    }
    with pytest.raises(InputError, match=r"`--train` must have columns that differ .* Received: 'a b', 'a-b'\. Rename one"):
        tables.input_names(["a b", "c", "a-b"])


# The model


def test_the_reader_looks_each_cell_up_in_its_own_rows(monkeypatch):
    monkeypatch.setattr(model, "RARE", 5)
    columns = {name: model.column_of(cells) for name, cells in COLUMNS.items()}
    assert columns["item"].values == [3, 4] and columns["color"].values == ["blue", "red"]
    assert columns["size"].values == [0.0, 1.0, 2.0, 4.0]
    reader = model.Reader(columns)
    cells = {
        "item": tf.constant([3, 4, 99], tf.int64),
        "color": tf.constant(["red", "green", ""]),
        "size": tf.constant([0.5, np.nan, 1e9]),
    }
    found = np.asarray(reader(cells))
    table, width = np.asarray(reader.embedding.embeddings), model.EMBEDDING
    rows = [[1, 4 + 2, 8 + 2], [2, 4, 8], [0, 4, 8 + 5]]  # unknown, then known ones; missing, then the ranges
    expected = table[np.array(rows)].reshape(3, -1)
    np.testing.assert_allclose(found[:, : 3 * width], expected)
    known = COLUMNS["size"][~np.isnan(COLUMNS["size"])].astype("float64")
    logs = np.sign(known) * np.log1p(np.abs(known))
    wanted = [(np.log(1.5) - logs.mean()) / logs.std(), 0.0, 6.0]
    np.testing.assert_allclose(found[:, -1], wanted, rtol=1e-5)


@pytest.mark.usefixtures("eager_updates")
@pytest.mark.parametrize("encoder", model.ENCODERS)
def test_bought_is_the_product_and_trains_both(encoder, monkeypatch):
    for name in ("DROPOUT", "DROPOUT_OF_FEATURES"):
        monkeypatch.setattr(model, name, 0.0)
    keras.utils.set_random_seed(0)
    columns = {name: model.column_of(cells) for name, cells in COLUMNS.items()}
    click = np.array([1, 0] * 5, "float32")
    purchase = np.where(click == 1, np.array([1, 0, 0, 0, 1, 0, 0, 0, 0, 0]), np.nan).astype("float32")
    kinds = {"click": "probability", "purchase": "probability", "bought": "probability"}
    bought = np.nan_to_num(purchase)
    targets = {"click": click, "purchase": purchase, "bought": bought}
    trainer = model.build_trainer(columns, kinds, targets, encoder)
    inputs = {name: tf.constant(cells) for name, cells in COLUMNS.items()}
    trainer.compile(keras.optimizers.SGD(0.1))
    gradients = trainer.compute_gradients((inputs, {name: targets[name] for name in ("click", "bought")}))
    assert trainer.heads["purchase"].loss is None
    modules = {name: trainer.heads[name].module for name in ("click", "purchase")}
    variables = [tensor_variable(variable) for variable in modules["purchase"].trainable_variables]
    with tf.GradientTape() as tape:
        representation = trainer.encoder(inputs)
        product = modules["click"](representation["click"]) * modules["purchase"](representation["purchase"])
        loss = tf.reduce_mean(keras.losses.binary_crossentropy(bought[:, np.newaxis], product))
    expected = tape.gradient(loss, variables)
    found = {id(tensor_variable(variable)): gradient for gradient, variable in gradients}
    assert len(variables) >= 4
    for variable, wanted in zip(variables, expected):
        np.testing.assert_allclose(found[id(variable)], wanted, rtol=1e-4, atol=1e-7)
    predicted = model.predict(trainer, COLUMNS)
    np.testing.assert_allclose(predicted["bought"], predicted["click"] * predicted["purchase"], rtol=1e-5)


# The program


def test_ways_and_their_weights():
    targets = {"click": np.array([1, 0, 0, 0.0]), "purchase": np.array([1, np.nan, np.nan, np.nan]), "bought": np.zeros(4)}
    ways = command.ways_of({"click": "probability", "purchase": "probability"}, targets)
    assert [way.name for way in ways] == [
        "alone",
        "alone",
        "plain sum",
        "sum by rows",
        "NormFloor()",
        "NormFloor(1.0)",
        "ESMM",
    ]
    assert ways[3].weights == {"click": 1.0, "purchase": 0.25} and ways[-1].weights == {"click": 1.0, "bought": 1.0}
    assert [way.name for way in command.ways_of({"a": "number"}, {"a": np.ones(2)})] == ["alone"]
    assert len(command.ways_of({"a": "number", "b": "number"}, {"a": np.ones(2), "b": np.ones(2)})) == 5


def board(values, labels=(0.0, 1.0, 0.0, 1.0), kinds=None):
    part = tables.Part({}, {"a": np.array(labels, "float32"), "b": np.array([1, 2, np.nan, 4], "float32")}, None)
    made = report.Board(kinds or {"a": "probability", "b": "number"}, part, None)
    for way, by_seed in values.items():
        for seed, each in enumerate(by_seed):
            made.add(way, seed, {"a": np.array(each), "b": np.array(each) + 3}, 1.0)
    return made


def test_the_sentence_is_that_of_the_result():
    worse, better = [0.1, 0.0, 0.5, 0.4], [0.1, 0.8, 0.5, 0.9]
    assert (
        "'joint' ranks best: AUC of a 1.0000 (0.2500 alone: better)"
        in board({"alone": [worse], "joint": [better]}).sentence()
    )
    assert "AUC of a 0.2500 (1.0000 alone: worse)" in board({"alone": [better], "joint": [worse]}).sentence()
    both = board({"alone": [better, worse], "joint": [worse, better]})
    assert "AUC of a 0.6250 (0.6250 alone: within the noise)" in both.sentence()
    one = board({"alone": [worse], "joint": [better]}, labels=[1.0] * 4)
    assert one.sentence().startswith("Of the joint models, 'joint' ranks best: median error of b") and one.comparable == []
    assert [row[1] for row in both.tables()[0][2]] == ["0.6250 ± 0.5303"] * 2


@pytest.mark.usefixtures("eager_updates")
def test_files_are_ranked_and_the_export_takes_raw_columns_in_an_empty_process(files, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(model, "UNITS", (6, 6))
    monkeypatch.setattr(model, "PARTS", 2)
    monkeypatch.setattr(command, "BALANCED", {})
    arguments = [*files, *LABELS, "--drop", "day", "--encoder", "mmoe", "--updates", "4", "--output", str(tmp_path / "run")]
    assert command.main(arguments) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "40 rows to train on, 3 not; 4 updates, seeds: 1, encoder: mmoe" in said
    assert "ranks best: AUC of seen" in said and "median error of paid" in said
    assert (tmp_path / "run" / "ranking.png").read_bytes().startswith(b"\x89PNG")
    code = (
        "import json, sys, tensorflow as tf\n"
        "serve = tf.saved_model.load(sys.argv[1]).signatures['serving_default']\n"
        "found = serve(rank=tf.constant([1.0, float('nan')]), weird_name=tf.constant(['a', 'never seen']), "
        "price=tf.constant([2.5, 1e6]))\n"
        "assert 'multihead' not in sys.modules and 'examples' not in sys.modules\n"
        "print(json.dumps({name: values.numpy().tolist() for name, values in found.items()}))"
    )
    command_line = [sys.executable, "-W", "ignore", "-c", code, str(tmp_path / "run" / "export" / "ranking")]
    output = subprocess.run(command_line, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    found = json.loads(output.splitlines()[-1])
    assert np.shape(found["seen"]) == np.shape(found["paid"]) == (2, 1) and 0 < found["seen"][1][0] < 1


@pytest.mark.thorough
@pytest.mark.parametrize("encoder", ["shared", "cgc"])
def test_the_program(encoder, tmp_path, capsys):
    assert command.main(["--quick", "--encoder", encoder, "--seeds", "2", "--output", str(tmp_path)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(way in said for way in ("alone", "plain sum", "sum by rows", "NormFloor(1.0)", "ESMM", "true values"))
    assert "seeds: 2" in said and "ranks best: AUC of click" in said
    assert (tmp_path / "ranking.png").read_bytes().startswith(b"\x89PNG")
