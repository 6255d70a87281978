"""Every optimizer of Keras: a graph computes what it computes without one, and a saved trainer goes on as if it had not been."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from multihead._ground.optimizers import optimizer_classes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
Y = {"a": RNG.normal(size=(8, 1)).astype("float32")}
REFUSED = {"lossscale", "lossscaleoptimizer", "multioptimizer", "optimizer", *([] if KERAS_3 else ["nadam"])}
EVERY = sorted({name.lower() for name in optimizer_classes()} - REFUSED)


def new(name, eagerly):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(4, activation="tanh")]))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile(name, run_eagerly=eagerly)
    trainer.optimizer.learning_rate = 0.01
    return trainer


def trained(trainer, updates):
    trainer.fit(X, Y, batch_size=8, epochs=updates, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(weight) for weight in trainer.get_weights()])


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("name", EVERY)
def test_in_a_graph_and_saved_it_computes_what_it_computes_eagerly(name, tmp_path):
    expected = trained(new(name, True), 4)
    np.testing.assert_allclose(trained(new(name, False), 4), expected, rtol=1e-4, atol=1e-6)
    trainer = new(name, False)
    trained(trainer, 2)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    np.testing.assert_allclose(trained(loaded, 2), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.skipif(KERAS_3, reason="an optimizer of Keras 2")
def test_nadam_of_keras_2_is_refused():
    with pytest.raises(ValueError, match="Received: Nadam of Keras 2, which counts steps in Python.*Pass Adam or AdamW"):
        new("nadam", False)
