"""What heads read from columns: price ranges, their targets, metrics and words, and a run with every kind of head."""

from __future__ import annotations

import csv
import json
import random

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import accuracy_score, mean_absolute_error

from examples._command_line import InputError
from examples.seq2seq_price import columns, command
from examples.seq2seq_price.batches import build_vocabulary, standardize_source, vectorizer
from tests.helpers import alone

pytestmark = pytest.mark.programs

TEXTS = ["The Mill, isn't big!", "", "two  oak-chairs", "a\tdesk"]
TAGS = ["O B O O", "", "N T", ""]


def test_heads_are_named_after_columns():
    assert columns.head_names(["area", "customer rating", "Größe/cm"]) == ["area", "customer_rating", "Gr_e_cm"]
    for names in (["reply"], ["area", "price"], ["a b", "a/b"], ["area", "area"]):
        with pytest.raises(InputError, match=rf"must lead to different names of heads\. Received: {names[-1]!r}, whose"):
            columns.head_names(names)


def test_a_message_lists_a_few_names_only():
    column = columns.TagColumn.fit("tags", "tag", [" ".join(f"tag{i:02}" for i in range(30))])
    with pytest.raises(InputError, match=r"'tag00', .*'tag09' and 20 more\. Received: 'new'"):
        column.targets(["new"], ["word"])


def fit(values, bands=None, missing_is_class=False):
    return columns.LabelColumn.fit("price", "price", values, bands=bands, missing_is_class=missing_is_class)


def test_texts_as_classes_and_missing_either_way():
    ignoring, counting = fit(["low", "", "high", "low"]), fit(["low", "", "high"], missing_is_class=True)
    assert ignoring.names == ("high", "low")
    assert ignoring.targets(["low", "", "high"], []).tolist() == [1, -1, 0]
    assert counting.names == ("high", "low", "(missing)")
    assert counting.targets(["low", "", "high"], []).tolist() == [1, 2, 0]


def test_bands_hold_equal_shares_of_the_training_rows():
    prices = np.random.default_rng(0).lognormal(5, 1, 4000)
    ranges = fit([f"{price:.4f}" for price in prices], bands=8)
    numbers = ranges.targets([f"{price:.4f}" for price in prices], [])
    assert np.bincount(numbers).tolist() == [500] * 8
    np.testing.assert_allclose(ranges.edges, np.quantile(prices, np.arange(1, 8) / 8), rtol=1e-5)
    assert ranges.targets(["0", "1e9", ""], []).tolist() == [0, 7, -1]
    assert ranges.names[0].startswith("under ") and ranges.names[-1].endswith(" and more")


def test_repeated_numbers_give_fewer_bands():
    ranges = fit(["1"] * 90 + ["2"] * 10, bands=4)
    assert fit(["1", "2", "3", "4"], bands=2).names == ("under 2.5", "2.5 and more")
    assert len(ranges.names) == len(ranges.edges) + 1 < 4


@pytest.mark.parametrize(
    ("values", "bands", "message"),
    [
        (["", ""], None, r"at least two different labels\. Received: 0 in the training rows\. Choose"),
        (["low", "low", ""], None, r"at least two different labels\. Received: 1 in"),
        (["5", "5"], 8, r"at least two different labels\. Received: 1 in"),
        (["5", "cheap"], 2, r"must contain numbers\. Received: 'cheap'\. .* without --bands"),
        (["5", "nan"], 2, r"must contain numbers\. Received: 'nan'"),
    ],
)
def test_labels_that_cannot_be_used(values, bands, message):
    with pytest.raises(InputError, match=message):
        fit(values, bands)


def test_a_label_that_training_never_had():
    with pytest.raises(InputError, match=r"that occur in the training rows: 'high', 'low'\. Received: 'medium'\. Correct"):
        fit(["low", "high"]).targets(["low", "medium"], [])


