"""A head may have the name of whatever a Keras model or the trainer has: none becomes an attribute that Python can name."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import Head, MultiHeadTrainer
from multihead._trainer.changes import set_heads
from multihead.heads._named import NamedHead
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def a_head(**options):
    return Head(keras.layers.Dense(1), "mse", **options)


def names_of_python():
    """All names of attributes, and what is left of them without the beginnings that attributes of heads may have."""
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    names = {*dir(keras.Model), *dir(trainer), *vars(trainer)}
    parts = {name.partition("head_")[2] for name in names} | {name.partition("scaling_")[2] for name in names}
    return sorted((names | parts) - {""})


def test_no_head_becomes_an_attribute_with_a_name():
    encoder, names, refused = keras.layers.Dense(2), names_of_python(), []
    chunks = [names[i : i + 20] for i in range(0, len(names), 20)]
    while chunks:
        chunk, trainer = chunks.pop(), MultiHeadTrainer(encoder)
        before = {each: value for each, value in vars(trainer).items() if each.isidentifier()}
        attributes = set(dir(trainer))
        try:
            set_heads(
                trainer, trainer._state, tuple(NamedHead(name, a_head(target_scaling="standardize")) for name in chunk)
            )
        except ValueError as error:  # a name that would be mixed up in the logs
            assert "apart in the logs" in str(error)
            chunks += [[name] for name in chunk] if len(chunk) > 1 else []
            refused += chunk if len(chunk) == 1 else []
            continue
        new = set(dir(trainer)) - attributes
        assert len(new) == 2 * len(chunk) and not any(each.isidentifier() for each in new), new
        changed = {each for each, value in before.items() if vars(trainer).get(each) is not value}
        assert changed <= {"head_weights", "predict_function"} | {each for each in before if each.startswith("_")}, chunk
    assert len(refused) <= 4, refused


def test_heads_named_like_attributes_are_trained_saved_and_loaded(tmp_path):
    names = ["weights", "schedule", "gradients", "fit", "__init__", "user id", "..", "größe"]
    keras.utils.set_random_seed(0)

    def a_trainer():
        trainer = MultiHeadTrainer(keras.layers.Dense(3, activation="tanh"), {name: a_head() for name in names})
        trainer.compile("adam")
        return trainer

    trainer, y = a_trainer(), dict.fromkeys(names, X[:, :1])
    first = trainer.predict(X, verbose=0)
    tiny.fit_once(trainer, X, y, epochs=2)
    assert len(trainer.trainable_weights) == 2 + 2 * len(names)
    assert set(trainer.head_gradients((X, y))) == set(names)
    trainer.set_weight("weights", 0.5)
    expected = trainer.predict(X, verbose=0)
    assert all(np.abs(expected[name] - first[name]).max() > 0 for name in names)
    trainer.save(str(tmp_path / "trainer.keras"))
    trainer.save_weights(str(tmp_path / "trainer.weights.h5"))
    other = a_trainer()
    other.evaluate(X, y, verbose=0)
    other.load_weights(str(tmp_path / "trainer.weights.h5"))
    for each in (keras.models.load_model(str(tmp_path / "trainer.keras")), other):
        found = each.predict(X, verbose=0)
        for name in names:
            np.testing.assert_allclose(found[name], expected[name], atol=1e-6)
