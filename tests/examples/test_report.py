"""What a run shows: exact replies by hand, and lines of progress in 79 columns."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from examples.seq2seq_price import report, run

pytestmark = pytest.mark.programs


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
    assert run.exact([("a  b", "a b"), ("c", "d"), ("d", "d ")]) == pytest.approx(2 / 3)
