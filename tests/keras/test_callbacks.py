"""Keras's callbacks, and a run that is resumed from one's checkpoint."""

from __future__ import annotations

import keras
import pytest

from tests.helpers import tiny


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
