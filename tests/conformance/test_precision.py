"""Promise 4 within its own rounding: mixed precision, loss scaling, and steps that are not finite."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import clipping
from tests.helpers import tiny
from tests.helpers.cases import quick

COMPILED = {"representation": {}, "parameters, in micro-batches": {"balance_at": "parameters", "micro_batches": 2}}


def updated(policy, compiled):
    inputs, targets = tiny.data(16, seed=3)
    keras.mixed_precision.set_global_policy(policy)
    trainer = tiny.trainer(
        keras.optimizers.SGD(0.1), clip=clipping.ByGlobalNorm(1.0), balancer="EqualNorms", **COMPILED[compiled]
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
    before = tiny.values(trainer._built.spec.network.variables.all)
    history = trainer.fit(inputs, targets, batch_size=8, epochs=2, verbose=0).history
    assert history["skipped_updates"] == [1.0, 1.0]
    for old, new in zip(before, tiny.values(trainer._built.spec.network.variables.all), strict=True):
        np.testing.assert_array_equal(old, new)
    assert tiny.values([trainer.update_count, trainer.optimizer.iterations]) == [0, 0]
    from multihead._ground.optimizers import loss_scale

    assert float(loss_scale(trainer.optimizer)) == scale / 4
