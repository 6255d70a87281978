"""Models with one planted trouble each, of which `diagnose` should say what it is."""

from __future__ import annotations

import functools

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer

BATCHES, ROWS, INPUTS = 8, 16, 6


def inputs(seed):
    """Batches of inputs."""
    return np.random.default_rng(seed).normal(size=(BATCHES, ROWS, INPUTS)).astype("float32")


def labels(x, seed, noise=0.3):
    """Numbers of mean 0 and deviation 1 that depend on the inputs, different ones for each seed."""
    rng = np.random.default_rng(1000 + seed)
    y = np.tanh(x @ rng.normal(size=(INPUTS, 4))) @ rng.normal(size=4) + noise * rng.normal(size=x.shape[:2])
    return ((y - y.mean()) / y.std()).astype("float32")[..., None]


def encoder():
    return keras.Sequential([keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(16, activation="tanh")])


def trainer_of(body, heads, **compiled):
    """A compiled trainer of heads by name: a module, a loss, and options of `add_head`."""
    trainer = MultiHeadTrainer(body)
    for name, (module, loss, options) in heads.items():
        trainer.add_head(name, module, loss, **options)
    trainer.compile(compiled.pop("optimizer", "sgd"), **compiled)
    return trainer


def number(loss="mse", **options):
    return keras.layers.Dense(1), loss, options


def classes(count=3, **options):
    return keras.layers.Dense(count, activation="softmax"), "sparse_categorical_crossentropy", options


def batches(x, targets):
    """A list of batches from inputs and targets whose first axis is the batch."""
    return [(x[i], {name: values[i] for name, values in targets.items()}) for i in range(len(x))]


def healthy(seed):
    """Two heads with numbers and one with classes, all in order."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"a": number(), "b": number(), "c": classes()})
    c = np.digitize(labels(x, seed + 2)[..., 0], [-0.5, 0.5])
    return trainer, batches(x, {"a": labels(x, seed), "b": labels(x, seed + 1), "c": c})


def _hundredfold(y, p):
    return 100 * tf.square(y - p)


# Heads with numbers, by name: options of `number`, and what their labels are multiplied by and moved by.
NUMBERS = {
    "three_scales": {"a": ({"weight": 50.0}, 1, 0), "b": ({}, 1, 0), "c": ({"weight": 2500.0}, 1, 0)},
    "many": {"a": ({"weight": 1000.0}, 1, 0), **{name: ({}, 1, 0) for name in "bcde"}},
    "raw_units": {"cents": ({}, 1000, 3000), "euros": ({}, 1, 0)},
    "raw_both_ways": {"cents": ({}, 1000, 0), "megatons": ({}, 0.001, 0)},
    "small_on_purpose": {"main": ({}, 1, 0), "again": ({"weight": 0.02}, 1, 0)},
    "auxiliary": {"main": ({}, 1, 0), "large": ({"loss": _hundredfold}, 1, 0), "again": ({"weight": 0.05}, 1, 0)},
}


def _numbers(name, seed):
    x = inputs(seed)
    heads = NUMBERS[name]
    targets = {head: scale * labels(x, seed + k) + shift for k, (head, (_, scale, shift)) in enumerate(heads.items())}
    return trainer_of(encoder(), {head: number(**options) for head, (options, *_) in heads.items()}), batches(x, targets)


three_scales, many, raw_units, raw_both_ways, small_on_purpose, auxiliary = (
    functools.partial(_numbers, name) for name in NUMBERS
)


def flat_module(seed):
    """Losses of one size, of which one module passes almost nothing on, as long as it has not learned."""
    x = inputs(seed)
    starts = {"flat": keras.initializers.RandomNormal(stddev=0.005), "steep": keras.initializers.RandomNormal(stddev=0.5)}
    heads = {name: (keras.layers.Dense(1, kernel_initializer=start), "mse", {}) for name, start in starts.items()}
    return trainer_of(encoder(), heads), batches(x, {"flat": labels(x, seed), "steep": labels(x, seed + 1)})


def offset(seed):
    """Untrained heads whose labels lie on both sides of the outputs, as after `add_head`."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {name: (keras.layers.Dense(1, kernel_initializer="ones"), "mse", {}) for name in "ab"})
    return trainer, batches(x, {"a": labels(x, seed) + 4, "b": labels(x, seed + 1) - 4})


