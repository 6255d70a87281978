"""`diagnose`: its figures are those of a tape by hand, it changes nothing, and it names causes and remedies."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping, losses
from tests.helpers import reference, tiny

HEADS = ("tag", "price", "size")


def batches(count=4, **options):
    return [tiny.data(10, seed=seed, **options) for seed in range(count)]


@pytest.mark.parametrize("level", ["representation", "parameters"])
def test_figures_are_those_of_a_tape_by_hand(level):
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


@pytest.mark.parametrize(
    ("weight", "cause"),
    [
        (1.0, "Cause: not the size of its loss, but the sensitivity of its module to the representation."),
        (
            6.0,
            "Cause: its weighted loss is 6 times as large; it is summed over the batch, or in different units. A second cause",
        ),
        (200.0, "Cause: its weighted loss is 200 times as large; it is summed over the batch, or in different units."),
    ],
)
def test_a_steep_module_is_told_from_a_large_loss(weight, cause):
    inputs = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    for name, steepness, times in (("flat", 0.01, 1.0), ("steep", 1.0, weight)):
        head = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(steepness))
        trainer.add_head(name, head, "mae", weight=times)
    trainer.compile("sgd")
    predictions = trainer.predict(inputs, verbose=0)
    targets = {
        name: values + 1 for name, values in predictions.items()
    }  # the loss of each is 1, its gradient's length apart
    (found,) = trainer.diagnose([(inputs, targets)]).findings
    assert f"The representation gradient of 'steep' is {100 * weight:.3g} times as large" in found
    assert cause in found


class Summed(keras.losses.Loss):
    """Each example's loss times the size of the batch: a loss that was not reduced over the batch."""

    def call(self, targets, predictions):
        values = keras.losses.sparse_categorical_crossentropy(targets, predictions)
        return values * tf.cast(tf.shape(values)[0], tf.float32)


def test_an_unreduced_loss_is_named_with_its_remedy():
    encoder, heads = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("tag", heads["tag"], losses.SequenceCrossentropy())
    trainer.add_head("price", heads["price"], Summed(), ignore_label=-1)
    trainer.compile("sgd", clip=clipping.ByGlobalNorm(0.1))
    data = [tiny.data(64, seed=seed) for seed in range(2)]
    data = [(inputs, {name: targets[name] for name in ("tag", "price")}) for inputs, targets in data]
    report = trainer.diagnose(data)
    lengths = report.norms["parameters"]  # the heads read no common tensor
    (found, *others) = report.findings
    assert f"The encoder gradient of 'price' is {lengths[1] / lengths[0]:.3g} times as large" in found
    assert "summed over the batch" in found and "leaves almost nothing of the gradient of 'tag'" in found
    assert "`balancer=balancing.EqualNorms()` or `balancing.NormBudget({'price': 0.5})`, or `weight=" in found
    assert any(other.startswith("On average, clipping reduces ") for other in others)
    suggested = float(found.rpartition("`weight=")[2].partition("`")[0])
    # What it suggests brings both to one length.
    balanced = MultiHeadTrainer(encoder)
    balanced.add_head("tag", heads["tag"], losses.SequenceCrossentropy())
    balanced.add_head("price", heads["price"], Summed(), ignore_label=-1, weight=suggested)
    balanced.compile("sgd")
    again = balanced.diagnose(data)
    assert again.shares["parameters"] == pytest.approx([0.5, 0.5], abs=0.02)
    assert "price" in str(report) and str(again).count("\n") >= 3


def linear(targets, **compiled):
    """Heads on one linear layer, each to predict something, and three batches."""
    generator = np.random.default_rng(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(2, use_bias=False, kernel_initializer="ones"))
    for name in targets:
        trainer.add_head(name, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), "mse")
    trainer.compile("sgd", **compiled)
    inputs = [np.abs(generator.normal(size=(16, 2))).astype("float32") for _ in range(3)]
    return trainer, [(x, {name: function(x) for name, function in targets.items()}) for x in inputs]


