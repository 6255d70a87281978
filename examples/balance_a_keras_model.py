"""How do you balance a Keras model with several outputs that you already have? One line, on the same layers and weights.

Support tickets: 60 rare topics, and the hours that a ticket takes. In the plain sum of the losses, the hours take almost the
whole update of the shared layer.
"""

from __future__ import annotations

import keras
import numpy as np

from examples._command_line import Parser
from multihead import MultiHeadTrainer


def tickets(number: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features `[number, 32]`, and both labels."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    mixes, waves = fixed.normal(size=(8, 60)), fixed.normal(size=(8, 6)) / 8**0.5
    x = rng.normal(size=(number, 32)).astype("float32")
    topics = x[:, :8] @ (mixes / np.linalg.norm(mixes, axis=0)) > 2.0
    hours = np.sin(2.0 * x[:, 8:16] @ waves).sum(axis=1) / 1.5 + rng.normal(size=number)
    return x, {"topics": topics.astype("float32"), "hours": hours[:, None].astype("float32")}


def keras_model() -> keras.Model:
    """A compiled Keras model with two outputs."""
    inputs = keras.Input([32])
    shared = keras.layers.Dense(8, activation="tanh")(inputs)
    topics = keras.layers.Dense(60, activation="sigmoid", name="topics")(shared)
    hours = keras.layers.Dense(1, name="hours")(keras.layers.Dense(16, activation="relu")(shared))
    model = keras.Model(inputs, {"topics": topics, "hours": hours})
    model.compile(keras.optimizers.Adam(3e-3), loss={"topics": "binary_crossentropy", "hours": "mse"})
    return model


def main() -> dict[str, dict[str, float]]:
    """Trains the model as it is and balanced; returns each loss on held-out tickets."""
    train, held_out = tickets(4000, seed=1), tickets(1000, seed=2)
    losses = {}
    for way in ("plain sum", "balanced"):
        keras.utils.set_random_seed(0)
        model = keras_model()
        if way == "plain sum":
            model.fit(*train, batch_size=64, epochs=12, verbose=0)
        else:
            trainer = MultiHeadTrainer.from_model(model)
            trainer.compile(balancer="EqualNorms")  # with the optimizer and the losses of the model
            trainer.fit(*train, batch_size=64, epochs=12, verbose=0)
        found = model.evaluate(*held_out, verbose=0, return_dict=True)  # the model itself was trained
        losses[way] = {head: found[f"{head}_loss"] for head in ("topics", "hours")}
        print(f"{way}: " + ", ".join(f"{head} {loss:.4f}" for head, loss in losses[way].items()))
    return losses


if __name__ == "__main__":
    Parser("examples.balance_a_keras_model", description=__doc__).parse_args()
    main()
