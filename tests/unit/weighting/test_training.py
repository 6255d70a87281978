"""Weightings in the trainer: logs, state, idle heads, skipped updates, saving."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping, schedules
from tests.helpers import tiny
from tests.helpers.gathering import dataset
from tests.helpers.weighted import HEADS, adam

pytestmark = [pytest.mark.mathematics, pytest.mark.usefixtures("eager_updates")]


def test_logs_tell_losses_weights_and_regularizer_apart():
    data = dataset([tiny.data(12)])
    plain_first = tiny.trainer(keras.optimizers.SGD(0.5)).fit(data, verbose=0).history
    trainer = tiny.trainer(keras.optimizers.SGD(0.5), weighting="Uncertainty")
    first = trainer.fit(data, verbose=0).history
    for name in HEADS:
        assert first[f"{name}_loss"] == pytest.approx(plain_first[f"{name}_loss"])
        assert first[f"{name}_weight"] == pytest.approx([0.5 * tiny.WEIGHTS[name]])
        assert f"{name}_weight" not in plain_first
    assert first["regularizer"] == [0.0] and "regularizer" not in plain_first
    second = trainer.fit(data, verbose=0).history
    weighted = sum(second[f"{name}_weight"][0] * second[f"{name}_loss"][0] for name in HEADS)
    assert second["regularizer"][0] != 0
    assert second["loss"][0] == pytest.approx(weighted + second["regularizer"][0], rel=1e-5)
    evaluated = trainer.evaluate(data, verbose=0, return_dict=True)
    # Without the weighting, whose weights are others in each epoch.
    expected = sum(tiny.WEIGHTS[name] * evaluated[f"{name}_loss"] for name in HEADS)
    assert evaluated["loss"] == pytest.approx(expected, rel=1e-5)


def test_what_an_idle_head_learns_stays():
    schedule = schedules.Alternate({"tag": 1, "price": 1, "size": 1})
    trainer = tiny.trainer(adam(), weighting="Uncertainty", head_schedule=schedule)
    data = dataset([tiny.data(12)])
    trainer.fit(data.repeat(3), verbose=0)  # everything has moved once
    before = tiny.values(trainer.weighting.trainable_variables)
    slots = [variable for variable in trainer.optimizer.variables if "log_variance" in variable.name]
    slots_before = tiny.values(slots)
    trainer.fit(data, verbose=0)  # trains `tag` alone
    moved = [a != b for a, b in zip(before, tiny.values(trainer.weighting.trainable_variables))]
    assert moved == [True, False, False]
    assert sum(bool(np.any(a != b)) for a, b in zip(slots_before, tiny.values(slots))) == 2  # both moments of one


def test_a_skipped_update_leaves_the_weighting():
    for name in ("FAMO", "GradNorm", "DWA", "Uncertainty"):
        trainer = tiny.trainer("sgd", weighting=name)
        inputs, targets = tiny.data(12, missing=False)
        trainer.fit(dataset([(inputs, targets)]), verbose=0)
        before = tiny.values(trainer.weighting.variables)
        broken = {**targets, "size": np.full(12, 3e38, "float32")}  # its square overflows
        with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped"):
            trainer.weighting.end_epoch = lambda: None  # the epoch's end is not what is tested
            trainer.fit(dataset([(inputs, broken)]), verbose=0)
        for a, b in zip(before, tiny.values(trainer.weighting.variables)):
            np.testing.assert_array_equal(a, b)


def test_learned_weights_are_not_clipped():
    learned = []
    for clip in (None, clipping.ByGlobalNorm(1e-3)):
        trainer = tiny.trainer(keras.optimizers.SGD(1.0), weighting="Uncertainty", clip=clip)
        trainer.fit(dataset([tiny.data(12)]), verbose=0)
        learned.append(np.array(tiny.values(trainer.weighting.trainable_variables)))
    np.testing.assert_allclose(*learned)


def test_a_regularizer_of_a_head_is_not_weighted():
    def make(strength, name):
        keras.utils.set_random_seed(3)
        trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        kernel = keras.regularizers.L2(strength) if strength else None
        trainer.add_head("a", keras.layers.Dense(1, kernel_regularizer=kernel, activity_regularizer=kernel), "mse")
        trainer.add_head("b", keras.layers.Dense(1), "mse")
        trainer.compile(keras.optimizers.SGD(0.1), weighting=name)
        return trainer

    inputs = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    targets = {"a": 10 * inputs[:, :1], "b": inputs[:, 1:2]}
    differences = {}
    for name in (None, "LogLoss"):
        pairs = [make(strength, name).compute_gradients((inputs, targets)) for strength in (0.0, 0.1)]
        # What the regularizer adds to every gradient.
        differences[name] = [b.numpy() - a.numpy() for (a, _), (b, _) in zip(*pairs)]
    for plain, weighted in zip(*differences.values()):
        np.testing.assert_allclose(weighted, plain, atol=1e-6)
    assert any(np.abs(each).max() > 1e-3 for each in differences[None])


def test_famo_leaves_the_modules_state():
    def make(name):
        keras.utils.set_random_seed(3)
        encoder = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)])
        trainer = MultiHeadTrainer(encoder)
        trainer.add_head("a", keras.layers.Dense(1), "mse")
        trainer.compile(keras.optimizers.SGD(0.0), weighting=name)
        return trainer

    inputs = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    moving = []
    for name in (None, "FAMO"):
        trainer = make(name)
        trainer.fit(inputs, {"a": inputs[:, :1]}, batch_size=8, verbose=0)
        moving.append(tiny.values(trainer.encoder.layers[1].non_trainable_variables))
    for plain, famo in zip(*moving):
        np.testing.assert_array_equal(plain, famo)
        assert np.any(plain != 0)


def test_compute_gradients_gives_what_is_learned():
    trainer = tiny.trainer("sgd", weighting="Uncertainty")
    pairs = trainer.compute_gradients(tiny.data(12))
    learned = pairs[-3:]
    assert [variable is mine for (_, variable), mine in zip(learned, trainer.weighting.trainable_variables)] == [True] * 3
    assert all(float(gradient) != 0 for gradient, _ in learned)
    assert bool(trainer.apply_gradients(pairs))
    assert all(float(tf.convert_to_tensor(v)) != 0 for v in trainer.weighting.trainable_variables)