def done(seed):
    """A head that predicts its labels almost exactly, and one that has learned half of them."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"done": number(), "learning": number()})
    flat = x.reshape(-1, INPUTS)
    predictions = {name: np.array(values).reshape(BATCHES, ROWS, 1) for name, values in trainer(flat).items()}
    noise = np.random.default_rng(seed).normal(size=x.shape[:2])[..., None].astype("float32")
    learning = 2 * predictions["learning"] + 0.3 * noise
    return trainer, batches(x, {"done": predictions["done"] + 0.01 * noise, "learning": learning})


def limited(seed, loss="mse"):
    """A head that predicts all that can be predicted of noisy labels, and one that has learned half of what it can."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"limited": number(loss), "learning": number()})
    flat = x.reshape(-1, INPUTS)
    predictions = {name: np.array(values).reshape(BATCHES, ROWS, 1) for name, values in trainer(flat).items()}
    one, other = np.random.default_rng(seed).normal(size=(2, *x.shape[:2], 1)).astype("float32")
    limited = predictions["limited"] + predictions["limited"].std() * one
    return trainer, batches(x, {"limited": limited, "learning": 2 * predictions["learning"] + 0.3 * other})


def frozen(seed):
    """An encoder without trainable variables."""
    trainer, data = healthy(seed)
    trainer.encoder.trainable = False
    trainer.compile("sgd")
    return trainer, data


def few_labels(seed):
    """A head with labels for about one of sixteen examples, in every batch."""
    trainer, data = healthy(seed)
    for x, targets in data:
        targets["b"] = np.where(np.arange(len(x))[:, None] == seed, targets["b"], np.nan)
    return trainer, data


RARE = {
    "sigmoid": (1, "sigmoid", "binary_crossentropy", lambda is_rare: is_rare.astype("float32")),
    "logits": (1, None, keras.losses.BinaryCrossentropy(from_logits=True), lambda is_rare: 1.0 - is_rare),
    "class numbers": (2, "softmax", "sparse_categorical_crossentropy", lambda is_rare: is_rare[..., 0].astype("int32")),
    "one-hot": (2, "softmax", "categorical_crossentropy", lambda is_rare: np.concatenate([is_rare, ~is_rare], -1) * 1.0),
}
"""Two classes: the last layer, the loss, and the labels from whether an example is of the rarer one."""


def rare_class(seed, form="sigmoid"):
    """A head with two classes, one of which has three labels."""
    x, (units, end, loss, make) = inputs(seed), RARE[form]
    is_rare = np.arange(x[..., 0].size).reshape(BATCHES, ROWS, 1) % 60 == seed
    trainer = trainer_of(encoder(), {"a": number(), "b": (keras.layers.Dense(units, end), loss, {})})
    return trainer, batches(x, {"a": labels(x, seed), "b": make(is_rare)})


class BatchSum(keras.losses.Loss):
    """Each example's loss times the size of the batch: a loss that was not divided by it."""

    def call(self, targets, predictions):
        values = tf.reduce_mean((tf.cast(targets, predictions.dtype) - predictions) ** 2, axis=-1)
        return values * tf.cast(tf.shape(values)[0], values.dtype)


def summed(seed):
    """A head whose loss is summed over the batch."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"a": number(), "b": number(BatchSum(), weight=4.0, couples_rows=True)})
    return trainer, batches(x, {"a": labels(x, seed), "b": labels(x, seed + 1)})


class WithInputs(keras.layers.Layer):
    """Gives the inputs beside what it computes of them."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(8, activation="tanh")

    def call(self, x):
        return {"raw": tf.identity(x), "computed": self.dense(x)}


