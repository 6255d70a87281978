"""One head on a small encoder, Keras's own update of it, and losses from their definitions.

Nothing of the library is in the definitions: each gives the loss of one element, from tensors of targets and predictions.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers.tiny import tensor_variable

ROWS, TIME, COLUMNS = 8, 4, 3
EPSILON = 1e-7

ELEMENTS = {
    "mean_squared_error": lambda y, p: (y - p) ** 2,
    "mean_absolute_error": lambda y, p: abs(y - p),
    "mean_absolute_percentage_error": lambda y, p: 100 * abs(y - p) / tf.maximum(abs(y), EPSILON),
    "mean_squared_logarithmic_error": lambda y, p: (tf.math.log1p(tf.maximum(p, 0)) - tf.math.log1p(y)) ** 2,
    "huber": lambda y, p: tf.where(abs(y - p) <= 1, 0.5 * (y - p) ** 2, abs(y - p) - 0.5),
    "log_cosh": lambda y, p: tf.math.log(tf.math.cosh(y - p)),
    "poisson": lambda y, p: p - y * tf.math.log(p + EPSILON),
    "binary_crossentropy": lambda y, p: -y * tf.math.log(p) - (1 - y) * tf.math.log(1 - p),
    "binary_focal_crossentropy": lambda y, p: -y * (1 - p) ** 2 * tf.math.log(p) - (1 - y) * p**2 * tf.math.log(1 - p),
    "hinge": lambda y, p: tf.maximum(1 - (2 * y - 1) * p, 0),
    "squared_hinge": lambda y, p: tf.maximum(1 - (2 * y - 1) * p, 0) ** 2,
}
WHOLE_ROWS = {
    "categorical_crossentropy": lambda y, p: -tf.reduce_sum(y * tf.math.log(p), -1),
    "categorical_focal_crossentropy": lambda y, p: -0.25 * tf.reduce_sum(y * (1 - p) ** 2 * tf.math.log(p), -1),
    "categorical_hinge": lambda y, p: tf.maximum(tf.reduce_max((1 - y) * p, -1) - tf.reduce_sum(y * p, -1) + 1, 0),
    "kl_divergence": lambda y, p: tf.reduce_sum(
        tf.maximum(y, EPSILON) * tf.math.log(tf.maximum(y, EPSILON) / tf.maximum(p, EPSILON)), -1
    ),
    "cosine_similarity": lambda y, p: -tf.reduce_sum(y * p, -1) / tf.norm(y, axis=-1) / tf.norm(p, axis=-1),
}
CLASSES = {
    "sparse_categorical_crossentropy": lambda y, p: (
        -tf.math.log(tf.gather(p, tf.cast(y, tf.int32), axis=-1, batch_dims=len(p.shape) - 1))
    ),
}
DEFINITIONS = {**ELEMENTS, **WHOLE_ROWS, **CLASSES}


def activation(loss):
    """What a head's last layer computes for a loss, by its name."""
    if loss.startswith("binary") or loss in ("poisson", "mean_squared_logarithmic_error"):
        return "sigmoid"
    return "softmax" if "categorical" in loss or loss == "kl_divergence" else None


def trainer_of(loss, units=1, activation=None, encoder=None, **options):
    """A compiled trainer with one head `a`: a dense layer on a dense encoder."""
    trainer = MultiHeadTrainer(encoder or keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(units, activation=activation), loss, **options)
    trainer.compile(keras.optimizers.SGD(1.0))
    return trainer


def inputs(time=None, rows=ROWS):
    """Inputs, `[rows, 5]` or `[rows, time, 5]`."""
    return np.random.default_rng(0).normal(size=(rows, 5) if time is None else (rows, time, 5)).astype("float32")


def labels(loss, shape, seed=1):
    """Complete targets for a loss: numbers 0 and 1, or one-hot rows, or class numbers below `COLUMNS`."""
    rng = np.random.default_rng(seed)
    if loss in WHOLE_ROWS:
        return np.eye(COLUMNS, dtype="float32")[rng.integers(0, COLUMNS, shape[:-1])]
    return rng.integers(0, COLUMNS if loss in CLASSES else 2, shape).astype("float32")


def gradients(trainer, *batch):
    """What `compute_gradients` gives for the one head, dense."""
    batch = (batch[0], *({"a": part} for part in batch[1:]))
    return [np.array(tf.convert_to_tensor(gradient)) for gradient, _ in trainer.compute_gradients(batch)]


def by_tape(trainer, x, y, definition, weights=1.0):
    """The gradient of `sum_i s_i loss_i / sum_i s_i` by a tape, `s` being of the shape of what the definition gives."""
    module = trainer.heads["a"].module
    module(trainer.encoder(x))  # builds both
    variables = [tensor_variable(v) for v in (*trainer.encoder.trainable_variables, *module.trainable_variables)]
    with tf.GradientTape() as tape:
        values = definition(tf.constant(y, tf.float32), module(trainer.encoder(x)))
        weights = tf.broadcast_to(tf.cast(weights, tf.float32), values.shape)
        loss = tf.reduce_sum(tf.where(weights > 0, values, 0.0) * weights) / tf.reduce_sum(weights)
    return [np.array(gradient) for gradient in tape.gradient(loss, variables)]


def by_keras(trainer, loss):
    """A function from inputs and targets to the gradient of Keras's own update of the same modules."""
    module = trainer.heads["a"].module
    models = []

    def update(x, y):
        if not models:
            symbol = keras.Input(x.shape[1:])
            models.append(keras.Model(symbol, module(trainer.encoder(symbol))))
            models[0].compile(keras.optimizers.SGD(1.0), loss, run_eagerly=True)
        (model,) = models
        before = model.get_weights()
        model.train_on_batch(x, y)
        after = model.get_weights()
        model.set_weights(before)
        return [a - b for a, b in zip(before, after)]

    return update


def assert_same(actual, wanted, tolerance=2e-5):
    """Gradients are the same to float32 rounding."""
    assert len(actual) == len(wanted)
    scale = max(np.abs(array).max() for array in wanted)
    assert scale > 0
    for one, other in zip(actual, wanted):
        np.testing.assert_allclose(one, other, atol=tolerance * scale, rtol=0)
