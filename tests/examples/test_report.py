"""What a run shows: metrics of replies by hand, samples, and lines of progress in 79 columns."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from examples.seq2seq_price import report
from examples.seq2seq_price.answers import Answers
from examples.seq2seq_price.batches import Examples
from examples.seq2seq_price.report import exact

pytestmark = pytest.mark.programs

NAMES = ("under $20", "$20 to $30", "(missing)")


def test_samples_with_and_without_an_error(tmp_path):
    examples = Examples(["one  text", "two", "three"], ["a[1]", "b", "c"], np.array([0, -1, 2], np.int32))
    answers = Answers(["a[1]", "b", "d"], {"price": np.eye(3, dtype=np.float32)[[0, 1, 1]]})
    report.write_samples(tmp_path / "samples.txt", examples, answers, NAMES)
    assert (tmp_path / "samples.txt").read_text(encoding="utf-8").splitlines() == [
        "1 of 3 rows with an error", "",
        "text   three", "wanted c | (missing)", "got    d | $20 to $30", "",
        "2 of 3 rows without an error", "",
        "text   one text", "wanted a[1] | under $20", "got    a[1] | under $20", "",
        "text   two", "wanted b | no label", "got    b | $20 to $30",
    ]  # fmt: skip


def test_at_most_so_many_samples_from_all_over(tmp_path):
    number = 40
    examples = Examples([f"t{row}" for row in range(number)], ["a"] * number, np.full([number], -1, np.int32))
    answers = Answers(["a"] * number, {"price": np.eye(1).repeat(number, axis=0)})
    report.write_samples(tmp_path / "samples.txt", examples, answers, ("low",), number=4)
    written = (tmp_path / "samples.txt").read_text(encoding="utf-8").split()
    assert [word for word in written if word[0] == "t" and word[1:].isdecimal()] == ["t0", "t13", "t26", "t39"]


def test_the_line_of_an_epoch_has_the_heads_in_their_order_and_the_time_left(monkeypatch):
    monkeypatch.setattr(report.time, "perf_counter", lambda: 100.0)
    clock = report.Clock(40)
    progress = report.Progress(clock, "plain sum")
    progress.set_params({"epochs": 12})
    model = SimpleNamespace(heads=["reply", "price", "guests", *(f"another_{number}" for number in range(9))])
    progress.set_model(model) if not hasattr(progress, "_model") else setattr(progress, "_model", model)
    progress.on_epoch_begin(2)
    monkeypatch.setattr(report.time, "perf_counter", lambda: 130.0)
    for batch in range(10):
        progress.on_train_batch_end(batch, {})
    assert str(clock) == "1:30 left"
    logs = {"price_accuracy": 0.5, "val_price_accuracy": 0.25, "reply_token_accuracy": 1.0, "guests_loss": 3.0}
    expected = "plain sum    epoch  3/12  reply 1.00  price 0.25  guests loss 3.00  1:30 left"
    assert progress.line(logs).rstrip() == expected
    long = progress.line({**logs, **{f"another_{number}_loss": 1.0 for number in range(9)}})
    assert len(long) == 79 and long.endswith("  1:30 left")


def test_exact_replies_up_to_white_space():
    assert exact(["a  b", "c", "d"], ["a b", "d", "d "]) == pytest.approx(2 / 3)
