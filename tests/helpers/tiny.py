"""A tiny encoder with three heads, and data for it: what the tests of the trainer train."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, losses

VOCABULARY, UNITS, RANGES = 11, 5, 3
WEIGHTS = {"tag": 1.0, "price": 0.5, "size": 2.0}


class Calling(keras.layers.Layer):
    """Calls a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x):
        return self.function(x)


class Encoder(keras.layers.Layer):
    """Tokens to their vectors and the mean of those that are no padding; the mask passes through."""

    def __init__(self):
        super().__init__()
        self.embed = keras.layers.Embedding(VOCABULARY, 4)
        self.dense = keras.layers.Dense(UNITS, activation="tanh")

    def call(self, tokens):
        mask = tokens > 0
        outputs = self.dense(self.embed(tokens)) * tf.cast(mask, self.compute_dtype)[..., None]
        lengths = tf.reduce_sum(tf.cast(mask, self.compute_dtype), axis=1, keepdims=True)
        return {"outputs": outputs, "mean": tf.reduce_sum(outputs, axis=1) / tf.maximum(lengths, 1), "mask": mask}


class On(keras.layers.Layer):
    """A dense layer on one entry of the representation."""

    def __init__(self, key, units, activation=None):
        super().__init__()
        self.key = key
        self.dense = keras.layers.Dense(units, activation=activation)

    def call(self, representation):
        return self.dense(representation[self.key])


def modules(seed=1):
    """The encoder and the three heads' modules, with the same initial values at every call."""
    keras.utils.set_random_seed(seed)
    heads = {"tag": On("outputs", VOCABULARY), "price": On("mean", RANGES, "softmax"), "size": On("mean", 1)}
    return Encoder(), heads


def trainer(
    optimizer="sgd", heads=("tag", "price", "size"), weights=WEIGHTS, metrics=False, target_scaling=None, **compiled
):
    """A compiled trainer of some of the heads; `target_scaling` is that of the sizes."""
    encoder, all_heads = modules()
    result = MultiHeadTrainer(encoder)
    options = {
        "tag": {"loss": losses.SequenceCrossentropy()},
        "price": {"loss": "sparse_categorical_crossentropy", "ignore_label": -1},
        "size": {"loss": "mse", "target_scaling": target_scaling},
    }
    for name in heads:
        extra = {"metrics": ["accuracy"]} if metrics and name == "price" else {}
        result.add_head(name, all_heads[name], weight=weights[name], **options[name], **extra)
    result.compile(optimizer, **compiled)
    return result


_SHARED = {}


def shared(optimizer="sgd", **compiled):
    """`trainer` as it was when it was built. Tests that give the same arguments share one, and the steps that it has traced.

    Args:
        optimizer: An optimizer's name.
        **compiled: Options whose representation says all of them, for it tells one set of options from another.
    """
    key = repr((optimizer, sorted(compiled.items())))
    assert " at 0x" not in key, key
    if key not in _SHARED:
        made = trainer(optimizer, **compiled)
        made.compute_gradients(data(2))  # builds
        variables = list({id(v): v for v in (*made.weights, *made.optimizer.variables)}.values())
        _SHARED[key] = made, variables, values(variables)
    made, variables, start = _SHARED[key]
    for variable, value in zip(variables, start):
        variable.assign(value)
    return made


def data(num_examples, time=6, seed=0, missing=True):
    """Inputs and targets; with `missing`, some labels are -1 or NaN and sequences end at different lengths."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, VOCABULARY, (num_examples, time))
    tags = rng.integers(1, VOCABULARY, (num_examples, time))
    price = rng.integers(0, RANGES, num_examples)
    size = rng.normal(size=num_examples).astype("float32")
    if missing:
        lengths = rng.integers(1, time + 1, num_examples)
        padding = np.arange(time) >= lengths[:, None]
        tokens[padding] = tags[padding] = 0
        price[rng.random(num_examples) < 0.3] = -1
        size[rng.random(num_examples) < 0.4] = np.nan
    return tokens.astype("int64"), {"tag": tags.astype("int64"), "price": price.astype("int64"), "size": size}


def rows(batch, start, end):
    """Some of the examples of a batch."""
    return tf.nest.map_structure(lambda array: array[start:end], batch)


def values(variables):
    """The values of variables, the first replica's, as NumPy arrays."""
    return [np.array(tf.convert_to_tensor(tensor_variable(variable))) for variable in variables]


def weights_of(trainer):
    """The trainable weights of the encoder and of every head, in order."""
    found = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    return values(variable for module in found for variable in module.trainable_variables)


def tensor_variable(variable):
    """The TensorFlow variable behind a Keras 3 variable."""
    value = getattr(variable, "value", variable)
    return variable if callable(value) else value


def fit_once(trainer, inputs, targets, **options):
    return trainer.fit(inputs, targets, batch_size=len(inputs), shuffle=False, verbose=0, **options)


def only(batch, *heads):
    inputs, targets = batch
    return inputs, {head: targets[head] for head in heads}
