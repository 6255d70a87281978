"""Models with one planted trouble each, of which `diagnose` should say what it is."""

from __future__ import annotations

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


def three_scales(seed):
    """Three heads whose losses differ by 50 and by 2500."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"a": number(weight=50.0), "b": number(), "c": number(weight=2500.0)})
    return trainer, batches(x, {name: labels(x, seed + k) for k, name in enumerate("abc")})


def many(seed):
    """Five heads, one of them with a loss that is far too large."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {name: number(weight=1000.0 if name == "a" else 1.0) for name in "abcde"})
    return trainer, batches(x, {name: labels(x, seed + k) for k, name in enumerate("abcde")})


def flat_module(seed):
    """Losses of one size, of which one module passes almost nothing on, as long as it has not learned."""
    x = inputs(seed)
    starts = {"flat": keras.initializers.RandomNormal(stddev=0.005), "steep": keras.initializers.RandomNormal(stddev=0.5)}
    heads = {name: (keras.layers.Dense(1, kernel_initializer=start), "mse", {}) for name, start in starts.items()}
    return trainer_of(encoder(), heads), batches(x, {"flat": labels(x, seed), "steep": labels(x, seed + 1)})


def raw_units(seed):
    """Labels in units 1,000 apart."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"cents": number(), "euros": number()})
    return trainer, batches(x, {"cents": 1000 * labels(x, seed) + 3000, "euros": labels(x, seed + 1)})


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


def auxiliary(seed):
    """A head with a small weight on purpose, one whose loss is far too large, and one between them."""
    x = inputs(seed)
    heads = {"main": number(), "large": number(lambda y, p: 100 * tf.square(y - p)), "again": number(weight=0.05)}
    return trainer_of(encoder(), heads), batches(x, {name: labels(x, seed + k) for k, name in enumerate(heads)})


def small_on_purpose(seed):
    """A head with a small weight on purpose, and nothing else."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"main": number(), "again": number(weight=0.02)})
    return trainer, batches(x, {"main": labels(x, seed), "again": labels(x, seed + 1)})


def raw_both_ways(seed):
    """Labels far above unit scale, and labels far below it."""
    x = inputs(seed)
    trainer = trainer_of(encoder(), {"cents": number(), "megatons": number()})
    return trainer, batches(x, {"cents": 1000 * labels(x, seed), "megatons": 0.001 * labels(x, seed + 1)})


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
