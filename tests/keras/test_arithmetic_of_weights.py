"""`get_weights` and `set_weights` have the weights that Keras's have: arithmetic on them changes nothing else."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer

layers = keras.layers
X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, "tanh")(inputs)
    made = keras.Model(inputs, {name: layers.Dense(1, name=name)(hidden) for name in "ab"})
    made.compile(keras.optimizers.SGD(0.1), loss={"a": "mse", "b": "mae"}, loss_weights={"a": 2.0, "b": 0.5})
    return made


class Halve(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([0.5 * weight for weight in self.model.get_weights()])


@pytest.mark.parametrize("where", ["between", "callback"])
def test_weights_made_smaller_leave_losses_and_counts_alone(where):
    plain, trainer = model(), MultiHeadTrainer.from_model(model())
    trainer.compile()
    losses = []
    for each in (plain, trainer):
        callbacks = [Halve()] if where == "callback" else []
        each.fit(X, Y, batch_size=8, epochs=2, shuffle=False, callbacks=callbacks, verbose=0)
        each.set_weights([0.4 * weight for weight in each.get_weights()])
        losses.append(each.fit(X, Y, batch_size=8, epochs=2, shuffle=False, callbacks=callbacks, verbose=0).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert trainer.num_updates == 8 and trainer.count_params() == plain.count_params()
    for one, other in zip(plain.get_weights(), trainer.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_weights_of_heads_are_no_weights_and_are_saved(tmp_path):
    trainer, other = (MultiHeadTrainer.from_model(model()) for _ in range(2))
    for each in (trainer, other):
        each.compile()
        each.fit(X, Y, verbose=0)
    trainer.set_weight("a", 7.0)
    other.set_weights(trainer.get_weights())
    assert float(other.evaluate(X, Y, verbose=0, return_dict=True)["loss"]) != pytest.approx(
        float(trainer.evaluate(X, Y, verbose=0, return_dict=True)["loss"])
    )
    trainer.save_weights(tmp_path / "of.weights.h5")
    other.load_weights(tmp_path / "of.weights.h5")
    assert other.evaluate(X, Y, verbose=0, return_dict=True) == trainer.evaluate(X, Y, verbose=0, return_dict=True)