def test_no_label_no_accuracy():
    assert columns.accuracy(np.full([3], -1), np.zeros([3], int)) == {}
    assert columns.accuracy(np.array([1, -1, 0]), np.array([1, 1, 1]), "area") == {"area_accuracy": 0.5}


def test_tags_belong_to_the_first_tokens_of_words():
    column = columns.TagColumn.fit("tags", "tag", TAGS)
    assert column.names == ("B", "N", "O", "T")
    targets = column.targets(TAGS, TEXTS)
    # the mill , isn ' t big ! | two oak - chairs
    assert targets.to_list() == [[3, 1, 0, 3, 0, 0, 3, 0], [], [2, 4, 0, 0], [0, 0]]
    read = vectorizer(build_vocabulary(TEXTS, standardize_source), standardize_source)
    assert read(TEXTS).row_lengths().numpy().tolist() == targets.row_lengths().numpy().tolist()
    answers = [np.array([3, 1, 2, 3, 2, 2, 3, 2]), np.array([1]), np.array([2, 4, 1, 1, 0, 0]), np.array([4, 2, 0])]
    assert [column.describe(*pair) for pair in zip(answers, TEXTS)] == ["O B O O", "", "N T", "T N"]


def test_tags_have_scikit_learns_accuracy():
    generator = np.random.default_rng(0)
    column = columns.TagColumn("tags", "tag", ("a", "b", "c"))
    lengths, numbers = generator.integers(0, 6, 50), generator.integers(0, 4, 300)
    targets = tf.RaggedTensor.from_row_lengths(numbers[: lengths.sum()], lengths)
    answers = [generator.integers(1, 4, length + generator.integers(3)) for length in lengths]  # with padding
    expected = targets.flat_values.numpy()
    predicted = np.concatenate([answer[:length] for answer, length in zip(answers, lengths)])[expected > 0]
    expected = expected[expected > 0]
    assert column.metrics(targets, answers) == {"tags_accuracy": pytest.approx(accuracy_score(expected, predicted))}


def test_numbers_are_scaled_and_have_scikit_learns_error():
    cells = ["1", "", "-3.5", "1e2", "7"]
    column = columns.NumberColumn.fit("weight", "weight", cells)
    targets = column.targets(cells, TEXTS)
    assert targets.dtype == np.float32 and np.isnan(targets).tolist() == [False, True, False, False, False]
    known = np.array([1, -3.5, 100, 7])
    np.testing.assert_allclose(targets[[0, 2, 3, 4]], (known - known.mean()) / known.std(), rtol=1e-6)
    answers = np.array([2.0, 9.0, -3.0, 80.0, 8.0], np.float32)
    error = mean_absolute_error(known, answers[[0, 2, 3, 4]])
    assert column.metrics(targets, list(answers)) == {"weight_mae": pytest.approx(error, rel=1e-5)}
    assert column.metrics(np.array([np.nan]), np.array([1.0])) == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: columns.NumberColumn.fit("w", "w", ["1", "1", ""]), r"`w` must contain at least two different numbers\."),
        (lambda: columns.NumberColumn.fit("w", "w", ["1", "x"]), r"`w` must contain numbers\. Received: 'x'\. Correct"),
        (lambda: columns.NumberColumn.fit("w", "w", ["1", "inf"]), r"must contain numbers\. Received: 'inf'"),
        (
            lambda: columns.TagColumn.fit("t", "t", ["A A", ""]),
            r"`t` must contain at least two different tags\. Received: 1",
        ),
        (lambda: columns.TagColumn("t", "t", ("A",)).targets(["A"], ["a b"]), r"Received: 1 tags for the 2 words of 'a b'"),
        (
            lambda: columns.TagColumn("t", "t", ("A",)).targets(["B"], ["a"]),
            r"occur in the training rows: 'A'\. Received: 'B'\. Correct",
        ),
    ],
)
def test_columns_that_cannot_be_used(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_what_was_fitted_survives_json():
    fitted = (
        columns.LabelColumn.fit("a", "A", ["x", "y", ""], missing_is_class=True),
        columns.LabelColumn.fit("b", "B", ["1", "2", "3"], bands=3),
        columns.NumberColumn.fit("n", "N", ["1", "2"]),
        columns.TagColumn.fit("t", "T", ["x y"]),
    )
    for column in fitted:
        assert columns.from_json(json.loads(json.dumps(columns.to_json(column)))) == column


AREAS = {"mill": "north", "lake": "south"}


def write_table(path, rows, seed):
    """Pubs with a price, an area, a number of guests and a tag for each word, some of each missing."""
    generator = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "meaning", "cost", "area", "guests", "tags"])
        for _ in range(rows):
            cost, place, guests = generator.choice(["cheap", "dear"]), generator.choice([*AREAS]), generator.randint(2, 9)
            sentence, tags = f"a {cost} pub, at the {place}, for {guests}!", "O C O O O P O G"
            cells = [generator.choice(["", cell, cell, cell]) for cell in (cost, AREAS[place], str(guests), tags)]
            writer.writerow([sentence, f"{cost} {place}", *cells])
    return str(path)


