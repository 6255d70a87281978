"""Data sets mixed for one fit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import mix_datasets
from tests.helpers import tiny


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


ERRORS = {
    "mix": (lambda: mix_datasets({}), r"`datasets` must be a mapping"),
    "both": (
        lambda: mix_datasets({"a": tf.data.Dataset.range(1)}, weights={"a": 1}, temperature=1),
        r"At most one of `weights` and `temperature`",
    ),
    "generator": (
        lambda: mix_datasets({"a": (batch for batch in [(1.0, 1.0)])}),
        r"`datasets\['a'\]` must be a `tf.data.Dataset`. Received: a generator.*from_generator",
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
    with pytest.raises((ValueError, TypeError), match=message):
        action()
