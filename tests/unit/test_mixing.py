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


@pytest.mark.thorough
def test_mixed_data_sets_train_each_head_on_its_own_batches():
    mixed = mix_datasets(own_data(), temperature=1e9, seed=1)
    assert int(mixed.cardinality()) == 17
    seen = []

    def note(inputs, targets, weights):
        seen.append([name for name, weight in weights.items() if weight.max() > 0])
        return np.int64(0)

    def noting(inputs, targets, weights):
        noted = tf.numpy_function(lambda *flat: note(None, None, dict(zip(weights, flat))), list(weights.values()), tf.int64)
        with tf.control_dependencies([noted]):
            return tf.nest.map_structure(tf.identity, (inputs, targets, weights))

    trainer = tiny.trainer(keras.optimizers.Adam(0.01))
    trainer.compute_gradients(next(iter(mixed)))
    history = trainer.fit(mixed.map(noting), verbose=0, shuffle=False).history
    of_fit = seen[-17:]
    assert all(len(names) == 1 for names in of_fit) and {names[0] for names in of_fit} == {"tag", "price", "size"}
    for name in trainer.heads:
        assert history[f"{name}_updates"][0] == sum(names == [name] for names in of_fit)


def chosen(mixed):
    """The head of each batch."""
    return [next(name for name, weight in weights.items() if weight.numpy().any()) for _, _, weights in mixed]


def numbered(**lengths):
    """Data sets of some numbers of batches of one example each."""
    return {
        name: tf.data.Dataset.from_tensor_slices((np.zeros((length, 1, 1), "float32"), np.zeros((length, 1), "int32")))
        for name, length in lengths.items()
    }


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_proportions_follow_the_temperature(temperature):
    lengths = np.array([400, 100, 25])
    heads = chosen(mix_datasets(numbered(a=400, b=100, c=25), temperature=temperature, seed=3))
    assert len(heads) == lengths.sum()
    expected = lengths ** (1 / temperature) / np.sum(lengths ** (1 / temperature))
    actual = [heads.count(name) / len(heads) for name in "abc"]
    np.testing.assert_allclose(actual, expected, atol=0.07)  # three standard deviations


def batches_of_passes(mixed, number):
    """The first input of each batch, by pass."""
    first = mixed.map(lambda inputs, targets, weights: tf.reshape(inputs, [-1])[0]).batch(100)
    return [next(iter(first)).numpy().tolist() for _ in range(number)]


@pytest.mark.first_cases(1)
@pytest.mark.mathematics
@pytest.mark.parametrize("options", [{}, {"temperature": 1e9}, {"weights": {"a": 1, "b": 2}}], ids=str)
def test_passes_differ_and_all_is_seen_in_the_long_run(options):
    def mixed(seed=5):
        parts = {name: tf.data.Dataset.range(first, first + n).batch(1) for name, first, n in (("a", 0, 40), ("b", 100, 8))}
        return mix_datasets({name: part.map(lambda x: (x, x)) for name, part in parts.items()}, seed=seed, **options)

    one = mixed()
    passes = batches_of_passes(one, 8)
    assert all(len(each) == 48 for each in passes) and len(set(map(tuple, passes))) == 8
    seen = {number for each in passes for number in each}
    assert seen == {*range(40), *range(100, 108)}
    assert batches_of_passes(mixed(), 2) == passes[:2] != batches_of_passes(mixed(6), 2)
    for numbers in passes:  # one after the other, from the place where the pass begins
        own = [number for number in numbers if number < 40]
        assert all((later - earlier) % 40 == 1 for earlier, later in zip(own, own[1:]))


