"""The modules, the trainer and the data of a row."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, Stages, clipping, scaling, schedules

HEADS = ("kind", "size", "flags")
WEIGHTS = {
    "ones": {"kind": 1.0, "size": 1.0, "flags": 1.0},
    "different": {"kind": 0.5, "size": 2.0, "flags": 1.0},
    "function": {"kind": lambda step: 1.0 / (1.0 + 0.25 * tf.cast(step, tf.float32)), "size": 2.0, "flags": 1.0},
}
RATES: dict[str, Any] = {"one": 1.0, "half": 0.5, "frozen": 0.0}
LIMITS = {"value": 0.02, "norm": 0.05, "global_norm": 0.1}
CLASS_WEIGHT = {0: 1.0, 1: 3.0, 2: 0.5}
FIT_CLASS_WEIGHT = {0: 2.0, 1: 1.0, 2: 1.0}
BATCH, EPOCHS = 8, 2


@keras.saving.register_keras_serializable(package="pairs")
class SeveralOutputs(keras.layers.Layer):
    """Two tensors that overlap in nothing but the input."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.one = keras.layers.Dense(4, activation="tanh", dtype=options.get("dtype"))
        self.other = keras.layers.Dense(3, activation="tanh", dtype=options.get("dtype"))

    def call(self, x: Any) -> dict[str, Any]:
        return {"one": self.one(x), "other": self.other(x)}


