"""Promise 4 within its own rounding: mixed precision, loss scaling, every dtype policy and every `floatx`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, clipping
from tests.helpers import tiny
from tests.helpers.cases import quick

COMPILED = {"representation": {}, "parameters, in micro-batches": {"balance_at": "parameters", "micro_batches": 2}}


def updated(policy, compiled):
    inputs, targets = tiny.data(16, seed=3)
    keras.mixed_precision.set_global_policy(policy)
    trainer = tiny.trainer(
        keras.optimizers.SGD(0.1),
        clip=clipping.ByGlobalNorm(1.0),
        balancer="EqualNorms",
        run_eagerly=True,
        **COMPILED[compiled],
    )
    history = trainer.fit(inputs, targets, batch_size=16, shuffle=False, epochs=3, verbose=0).history
    return tiny.weights_of(trainer), history, trainer


CASES = [
    ("representation", "mixed_float16", 4e-3),
    ("parameters, in micro-batches", "mixed_bfloat16", 3e-2),
    ("representation", "mixed_bfloat16", 3e-2),
    ("parameters, in micro-batches", "mixed_float16", 4e-3),
]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("compiled", "policy", "tolerance"), quick(2, CASES))
def test_mixed_precision_makes_the_same_updates(compiled, policy, tolerance):
    wanted, full, _ = updated("float32", compiled)
    actual, mixed, trainer = updated(policy, compiled)
    assert all(weight.dtype == np.float32 for weight in actual)
    for name in ("tag_norm", "price_norm", "size_norm", "price_coefficient"):
        np.testing.assert_allclose(mixed[name], full[name], rtol=10 * tolerance)
    for a, b in zip(actual, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)
    assert hasattr(trainer.optimizer, "inner_optimizer") == (policy == "mixed_float16")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("policy", ["float16", "float64"])
def test_a_method_that_combines_gradients_does_so_in_any_precision(policy):
    keras.mixed_precision.set_global_policy(policy)
    trainer = tiny.trainer("sgd", balancer="GradDrop", balance_at="parameters")
    assert bool(trainer.apply_gradients(trainer.compute_gradients(tiny.data(4))))


def test_overflow_under_loss_scaling_is_skipped_and_lowers_the_scale():
    inputs, targets = tiny.data(8)
    keras.mixed_precision.set_global_policy("mixed_float16")
    scale = 2.0**40  # far above what float16 holds
    inner = keras.optimizers.Adam(0.1)
    optimizer = keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=scale)
    trainer = tiny.trainer(optimizer)
    trainer.compute_gradients((inputs, targets))
    before = tiny.values(trainer.update_spec.network.variables.all)
    history = trainer.fit(inputs, targets, batch_size=8, epochs=2, verbose=0).history
    assert history["skipped_updates"] == [1.0, 1.0]
    for old, new in zip(before, tiny.values(trainer.update_spec.network.variables.all), strict=True):
        np.testing.assert_array_equal(old, new)
    assert tiny.values([trainer.update_count, trainer.optimizer.iterations]) == [0, 0]
    from multihead._ground.optimizers import loss_scale

    assert float(loss_scale(trainer.optimizer)) == scale / 4


RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 9, (22, 5))
SIZE = RNG.normal(size=(22, 1))
KIND = np.where(np.arange(22) < 3, -1, RNG.integers(0, 3, 22))

POLICIES = [
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
@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("dtypes", "telemetry", "level", "gathering", "weighted", "eagerly"), POLICIES)
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
    options = gathering
    trainer.compile(optimizer, telemetry=telemetry, run_eagerly=eagerly, **balancing, **options)
    targets = {"size": SIZE.astype(floatx), "kind": KIND}
    trainer.compute_gradients([(TOKENS[:8], {name: values[:8] for name, values in targets.items()})])  # builds
    before = tiny.weights_of(trainer)
    weights = {"sample_weight": {"kind": (np.arange(22) > 7).astype(floatx)}} if weighted else {}
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, "validation_data": (TOKENS, targets)}
    history = trainer.fit(TOKENS, targets, epochs=1, **weights, **options).history
    assert history["skipped_updates"] == [0.0]
    assert all(np.isfinite(history[name]).all() for name in ("loss", "val_loss", "kind_accuracy", "val_size_mae"))
    assert not any(np.array_equal(old, new) for old, new in zip(before, tiny.weights_of(trainer)))