@pytest.mark.thorough
def test_a_run_with_every_kind_of_head(tmp_path, capsys, ask, stop_tracing):
    train, dev = write_table(tmp_path / "train.csv", 160, 0), write_table(tmp_path / "dev.csv", 24, 1)
    folder, exported, empty = tmp_path / "run", tmp_path / "export", tmp_path / "empty"
    empty.mkdir()
    options = [
        "--train", train, "--dev", dev, "--label", "cost", "area", "--number", "guests", "--tags", "tags", "--epochs", "20",
        "--units", "16", "--embedding", "8", "--batch-size", "32", "--learning-rate", "0.02", "--weight-decay", "0",
        "--dropout", "0", "--output", str(folder), "--export", str(exported),
    ]  # fmt: skip
    assert command.main(options) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "cost: 2 classes; area: 2 classes; guests: numbers of mean" in told and "; tags: 4 tags" in told
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["splits"]["dev"]
    for name in ("price_accuracy", "area_accuracy", "tags_accuracy"):
        assert metrics[name] > 0.9, name
    assert metrics["guests_mae"] < 1.5
    heads = {"reply", "price", "area", "guests", "tags"}
    assert {name.removesuffix("_loss") for name in metrics if name.endswith("_loss")} == heads

    stop_tracing()
    asked = "a cheap pub, at the mill, for 5!"
    model, _, printed = ask(folder, "--predict", asked, "")
    lines = printed.splitlines()
    assert len(lines) == 12 and lines[0] == f"text: {asked}" and lines[6] == "text: "
    assert lines[3].startswith("area: north (probability ") and lines[5] == "tags: O C O O O P O G"
    assert float(lines[4].removeprefix("guests: ")) == pytest.approx(5, abs=2.5)
    assert lines[11].rstrip() == "tags:"
    answers = model.answer([asked, ""])
    parts = [(exported / head, {"inputs": [asked, ""]}) for head in ("area", "guests", "tags")]
    area, guests, tags = alone.answers(parts, empty)
    assert area["label"][0] == "north"
    np.testing.assert_allclose(area["probability"], [row.max() for row in answers["area"]], rtol=1e-5)
    np.testing.assert_allclose(guests["number"], answers["guests"], rtol=1e-5)
    tokens = len("a cheap pub , at the mill , for 5 !".split())
    assert tags["tags"][0] == [model.columns["tags"].names[number - 1] for number in answers["tags"][0]]
    assert len(tags["tags"][0]) == tokens and tags["tags"][1][1:] == [""] * (tokens - 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--label", "a", "b"], "--label requires --train."),
        (["--number", "a"], "--number requires --train."),
        (["--tags", "a"], "--tags requires --train."),
    ],
)
def test_options_that_do_not_fit_together(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.parse(arguments)
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
