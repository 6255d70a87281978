"""`Head` as a value: it does not change, and trainers made of it are those that `add_head` makes."""

from __future__ import annotations

import dataclasses
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer

pytestmark = pytest.mark.first_cases(4)  # the others are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = {
    "price": (5.0 + 3.0 * X[:, :1]).astype("float32"),
    "kind": (X[:, 0] > 0).astype("int64"),
    "probe": X.sum(1, keepdims=True),
}
OPTIONS = {
    "price": {"loss": "mse", "weight": 0.5, "metrics": ["mae"], "target_scaling": "standardize"},
    "kind": {
        "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        "class_weight": {0: 2.0},
        "ignore_label": -1,
        "learning_rate_multiplier": 0.5,
    },
    "probe": {"loss": "mse", "trains_encoder": False, "weight_decay_multiplier": 0.0},
}


def parts():
    keras.utils.set_random_seed(3)
    encoder = keras.layers.Dense(4, activation="tanh", name="encoder")
    modules = {name: keras.layers.Dense(2 if name == "kind" else 1, name=f"of_{name}") for name in OPTIONS}
    encoder.build((None, 3))
    for module in modules.values():
        module.build((None, 4))
    return encoder, modules


def by_heads():
    encoder, modules = parts()
    heads = {name: Head(modules[name], **options) for name, options in OPTIONS.items()}
    trainer = MultiHeadTrainer(encoder, heads, name="trainer")
    trainer.compile(keras.optimizers.Adam(0.1), balancer="EqualNorms", run_eagerly=True)
    return trainer


def by_add_head():
    encoder, modules = parts()
    trainer = MultiHeadTrainer(encoder, name="trainer")
    for name, options in OPTIONS.items():
        trainer.add_head(name, modules[name], **options)
    trainer.compile(keras.optimizers.Adam(0.1), balancer="EqualNorms", run_eagerly=True)
    return trainer


def fit(trainer, epochs=2):
    return trainer.fit(X, Y, batch_size=6, epochs=epochs, shuffle=False, verbose=0).history


def assert_same_predictions(one, other):
    predictions, others = (trainer.predict(X, verbose=0) for trainer in (one, other))
    assert list(predictions) == list(others) == list(OPTIONS)
    for name, values in predictions.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)


def test_a_head_takes_what_add_head_takes():
    parameters = inspect.signature(MultiHeadTrainer.add_head).parameters
    expected = [(each.name, each.kind, each.default) for each in parameters.values()][2:]
    assert [(each.name, each.kind, each.default) for each in inspect.signature(Head).parameters.values()] == expected


def test_no_field_can_be_assigned():
    head = Head(keras.layers.Dense(1), "mse")
    for field in dataclasses.fields(Head):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(head, field.name, None)


def test_a_list_or_dict_that_changes_later_changes_no_head():
    metrics, class_weight = ["accuracy"], {0: 2.0}
    head = Head(keras.layers.Dense(2), "sparse_categorical_crossentropy", metrics=metrics, class_weight=class_weight)
    metrics.append("mae")
    class_weight[1] = 5.0
    assert (head.metrics, head.class_weight) == (("accuracy",), {0: 2.0})


def test_replace_makes_another_head_on_the_same_module_and_checks_it():
    head = Head(keras.layers.Dense(1), "mse", weight=0.5, metrics=["mae"])
    other = dataclasses.replace(head, weight=2.0, reads="mean")
    assert (other.weight, other.reads, head.weight, head.reads) == (2.0, "mean", 0.5, None)
    for field in dataclasses.fields(Head):
        if field.name not in ("weight", "reads"):
            assert getattr(other, field.name) is getattr(head, field.name)
    for weight in (-1, tf.Variable(1.0)):
        with pytest.raises(
            ValueError, match=r"`weight` must be .* Received: weight=.*call `trainer.set_weight` in a callback"
        ):
            dataclasses.replace(head, weight=weight)


