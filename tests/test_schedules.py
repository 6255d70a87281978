"""Schedules: closed forms, draws that repeat, turns while heads conflict; data sets mixed for one fit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, mix_datasets, schedules
from tests import tiny


def drawn(schedule, count, names=("price", "reply")):
    schedule.bind(list(names))
    return np.array([schedule.active(tf.constant(u, tf.int64)).numpy() for u in range(count)])


def test_alternate_gives_each_head_its_turns():
    active = drawn(schedules.Alternate({"price": 1, "reply": 9}), 30)
    np.testing.assert_array_equal(active[:, 0], [u % 10 == 0 for u in range(30)])
    np.testing.assert_array_equal(active[:, 1], ~active[:, 0])


def test_sample_repeats_by_seed_and_keeps_its_proportions():
    active = drawn(schedules.Sample({"price": 1, "reply": 3}, seed=5), 2000)
    np.testing.assert_array_equal(active, drawn(schedules.Sample({"price": 1, "reply": 3}, seed=5), 2000))
    assert (active.sum(1) == 1).all()
    assert abs(active[:, 0].mean() - 0.25) < 0.04  # over four standard deviations
    assert (active != drawn(schedules.Sample({"price": 1, "reply": 3}, seed=6), 2000)).any()


def test_heads_take_turns_only_while_their_running_cosine_is_low():
    schedule = schedules.WhileConflicting(0.0, momentum=0.5, probe_every=4)
    schedule.bind(["a", "b"])
    active = lambda u: schedule.active(tf.constant(u, tf.int64)).numpy().tolist()  # noqa: E731
    assert active(1) == [True, True]  # nothing observed yet
    mean, power = 0.0, 1.0
    for cosine in (-0.8, 0.4, 0.9, 0.9):
        norms = np.array([1e-3, 50.0])
        gramian = np.outer(norms, norms) * np.array([[1, cosine], [cosine, 1]])
        schedule.observe(tf.constant(gramian), tf.constant(True))
        mean, power = 0.5 * mean + 0.5 * cosine, power * 0.5
        average = mean / (1 - power)
        np.testing.assert_allclose(schedule.average_cosine(), average, rtol=1e-5)
        together = average >= 0
        assert active(1) == ([True, True] if together else [False, True])
        assert active(2) == ([True, True] if together else [True, False])
        assert active(4) == [True, True]  # a probe
    before = float(schedule.average_cosine())
    schedule.observe(tf.constant([[1.0, 0.0], [0.0, 0.0]]), tf.constant(True))  # one head alone shows nothing
    schedule.observe(tf.constant([[1.0, -1.0], [-1.0, 1.0]]), tf.constant(False))  # a skipped update neither
    assert float(schedule.average_cosine()) == before


def test_conflicting_heads_take_turns_in_fit_and_agreeing_ones_do_not():
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")

    def updates(sign):
        keras.utils.set_random_seed(0)
        head = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
        other = keras.layers.Dense(1, kernel_initializer="ones", trainable=False)
        trainer = MultiHeadTrainer(keras.layers.Dense(2, kernel_initializer="zeros"))
        trainer.add_head("a", head, "mse")
        trainer.add_head("b", other, "mse")
        trainer.compile(keras.optimizers.SGD(1e-3), schedule=schedules.WhileConflicting(probe_every=5))
        y = {"a": np.ones((40, 1), "float32"), "b": sign * np.ones((40, 1), "float32")}
        history = trainer.fit(x, y, batch_size=2, verbose=0, shuffle=False).history
        return history["a_updates"][0], history["b_updates"][0]

    assert updates(1) == (20, 20)
    a, b = updates(-1)
    assert a + b == 20 + 4  # four probes train both


ERRORS = {
    "sample": (lambda: schedules.Sample({}), r"`proportions` must be a mapping"),
    "zero": (lambda: schedules.Sample({"a": 0}), r"`proportions\['a'\]` must be a finite number above 0"),
    "seed": (lambda: schedules.Sample({"a": 1}, seed=0.5), r"`seed` must be a whole number. Received: seed=0.5"),
    "threshold": (lambda: schedules.WhileConflicting(2), r"`threshold` must be a cosine"),
    "momentum": (lambda: schedules.WhileConflicting(momentum=1), r"`momentum` must be at least 0 and below 1"),
    "probe": (lambda: schedules.WhileConflicting(probe_every=1), r"`probe_every` must be at least 2"),
    "never": (lambda: schedules.Sample({"a": 1}).bind(["a", "b"]), r"the head 'b' is not named"),
    "mix": (lambda: mix_datasets({}), r"`datasets` must be a mapping"),
    "both": (
        lambda: mix_datasets({"a": 1}, weights={"a": 1}, temperature=1),
        r"At most one of `weights` and `temperature`",
    ),
    "endless": (
        lambda: mix_datasets({"a": tf.data.Dataset.from_tensors((1.0, 1.0)).repeat()}),
        r"`weights` must be given if the cardinality",
    ),
    "inputs": (
        lambda: mix_datasets({k: tf.data.Dataset.from_tensors((v, [1.0])) for k, v in {"a": [1.0], "b": [1]}.items()}),
        r"inputs of all `datasets` must have the same structure",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    action, message = ERRORS[case]
    with pytest.raises(ValueError, match=message):
        action()


def own_data():
    inputs, targets = tiny.data(24, missing=False)
    one = lambda name, count, size: tf.data.Dataset.from_tensor_slices((inputs[:count], targets[name][:count])).batch(size)  # noqa: E731
    return {"tag": one("tag", 24, 2), "price": one("price", 12, 3), "size": one("size", 4, 4)}  # 12, 4 and 1 batches


def test_mixed_data_sets_train_each_head_on_its_own_batches():
    mixed = mix_datasets(own_data(), temperature=1e9, seed=1)
    assert int(mixed.cardinality()) == 17
    labelled = [[name for name, weight in w.items() if weight.numpy().max() > 0] for _, _, w in mixed]
    assert all(len(names) == 1 for names in labelled) and {names[0] for names in labelled} == {"tag", "price", "size"}
    assert labelled == [[n for n, weight in w.items() if weight.numpy().max() > 0] for _, _, w in mixed]
    trainer = tiny.trainer(keras.optimizers.Adam(0.01))
    history = trainer.fit(mixed, verbose=0, shuffle=False).history
    for name in trainer.heads:
        assert history[f"{name}_updates"][0] == sum(names == [name] for names in labelled)


def test_sampling_proportions():
    data = {name: dataset.repeat() for name, dataset in own_data().items()}
    mixed = mix_datasets(data, weights={"tag": 6, "price": 3, "size": 1}, seed=2).take(600)
    counts = dict.fromkeys(data, 0)
    for _, _, weights in mixed:
        for name, weight in weights.items():
            counts[name] += int(weight.numpy().max() > 0)
    np.testing.assert_allclose([counts[n] / 600 for n in ("tag", "price", "size")], [0.6, 0.3, 0.1], atol=0.08)
