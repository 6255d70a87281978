"""What the benchmarks on files make of the rows: masked names, slots as labels, and a part of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rich.console import Console

from benchmarks import restaurants
from examples.seq2seq_price import run
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.columns import LabelColumn

pytestmark = pytest.mark.programs

TRAIN = Examples(
    ["The Mill, near The Millhouse", "see the mill!", "none"],
    ["name[The Mill], food[Thai]", "name[The Mill], food[Thai], food[French]", "food[English]"],
    np.array([1, 0, 1], np.int32),
)
DEV = Examples(["a", "b"], ["name[x]", "food[French]"], np.array([0, -1], np.int32))
PRICES = LabelColumn("price", "price", ("high", "low"))
DATA = run.Data({}, PRICES, {"train": TRAIN, "dev": DEV}, [["The Mill", "The Mill", ""]])


def test_values_are_masked_as_whole_words_in_any_case():
    from benchmarks import linear_baseline  # which takes long to import

    rows = [{"name": "The Mill", "near": ""}, {"name": "The Mill", "near": "see"}, {"name": "", "near": "x"}]
    masked = linear_baseline.mask_values(TRAIN, rows)
    assert masked.texts == ["somename, near The Millhouse", "somenear somename!", "none"]
    assert masked.targets == ["name[somename], food[Thai]", "name[somename], food[Thai], food[French]", "food[English]"]
    assert masked.labels is TRAIN.labels


def test_slots_become_labels_beside_the_price():
    data, classes = restaurants.with_slots(DATA, ["food", "name"])
    # food: "", English, French, Thai; name: "", The Mill, x
    assert classes == [2, 4, 3]
    assert data.splits["train"].labels.tolist() == [[1, 3, 1], [0, 3, 1], [1, 1, 0]]
    assert data.splits["dev"].labels.tolist() == [[0, 0, 2], [-1, 2, 0]]
    assert data.splits["train"].labels.dtype == np.int32
    assert data.swaps == DATA.swaps


def test_a_part_of_the_rows_keeps_them_whole():
    whole = set(zip(TRAIN.texts, TRAIN.targets, TRAIN.labels.tolist(), DATA.swaps[0]))
    seen = []
    for seed in range(20):
        part = restaurants.some_rows(DATA, 2, seed)
        rows = list(zip(*part.splits["train"][:2], part.splits["train"].labels.tolist(), part.swaps[0]))
        assert len(set(rows)) == 2 and set(rows) <= whole
        assert part.splits["dev"] is DEV
        seen += rows
    assert set(seen) == whole
    assert restaurants.some_rows(DATA, 0, 0) is DATA
    assert restaurants.some_rows(DATA, 3, 0) is DATA


ROWS = [
    ("The Mill is a cheap French pub", "name[The Mill], food[French]", "cheap"),
    ("Dear Thai", "food[Thai]", "dear"),
    ("Thai", "food[Thai]", ""),
] * 14


@pytest.fixture
def table(tmp_path):
    lines = ["text,meaning,price_range", *(f'{source},"{target}",{price}' for source, target, price in ROWS)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


@pytest.mark.thorough
def test_the_benchmark_goes_on_where_it_was_and_prints_the_variants(table, tmp_path, capsys, without_graphs):
    output = tmp_path / "figures.json"
    sizes = ["--epochs", "1", "--units", "4", "--embedding", "3", "--batch-size", "8", "--missing", "class"]
    arguments = ["--train", table, "--dev", table, "--slots", "food", "--output", str(output), *sizes]
    assert restaurants.main([*arguments, "--variants", "price"]) == 0
    before = json.loads(output.read_text())["results"]
    assert list(before) == ["price"] and list(before["price"]["0"]) == ["seconds", "price_accuracy"]
    capsys.readouterr()
    assert restaurants.main([*arguments, "--variants", "price", "all"]) == 0
    printed = capsys.readouterr().out
    results = json.loads(output.read_text())["results"]
    assert results["price"] == before["price"] and "seed 0, price:" not in printed
    assert set(results) == {"price", "all"}
    assert {"reply_exact", "price_accuracy", "food_accuracy"} <= set(results["all"]["0"])
    for options, message in (
        (["--dropout", "0.5"], "`--output` must be a file with results for the same options"),
        (["--variants", "beer"], "`--variants` must be among 'reply', 'price', 'food'"),
        (["--patience", "2"], "`--patience` must be omitted: all variants train for the same"),
        (["--seed", "5"], "`--seed` must be omitted"),
        (["--output", str(tmp_path / "other.json"), "--balancer", "beer"], "`balancer` must"),
    ):
        with pytest.raises(SystemExit):
            restaurants.main([*arguments, *options])
        assert message in capsys.readouterr().err


def test_the_table_has_a_row_for_each_figure():
    def runs(**figures):
        return {
            str(seed): {"seconds": 2.0, **{name: value + seed / 10 for name, value in figures.items()}} for seed in (0, 1)
        }

    results = {"reply": runs(reply_exact=0.1), "price": runs(price_accuracy=0.2)}
    results["reply and price"] = runs(reply_exact=0.3, price_accuracy=0.4)
    console = Console(width=200, record=True)
    console.print(restaurants.draw_table(results, ("reply", "price"), "title"))
    lines = [line.split("│")[1:-1] for line in console.export_text().splitlines() if line.startswith("│")]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["reply_exact", "0.150 ± 0.071", "0.350 ± 0.071"],
        ["price_accuracy", "0.250 ± 0.071", "0.450 ± 0.071"],
        ["seconds of training", "4", "2"],
    ]
