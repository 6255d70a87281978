"""Keras's callbacks, and a run that is resumed from one's checkpoint."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import schedules
from tests.helpers import tiny


@pytest.mark.thorough
def test_callbacks_and_a_resumed_run(tmp_path):
    inputs, targets = tiny.data(12)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4)
    options = {"head_schedule": schedules.Sample({"tag": 1, "price": 1, "size": 1}, seed=3), "balancer": "EqualNorms"}

    def made(run_eagerly=True):
        return tiny.trainer(keras.optimizers.Adam(0.05), run_eagerly=run_eagerly, **options)

    keras_callbacks = [
        keras.callbacks.CSVLogger(str(tmp_path / "log.csv")),
        keras.callbacks.EarlyStopping("val_price_loss", mode="min", patience=9),
        keras.callbacks.ModelCheckpoint(str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True),
    ]
    try:
        import tensorboard  # noqa: F401

        keras_callbacks.append(keras.callbacks.TensorBoard(str(tmp_path / "board")))
    except ImportError:
        pass
    through = made(run_eagerly=False)
    through.fit(data, validation_data=data, epochs=2, verbose=0, shuffle=False, callbacks=keras_callbacks)
    assert "price_share" in (tmp_path / "log.csv").read_text().splitlines()[0]
    first = made()
    first.fit(data, epochs=1, verbose=0, shuffle=False)
    first.save_weights(str(tmp_path / "half.weights.h5"))
    resumed = made()
    resumed.compute_gradients((inputs[:4], {k: v[:4] for k, v in targets.items()}))  # creates the variables
    resumed.load_weights(str(tmp_path / "half.weights.h5"))
    assert tiny.values([resumed.update_count]) == [3]
    resumed.fit(data, epochs=1, verbose=0, shuffle=False)
    for a, b in zip(tiny.weights_of(through), tiny.weights_of(resumed), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize(
    ("monitor", "is_better"), [("val_size_loss", "less"), ("price_loss", "less"), ("val_price_accuracy", "greater")]
)
def test_callbacks_know_whether_a_statistic_of_a_head_is_better_lower_or_higher(monitor, is_better, tmp_path):
    inputs, targets = tiny.data(8)
    callbacks = [
        keras.callbacks.EarlyStopping(monitor, patience=0),
        keras.callbacks.ReduceLROnPlateau(monitor),
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.weights.h5"), monitor, save_best_only=True, save_weights_only=True
        ),
    ]
    trainer = tiny.trainer("sgd", metrics=True, run_eagerly=True)
    trainer.fit(inputs, targets, verbose=0, validation_data=(inputs, targets), callbacks=callbacks)
    found = [callback.monitor_op for callback in callbacks]
    assert [bool(found[0](1.0, 2.0)), bool(found[2](1.0, 2.0))] == [is_better == "less"] * 2
    assert (tmp_path / "best.weights.h5").exists()


def test_a_callback_may_compute_the_gradients_of_one_head_during_fit():
    inputs, targets = tiny.data(8)
    found = []

    class OfOneHead(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pairs = self.model.compute_gradients((inputs, {"size": targets["size"]}))
            found.append([gradient is None for gradient, _ in pairs])

    tiny.trainer("sgd").fit(inputs, targets, batch_size=4, verbose=0, callbacks=[OfOneHead()])
    assert len(found) == 2 and found[0] == found[1] and any(found[0]) and not all(found[0])
