"""Losses with a denominator of their own: sums and counts add up however an update is gathered."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

ANCHORS, RATE = 5, 0.2
GENERATOR, CALLS = tf.random.Generator.from_seed(0), tf.Variable(0.0, trainable=False)


def drawn_inside(count):
    return tf.cond(count > 0, lambda: count + tf.random.uniform([]), lambda: count)


def cross_entropies(y, p):
    y, p = tf.cast(y, tf.float32), tf.cast(p, tf.float32)
    return tf.nn.sigmoid_cross_entropy_with_logits(y, p), y


def by_anchor(y, p):
    return cross_entropies(y, p)


def by_row(y, p):
    values, positive = cross_entropies(y, p)
    return tf.reduce_sum(values, 1), tf.reduce_sum(positive, 1)


def whole(y, p):
    values, positive = cross_entropies(y, p)
    return tf.reduce_sum(values), tf.reduce_sum(positive)


def whole_numbers(y, p):
    values, positive = cross_entropies(y, p)
    return tf.reduce_sum(values), tf.math.count_nonzero(positive)


class Detection(keras.losses.Loss):
    def call(self, y, p):
        return by_row(y, p)


FORMS = {"anchors": by_anchor, "rows": by_row, "whole": whole, "whole numbers": whole_numbers, "class": Detection()}


def data(rows=12, seed=0):
    """Inputs, labels of anchors, of which there are none for some rows, and numbers for another head."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 4)).astype("float32")
    y = (rng.random((rows, ANCHORS)) < 0.3).astype("float32")
    y[rng.random(rows) < 0.3] = np.nan
    return x, {"boxes": y, "size": rng.normal(size=(rows, 1)).astype("float32")}


def trainer_of(loss, weight=1.0, **options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(keras.layers.Dense(6, activation="tanh"))
    trainer.add_head("boxes", keras.layers.Dense(ANCHORS), loss, weight=weight, couples_rows=False)
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(RATE), **options)
    return trainer


def build(trainer, x):
    for head in trainer.heads.values():
        head.module(trainer.encoder(x))


def values_of(trainer):
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    return tiny.values([variable for module in modules for variable in module.trainable_variables])


def in_numpy(values, batch, weights=None):
    """One step on one batch, and the losses, in float64 by the chain rule."""
    kernel, bias, boxes, boxes_bias, size, size_bias = (np.asarray(each, "float64") for each in values)
    x, y = batch[0].astype("float64"), batch[1]["boxes"].astype("float64")
    s = (~np.isnan(y[:, :1])) * (1.0 if weights is None else weights[:, None])
    y = np.nan_to_num(y)
    h = np.tanh(x @ kernel + bias)
    p, q = h @ boxes + boxes_bias, h @ size + size_bias
    count, error = (s * y).sum(), q - batch[1]["size"]
    losses = ((np.logaddexp(0, p) - y * p) * s).sum() / count, (error**2).mean()
    of_p, of_q = s * (1 / (1 + np.exp(-p)) - y) / count, 2 * error / len(x)
    of_h = (of_p @ boxes.T + of_q @ size.T) * (1 - h**2)
    gradients = [x.T @ of_h, of_h.sum(0), h.T @ of_p, of_p.sum(0), h.T @ of_q, of_q.sum(0)]
    return losses, [value - RATE * gradient for value, gradient in zip(values, gradients)]


def assert_alike(found, wanted, tolerance=1e-5):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


def batched(x, y, size):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


GATHERINGS = {
    "one batch": (12, {}),
    "micro-batches": (12, {"micro_batches": 5, "run_eagerly": False}),
    "accumulated": (5, {"gradient_accumulation_steps": 3, "run_eagerly": False}),
    "both": (5, {"gradient_accumulation_steps": 3, "micro_batches": 2}),
    "xla": (12, {"micro_batches": 2, "jit_compile": True}),
    "losses of the update": (5, {"gradient_accumulation_steps": 3, "weighting": "GeometricMean"}),
}

CASES = [
    *(("whole", "both"), ("class", "one batch"), ("rows", "xla"), ("whole", "xla"), ("rows", "micro-batches")),
    *(("anchors", "accumulated"), ("whole numbers", "both"), ("rows", "losses of the update")),
]


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(("form", "gathering"), CASES)
def test_an_update_is_that_of_its_definition(form, gathering):
    x, y = data()
    size, options = GATHERINGS[gathering]
    if gathering == "xla" and form.startswith("whole"):
        with pytest.raises(ValueError, match="`jit_compile` must be False for head 'boxes'.*a sum and a count, per row"):
            trainer_of(FORMS[form], **options).fit(x, y, verbose=0)
        return
    trainer = trainer_of(FORMS[form], **options)
    build(trainer, x)
    before = values_of(trainer)
    history = trainer.fit(batched(x, y, size), verbose=0).history
    losses, wanted = in_numpy(before, (x, y))
    np.testing.assert_allclose([history["boxes_loss"][0], history["size_loss"][0]], losses, rtol=1e-5)
    if "weighting" not in options:
        assert_alike(values_of(trainer), wanted)
    losses, _ = in_numpy(values_of(trainer), (x, y))
    found = trainer.evaluate(batched(x, y, 5), verbose=0, return_dict=True)
    np.testing.assert_allclose([found["boxes_loss"], found["size_loss"]], losses, rtol=1e-5)


