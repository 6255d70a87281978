"""Every method and every control: a trainer that is saved and loaded trains on exactly as the one that was not."""

from __future__ import annotations

import itertools
import zipfile

import keras
import numpy as np
import pytest

from multihead import ByPath, LayerwiseDecay, MultiHeadTrainer, balancing, clipping, schedules, weighting
from multihead._runs.variables import values_of, variables_of
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": (X[:, 0] > 0).astype("int64")}

BALANCERS = [name for name in balancing.__all__ if name not in ("Balancer", "balance", "get", "Chain", "NormBudget")]
WEIGHTINGS = [name for name in weighting.__all__ if name not in ("Weighting", "get")]
WITH_STATE = ["MoCo", "GradVac", "MetaBalance", "DBMTL", "ExcessMTL", "DWA", "FAMO", "GradNorm"]
CORE = [
    {"balancer": balancing.Chain("EqualNorms", balancing.GradVac(beta=0.3))},
    {"balancer": balancing.NormBudget({"a": 0.3}), "weighting": "LogLoss"},
    {"weighting": "Uncertainty"},
    {"balancer": "UPGrad"},
    {"balancer": "PCGrad", "weighting": "RandomLossWeighting"},
    *({"balancer" if name in BALANCERS else "weighting": name} for name in WITH_STATE),
]
"""What has state, variables, options or random numbers of its own; the others are saved as `UPGrad` is."""
METHODS = CORE + [
    {kind: name}
    for kind, names in (("balancer", BALANCERS), ("weighting", WEIGHTINGS))
    for name in names
    if {kind: name} not in CORE
]
CONTROLS = [
    {"clip": clipping.ByGlobalNorm(0.5), "head_schedule": schedules.Alternate({"a": 1, "b": 2})},
    {"clip": clipping.ByValue(0.1), "micro_batches": 2},
    {"clip": clipping.ByNorm(0.3), "head_schedule": schedules.Sample({"a": 2, "b": 1}, seed=3), "on_nonfinite": "raise"},
    {"clip": clipping.ByAverageNorm(0.01), "encoder_learning_rate_multiplier": LayerwiseDecay(0.5), "telemetry": "full"},
    {
        "encoder_learning_rate_multiplier": ByPath({"kernel": 0.5}),
        "head_schedule": schedules.WhileConflicting(probe_every=2),
    },
]
LOSSES = [
    keras.losses.Huber(delta=0.3),
    "mse",
    keras.losses.LogCosh(),
    keras.losses.MeanAbsoluteError(),
]


def name_of(options):
    return "-".join(value if isinstance(value, str) else type(value).__name__ for value in options.values())


def made(options, loss):
    keras.utils.set_random_seed(1)
    encoder = keras.Sequential(
        [keras.layers.Dense(4, activation="tanh"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), loss, weight=0.5, learning_rate_multiplier=0.5)
    classifier = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.add_head("b", keras.layers.Dense(2), classifier, metrics=["accuracy"], class_weight={1: 2.0}, ignore_label=-1)
    trainer.compile(keras.optimizers.Adam(0.02), **options)
    return trainer


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:The weights of heads do not change the direction:UserWarning")
@pytest.mark.parametrize(
    ("method", "controls", "loss"),
    quick(len(CORE), zip(METHODS, itertools.cycle(CONTROLS), itertools.cycle(LOSSES))),
    ids=[name_of(method) for method in METHODS],
)
def test_a_loaded_trainer_trains_on_as_the_one_that_was_saved(method, controls, loss, tmp_path):
    options = {**({"balance_at": "parameters"} if "balancer" in method else {}), **controls, **method}
    trainer = made(options, loss)
    for _ in range(2):
        trainer.train_on_batch(X, Y)
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    for each in (trainer, loaded):
        for metric in each.metrics:
            metric.reset_state()
        each.train_on_batch(X, Y)
    assert int(trainer.update_count) == int(loaded.update_count) >= 2
    wanted, got = (values_of(variables_of(each)) for each in (trainer, loaded))
    assert set(wanted) == set(got)
    for name in wanted:
        if not name.startswith(("variable/metrics", "variable/trainer", "variable/others")):
            # Statistics of an epoch begin again, and so does the number of steps that Keras 2 has called.
            np.testing.assert_array_equal(wanted[name], got[name], err_msg=name)


@pytest.mark.thorough
def test_a_flipped_byte_in_a_file_of_keras_is_noticed(tmp_path):
    """A `.keras` file is a ZIP archive, whose parts have checksums: an error, or nothing of the contents has changed."""
    trainer = made({}, "mse")
    trainer.train_on_batch(X, Y)
    trainer.save(tmp_path / "trainer.keras")
    content = (tmp_path / "trainer.keras").read_bytes()
    rng, refused = np.random.default_rng(0), 0
    for place in rng.integers(0, len(content), 12):
        damaged = content[:place] + bytes([content[place] ^ (1 << rng.integers(8))]) + content[place + 1 :]
        (tmp_path / "damaged.keras").write_bytes(damaged)
        try:
            loaded = keras.models.load_model(tmp_path / "damaged.keras")
        except (zipfile.BadZipFile, ValueError, KeyError, OSError, RuntimeError):  # the last one is h5py's
            refused += 1
        else:
            for one, other in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
                np.testing.assert_array_equal(one, other)
    assert refused >= 9