HEAD = Head(keras.layers.Dense(1), "mse")
DICT = r"`heads` must be a dict of `Head` by name\. Received: a {}\. Pass, for example, heads=\{{'price': Head\(module, loss\)\}}\."
NAME = r"`name` of a head must be a non-empty string without '/', and not '\.'\. Received: name={}\. Pass"


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        ([("price", HEAD)], TypeError, DICT.format("list")),
        (HEAD, TypeError, DICT.format("Head")),
        ({"size": HEAD, "price": (keras.layers.Dense(1), "mse")}, TypeError, DICT.format("tuple for 'price'")),
        ({1: HEAD}, ValueError, NAME.format("1")),
        ({"a/b": HEAD}, ValueError, NAME.format("'a/b'")),
        ({".": HEAD}, ValueError, NAME.format("'.'")),
    ],
)
def test_heads_of_a_wrong_type(heads, error, message):
    with pytest.raises(error, match=message):
        MultiHeadTrainer(keras.layers.Dense(2), heads=heads)


def test_one_head_under_two_names():
    keras.utils.set_random_seed(0)
    head = Head(keras.layers.Dense(1), "mse")
    trainer = MultiHeadTrainer(keras.layers.Dense(2), {"a": head, "b": head})
    trainer.compile("sgd", run_eagerly=True)
    trainer.fit(X, {"a": Y["price"], "b": Y["price"]}, verbose=0)
    predictions = trainer.predict(X, verbose=0)
    np.testing.assert_array_equal(predictions["a"], predictions["b"])


def test_heads_and_add_head_make_the_same_updates_and_logs():
    one, other = by_heads(), by_add_head()
    logs, others = fit(one), fit(other)
    assert list(logs) == list(others)
    for name, values in logs.items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)
    assert one.get_config() == other.get_config()
    assert_same_predictions(one, other)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["keras", "weights"])
def test_a_trainer_is_saved_and_goes_on_as_one_by_add_head(form, tmp_path):
    expected, saved = by_add_head(), by_heads()
    fit(expected)
    fit(saved)
    if form == "keras":
        saved.save(tmp_path / "trainer.keras")
        loaded = keras.models.load_model(tmp_path / "trainer.keras")
    else:
        saved.save_weights(tmp_path / "trainer.weights.h5")
        loaded = by_add_head()
        fit(loaded, 1)  # weights are loaded into what is built
        loaded.load_weights(tmp_path / "trainer.weights.h5")
    assert list(loaded.heads) == list(OPTIONS)
    for name, options in OPTIONS.items():
        head = loaded.heads[name]
        assert isinstance(head, Head)
        for field in ("weight", "trains_encoder", "ignore_label", "class_weight", "learning_rate_multiplier"):
            assert getattr(head, field) == options.get(field, getattr(HEAD, field)), (name, field)
    assert_same_predictions(loaded, expected)
    if form == "keras":  # with the optimizer's state
        fit(loaded, 1)
        fit(expected, 1)
        assert_same_predictions(loaded, expected)


@pytest.mark.filterwarnings("ignore:.build.* was called on layer:UserWarning")  # Keras 3, of one that was not fitted
def test_heads_are_read_only_and_show_what_is_present():
    trainer = by_heads()
    given = trainer.heads
    for change in (
        lambda: given.__setitem__("price", HEAD),
        lambda: given.__delitem__("price"),
        lambda: given.update({"price": HEAD}),
        lambda: given.pop("price"),
    ):
        with pytest.raises((TypeError, AttributeError)):
            change()
    with pytest.raises(AttributeError):
        trainer.heads = {}
    assert (given["price"].weight, given["price"].target_scaling.mean) == (0.5, None)

    fit(trainer)
    trainer.set_weight("price", 0.25)
    assert trainer.heads["price"].weight == 0.25 and given["price"].weight == 0.5
    np.testing.assert_allclose(trainer.heads["price"].target_scaling.mean, Y["price"].mean(), rtol=1e-5)
    np.testing.assert_allclose(trainer.heads["price"].target_scaling.deviation, Y["price"].std(), rtol=1e-5)

    # As values, they make a trainer that goes on from there.
    other = MultiHeadTrainer(trainer.encoder, trainer.heads)
    other.compile("sgd")
    assert other.heads["price"].weight == 0.25
    assert_same_predictions(other, trainer)
    trainer.remove_head("probe")
    assert list(trainer.heads) == ["price", "kind"] and list(given) == list(OPTIONS)
