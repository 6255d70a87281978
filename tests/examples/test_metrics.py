"""Figures against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from examples.seq2seq_price.metrics import price_figures, reply_figures, slots


def test_price_figures_are_scikit_learns():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(-1, 5, 300), generator.integers(0, 7, 300)
    known = labels >= 0
    assert price_figures(labels, predicted) == {
        "price_accuracy": pytest.approx(accuracy_score(labels[known], predicted[known])),
        "price_macro_f1": pytest.approx(f1_score(labels[known], predicted[known], average="macro", zero_division=0)),
    }


def test_no_label_no_figure():
    assert price_figures(np.full([3], -1), np.zeros([3], int)) == {}


def test_slots_of_a_meaning():
    assert dict(slots("name[The Mill], eatType[coffee shop], near[]")) == {
        ("name", "The Mill"): 1, ("eatType", "coffee shop"): 1, ("near", ""): 1,
    }  # fmt: skip
    assert not slots("2 large oak desk; express")


def test_reply_figures_by_hand():
    wanted = ["a[1], b[2]", "a[1]", "a[1], a[1]"]
    received = ["a[1],  b[3]", "a[1]", "a[1]"]
    # pairs wanted: 2 + 1 + 2, received: 2 + 1 + 1, in both: 1 + 1 + 1
    assert reply_figures(wanted, received) == {
        "reply_exact": pytest.approx(1 / 3), "reply_slot_f1": pytest.approx(2 * 3 / (5 + 4)),
    }  # fmt: skip
    assert reply_figures(["a  b", "c"], ["a b", "d"]) == {"reply_exact": 0.5}
