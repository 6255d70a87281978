"""Promise 3: one update is one update, however it was gathered."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tiny


@pytest.mark.thorough
def test_updates_are_what_keras_counts(tmp_path):
    """Seven batches in windows of three are three updates, whatever `steps_per_execution` is."""
    inputs, targets = tiny.data(14)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(2)
    of_two = data.map(lambda x, y: (x, {name: y[name] for name in ("tag", "size")}))
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.0])
    weights = []
    for steps in (1, 2):
        options = {"gradient_accumulation_steps": 3, "steps_per_execution": steps}
        trainer = tiny.trainer(keras.optimizers.SGD(rates), ("tag", "size"), **options)
        ends = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))  # noqa: B023
        history = trainer.fit(of_two, epochs=1, verbose=0, shuffle=False, callbacks=[count])
        assert len(ends) == {1: 3, 2: 2}[steps]
        assert history.history["tag_updates"] == [3.0]
        assert tiny.values([trainer.optimizer.iterations, trainer.update_count]) == [3, 3]
        weights.append(tiny.weights_of(trainer))
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    endless = tiny.trainer(keras.optimizers.SGD(rates), gradient_accumulation_steps=3, run_eagerly=True)
    endless.fit(data.repeat(), steps_per_epoch=4, epochs=2, verbose=0, shuffle=False)
    assert tiny.values([endless.update_count]) == [8]
    arrays = tiny.trainer("sgd", gradient_accumulation_steps=3, run_eagerly=True)
    assert arrays.fit(inputs, targets, batch_size=2, verbose=0).history["tag_updates"] == [3.0]
