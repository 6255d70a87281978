"""`fit(class_weight=...)`: weights by class for some heads, in training only."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype("float32")
KIND = RNG.integers(0, 3, 10)
SIZE = RNG.normal(size=(10, 1)).astype("float32")
WEIGHTS = {0: 0.5, 2: 4.0}
BY_EXAMPLE = np.array([WEIGHTS.get(int(kind), 1.0) for kind in KIND])


def dense(seed, units, **options):
    """A layer with the same initial values at every call."""
    return keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=seed), **options)


def make(steps=1, run_eagerly=True, **options):
    trainer = MultiHeadTrainer(dense(1, 4, activation="tanh"))
    trainer.add_head("kind", dense(2, 3, activation="softmax"), "sparse_categorical_crossentropy", **options)
    trainer.add_head("size", dense(3, 1), "mse")
    trainer.compile(keras.optimizers.SGD(0.1), gradient_accumulation_steps=steps, run_eagerly=run_eagerly)
    return trainer


def fitted(trainer, **options):
    trainer.fit(X, {"kind": KIND, "size": SIZE}, batch_size=4, shuffle=False, verbose=0, **options)
    return tiny.weights_of(trainer)


def assert_same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("steps", "run_eagerly"), [(2, True), (1, False)])
def test_classes_weigh_as_sample_weights_do_in_this_fit_only(steps, run_eagerly):
    expected, trainer = make(steps), make(steps, run_eagerly)
    for _ in range(2):
        of_samples = fitted(expected, sample_weight={"kind": BY_EXAMPLE})
        assert_same(fitted(trainer, class_weight={"kind": WEIGHTS}), of_samples)
    assert_same(fitted(trainer), fitted(expected))  # neither is in force any more
    both = fitted(expected, sample_weight={"kind": BY_EXAMPLE * np.arange(10)})
    assert_same(fitted(trainer, class_weight={"kind": WEIGHTS}, sample_weight={"kind": np.arange(10)}), both)


def test_validation_is_not_weighted_and_the_weights_of_add_head_are_replaced():
    trainer = make(class_weight={1: 9.0})
    data = (X, {"kind": KIND, "size": SIZE})
    found = trainer.fit(*data, batch_size=4, shuffle=False, verbose=0, class_weight={"kind": WEIGHTS}, validation_data=data)
    assert_same(tiny.weights_of(trainer), fitted(make(), class_weight={"kind": WEIGHTS}))
    loss = trainer.evaluate(*data, verbose=0, return_dict=True)["kind_loss"]
    np.testing.assert_allclose(found.history["val_kind_loss"][0], loss, rtol=1e-5)


def test_errors():
    trainer = make()
    for class_weight, message in (
        (WEIGHTS, r"`class_weight` must be a dict by head name .* the heads are 'kind', 'size'"),
        ({"sort": WEIGHTS}, r"`class_weight` must name only heads: 'sort' is not a head"),
        ({"kind": {0: -1.0}}, r"`class_weight` must hold finite numbers of at least 0"),
    ):
        with pytest.raises(ValueError, match=message):
            fitted(trainer, class_weight=class_weight)
    assert int(np.array(trainer.update_count)) == 0


def own_loss(classes, values):
    """A cross-entropy of one's own, `[rows]` or `[rows, time]`, of labels in a form of one's own."""

    def loss(labels, logits):
        if classes == "one-hot":
            return tf.nn.softmax_cross_entropy_with_logits(tf.cast(labels, logits.dtype), logits)
        labels = tf.cast(tf.reshape(labels, tf.shape(logits)[:-1]), tf.int32)
        found = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return found[..., None] if values == "column" else found

    return loss


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("values", ["none", "column"])
@pytest.mark.parametrize("form", ["numbers", "column", "one-hot"])
@pytest.mark.parametrize("shape", [(10,), (10, 2)])
@pytest.mark.parametrize("where", ["head", "fit"])
def test_a_loss_of_ones_own_is_weighted_by_class(shape, form, values, where):
    """Whether class numbers have an axis of their own, rows are one-hot, or values have an axis of size 1."""
    if form == "one-hot" and values == "column":
        pytest.skip("the same as without an axis")
    x = np.random.default_rng(1).normal(size=(*shape, 3)).astype("float32")
    kind = np.random.default_rng(2).integers(0, 3, shape)
    labels = {"numbers": kind, "column": kind[..., None], "one-hot": np.eye(3, dtype="float32")[kind]}[form]
    trainer = MultiHeadTrainer(dense(1, 4, activation="tanh"))
    at_head = {"class_weight": WEIGHTS} if where == "head" else {}
    trainer.add_head("kind", dense(2, 3), own_loss(form, values), couples_rows=False, **at_head)
    trainer.compile(keras.optimizers.SGD(0.0))
    logits = np.array(trainer.heads["kind"].module(trainer.encoder(x)), np.float64)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, kind[..., None], -1)[..., 0]
    weights = np.array([0.5, 1.0, 4.0])[kind]
    in_fit = {} if where == "head" else {"class_weight": {"kind": WEIGHTS}}
    found = trainer.fit(x, {"kind": labels}, batch_size=10, verbose=0, **in_fit).history["kind_loss"]
    np.testing.assert_allclose(found, [(weights * losses).sum() / weights.sum()], rtol=1e-5)


@pytest.mark.parametrize("shape", [(10,), (10, 1)])
def test_a_binary_loss_of_rows_has_two_classes(shape):
    labels, units = (X[:, 0] > 0.2).astype("int64").reshape(shape), dense(2, 1, activation="sigmoid")

    def loss(truth, p):
        truth = tf.reshape(tf.cast(truth, p.dtype), tf.shape(p))
        return tf.reduce_mean((truth - p) ** 2, axis=-1)

    trainer = MultiHeadTrainer(dense(1, 4, activation="tanh"))
    trainer.add_head("is_large", units, loss, couples_rows=False, class_weight={0: 1.0, 1: 5.0})
    trainer.compile(keras.optimizers.SGD(0.0))
    truth, weights = labels.reshape(-1), np.where(labels.reshape(-1) == 1, 5.0, 1.0)
    losses = (truth - np.array(units(trainer.encoder(X)), np.float64)[:, 0]) ** 2
    found = trainer.fit(X, {"is_large": labels}, batch_size=10, verbose=0).history["is_large_loss"]
    np.testing.assert_allclose(found, [(weights * losses).sum() / weights.sum()], rtol=1e-5)


@pytest.mark.parametrize("rows", [[1, 1, 0], [0, 0, 0], [1, 0, -1]])
@pytest.mark.parametrize("loss", ["categorical_crossentropy", lambda y, p: tf.reduce_mean((y - p) ** 2, axis=-1)])
def test_rows_of_several_labels_have_no_class(loss, rows):
    labels = np.eye(3, dtype="float32")[KIND]
    labels[4] = rows
    trainer = MultiHeadTrainer(dense(1, 4, activation="tanh"))
    trainer.add_head("kind", dense(2, 3, activation="softmax"), loss, couples_rows=False, class_weight=WEIGHTS)
    trainer.compile("sgd")
    rule = "must be at least 0" if min(rows) < 0 and isinstance(loss, str) else "must be rows of zeros and a single 1"
    with pytest.raises(ValueError, match=rule):
        trainer.fit(X, {"kind": labels}, verbose=0)


def test_a_value_for_several_axes_of_labels_has_no_class():
    trainer = MultiHeadTrainer(dense(1, 4))
    loss = lambda y, p: tf.reduce_mean((tf.cast(y, p.dtype) - p) ** 2, axis=[1, 2])  # noqa: E731
    trainer.add_head("kind", dense(2, 3), loss, couples_rows=False, class_weight=WEIGHTS)
    trainer.compile("sgd")
    with pytest.raises(ValueError, match=r"`class_weight` of head 'kind' needs a loss that gives one value per class"):
        trainer.fit(X[:, None], {"kind": np.zeros([10, 1, 3], int)}, verbose=0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_soft_labels_of_any_precision_have_the_class_of_their_largest(dtype):
    soft = tf.nn.softmax(np.random.default_rng(0).normal(size=(10, 12)).astype("float32"))
    trainer = MultiHeadTrainer(dense(1, 4))
    trainer.add_head("kind", dense(2, 12, activation="softmax"), "categorical_crossentropy", class_weight={0: 2.0})
    trainer.compile("sgd")
    assert np.isfinite(trainer.fit(tf.constant(X), {"kind": tf.cast(soft, dtype)}, verbose=0).history["loss"]).all()