@pytest.mark.mathematics
def test_the_other_heads_get_placeholders_of_their_kind():
    inputs = np.arange(8.0, dtype="float32").reshape(4, 2)
    tags, weights = np.arange(12).reshape(4, 3), np.arange(12.0).reshape(4, 3)
    own = {"size": (inputs, inputs[:, 0]), "tag": (inputs, tags, weights)}
    data = {name: tf.data.Dataset.from_tensor_slices(arrays).batch(3) for name, arrays in own.items()}
    seen = {"size": [], "tag": []}
    for given, targets, sample_weights in mix_datasets(data, weights={"size": 1, "tag": 1}, seed=0):
        name = "tag" if sample_weights["tag"].numpy().any() else "size"
        seen[name].append((given, targets[name], sample_weights[name]))
        assert targets["size"].dtype == tf.float32 and targets["tag"].dtype == tf.int64
        assert all(weight.dtype == tf.float32 for weight in sample_weights.values())
        assert sample_weights["tag"].shape[0] == sample_weights["size"].shape[0] == len(given)
        assert len(targets["tag"].shape) == 2 and len(targets["size"].shape) == 1
        other = {"tag": "size", "size": "tag"}[name]
        assert not targets[other].numpy().any() and not sample_weights[other].numpy().any()
    for name, batches in seen.items():
        wanted = [*own[name], np.ones(4, "float32")][:3]
        for parts, array in zip(zip(*batches), wanted):
            whole = np.concatenate(parts)
            repeated = np.concatenate([array] * (len(whole) // 4 + 1))  # one that runs out starts again
            np.testing.assert_array_equal(whole, repeated[: len(whole)])


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
        lambda: mix_datasets({"a": tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat()}),
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


def test_targets_in_dicts_as_fit_takes_them():
    plain = own_data()
    weighted = {name: data.map(lambda x, y: (x, y, tf.ones(tf.shape(y)[:1]))) for name, data in plain.items()}
    in_dicts = {name: data.map(lambda x, y, w, name=name: (x, {name: y}, {name: w})) for name, data in weighted.items()}
    for one, other in zip(mix_datasets(weighted), mix_datasets(in_dicts), strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.unbatch(), r"`datasets` must yield batches.*`datasets\['price'\]` with.*call `.batch\(32\)`"),
        (lambda data: data.map(lambda x, y: (x, {"other": y})), r"`datasets\['price'\]` must yield the target of its head"),
        (lambda data: data.map(lambda x, y: (x, (y, y))), r"`datasets\['price'\]` must yield the target of its head"),
        (lambda data: data.map(lambda x, y: (x, {"price": y, "tag": y})), r"target of its head alone.*sample_from_datasets"),
        (
            lambda data: data.map(lambda x, y: (x, {"price": y, "other": y})),
            r"target of its head alone.*with labels of several",
        ),
        (
            lambda data: data.map(lambda x, y: (x, y, {"price": y, "tag": y})),
            r"its sample weight, as a tensor, or in a dict",
        ),
        (
            lambda data: data.map(lambda x, y: (x, tf.RaggedTensor.from_tensor(y[:, None]))),
            r"target in .* dense .*RaggedTensor.*Pad targets",
        ),
        (lambda data: data.map(lambda x, y: (x, {"price": tf.sparse.from_dense(y)})), r"target in .*`tf.sparse.to_dense"),
        (
            lambda data: data.map(lambda x, y: (x, y, tf.RaggedTensor.from_tensor(y[:, None]))),
            r"The sample weight in .* must be a dense tensor.*weights with 0",
        ),
    ],
)
def test_what_is_no_batch_with_one_target_is_refused(change, message):
    data = own_data()
    with pytest.raises((ValueError, TypeError), match=message):
        mix_datasets({**data, "price": change(data["price"])})


def test_labels_of_several_heads_mix_as_the_error_says():
    """Missing labels for heads without targets, and TensorFlow's own sampling."""
    inputs, targets = tiny.data(8, missing=False)
    whole = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(4)
    missing = {name: 0.0 if name == "size" else 1.0 for name in targets}
    parts = [
        whole.map(lambda x, y: (x, y, {name: tf.ones(4) * missing[name] for name in y})),
        whole.map(lambda x, y: (x, y, {name: tf.ones(4) * (1 - missing[name]) for name in y})),
    ]
    mixed = tf.data.Dataset.sample_from_datasets(parts, seed=1).apply(tf.data.experimental.assert_cardinality(4))
    trainer = tiny.trainer(keras.optimizers.Adam(0.01))
    history = trainer.fit(mixed, verbose=0, shuffle=False).history
    assert {name: int(history[f"{name}_updates"][0]) for name in targets} == dict.fromkeys(targets, 2)


def test_strings_can_become_numbers_after_mixing():
    data = {
        name: tf.data.Dataset.from_tensors((tf.ones([2, 1]), tf.constant(values)))
        for name, values in {"word": ["a", "b"], "size": [1.0, 2.0]}.items()
    }
    for _, targets, weights in mix_datasets(data):
        is_word = bool(weights["word"].numpy().any())
        assert targets["word"].numpy().tolist() == ([b"a", b"b"] if is_word else [b"", b""])