def unreached(seed):
    """A head that reads only what the encoder passes through."""
    x = inputs(seed)
    trainer = trainer_of(WithInputs(), {"a": number(reads="computed"), "b": number(reads="raw")})
    return trainer, batches(x, {"a": labels(x, seed), "b": labels(x, seed + 1)})


def logits(seed):
    """A class head without a softmax, under a loss that takes probabilities."""
    x = inputs(seed)
    linear = keras.layers.Dense(3), "sparse_categorical_crossentropy", {}
    kinds = np.argmax(x[..., :3], axis=-1)
    return trainer_of(encoder(), {"a": number(), "b": linear}), batches(x, {"a": labels(x, seed), "b": kinds})


def dead(seed):
    """An encoder whose units are all off."""
    x = inputs(seed)
    body = keras.layers.Dense(8, activation="relu", bias_initializer=keras.initializers.Constant(-100.0))
    bias = {"kernel_initializer": "ones"}
    trainer = trainer_of(body, {name: (keras.layers.Dense(1, **bias), "mse", {}) for name in "ab"})
    return trainer, batches(x, {"a": labels(x, seed), "b": labels(x, seed + 1)})


class TwoOutputs(keras.layers.Layer):
    """Two tensors from one layer."""

    def __init__(self):
        super().__init__()
        self.shared, self.p, self.q = (keras.layers.Dense(8, activation="tanh") for _ in range(3))

    def call(self, x):
        hidden = self.shared(x)
        return {"p": self.p(hidden), "q": self.q(hidden)}


def two_tensors(seed):
    """Heads that read different tensors, one of them with a loss that is far too large."""
    x = inputs(seed)
    trainer = trainer_of(TwoOutputs(), {"a": number(reads="p"), "b": number(reads="q", weight=500.0)})
    return trainer, batches(x, {"a": labels(x, seed), "b": labels(x, seed + 1)})


class AgreeOrOppose(keras.layers.Layer):
    """The sum of two layers: of one input, which both heads want, and of another, of which one wants the opposite."""

    def __init__(self, agreeing):
        super().__init__()
        options = {"use_bias": False}
        start = keras.initializers.Constant(agreeing)
        self.agree = keras.layers.Dense(1, kernel_initializer=start, name="agree", **options)
        self.oppose = keras.layers.Dense(1, kernel_initializer="zeros", name="oppose", **options)

    def call(self, x):
        return self.agree(x[:, :1]) + self.oppose(x[:, 1:2])


def _opposed(seed, agreeing, wanted):
    x = inputs(seed)
    modules = {name: (keras.layers.Activation("linear"), "mse", {}) for name in ("up", "down")}
    one, other = wanted * x[..., :1], x[..., 1:2]
    return trainer_of(AgreeOrOppose(agreeing), modules), batches(x, {"up": one + other, "down": one - other})


def opposed(seed):
    """Heads that oppose each other in everything that is left to learn."""
    return _opposed(seed, agreeing=0.95, wanted=1.0)


def opposed_in_one_layer(seed):
    """Heads that want the same of one layer, and the opposite of another."""
    return _opposed(seed, agreeing=1.0, wanted=3.0)


def left_behind(seed):
    """Two heads that share a representation of one number, which one of them has taken for itself."""
    x = inputs(seed)
    body = keras.Sequential([keras.layers.Dense(1, use_bias=False)])
    targets = {"early": 1.2 * x[..., :1], "late": 1.2 * x[..., 1:2]}
    starts = {"early": keras.initializers.Constant(0.9), "late": keras.initializers.Constant(0.05)}
    heads = {name: (keras.layers.Dense(1, kernel_initializer=start), "mse", {}) for name, start in starts.items()}
    trainer = trainer_of(body, heads)
    trainer(x[0])
    noise = np.random.default_rng(seed).normal(size=(INPUTS, 1))
    body.set_weights([np.eye(INPUTS, 1) + 0.02 * noise])
    return trainer, batches(x, targets)