@pytest.mark.parametrize("form", ["anchors", "rows"])
def test_sample_weights_weigh_sums_and_counts(form):
    x, y = data()
    weights = np.random.default_rng(4).integers(0, 3, 12).astype("float32")
    trainer = trainer_of(FORMS[form], micro_batches=2)
    build(trainer, x)
    losses, wanted = in_numpy(values_of(trainer), (x, y), weights)
    history = trainer.fit(x, y, sample_weight={"boxes": weights}, batch_size=12, verbose=0).history
    np.testing.assert_allclose(history["boxes_loss"], losses[:1], rtol=1e-5)
    assert_alike(values_of(trainer), wanted)


def test_in_half_precision():
    x, y = data()
    results = []
    for policy in ("mixed_float16", "float32"):
        keras.mixed_precision.set_global_policy(policy)
        trainer = trainer_of(whole, micro_batches=2)
        trainer.fit(x, y, batch_size=12, verbose=0)
        results.append(values_of(trainer))
    assert_alike(*results, 5e-3)


@pytest.mark.parametrize("form", ["rows", "whole"])
def test_an_update_without_positives_leaves_the_head_alone(form):
    """Batches with and without count as one where they are accumulated."""
    x, y = data()
    y["boxes"] = np.zeros_like(y["boxes"])
    trainer = trainer_of(FORMS[form])
    trainer.compile(keras.optimizers.Adam(0.1))
    trainer.fit(*data(), batch_size=12, verbose=0)
    before = values_of(trainer)
    history = trainer.fit(x, y, batch_size=12, verbose=0).history
    assert np.isnan(history["boxes_loss"][0]) and np.isfinite(history["size_loss"][0])
    assert_alike(values_of(trainer)[2:4], before[2:4], 0)
    assert np.abs(values_of(trainer)[4] - before[4]).max() > 0


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            lambda y, p: (whole(y, p)[0], tf.reduce_sum(tf.cast(p > 0, tf.float32))),
            "count that is a function of the targets",
        ),
        (
            lambda y, p: (whole(y, p)[0], tf.random.uniform([]) * whole(y, p)[1]),
            "whose count draws random numbers or depends",
        ),
        (lambda y, p: (whole(y, p)[0], drawn_inside(whole(y, p)[1])), "whose count draws random numbers or depends"),
        (lambda y, p: (whole(y, p)[0], GENERATOR.uniform([]) * whole(y, p)[1]), "which changes variables"),
        (lambda y, p: (whole(y, p)[0] + GENERATOR.uniform([]), whole(y, p)[1]), "which changes variables"),
        (lambda y, p: (whole(y, p)[0], whole(y, p)[1], CALLS.assign_add(1.0))[:2], "which changes variables"),
        (lambda y, p: (whole(y, p)[0], np.random.random() * float(whole(y, p)[1])), "differs from call to call"),
        (lambda y, p: (whole(y, p)[0], float(tf.math.count_nonzero(p > 0))), "changes with the predictions"),
        (lambda y, p: (whole(y, p)[0], by_row(y, p)[1]), r"values of shape \(\) and counts of shape \(\d+,\)"),
        (lambda y, p: tf.reduce_mean(by_row(y, p)[0]), "must give one value per element.*a sum and a count"),
    ],
    ids=[
        "of predictions",
        "drawn",
        "in a branch",
        "generator",
        "generator of the sum",
        "state",
        "eager",
        "eagerly of predictions",
        "shapes",
        "mean",
    ],
)
def test_what_is_no_sum_and_count_is_refused(loss, words):
    x, y = data()
    with pytest.raises(ValueError, match=words):
        trainer_of(loss).fit(x, y, verbose=0)


def test_a_sum_may_draw_random_numbers():
    """Where its count does not depend on them."""
    x, y = data()
    trainer_of(lambda y, p: (whole(y, p)[0] + tf.random.uniform([]), whole(y, p)[1])).fit(x, y, verbose=0)


def test_a_negative_count_is_an_error():
    x, y = data()
    trainer = trainer_of(lambda y, p: (by_row(y, p)[0], by_row(y, p)[1] - 2.0))
    with pytest.raises(
        ValueError, match="`loss` of head 'boxes' must return a sum and a finite count of at least 0. Received"
    ):
        trainer.fit(x, y, verbose=0)


def test_class_weights_need_values_of_rows():
    trainer = MultiHeadTrainer(keras.layers.Dense(3))
    trainer.add_head(
        "a", keras.layers.Dense(1), lambda y, p: (tf.reduce_sum((y - p) ** 2), tf.reduce_sum(y)), class_weight={1: 2.0}
    )
    trainer.compile("sgd")
    with pytest.raises(
        ValueError,
        match="`class_weight` of head 'a' needs a loss that gives one value per class number .* one value for all",
    ):
        trainer.fit(np.ones((4, 2), "float32"), {"a": np.ones((4, 1), "float32")}, verbose=0)
