"""What the benchmarks on files make of the rows: masked names, slots as labels, and a part of them."""

from __future__ import annotations

import numpy as np

from benchmarks import linear_baseline, restaurants
from examples.seq2seq_price import run
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.ranges import PriceRanges

TRAIN = Examples(
    ["The Mill, near The Millhouse", "see the mill!", "none"],
    ["name[The Mill], food[Thai]", "name[The Mill], food[Thai], food[French]", "food[English]"],
    np.array([1, 0, 1], np.int32),
)
DEV = Examples(["a", "b"], ["name[x]", "food[French]"], np.array([0, -1], np.int32))
DATA = run.Data({}, PriceRanges(("high", "low"), None, False), {"train": TRAIN, "dev": DEV}, [["The Mill", "The Mill", ""]])


def test_values_are_masked_as_whole_words_in_any_case():
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
