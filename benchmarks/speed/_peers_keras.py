"""The process of `peers` in which Keras and this library train: `fit` on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._peers_problem import (
    CLASSES,
    EMBEDDING,
    EPSILON,
    FEATURES,
    PLAIN,
    RATE,
    SIDE,
    TIME,
    UNITS,
    VOCABULARY,
    Library,
    Problem,
    clocks,
    measured,
    serve,
)
from multihead import MultiHeadTrainer

layers = keras.layers


def encoder_of(model: str) -> keras.Sequential:
    """The encoder, which is built."""
    units = UNITS[model]
    if model == "dense":
        parts, shape = [layers.Dense(units, activation="relu"), layers.Dense(units, activation="relu")], [FEATURES]
    elif model == "convolutions":
        convolutions = [layers.Conv2D(size, 3, padding="same", activation="relu") for size in (units // 2, units)]
        parts = [convolutions[0], layers.MaxPooling2D(), convolutions[1], layers.MaxPooling2D()]
        parts, shape = [*parts, layers.GlobalAveragePooling2D()], [SIDE, SIDE, 3]
    else:
        recurrent = {"GRU": layers.GRU, "LSTM": layers.LSTM}[model](units)
        parts, shape = [layers.Embedding(VOCABULARY, EMBEDDING), recurrent], [TIME]
    encoder = keras.Sequential(parts)
    encoder.build([None, *shape])
    return encoder


class Clock(keras.callbacks.Callback):
    """Takes the time from the end of the first step to that of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self._supports_tf_logs = True  # on Keras 2: the logs of a batch are not read, since no one asks for them
        self.times: list[np.ndarray] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.times.append(clocks())


class Fitted:
    """A model of Keras with several outputs, or a trainer, on arrays.

    Args:
        model: The compiled model.
        problem: The problem.
        arrays: Its arrays.
    """

    def __init__(self, model: keras.Model, problem: Problem, arrays: Mapping[str, np.ndarray]) -> None:
        self._model, self._batch, self._x = model, problem.batch, arrays["x"]
        self._targets = {name: arrays[f"y_{head}"][:, None] for head, name in enumerate(problem.names)}

    def parameters(self) -> int:
        return sum(int(np.prod(weight.shape)) for weight in self._model.trainable_weights)

    def train(self, steps: int) -> dict[str, float]:
        rows, clock = slice((steps + 1) * self._batch), Clock()
        x, targets = self._x[rows], {name: labels[rows] for name, labels in self._targets.items()}
        options = {"batch_size": self._batch, "shuffle": False, "callbacks": [clock], "verbose": 0}
        history = self._model.fit(x, targets, **options).history
        return measured(clock.times[0], clock.times[-1], steps, float(history["loss"][0]))


def make(problem: Problem, arrays: Mapping[str, np.ndarray], who: str, how: str) -> Fitted:
    """A model with the initial weights of the arrays."""
    encoder = encoder_of(problem.model)
    inputs = keras.Input(encoder.input_shape[1:], dtype=arrays["x"].dtype.name)
    hidden = encoder(inputs)
    heads = {name: layers.Dense(CLASSES, name=name) for name in problem.names}
    outputs = {name: head(hidden) for name, head in heads.items()}
    encoder.set_weights([arrays[f"encoder_{place}"] for place in range(len(problem.encoder_shapes()))])
    for number, head in enumerate(heads.values()):
        head.set_weights([arrays[f"kernel_{number}"], np.zeros(CLASSES, np.float32)])
    adam = keras.optimizers.Adam(RATE, epsilon=EPSILON)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if who == "Keras":
        model = keras.Model(inputs, outputs)
        model.compile(adam, loss=dict.fromkeys(heads, loss))
        return Fitted(model, problem, arrays)
    trainer = MultiHeadTrainer(encoder)
    for name, head in heads.items():
        trainer.add_head(name, head, loss)
    method, _, level = how.partition(", ")
    trainer.compile(adam, **({} if how == PLAIN else {"balancer": method, "balance_at": level}))
    return Fitted(trainer, problem, arrays)


def main() -> None:
    tf.config.set_visible_devices([], "GPU")
    versions = {"TensorFlow": tf.__version__, "Keras": keras.__version__}
    serve(Library(versions, make, keras.backend.clear_session))


if __name__ == "__main__":
    main()
