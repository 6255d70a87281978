"""`diagnose`: its statistics are those of a tape by hand, it changes nothing, and it names causes and remedies."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping
from tests.helpers import planted, reference, tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

HEADS = ("tag", "price", "size")


def batches(count=4, **options):
    return [tiny.data(10, seed=seed, **options) for seed in range(count)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("level", ["representation", "parameters"])
def test_statistics_are_those_of_a_tape_by_hand(level):
    trainer = tiny.trainer("sgd")
    data = batches()
    report = trainer.diagnose(data)
    modules = {name: head.module for name, head in trainer.heads.items()}
    gramians = []
    hand = reference.Reference(trainer.encoder, modules, None, tiny.WEIGHTS, lambda gramian: np.ones(3), level)
    for batch in data:
        gramians.append(hand.gradients([batch])[1])
    squares = np.array([np.diag(gramian) for gramian in gramians])
    np.testing.assert_allclose(report.norms[level], np.sqrt(squares.mean(axis=0)), rtol=1e-4)
    np.testing.assert_allclose(report.shares[level].sum(), 1, rtol=1e-6)
    cosines = np.array([gramian / np.sqrt(np.outer(np.diag(gramian), np.diag(gramian))) for gramian in gramians])
    np.testing.assert_allclose(report.cosines[level], cosines.mean(axis=0), atol=1e-4)
    clear = np.abs(cosines).min(axis=0) > 1e-3
    np.testing.assert_allclose(report.conflicts[level][clear], (cosines < 0).mean(axis=0)[clear])
    assert report.heads == HEADS and report.batches == 4
    np.testing.assert_allclose(report.weights, [tiny.WEIGHTS[name] for name in HEADS])


def test_losses_and_norm_of_the_whole_gradient():
    trainer = tiny.trainer("sgd", clip=clipping.ByGlobalNorm(0.5))
    data = batches(3)
    report = trainer.diagnose(iter(data), batches=2)
    assert report.batches == 2
    lengths = []
    for batch in data[:2]:
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in trainer.compute_gradients(batch)]
        lengths.append(float(tf.linalg.global_norm(gradients)))
    np.testing.assert_allclose(report.update_norm, np.mean(lengths), rtol=1e-5)
    np.testing.assert_allclose(report.clipped, np.mean([min(1, 0.5 / length) for length in lengths]), rtol=1e-4)
    joined = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *data[:2])
    expected = trainer.evaluate(*joined, verbose=0, return_dict=True, batch_size=20)
    np.testing.assert_allclose(report.losses, [float(expected[f"{name}_loss"]) for name in HEADS], rtol=1e-5)


def test_nothing_changes():
    encoder = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse", metrics=["mae"])
    trainer.compile("adam", weighting="DWA", balancer="MetaBalance")
    inputs = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    targets = {"a": inputs[:, :1]}
    trainer.fit(inputs, targets, verbose=0)

    def state():
        variables = [*trainer.variables, *trainer.optimizer.variables, *(v for m in trainer.metrics for v in m.variables)]
        return [value for value in tiny.values(variables) if value.dtype.kind == "f"]  # counters of seeds may go on

    before = state()
    trainer.diagnose([(inputs, targets)] * 2)
    for old, new in zip(before, state(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(trainer.update_count) == 1


def test_labels_in_other_units_are_to_be_scaled_unless_the_head_does_it_itself():
    cold = {"cold": lambda x: 20 * x[:, :1] - 300}
    trainer, data = linear(cold)
    (found, *_) = trainer.diagnose(data).findings
    assert re.search(r"mean -2\d\d.* sets `target_scaling='standardize'` for 'cold'", found) and found.kind == "units"

    ends = {
        "rescaled": lambda: keras.Sequential([keras.layers.Dense(1), keras.layers.Rescaling(20.0, -300.0)]),
        "inverted": lambda: keras.Sequential([keras.layers.Dense(1), keras.layers.Normalization(None, -300.0, 400.0, True)]),
        "nested": lambda: keras.Sequential(
            [keras.Sequential([keras.layers.Dense(1), keras.layers.Rescaling(20.0, -300.0)])]
        ),
        "scaled": lambda: keras.layers.Dense(1),
    }
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    for name, make in ends.items():
        trainer.add_head(name, make(), "mse", target_scaling="standardize" if name == "scaled" else None)
    trainer.compile("sgd")
    report = trainer.diagnose([(x, dict.fromkeys(ends, y["cold"])) for x, y in data])
    assert "units" not in [finding.kind for finding in report.findings]
    np.testing.assert_allclose([report.label_means[3], report.label_deviations[3]], [0, 1], atol=1e-5)
    assert trainer._state.setup.head("scaled").scaling.current.mean is None  # only measured


def test_a_head_that_loses_its_lead_by_a_scaling_is_told():
    """It may lead later only: its gradient grows with its last layer, which grows with its predictions."""
    targets = {"raw": lambda x: 20 * x[:, :1] - 300, "small": lambda x: x[:, :1] / 1000, "unit": lambda x: x[:, :1]}
    trainer, data = linear(targets)
    texts = {finding.heads[0]: finding for finding in trainer.diagnose(data).findings if finding.kind == "units"}
    assert "if it matters most, raise its `weight`" in texts["raw"]
    assert "raise its `weight`" not in texts["small"]
    balanced, data = linear(targets, balancer="EqualNorms")
    assert not [finding for finding in balanced.diagnose(data).findings if "raise its `weight`" in finding]
    alone, data = linear({"raw": targets["raw"]})
    (finding, *_) = alone.diagnose(data).findings
    assert finding.kind == "units" and "raise its `weight`" not in finding


def test_a_loss_and_its_remedy_with_clipping():
    trainer, data = planted.summed(0)
    trainer.compile("sgd", clip=clipping.ByGlobalNorm(0.1))
    report = trainer.diagnose(data)
    (_, other) = report.findings
    assert other.startswith("On average, clipping reduces ") and other.kind == "clipping"


def linear(targets, **compiled):
    """Heads on one linear layer, each to predict something, and three batches."""
    generator = np.random.default_rng(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(2, use_bias=False, kernel_initializer="ones"))
    for name in targets:
        trainer.add_head(name, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), "mse")
    trainer.compile("sgd", **compiled)
    inputs = [np.abs(generator.normal(size=(16, 2))).astype("float32") for _ in range(3)]
    return trainer, [(x, {name: function(x) for name, function in targets.items()}) for x in inputs]


def test_missing_labels_and_broken_gradients_are_named():
    nothing = lambda x: np.full([len(x), 1], np.nan, "float32")  # noqa: E731
    trainer, data = linear({"one": lambda x: 1 + x[:, :1], "two": nothing})
    report = trainer.diagnose(data)
    assert "'two' has labels for only 0% of its elements" in report.findings[0]
    assert np.isnan(report.losses[1]) and "nan" in str(report)
    trainer, data = linear({"one": lambda x: 1 + x[:, :1], "two": lambda x: np.full([len(x), 1], 3e38, "float32")})
    assert "'two' has losses or gradients that are not finite" in trainer.diagnose(data).findings[0]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("weighting", ["Uncertainty", "LogLoss"])
def test_weights_of_a_weighting_are_those_that_it_gives(weighting):
    trainer = tiny.trainer("sgd", weighting=weighting)
    data = batches(1)
    report = trainer.diagnose(data)
    weights = {"Uncertainty": [0.5 * tiny.WEIGHTS[name] for name in HEADS], "LogLoss": 1 / report.losses}[weighting]
    np.testing.assert_allclose(report.weights, weights, rtol=1e-5)
    plain = tiny.trainer("sgd", weights=dict.fromkeys(HEADS, 1.0)).diagnose(data)
    np.testing.assert_allclose(report.norms["parameters"], weights * plain.norms["parameters"], rtol=0.3)


def test_heads_that_cannot_be_measured_are_named():
    trainer = tiny.trainer("sgd", weights={"tag": 1.0, "price": 0.0, "size": lambda update: tf.cast(update, tf.float32)})
    report = trainer.diagnose(batches(2))
    assert [finding.split(",")[0] for finding in report.findings[:2]] == ["'price' is not trained", "'size' is not trained"]
    trainer, data = linear({"one": lambda x: 1 + x[:, :1]})
    assert trainer.diagnose(data).findings[0].startswith("There is nothing to compare")


def test_errors():
    trainer = tiny.trainer("sgd")
    with pytest.raises(TypeError, match="`x` must be an iterable of batches, a list of batches.* Received: x of type int"):
        trainer.diagnose(5)
    with pytest.raises(TypeError, match="Received: x of type tuple and y=None. Pass what `fit` takes"):
        trainer.diagnose(batches(1)[0])
    with pytest.raises(ValueError, match="`x` must contain at least one batch. Received: none"):
        trainer.diagnose([])
    with pytest.raises(ValueError, match="`batches` must be a whole number of at least 1"):
        trainer.diagnose(batches(1), batches=0)
    with pytest.raises(ValueError, match="`diagnose` requires a compiled trainer"):
        MultiHeadTrainer(keras.layers.Dense(1)).diagnose(batches(1))
