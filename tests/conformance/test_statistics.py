"""The ledger's statistics are those of the true update: computed by hand from `compute_gradients`, however it is gathered."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, callbacks, clipping
from tests.helpers.tiny import tensor_variable

LIMIT = 1.0
WEIGHTS = {"a": 0.5, "b": 2.0, "c": 1.0}
PAIRS = [("a", "b"), ("a", "c"), ("b", "c")]
X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = {
    "a": X[:, :1] - 2.0,
    "b": np.where(np.arange(16)[:, None] % 3 == 0, np.nan, 3 * X[:, 1:2]).astype("float32"),  # a third is missing
    "c": X[:, 2:],
}


def trainer(**options):
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential([keras.layers.Dense(4, activation="tanh", name=name) for name in ("one", "two")])
    made = MultiHeadTrainer(encoder)
    for name, weight in WEIGHTS.items():
        made.add_head(name, keras.layers.Dense(1), "mse", weight=weight)
    optimizer = keras.optimizers.SGD(0.0)  # does not move, so that every update is the same
    if keras.mixed_precision.global_policy().name == "mixed_float16":
        optimizer = keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=16.0)
    made.compile(optimizer, **options)
    return made


def by_hand():
    """The encoder's gradient of each head's weighted loss by layer, that of all, and all gradients, in float64."""
    made = trainer(telemetry=None)

    def gradients(*heads):
        for name, weight in WEIGHTS.items():
            made.set_weight(name, weight if name in heads else 0.0)
        return {id(tensor_variable(v)): np.float64(g) for g, v in made.compute_gradients((X, Y)) if g is not None}

    made.compute_gradients((X, Y))
    layers = {layer.name: [id(tensor_variable(v)) for v in layer.variables] for layer in made.encoder.layers}

    def of(found, keys):
        return np.concatenate([found[key].ravel() for key in keys])

    alone = {name: gradients(name) for name in WEIGHTS}
    together = gradients(*WEIGHTS)
    rows = {layer: [of(each, keys) for each in (*alone.values(), together)] for layer, keys in layers.items()}
    return rows, of(together, together)


def by_tape():
    """The gradient of each head's weighted loss at the representation."""
    made, rows = trainer(telemetry=None), []
    made.compute_gradients((X, Y))
    for name, weight in WEIGHTS.items():
        known = np.isfinite(Y[name])
        with tf.GradientTape() as tape:
            representation = made.encoder(X)
            tape.watch(representation)
            errors = tf.where(known, made.heads[name].module(representation) - np.nan_to_num(Y[name]), 0.0)
            loss = weight * tf.reduce_sum(errors**2) / known.sum()
        rows.append(np.float64(tape.gradient(loss, representation)).ravel())
    return rows


def cosine(u, v):
    return u @ v / (np.linalg.norm(u) * np.linalg.norm(v))


def statistics(rows, update, coefficients=(1.0, 1.0, 1.0)):
    """The statistics of three heads with these gradients, and of the update that they make."""
    norms = np.array([np.linalg.norm(row) for row in rows])
    parts = np.array(coefficients) * norms
    found = {f"{name}_norm": norm for name, norm in zip(WEIGHTS, norms)}
    found |= {f"{name}_share": part / parts.sum() for name, part in zip(WEIGHTS, parts)}
    found |= {f"{name}_update_cosine": cosine(row, update) for name, row in zip(WEIGHTS, rows)}
    by_name = dict(zip(WEIGHTS, rows))
    return found | {f"{a}_{b}_cosine": cosine(by_name[a], by_name[b]) for a, b in PAIRS}


def lines_of(made, path, batch_size=16, repeats=2):
    x, y = tf.nest.map_structure(lambda values: np.concatenate([values] * repeats), (X, Y))
    made.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0, callbacks=[callbacks.UpdateLogger(path)])
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def close(found, expected, tolerance):
    assert expected.keys() <= found.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance / 3), name


CASES = {
    "micro-batches": ({"micro_batches": 3, "run_eagerly": True}, 16, 1e-5),
    "accumulated batches": ({"gradient_accumulation_steps": 2, "run_eagerly": True}, 8, 1e-5),
    "half precision": ({"run_eagerly": True}, 16, 2e-2),
    "two steps at once": ({"steps_per_execution": 2}, 16, 1e-5),
    "replicas": ({}, 16, 1e-5),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("case", CASES)
def test_ledger_is_computed_from_the_gradients_of_the_true_update(case, tmp_path, request):
    options, batch_size, tolerance = CASES[case]
    _, everything = by_hand()
    rows = by_tape()
    strategy = request.getfixturevalue("two_replicas") if case == "replicas" else tf.distribute.get_strategy()
    if case == "half precision":
        keras.mixed_precision.set_global_policy("mixed_float16")
    with strategy.scope():
        made = trainer(telemetry="full", clip=clipping.ByGlobalNorm(LIMIT), **options)
        first, second = lines_of(made, tmp_path / "run.jsonl", batch_size)
    assert (first["step"], second["step"], first["epoch"], second["applied"]) == (1, 2, 0, True)
    norm = np.linalg.norm(everything)
    close(second, {"update_norm": norm, "update_norm_clipped": min(norm, LIMIT), "clipped_updates": 1.0}, tolerance)
    close(second, {"update_norm_average": norm, "a_norm_average": second["a_norm"]}, max(tolerance, 1e-5))
    close(second, statistics(rows, np.sum(rows, axis=0)), tolerance)
    losses = sum(weight * second[f"{name}_loss"] for name, weight in WEIGHTS.items())
    assert second["loss"] == pytest.approx(losses, rel=tolerance)


def test_statistics_at_the_parameters_are_those_of_all_layers_together(tmp_path):
    rows, _ = by_hand()
    made = trainer(telemetry="full", balancer=balancing.EqualNorms(), balance_at="parameters")
    (line,) = lines_of(made, tmp_path / "run.jsonl", repeats=1)
    whole = [np.concatenate(parts) for parts in zip(*(each[:3] for each in rows.values()))]
    norms = np.array([np.linalg.norm(row) for row in whole])
    coefficients = norms.mean() / norms
    update = coefficients @ np.array(whole)
    close(line, statistics(whole, update, coefficients), 1e-5)
    close(line, {f"{name}_coefficient": value for name, value in zip(WEIGHTS, coefficients)}, 1e-5)
