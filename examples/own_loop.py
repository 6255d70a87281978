"""How do you write your own training loop? `head_gradients` gives each head's gradients; the rest is TensorFlow.

An update is the mean over 8 batches, balanced by PCGrad, clipped and applied. The cosine between the heads is logged.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from examples._command_line import Parser
from multihead import Head, MultiHeadTrainer, balancing, clipping
from multihead.accumulation import GradientAccumulator


def make_trainer(x: np.ndarray) -> MultiHeadTrainer:
    """A trainer with two heads, whose variables exist."""
    encoder = keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(16, activation="relu")])
    heads = {
        "kind": Head(keras.layers.Dense(1, activation="sigmoid"), "binary_crossentropy"),
        "size": Head(keras.layers.Dense(1), "mse"),
    }
    trainer = MultiHeadTrainer(encoder, heads)
    trainer.compile(keras.optimizers.Adam(1e-2), clip=clipping.ByGlobalNorm(1.0))
    trainer.predict(x[:1], verbose=0)
    return trainer


def main(epochs: int = 10) -> list[dict[str, float]]:
    """Trains; returns both losses and the mean cosine of each epoch."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(2048, 8)).astype("float32")
    targets = {"kind": (x[:, :1] * x[:, 1:2] > 0).astype("float32"), "size": np.tanh(x[:, 2:3] - x[:, :1])}
    trainer = make_trainer(x)
    shared = trainer.encoder.trainable_variables
    own = {name: head.module.trainable_variables for name, head in trainer.heads.items()}
    sums = {name: GradientAccumulator([*shared, *own[name]]) for name in own}

    @tf.function
    def add(inputs: tf.Tensor, labels: dict[str, tf.Tensor]) -> tf.Tensor:
        found = trainer.head_gradients((inputs, labels), at="parameters")
        of_own = {id(variable): gradient for gradient, variable in found.own}
        for name, variables in own.items():
            sums[name].add([*found[name], *(of_own[id(each)] for each in variables)], count=len(inputs))
        return found.cosines[0, 1]

    @tf.function
    def update() -> None:
        means = {name: each.mean() for name, each in sums.items()}
        rows = {name: mean[: len(shared)] for name, mean in means.items()}
        pairs = list(zip(balancing.balance(rows, "PCGrad"), shared))
        for name, mean in means.items():
            pairs += zip(mean[len(shared) :], own[name])
            sums[name].reset()
        trainer.apply_gradients(pairs)

    data, logs = tf.data.Dataset.from_tensor_slices((x, targets)).shuffle(len(x), seed=0), []
    for epoch in range(epochs):
        cosines = []
        for batch in data.batch(16):
            cosines.append(float(add(*batch)))
            if len(cosines) % 8 == 0:
                update()
        losses = trainer.evaluate(x, targets, verbose=0, return_dict=True)
        logs.append({"kind": losses["kind_loss"], "size": losses["size_loss"], "cosine": float(np.mean(cosines))})
        print(f"epoch {epoch + 1}: " + ", ".join(f"{name} {value:+.3f}" for name, value in logs[-1].items()))
    return logs


if __name__ == "__main__":
    Parser("examples.own_loop", description=__doc__).parse_args()
    main()
