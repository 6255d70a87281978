"""A run with every control on at once, interrupted and started again: it ends as the run that was not interrupted."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import LayerwiseDecay, MultiHeadTrainer, Stages, balancing, callbacks, clipping, schedules
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32")
Y = {
    "number": np.where(RNG.random((24, 1)) < 0.6, np.nan, X.sum(1, keepdims=True)).astype("float32"),
    "kind": (X[:, 0] > 0.5).astype("int64"),
    "noise": RNG.normal(size=(24, 2)).astype("float32"),
}


class SetWeight(keras.callbacks.Callback):
    """Sets a weight once, at the end of the second epoch."""

    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.model.set_weight("noise", 0.25)


class Interrupt(keras.callbacks.Callback):
    """Ends the process's `fit` in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        if self.model.update_count.numpy() == 9:
            raise KeyboardInterrupt


def made():
    keras.utils.set_random_seed(3)
    dense = keras.layers.Dense
    encoder = keras.Sequential([dense(6, activation="tanh"), dense(5, activation="tanh")])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head(
        "number", dense(1), "mse", learning_rate_multiplier=lambda step: 1.0 / (1.0 + tf.cast(step, tf.float32) / 10)
    )
    trainer.add_head(
        "kind",
        dense(2, "softmax"),
        "sparse_categorical_crossentropy",
        class_weight={0: 1.0, 1: 3.0},
        learning_rate_multiplier=0.3,
    )
    trainer.add_head("noise", dense(2), "mse", weight_decay_multiplier=0.0)
    options = {"use_ema": True, "ema_momentum": 0.9, "weight_decay": 0.01}
    trainer.compile(
        keras.optimizers.AdamW(0.02, **options)
        if keras.__version__[0] == "3"
        else tf.keras.optimizers.AdamW(0.02, **options),
        encoder_learning_rate_multiplier=Stages({0: 0, 5: LayerwiseDecay(0.5, top=0.5), 11: LayerwiseDecay(0.5)}),
        encoder_weight_decay_multiplier=0.1,
        head_schedule=schedules.Sample({"number": 1, "kind": 1, "noise": 1}, seed=3),
        balancer=balancing.GradVac(),
        micro_batches=2,
        run_eagerly=True,  # saves the traces of three stages in three trainers
        clip=clipping.ByGlobalNorm(1.0),
        balance_every=2,
    )
    return trainer


def run(folder, interrupted):
    trainer = made()
    given = [
        callbacks.HeadEarlyStopping(patience=4, idle=True, restore_best_weights=False),
        SetWeight(),
        keras.callbacks.BackupAndRestore(str(folder / "keras")),
        *([Interrupt()] if interrupted else []),
    ]
    options = {
        "batch_size": 6,
        "epochs": 4,
        "validation_batch_size": 24,
        "shuffle": False,
        "verbose": 0,
        "validation_data": (X, Y),
    }
    if interrupted:
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(X, Y, callbacks=given, **options)
        return None
    trainer.fit(X, Y, callbacks=given, **options)
    return trainer


@pytest.mark.thorough
def test_the_resumed_run_is_the_run_that_was_not_interrupted(tmp_path):
    whole = run(tmp_path / "whole", interrupted=False)
    assert run(tmp_path / "cut", interrupted=True) is None
    again = run(tmp_path / "cut", interrupted=False)
    assert int(again.update_count.numpy()) == int(whole.update_count.numpy()) == 16
    assert again.history.epoch == [0, 1, 2, 3]
    for name, values in again.history.history.items():
        np.testing.assert_allclose(values, whole.history.history[name], rtol=1e-6, atol=1e-7, err_msg=name)
    for one, other in zip(tiny.values(whole.variables), tiny.values(again.variables), strict=True):
        np.testing.assert_array_equal(one, other)
