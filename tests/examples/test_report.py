"""What a run shows: figures of replies and samples by hand, and pictures by what is drawn in them."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix

from examples.seq2seq_price import report
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.model import Answers, AttentionMap
from examples.seq2seq_price.report import confusion, overlap_figures, reply_figures, slots

pytestmark = pytest.mark.programs

NAMES = ("under $20", "$20 to $30", "(missing)")


@pytest.fixture
def figures(monkeypatch):
    """The figures that would have been saved."""
    kept = []
    monkeypatch.setattr(report, "_save", lambda figure, path: kept.append(figure))
    yield kept
    for figure in kept:
        report.pyplot.close(figure)


def labels_of(axes, which):
    return [label.get_text() for label in getattr(axes, f"get_{which}ticklabels")()]


def test_samples_stand_side_by_side(tmp_path):
    examples = Examples(["one  text", "two", "three"], ["a[1]", "b", "c"], np.array([0, -1, 2], np.int32))
    answers = Answers(["a[1]", "b", "d"], {"price": np.eye(3, dtype=np.float32)[[0, 1, 1]]})
    report.write_samples(tmp_path / "samples.txt", examples, answers, NAMES)
    lines = (tmp_path / "samples.txt").read_text(encoding="utf-8").splitlines()
    left, right = ([line[start : start + 78].strip() for line in lines] for start in (0, 80))
    assert left == [
        "2 of 3 rows without an error, for example:", "",
        "text   one text", "wanted a[1] | under $20", "got    a[1] | under $20", "",
        "text   two", "wanted b | no label", "got    b | $20 to $30",
    ]  # fmt: skip
    assert right[:5] == [
        "1 of 3 rows with an error, for example:", "",
        "text   three", "wanted c | (missing)", "got    d | $20 to $30",
    ]  # fmt: skip
    assert not any(right[5:])


def test_a_wrong_price_is_a_mistake_and_long_lines_are_wrapped(tmp_path):
    text = " ".join(f"family-friendly{number}" for number in range(30))
    examples = Examples([text], ["a"], np.array([0], np.int32))
    report.write_samples(tmp_path / "both.txt", examples, Answers(["a"], {"price": np.array([[0.1, 0.9, 0]])}), NAMES)
    written = (tmp_path / "both.txt").read_text(encoding="utf-8")
    assert written.startswith("0 of 1 rows without an error ") and "1 of 1 rows with an error, for" in written
    assert max(map(len, written.splitlines())) <= 2 * 78 + 2
    assert written.split("wanted")[0].split("text")[1].split() == text.split()
    report.write_samples(tmp_path / "reply.txt", examples, Answers(["a"]), ())
    written = (tmp_path / "reply.txt").read_text(encoding="utf-8")
    assert written.startswith("1 of 1 rows without an error, for") and "|" not in written


def test_at_most_so_many_samples_from_all_over(tmp_path):
    number = 40
    examples = Examples([f"t{row}" for row in range(number)], ["a"] * number, np.full([number], -1, np.int32))
    report.write_samples(tmp_path / "samples.txt", examples, Answers(["a"] * number), (), number=4)
    words = (tmp_path / "samples.txt").read_text(encoding="utf-8").split()
    assert [word for word in words if word[0] == "t" and word[1:].isdecimal()] == ["t0", "t13", "t26", "t39"]


def test_the_confusion_shows_counts_and_shares(figures, tmp_path):
    counts = np.array([[8, 2, 0], [0, 0, 0], [1, 0, 3]])
    report.draw_confusion(tmp_path / "confusion.png", counts, NAMES)
    axes = figures[0].axes[0]
    cells = {tuple(map(int, cell.get_position()))[::-1]: cell.get_text() for cell in axes.texts}
    assert cells == {(0, 0): "8", (0, 1): "2", (2, 0): "1", (2, 2): "3"}
    np.testing.assert_allclose(axes.images[0].get_array(), [[0.8, 0.2, 0], [0, 0, 0], [0.25, 0, 0.75]])
    assert labels_of(axes, "x") == labels_of(axes, "y") == list(NAMES)
    assert axes.get_title() == "price ranges: 11 of 14 rows correct"


def test_many_classes_are_drawn_without_counts(figures, tmp_path):
    names = [f"{number}" for number in range(report.COUNTED_CLASSES + 1)]
    report.draw_confusion(tmp_path / "confusion.png", np.ones([len(names)] * 2, int), names)
    assert not figures[0].axes[0].texts
    assert labels_of(figures[0].axes[0], "x") == names


def test_attention_has_a_panel_per_text(figures, tmp_path):
    generator = np.random.default_rng(0)
    maps = [
        AttentionMap(["a", "$5", "$", "b"][:read], ["x", "<end>", "y"][:wrote], generator.random([wrote, read]))
        for read, wrote in ((4, 2), (1, 3), (2, 1))
    ]
    report.draw_attention(tmp_path / "attention.png", maps)
    assert len(figures[0].axes) == 3
    for axes, attended in zip(figures[0].axes, maps):
        np.testing.assert_allclose(axes.images[0].get_array(), attended.weights)
        assert labels_of(axes, "x") == attended.source
        assert labels_of(axes, "y") == attended.reply


def test_letters_of_any_kind_are_saved(tmp_path):
    maps = [AttentionMap(["🙂", "$5", "$x^{", "שלום"], ["中", "<end>"], np.full([2, 4], 0.25))]
    report.draw_attention(tmp_path / "attention.png", maps)
    report.draw_confusion(tmp_path / "confusion.png", np.eye(2, dtype=int), ["中 $5", "$x^{"])
    for name in ("attention.png", "confusion.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    assert report.pyplot.get_fignums() == []


def test_the_line_of_an_epoch_has_the_heads_in_their_order():
    logs = {"area_loss": 1.0, "loss": 3.0, "price_accuracy": 0.5, "price_loss": 2.0, "val_price_loss": 2.5}
    assert report._figures(logs, ["price", "area"]) == "price loss 2.000 (2.500) accuracy 0.500 | area loss 1.000"


def test_the_confusion_is_scikit_learns():
    generator = np.random.default_rng(1)
    labels, predicted = generator.integers(-1, 5, 300), generator.integers(0, 7, 300)
    known = labels >= 0
    expected = confusion_matrix(labels[known], predicted[known], labels=range(7))
    np.testing.assert_array_equal(confusion(labels, predicted, 7), expected)
    np.testing.assert_array_equal(confusion(np.full([3], -1), np.zeros([3], int), 2), np.zeros([2, 2]))


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
    monkeypatch.setattr(report.importlib.util, "find_spec", lambda name: None)
    assert overlap_figures(["a"], ["a"]) == {}
