"""A whole trainer is saved, loaded and trained further."""

from __future__ import annotations

import keras
import numpy as np

from multihead import MultiHeadTrainer, balancing, clipping, schedules
from tests.helpers import tiny


def test_a_whole_trainer_is_saved_and_goes_on(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    y = {"a": x.sum(1, keepdims=True), "b": (x[:, 0] > 0).astype("int64")}

    def fitted():
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        trainer.add_head("a", keras.layers.Dense(1), "mse", weight=0.5)
        trainer.add_head(
            "b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        trainer.compile(
            keras.optimizers.Adam(0.05),
            balancer=balancing.NormBudget({"a": 0.3}),
            schedule=schedules.Alternate({"a": 1, "b": 2}),
            clip=clipping.ByGlobalNorm(1.0),
            micro_batches=2,
        )
        tiny.fit_once(trainer, x, y, epochs=2)
        return trainer

    trainer = fitted()
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    assert tiny.values([loaded.update_count]) == [2]
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(a, b)
    tiny.fit_once(trainer, x, y, epochs=2)
    tiny.fit_once(loaded, x, y, epochs=2)
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