@keras.saving.register_keras_serializable(package="pairs")
class Forced(keras.layers.Layer):
    """A classifier that also reads its targets."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense = keras.layers.Dense(3, activation="softmax", dtype=options.get("dtype"))

    def call(self, representation: Any, targets: Any) -> Any:
        hints = tf.one_hot(tf.maximum(targets, 0) // 2, 2, dtype=representation.dtype)
        return self.dense(tf.concat([representation, hints], axis=-1))


def encoder_of(row: dict[str, str], dtype: str = "float32") -> Any:
    layers, kind = keras.layers, row["encoder"]
    if kind == "several_outputs":
        return SeveralOutputs(dtype=dtype)
    first: list[Any] = [layers.Dense(5, activation="tanh", dtype=dtype)]
    if kind == "tokens":
        first = [layers.Embedding(9, 4, mask_zero=True, dtype=dtype), layers.GlobalAveragePooling1D(dtype=dtype), *first]
    elif kind == "batch_normalization":
        first.append(layers.BatchNormalization(dtype=dtype))
    elif kind == "dropout":
        first.append(layers.Dropout(0.3, seed=5, dtype=dtype))
    return keras.Sequential([*first, layers.Dense(4, activation="tanh", dtype=dtype)])


def modules_of(row: dict[str, str], dtype: str = "float32") -> tuple[Any, dict[str, Any]]:
    """The encoder and the heads, built, with the same initial values at every call."""
    keras.utils.set_random_seed(7)
    dense = keras.layers.Dense
    encoder = encoder_of(row, dtype)
    heads = {
        "kind": Forced(dtype=dtype) if forced(row) else dense(3, activation="softmax", dtype=dtype),
        "size": dense(1, dtype=dtype),
        "flags": dense(2, activation="sigmoid", dtype=dtype),
    }
    x, y, _ = examples(row)
    representation = encoder(tf.constant(x[:2]))
    for name, head in heads.items():
        predictions(row, name, head, representation, y[name][:2])
    return encoder, heads


def forced(row: dict[str, str]) -> bool:
    return row["teacher_forcing"] == "yes"


def predictions(row: dict[str, str], name: str, module: Any, representation: Any, targets: Any) -> Any:
    given = read(row, name, representation)
    return module(given, tf.constant(targets)) if name == "kind" and forced(row) else module(given)


def reads(row: dict[str, str]) -> dict[str, Any]:
    """What each head reads of the representation."""
    return {"kind": "one", "size": "other", "flags": "one"} if row["encoder"] == "several_outputs" else dict.fromkeys(HEADS)


def read(row: dict[str, str], name: str, representation: Any) -> Any:
    key = reads(row)[name]
    return representation if key is None else representation[key]


def examples(row: dict[str, str], seed: int = 0) -> tuple[Any, dict[str, Any], dict[str, Any] | None]:
    """Inputs, targets and sample weights of all examples."""
    rng = np.random.default_rng(seed)
    # An even number of steps, for `steps_per_execution=2`; a generator has no end, at which a window would be shorter.
    batches = 3 if row["gradient_accumulation_steps"] == "2" and row["data"] != "generator" else 4
    number = batches * BATCH - (2 if row["last_batch"] == "smaller" else 0)
    if row["validation"] == "split":
        number += 8
    if row["encoder"] == "tokens":
        x = rng.integers(0, 9, (number, 5)).astype("int64")
        x[:, 0] = np.maximum(x[:, 0], 1)
    else:
        x = rng.normal(size=(number, 4)).astype("float32")
    y = {
        "kind": rng.integers(0, 3, number).astype("int64"),
        "size": rng.normal(size=(number, 1)).astype("float32"),
        "flags": rng.integers(0, 2, (number, 2)).astype("float32"),
    }
    if row["target_scaling"] != "none":
        y["size"] = 50 * np.exp(y["size"])
    if row["labels"] != "all":
        y["kind"][rng.random(number) < 0.3] = -1
        y["size"][rng.random((number, 1)) < 0.3] = np.nan
        y["flags"][rng.random((number, 2)) < 0.3] = np.nan
    if row["labels"] == "none_of_one_head":
        y["size"][:] = np.nan
    weights = None
    if row["sample_weight"] == "given":
        weights = {name: rng.choice([0.0, 1.0, 2.5], number).astype("float32") for name in ("kind", "flags")}
    return x, y, weights


def optimizer_of(row: dict[str, str]) -> Any:
    kind, optimizers = row["optimizer"], keras.optimizers
    if kind == "adamw":
        return optimizers.AdamW(0.01, weight_decay=0.05, epsilon=1e-5)
    if kind == "ema":
        return optimizers.Adam(0.01, epsilon=1e-5, use_ema=True, ema_momentum=0.9)
    if kind == "schedule":
        return optimizers.SGD(optimizers.schedules.PolynomialDecay(0.1, 5, 0.01))
    made = optimizers.SGD(0.1, momentum=0.9)
    if kind == "loss_scaling":
        if hasattr(keras, "ops"):
            return optimizers.LossScaleOptimizer(made, initial_scale=2.0**10)
        return keras.mixed_precision.LossScaleOptimizer(made, initial_scale=2.0**10)
    return made


def clip_of(row: dict[str, str]) -> Any:
    kinds = {"value": clipping.ByValue, "norm": clipping.ByNorm, "global_norm": clipping.ByGlobalNorm}
    return kinds[row["clip"]](LIMITS[row["clip"]]) if row["clip"] in kinds else None


def scaling_of(row: dict[str, str]) -> Any:
    return {"none": None, "given": scaling.Log(mean=3.5, deviation=0.8), "learned": "standardize"}[row["target_scaling"]]


def encoder_rate(row: dict[str, str]) -> Any:
    return Stages({0: 0.0, 2: 1.0}) if row["encoder_rate"] == "stages" else RATES[row["encoder_rate"]]


def trainer_of(row: dict[str, str], **changed: Any) -> MultiHeadTrainer:
    """The compiled trainer.

    Args:
        row: The row.
        **changed: Arguments of `compile` that replace the row's.
    """
    encoder, heads = modules_of(row)
    trainer = MultiHeadTrainer(encoder)
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse", "flags": "binary_crossentropy"}
    given = row["class_weight_of_head"] == "given"
    for name, module in heads.items():
        trainer.add_head(
            name,
            module,
            losses[name],
            weight=WEIGHTS[row["weight"]][name],
            metrics=["accuracy"] if row["metrics"] == "accuracy" and name == "kind" else [],
            ignore_label=-1 if name == "kind" else None,
            class_weight=CLASS_WEIGHT if given and name == "kind" else None,
            reads=reads(row)[name],
            teacher_forcing=name == "kind" and forced(row),
            learning_rate_multiplier=RATES[row["head_rate"]] if name == "size" else 1.0,
            weight_decay_multiplier=0.0 if row["head_decay"] == "none" and name == "size" else 1.0,
            target_scaling=scaling_of(row) if name == "size" else None,
        )
    options: dict[str, Any] = {
        "weighting": None if row["weighting"] == "none" else row["weighting"],
        "balancer": None if row["balancer"] == "none" else row["balancer"],
        "balance_at": row["balance_at"],
        "balance_every": int(row["balance_every"]),
        "head_schedule": schedules.Alternate({"kind": 1, "flags": 2, "size": 1}) if row["schedule"] == "alternate" else None,
        "clip": clip_of(row),
        "micro_batches": int(row["micro_batches"]),
        "gradient_accumulation_steps": int(row["gradient_accumulation_steps"]),
        "encoder_learning_rate_multiplier": encoder_rate(row),
        "encoder_weight_decay_multiplier": 0.0 if row["encoder_decay"] == "none" else 1.0,
        "telemetry": None if row["telemetry"] == "none" else row["telemetry"],
        "on_nonfinite": row["on_nonfinite"],
        "max_skipped_updates": None if row["max_skipped_updates"] == "none" else 25,
        "check_labels": row["check_labels"] == "yes",
        "run_eagerly": row["mode"] == "eager",
        "jit_compile": row["mode"] == "xla",
        "steps_per_execution": int(row["steps_per_execution"]),
    }
    trainer.compile(optimizer_of(row), **{**options, **changed})
    return trainer
