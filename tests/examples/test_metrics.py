"""Figures against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from examples.seq2seq_price import metrics
from examples.seq2seq_price.metrics import class_figures, confusion, overlap_figures, reply_figures, slots

pytestmark = pytest.mark.programs


def test_class_figures_are_scikit_learns():
    generator = np.random.default_rng(0)
    labels, predicted = generator.integers(-1, 5, 300), generator.integers(0, 7, 300)
    known = labels >= 0
    assert class_figures(labels, predicted) == {
        "price_accuracy": pytest.approx(accuracy_score(labels[known], predicted[known])),
        "price_macro_f1": pytest.approx(f1_score(labels[known], predicted[known], average="macro", zero_division=0)),
    }


def test_the_confusion_is_scikit_learns():
    generator = np.random.default_rng(1)
    labels, predicted = generator.integers(-1, 5, 300), generator.integers(0, 7, 300)
    known = labels >= 0
    expected = confusion_matrix(labels[known], predicted[known], labels=range(7))
    np.testing.assert_array_equal(confusion(labels, predicted, 7), expected)
    np.testing.assert_array_equal(confusion(np.full([3], -1), np.zeros([3], int), 2), np.zeros([2, 2]))


def test_no_label_no_figure():
    assert class_figures(np.full([3], -1), np.zeros([3], int)) == {}


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


def test_overlap_in_closed_form():
    assert overlap_figures(["a b c d", "x y z w ."], ["a b c d", "x y z w ."]) == {
        "reply_bleu": pytest.approx(100), "reply_chrf": pytest.approx(100),
    }  # fmt: skip
    # of 5, 4, 3 and 2 runs of one to four words all but one are right
    bleu = overlap_figures(["a b c d e"], ["a b c d f"])["reply_bleu"]
    assert bleu == pytest.approx(100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25)
    # of 8 - n runs of n letters all but one are right, n being 1 to 6
    chrf = overlap_figures(["abcdefg"], ["abcdefh"])["reply_chrf"]
    assert chrf == pytest.approx(100 * np.mean([(7 - n) / (8 - n) for n in range(1, 7)]))


def test_overlap_is_of_whole_words():
    wanted = ["ein grosses haus am see .", "a b c d"]
    cut = ["ein gro@@ sses haus am s@@ ee .", "a b c d@@"]
    assert overlap_figures(cut, ["ein grosses ha@@ us am see .", "a b c d"])["reply_bleu"] == pytest.approx(100)
    received = ["ein grosses boot am see .", "a b c d"]
    assert overlap_figures(cut, ["ein gro@@ sses b@@ oot am see .", "a b c d"]) == overlap_figures(wanted, received)


def test_no_overlap_without_sacrebleu(monkeypatch):
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    assert overlap_figures(["a"], ["a"]) == {}
