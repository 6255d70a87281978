"""The statistics of every update, in a file that survives a crash, and in TensorBoard."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from multihead.callbacks import HeadTensorBoard, UpdateLogger

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = {"price": X[:, :1] - 2.0, "size": np.where(np.arange(24)[:, None] < 8, np.nan, X[:, 1:2]).astype("float32")}


def trainer(telemetry="full", weight=1.0, **options):
    keras.utils.set_random_seed(0)
    made = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh", name="shared"))
    for name in Y:
        made.add_head(name, keras.layers.Dense(1), "mse", weight=weight)
    made.compile(keras.optimizers.Adam(0.01), telemetry=telemetry, **{"run_eagerly": True, **options})
    return made


def fit(made, *callbacks, epochs=3, y=Y, **options):
    """Three updates an epoch; in the first of each, `size` has no labels."""
    made.fit(X, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks), **options)


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Crash(keras.callbacks.Callback):
    """Ends the process, as far as a test can, in an update."""

    def __init__(self, epoch, batch):
        super().__init__()
        self.place, self.epoch = (epoch, batch), 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.place:
            raise KeyboardInterrupt


@pytest.mark.thorough
def test_a_run_that_crashed_and_resumed_has_the_ledger_of_one_that_did_not(tmp_path):
    whole, path = tmp_path / "whole.jsonl", tmp_path / "runs" / "run.jsonl"
    fit(trainer(), UpdateLogger(whole))
    backup = tmp_path / "backup"
    with pytest.raises(KeyboardInterrupt):
        fit(trainer(), keras.callbacks.BackupAndRestore(backup), UpdateLogger(path), Crash(1, 1))
    assert [line["step"] for line in lines_of(path)] == [1, 2, 3, 4, 5]
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"step": 6, "lo')  # a line that the crash cut off
    fit(trainer(), UpdateLogger(path), keras.callbacks.BackupAndRestore(backup))
    assert path.read_text(encoding="utf-8") == whole.read_text(encoding="utf-8")
    # Another run has a file of its own, and the one before keeps its lines.
    with pytest.warns(UserWarning, match="no lines of updates after number 0.*It is called run.1.jsonl from now on"):
        fit(trainer(), UpdateLogger(path), epochs=1)
    assert [line["step"] for line in lines_of(path)] == [1, 2, 3]
    assert path.with_name("run.1.jsonl").read_text(encoding="utf-8") == whole.read_text(encoding="utf-8")


def test_lines_tensorboard_and_logs_show_the_same_statistics(tmp_path):
    path = tmp_path / "run.jsonl"
    made = trainer()
    fit(made, UpdateLogger(path, every=2), HeadTensorBoard(tmp_path), validation_data=(X, Y))
    lines = [line for line in lines_of(path) if "applied" in line]
    assert [line["step"] for line in lines] == [2, 4, 6, 8] and [line["epoch"] for line in lines] == [0, 1, 1, 2]
    assert [line["step"] for line in lines_of(path) if "val_price_loss" in line] == [3, 6, 9]
    second, fourth = lines[:2]
    assert fourth["size_norm"] is None and fourth["price_size_cosine"] is None and fourth["price_share"] == 1
    assert not {"a_updates", "skipped_updates"} & second.keys()
    # A running average is 1 / (1 - decay^n) of the exponential one: here after the updates 2 and 3 of `size`.
    assert second["size_norm_average"] == pytest.approx(second["size_norm"])
    assert second["price_loss_average"] == pytest.approx(
        np.average([second["price_loss"], _first_loss()], weights=[1, 0.98]), rel=1e-5
    )

    board = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0}).Reload()
    tags = board.Tags()["tensors"]
    assert {"price/norm", "size/val_loss", "update/norm", "cosines/price and size"} < set(tags)
    found = {event.step: float(tf.make_ndarray(event.tensor_proto)) for event in board.Tensors("price/norm")}
    assert sorted(found) == list(range(1, 10)) and found[4] == pytest.approx(fourth["price_norm"])
    (image, *others) = [tf.make_ndarray(event.tensor_proto) for event in board.Tensors("cosines")]
    assert len(others) == 2
    height, width, _ = tf.io.decode_png(image[2]).shape
    assert (int(image[0]), int(image[1])) == (width, height)


def _first_loss():
    return float(
        trainer().evaluate(X[:8], {name: values[:8] for name, values in Y.items()}, verbose=0, return_dict=True)[
            "price_loss"
        ]
    )


def test_a_skipped_update_has_the_step_that_it_would_have_reached(tmp_path):
    broken = {**Y, "price": np.where(np.arange(24)[:, None] == 9, 1e38, Y["price"]).astype("float32")}
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped"):
        fit(trainer("norms", weight=16.0, run_eagerly=False), UpdateLogger(tmp_path / "run.jsonl"), epochs=1, y=broken)
    first, second, third = lines_of(tmp_path / "run.jsonl")
    assert [(line["step"], line["applied"]) for line in (first, second, third)] == [(1, True), (2, False), (2, True)]
    assert second["price_norm"] is None and "price_size_cosine" not in first


def test_what_has_no_statistics_or_is_no_ledger_is_refused(tmp_path):
    with pytest.raises(ValueError, match="`telemetry` must be 'norms' or 'full' for UpdateLogger. Received: telemetry=None"):
        fit(trainer(None), UpdateLogger(tmp_path / "run.jsonl"))
    (tmp_path / "notes.txt").write_text("not this\n", encoding="utf-8")
    with pytest.raises(ValueError, match="`path` must be the file of a ledger.*whose line 1 is 'not this'"):
        fit(trainer(), UpdateLogger(tmp_path / "notes.txt"))
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "not this\n"
    with pytest.raises(RuntimeError, match="`path` must be a file that can be written. Received: .*directory"):
        fit(trainer(), UpdateLogger(tmp_path))
    with pytest.raises(ValueError, match="`every` must be"):
        UpdateLogger("run.jsonl", every=0)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 does not tune the number of steps")
def test_the_number_of_updates_at_once_must_be_known(tmp_path):
    with pytest.raises(ValueError, match="`steps_per_execution` must be a number for UpdateLogger"):
        fit(trainer(steps_per_execution="auto"), UpdateLogger(tmp_path / "ledger.jsonl"))
