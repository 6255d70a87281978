"""`fit(class_weight=...)`: weights by class for some heads, in training only."""

from __future__ import annotations

import keras
import numpy as np
import pytest

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
