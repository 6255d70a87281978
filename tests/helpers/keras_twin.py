"""The same layers twice: in a `MultiHeadTrainer`, and in one `keras.Model` with several outputs, trained by Keras alone."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping

BATCH, EPOCHS, VALIDATION = 8, 2, 10
LOSSES = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
METRICS = {"kind": ["accuracy"], "size": ["mae"]}
WEIGHTS = {"kind": 0.5, "size": 1.0}
CLASS_WEIGHT = {0: 0.5, 1: 1.5}

CLIPPED = {
    "clipnorm": clipping.ByNorm,
    "clipvalue": clipping.ByValue,
    "global_clipnorm": clipping.ByGlobalNorm,
}
OPTIMIZERS = {
    "sgd": lambda **options: keras.optimizers.SGD(0.1, **options),
    "momentum": lambda **options: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, **options),
    "adamw": lambda **options: keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-3, **options),
    "average": lambda **options: keras.optimizers.Adam(0.01, use_ema=True, ema_momentum=0.9, epsilon=1e-3, **options),
    "head_schedule": lambda **options: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9), **options
    ),
    "scaled": lambda **options: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1, **options)),
}


@keras.saving.register_keras_serializable(package="tests")
class AddsLoss(keras.layers.Layer):
    """Adds a loss in its call."""

    def call(self, inputs):
        self.add_loss(0.1 * tf.reduce_mean(tf.square(inputs)))
        return inputs


def layers(regularization, single):
    """The encoder and the heads' modules; the same initial values at every call, in the same order."""
    keras.utils.set_random_seed(1)
    kernel = {"kernel_regularizer": keras.regularizers.L2(0.02)} if regularization == "kernels" else {}
    activity = {"activity_regularizer": keras.regularizers.L2(0.05)} if regularization == "activity" else {}
    stack = [keras.layers.Dense(4, activation="tanh", **kernel, **activity)]
    encoder = keras.Sequential([*stack, AddsLoss()] if regularization == "add_loss" else stack)
    heads = {"kind": keras.layers.Dense(3, activation="softmax", name="kind", **kernel)}
    if not single:
        heads["size"] = keras.layers.Dense(1, name="size", **kernel)
    return encoder, heads


def functional(encoder, heads):
    """A Keras model with an output for each head, which also builds the layers."""
    symbol = keras.Input((5,))
    hidden = encoder(symbol)
    outputs = {name: head(hidden) for name, head in heads.items()}
    return keras.Model(symbol, outputs if len(outputs) > 1 else outputs["kind"])


def optimizers(name, clip):
    """The optimizer for Keras, with its clipping, and that for a trainer, with the same as an option."""
    make = OPTIMIZERS[name]
    if clip is None:
        return make(), make(), {}
    limit = 0.05
    return make(**{clip: limit}), make(), {"clip": CLIPPED[clip](limit)}


def twins(optimizer="sgd", clip=None, regularization=None, *, single=False, weighted=False, **compiled):
    """A Keras model, which runs eagerly so that it knows the size of each batch, and a trainer of equal layers.

    Keras 3 weighs the heads' losses of all batches equally if a graph does not tell it their size.
    """
    for_keras, for_trainer, options = optimizers(optimizer, clip)
    encoder, heads = layers(regularization, single)
    at_once = compiled.get("steps_per_execution", 1)  # Keras 3 makes a multiple of it of the steps of an epoch
    model = functional(encoder, heads)
    of = lambda by_head: {name: by_head[name] for name in heads} if len(heads) > 1 else by_head["kind"]  # noqa: E731
    model.compile(
        for_keras,
        loss=of(LOSSES),
        loss_weights=None if single else of(WEIGHTS),
        run_eagerly=True,
        steps_per_execution=1 if at_once == "auto" else at_once,
        **{"weighted_metrics" if weighted else "metrics": of(METRICS)},
    )
    encoder, heads = layers(regularization, single)
    functional(encoder, heads)
    trainer = MultiHeadTrainer(encoder)
    for name, head in heads.items():
        measured = {"weighted_metrics" if weighted else "metrics": METRICS[name]}
        trainer.add_head(name, head, LOSSES[name], weight=1.0 if single else WEIGHTS[name], **measured)
    trainer.compile(for_trainer, telemetry=None, **options, **compiled)
    return model, trainer


def examples(number, *, single=False, weighted=False, seed=0):
    """Inputs, targets and sample weights (or None), of which each two in a row weigh as much as two without weights.

    So a batch of an even size weighs as much as without weights: Keras divides by the number of examples.
    """
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(number, 5)).astype("float32")
    size = (rng.normal(size=(number, 1)) * np.linspace(0.3, 2, number)[:, None]).astype("float32")
    kind = np.arange(number) % 2 if single else rng.integers(0, 3, number)
    y = {"kind": kind.astype("int64"), **({} if single else {"size": size})}
    less = np.repeat(rng.uniform(0.1, 0.9, (number // 2, len(y))), 2, axis=0) * np.tile([[1], [-1]], (number // 2, 1))
    weights = {name: (1 + less[:, i]).astype("float32") for i, name in enumerate(y)}
    return x, y, weights if weighted else None


def rows(part, start, end):
    """Some of the examples of arrays, of dicts of them, or None."""
    return tf.nest.map_structure(lambda array: None if array is None else array[start:end], part)


class Batches(keras.utils.Sequence):
    """A `PyDataset`."""

    def __init__(self, given):
        super().__init__()
        self.given = given

    def __len__(self):
        return len(self.given)

    def __getitem__(self, index):
        return self.given[index]


def given_as(form, parts):
    """The arguments of `fit` for data in a form; see `FORMS`."""
    parts = tuple(part for part in parts if part is not None)
    batches = [rows(parts, i, i + BATCH) for i in range(0, len(parts[0]), BATCH)]
    if form == "dataset":
        return {"x": tf.data.Dataset.from_tensor_slices(parts).batch(BATCH)}
    if form == "sequence":
        return {"x": Batches(batches)}
    if form == "generator":
        return {"x": (batch for batch in itertools.cycle(batches)), "steps_per_epoch": len(batches)}
    arrays = dict(zip(("x", "y", "sample_weight"), parts), batch_size=BATCH)
    if form == "frame":
        import pandas

        arrays["x"] = pandas.DataFrame(arrays["x"])
        arrays["y"] = pandas.DataFrame({name: values.reshape(-1) for name, values in arrays["y"].items()})
    return arrays


FORMS = ("arrays", "split", "dataset", "generator", "sequence", "frame")


def fitted(model, form, parts, validation, *, in_dict=True, epochs=EPOCHS, **options):
    """Fits a model to data in a form, and returns its history as one dict; `in_dict`: whether labels are dicts by head."""
    only = (lambda part: part["kind"] if isinstance(part, dict) else part) if not in_dict else (lambda part: part)
    parts, validation = (tuple(only(part) for part in each) for each in (parts, validation))
    if form == "split":
        options["validation_split"] = 0.25
    else:
        options["validation_data"] = tuple(part for part in validation if part is not None)
        options.update({"validation_batch_size": 4} if form in ("arrays", "frame") else {})
    if form in ("dataset", "sequence", "generator"):
        options["validation_data"] = tf.data.Dataset.from_tensor_slices(options["validation_data"]).batch(4)
    history = model.fit(**given_as(form, parts), epochs=epochs, shuffle=False, verbose=0, **options)
    return history.history
