"""Every dtype policy and every `floatx`, with each level of telemetry and each place where heads are balanced."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from tests.helpers.tiny import weights_of

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 9, (22, 5))
SIZE = RNG.normal(size=(22, 1))
KIND = np.where(np.arange(22) < 3, -1, RNG.integers(0, 3, 22))

CASES = [
    (("mixed_float16", "float32"), "full", "representation", {"micro_batches": 2}, True, True),
    (("float16", "float16"), "full", "parameters", {"gradient_accumulation_steps": 2}, True, True),
    (("float64", "float64"), "norms", None, {"micro_batches": 2}, False, True),
    (("float16", "float32"), None, "representation", {}, True, False),
    (("bfloat16", "float32"), "full", "parameters", {"micro_batches": 2}, False, True),
    (("mixed_bfloat16", "float32"), "norms", None, {"gradient_accumulation_steps": 2}, False, False),
    (("float64", "float32"), "full", "representation", {}, True, False),
]


@pytest.fixture(autouse=True)
def _floatx():
    yield
    keras.backend.set_floatx("float32")


# Keras 2 says so of the encoder where a layer's inputs have another dtype than the layer.
@pytest.mark.filterwarnings("ignore:Layer .* is casting an input tensor:UserWarning")
@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("dtypes", "telemetry", "level", "gathering", "weighted", "eagerly"), CASES)
def test_every_policy_trains(dtypes, telemetry, level, gathering, weighted, eagerly):
    policy, floatx = dtypes
    keras.mixed_precision.set_global_policy(policy)
    keras.backend.set_floatx(floatx)
    embedding = keras.layers.Embedding(9, 4, embeddings_regularizer="l2")
    layers = [embedding, keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(4), keras.layers.BatchNormalization()]
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    trainer.add_head("size", keras.layers.Dense(1), "mse", metrics=["mae"])
    kind = keras.layers.Dense(3, activation="softmax")
    trainer.add_head("kind", kind, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=-1)
    optimizer = keras.optimizers.SGD(0.1)
    if policy == "mixed_float16":  # with a scale at which nothing overflows
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=2.0**6)
    balancing = {} if level is None else {"balancer": "UPGrad", "balance_at": level}
    options = gathering | ({"layers_every": 1} if telemetry == "full" else {})
    trainer.compile(optimizer, telemetry=telemetry, run_eagerly=eagerly, **balancing, **options)
    targets = {"size": SIZE.astype(floatx), "kind": KIND}
    trainer.compute_gradients([(TOKENS[:8], {name: values[:8] for name, values in targets.items()})])  # builds
    before = weights_of(trainer)
    weights = {"sample_weight": {"kind": (np.arange(22) > 7).astype(floatx)}} if weighted else {}
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, "validation_data": (TOKENS, targets)}
    history = trainer.fit(TOKENS, targets, epochs=1, **weights, **options).history
    assert history["skipped_updates"] == [0.0]
    assert all(np.isfinite(history[name]).all() for name in ("loss", "val_loss", "kind_accuracy", "val_size_mae"))
    assert not any(np.array_equal(old, new) for old, new in zip(before, weights_of(trainer)))
