"""Random batches, targets, weights, options and call orders: a finite model that equals a reference, or an error of ours."""

from __future__ import annotations

import functools
import os

import hypothesis
import keras
import numpy as np
from hypothesis import strategies as st

from multihead import MultiHeadTrainer, clipping
from tests.helpers import tiny

CASES = 2000 if os.environ.get("MULTIHEAD_FULL") == "1" else int(os.environ.get("MULTIHEAD_CASES", "100"))
OURS = ("Received:",)
"""What every error of the library says."""

NUMBERS = st.sampled_from([0.0, 1.0, -2.5, 1e-3, 30.0, float("nan")])
ROWS = st.integers(1, 5)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "balancer": st.sampled_from(["EqualNorms", "UPGrad", "PCGrad", "GradVac", "IMTLG"]),
        "weighting": st.sampled_from(["DWA", "Uncertainty", "RandomLossWeighting", "LogLoss"]),
        "balance_at": st.sampled_from(["representation", "parameters", "elsewhere"]),
        "clip": st.sampled_from([clipping.ByGlobalNorm(1.0), clipping.ByValue(0.1)]),
        "micro_batches": st.integers(0, 3),
        "on_nonfinite": st.sampled_from(["skip", "drop_head"]),
        "telemetry": st.sampled_from([None, "norms"]),
    },
)


def targets_of(data, name, rows):
    if name == "b":
        values = st.sampled_from([-1, 0, 1, 1, 7])
        return np.array(
            data.draw(st.lists(values, min_size=rows, max_size=rows)), data.draw(st.sampled_from(["int64", "int8"]))
        )
    shape = data.draw(st.sampled_from([(rows, 1), (rows, 1), (rows,), (rows + 1, 1), (rows, 2)]))
    numbers = data.draw(st.lists(NUMBERS, min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
    return np.array(
        numbers, data.draw(st.sampled_from(["float32", "float64", "int32"])) if not np.isnan(numbers).any() else "f4"
    ).reshape(shape)


def batch_of(data):
    rows = data.draw(ROWS)
    x = np.array(
        data.draw(st.lists(NUMBERS.filter(lambda n: n == n), min_size=3 * rows, max_size=3 * rows)), "float32"
    ).reshape(rows, 3)
    names = data.draw(st.sampled_from([["a", "b"], ["a", "b"], ["a"], ["a", "z"]]))
    y = {name: targets_of(data, name, rows) for name in names}
    if data.draw(st.booleans()):
        return x, y
    weights = {
        "a": np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0, 2.0, -1.0]), min_size=rows, max_size=rows)), "float32")
    }
    return x, y, weights


@functools.cache
def _made(options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(keras.layers.Dense(2, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse", weight=0.5)
    trainer.add_head("b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy", ignore_label=-1)
    trainer.compile("sgd", run_eagerly=True, max_skipped_updates=None, **dict(options))
    return trainer


def made(options):
    """A trainer with these options, the same one in several cases: the reference takes its present weights."""
    return _made(tuple(sorted(options.items(), key=str)))


def reference(trainer, batch):
    """The gradient of the plain sum with respect to the encoder's kernel, in NumPy float64; None if no head has labels."""
    x, y = batch[0].astype("float64"), batch[1]
    weights = batch[2] if len(batch) == 3 else {}
    kernel, bias = (np.array(v, "float64") for v in tiny.values(trainer.encoder.weights))
    hidden = np.tanh(x @ kernel + bias)
    total = np.zeros_like(hidden)
    found = False
    for name, target in y.items():
        layer = trainer.heads[name].module
        w, c = (np.array(v, "float64") for v in tiny.values(layer.weights))
        raw = hidden @ w + c
        s = np.asarray(weights.get(name, np.ones(len(x))), "float64")
        if name == "a":
            values = np.asarray(target, "float64").reshape(len(x), 1)
            s = np.where(np.isnan(values[:, 0]), 0, s)
            upstream = 2 * (raw - np.nan_to_num(values)) * 0.5
        else:
            s = np.where(target == -1, 0, s)
            p = np.exp(raw - raw.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            upstream = p - np.eye(2)[np.maximum(target, 0)]
        if s.sum() > 0:
            found = True
            total += (s[:, None] * upstream / s.sum()) @ w.T
    return x.T @ (total * (1 - hidden**2)) if found else None


@hypothesis.settings(
    max_examples=CASES, deadline=None, derandomize=True, database=None, suppress_health_check=list(hypothesis.HealthCheck)
)
@hypothesis.given(st.data())
def test_every_case_ends_in_a_finite_model_or_in_an_error_of_the_library(data):
    options = data.draw(OPTIONS)
    try:
        trainer = made(options)
        batch = batch_of(data)
        order = data.draw(
            st.lists(st.sampled_from(["gradients", "train", "test", "apply", "again"]), min_size=1, max_size=3)
        )
        pairs = None
        for call in order:
            if call == "gradients":
                pairs = trainer.compute_gradients(batch)
            elif call == "train":
                trainer.train_on_batch(*batch[:2], *batch[2:])
            elif call == "test":
                trainer.test_on_batch(*batch[:2], *batch[2:])
            elif call == "apply":
                trainer.apply_gradients(pairs if pairs is not None else [])
            else:
                trainer.compile("sgd", run_eagerly=True, max_skipped_updates=None, **options)
        before = None if set(options) - {"micro_batches", "telemetry", "on_nonfinite"} else reference(trainer, batch)
        kernel = trainer.compute_gradients(batch)[0][0]
    except (ValueError, TypeError) as error:
        assert any(word in str(error) for word in OURS), f"{type(error).__name__}: {error}"
        return
    for value in tiny.weights_of(trainer):
        assert np.isfinite(value).all()
    if before is not None:
        np.testing.assert_allclose(kernel, before, rtol=2e-3, atol=2e-4 * max(1.0, float(np.abs(before).max())))
