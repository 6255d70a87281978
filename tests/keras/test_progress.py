"""What is printed: the progress line, and the names of metrics; all statistics stay in the logs."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
TARGETS = {"price": X[:, :1], "size": np.where(X[:, 1:2] > 0, 3.0 * X[:, 1:2], np.nan).astype("float32")}
SHOWN = ["price_loss", "price_mae", "size_loss"]


def trainer(**options):
    result = MultiHeadTrainer(keras.layers.Dense(4))
    result.add_head("price", keras.layers.Dense(1), "mse", metrics=["mae", "MeanSquaredError"])
    result.add_head("size", keras.layers.Dense(1), "mse")
    result.compile(keras.optimizers.SGD(0.01), **options)
    return result


@pytest.fixture(scope="module")
def model():
    """One trainer for all tests that only look at what is printed; without a graph, for their batches have many sizes."""
    return trainer(run_eagerly=True)


def printed_names(capsys):
    return re.findall(r"([A-Za-z]\w+): \S", capsys.readouterr().out)


class AddsOne(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["val_f1"] = 0.5


def test_the_line_shows_losses_and_first_metrics_and_the_history_everything(model, tmp_path, capsys):
    log = tmp_path / "log.csv"
    callbacks = [AddsOne(), keras.callbacks.CSVLogger(str(log))]
    history = model.fit(
        X, TARGETS, batch_size=4, validation_data=(X, TARGETS), verbose=2, epochs=1, callbacks=callbacks
    ).history
    assert printed_names(capsys) == [*SHOWN, *(f"val_{name}" for name in SHOWN), "val_f1"]
    of_heads = {f"{head}_{statistic}" for head in TARGETS for statistic in ("loss", "norm", "share", "updates")}
    by_class = "price_mean_squared_error" if keras.__version__ < "3" else "price_MeanSquaredError"
    of_training = {"loss", "skipped_updates", "price_mae", by_class, *of_heads}
    of_validation = {f"val_{name}" for name in ("loss", "f1", by_class, *SHOWN)}
    assert set(history) == of_training | of_validation
    assert set(log.read_text().splitlines()[0].split(",")) == {"epoch", *history}


def test_the_line_of_each_step_shows_what_the_step_computed(model, capsys):
    model.fit(X, TARGETS, batch_size=8, verbose=1)
    history = model.evaluate(X, TARGETS, batch_size=4, return_dict=True, verbose=1)
    lines = capsys.readouterr().out.replace("\r", "\n").split("\n")
    last = [line for line in lines if "2/2" in line][-1]
    assert re.findall(r"([A-Za-z]\w+): \S", last) == SHOWN
    assert f"price_mae: {history['price_mae']:.4f}" in last  # of all batches, not the mean of running means


def test_nothing_is_printed_on_request_and_a_line_of_ones_own_is_kept(model, capsys):
    model.fit(X, TARGETS, verbose=0)
    model.evaluate(X, TARGETS, verbose=0)
    assert capsys.readouterr().out == ""
    own = keras.callbacks.ProgbarLogger(**({"count_mode": "steps"} if keras.__version__ < "3" else {}))
    model.fit(X, TARGETS, verbose=2, callbacks=[own])
    assert "price_norm" in printed_names(capsys)


def test_skipped_updates_are_shown_if_there_are_any(model, capsys):
    bad = {**TARGETS, "price": np.full_like(TARGETS["price"], 3e38)}
    model.heads["price"].module.bias.assign([-3e38])  # the difference overflows
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped"):
        model.fit(X, bad, verbose=2)
    model.heads["price"].module.bias.assign([0.0])
    assert "skipped_updates" in printed_names(capsys)