def test_opposed_heads_are_named():
    trainer, data = linear({"up": lambda x: 2 * x[:, :1] + 9, "down": lambda x: -9 - x[:, :1]})
    report = trainer.diagnose(data)
    assert report.conflicts["parameters"][0, 1] == 1 and report.cosines["parameters"][0, 1] < -0.5
    (found,) = report.findings
    assert "The gradients of 'up' and 'down' conflict in 100% of the batches" in found and "balancing.UPGrad()" in found


def test_heads_that_agree_need_nothing():
    trainer, data = linear({"one": lambda x: 9 + x[:, :1], "two": lambda x: 9 + x[:, 1:]})
    (found,) = trainer.diagnose(data).findings
    assert "the plain sum is enough" in found


def test_a_balancer_that_is_set_is_mentioned():
    trainer, data = linear({"one": lambda x: 9 + x[:, :1], "two": lambda x: 9 + x[:, 1:]}, balancer="UPGrad")
    assert "before balancing with UPGrad" in trainer.diagnose(data).findings[-1]


def test_missing_labels_and_broken_gradients_are_named():
    nothing = lambda x: np.full([len(x), 1], np.nan, "float32")  # noqa: E731
    trainer, data = linear({"one": lambda x: 9 + x[:, :1], "two": nothing})
    report = trainer.diagnose(data)
    assert "'two' has labels in only 0% of the batches" in report.findings[0]
    assert np.isnan(report.losses[1]) and "nan" in str(report)
    trainer, data = linear({"one": lambda x: 9 + x[:, :1], "two": lambda x: np.full([len(x), 1], 3e38, "float32")})
    assert "'two' has losses or gradients that are not finite" in trainer.diagnose(data).findings[0]


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
    trainer, data = linear({"one": lambda x: 9 + x[:, :1]})
    assert trainer.diagnose(data).findings[0].startswith("There is nothing to compare")


def test_loss_scaling_does_not_matter():
    keras.mixed_precision.set_global_policy("mixed_float16")
    trainer, data = linear({"one": lambda x: 9 + x[:, :1], "two": lambda x: 9 + x[:, 1:]})
    for head in trainer.heads.values():
        head.weight = 1e-7
    report = trainer.diagnose(data)
    assert (report.norms["representation"] > 1e-8).all() and np.isfinite(report.update_norm)


def test_errors():
    trainer = tiny.trainer("sgd")
    with pytest.raises(TypeError, match="`x` must be what yields batches, a list of batches.* Received: x of type int"):
        trainer.diagnose(5)
    with pytest.raises(TypeError, match="Received: x of type tuple and y=None. Pass what `fit` takes"):
        trainer.diagnose(batches(1)[0])
    with pytest.raises(ValueError, match="`x` must contain at least one batch. Received: none"):
        trainer.diagnose([])
    with pytest.raises(ValueError, match="`batches` must be a whole number of at least 1"):
        trainer.diagnose(batches(1), batches=0)
    with pytest.raises(ValueError, match="`diagnose` requires a compiled trainer"):
        MultiHeadTrainer(keras.layers.Dense(1)).diagnose(batches(1))


class Twice(keras.layers.Layer):
    """Gives one tensor under two names."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2, use_bias=False)

    def call(self, x):
        y = self.dense(x)
        return {"first": y, "second": (y,)}


class Read(keras.layers.Layer):
    def __init__(self, name):
        super().__init__()
        self.entry = name
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    def call(self, representation):
        value = representation[self.entry]
        return self.dense(value[0] if isinstance(value, tuple) else value)


def test_heads_that_read_one_tensor_by_two_names_meet_there():
    trainer = MultiHeadTrainer(Twice())
    trainer.add_head("up", Read("first"), "mse")
    trainer.add_head("down", Read("second"), "mse")
    trainer.compile("sgd")
    inputs = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    report = trainer.diagnose([(inputs, {"up": np.full([8, 1], 9.0, "float32"), "down": np.full([8, 1], -9.0, "float32")})])
    assert report.cosines["representation"][0, 1] < -0.5  # as two leaves they would be orthogonal
