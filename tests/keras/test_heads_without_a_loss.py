"""Heads that are not trained: without a loss, and with a weight of 0."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, schedules
from multihead.callbacks import HeadEarlyStopping

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(24, 5)).astype("float32")
Y = {"price": X[:, :1], "code": np.where(X[:, :3] > 1, np.nan, X[:, :3]).astype("float32")}


def dense(units, activation=None, **options):
    return keras.layers.Dense(units, activation, kernel_initializer=keras.initializers.GlorotUniform(units), **options)


def trainer(*, measured=True, metrics=("mae",), **options):
    made = MultiHeadTrainer(dense(4, "tanh"))
    made.add_head("price", dense(1), "mse", metrics=["mae"])
    made.add_head("kind", dense(3, "softmax"), "sparse_categorical_crossentropy")
    if measured:
        made.add_head("code", dense(3, kernel_regularizer="l2"), None, metrics=list(metrics))
    made.compile("adam", **options)
    return made


def targets(*names):
    every = {**Y, "kind": np.arange(24) % 3}
    return {name: every[name] for name in names}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("options", "with_targets"),
    [
        ({"micro_batches": 2, "balancer": "UPGrad", "weighting": "Uncertainty"}, True),
        ({"gradient_accumulation_steps": 2, "telemetry": "full"}, False),
        ({"head_schedule": schedules.Alternate({"price": 1, "kind": 2})}, True),
    ],
    ids=["micro-batches-True", "accumulated-False", "schedule-True"],
)
def test_training_is_what_it_is_without_the_head(options, with_targets):
    with_it, without = trainer(**options), trainer(measured=False, **options)
    given = targets("price", "kind", *(["code"] if with_targets else []))
    history = with_it.fit(X, given, epochs=2, batch_size=8, shuffle=False, verbose=0).history
    other = without.fit(X, targets("price", "kind"), epochs=2, batch_size=8, shuffle=False, verbose=0).history
    assert history.keys() - other.keys() == ({"code_mae"} if with_targets else set())
    for name, values in other.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-5, err_msg=name)
    for name in ("price", "kind"):
        np.testing.assert_allclose(with_it.predict(X, verbose=0)[name], without.predict(X, verbose=0)[name], rtol=1e-4)


def test_the_head_is_measured_predicted_and_not_trained():
    made = trainer()
    made.fit(X, targets("price", "kind"), verbose=0)
    before = [np.array(weight) for weight in made.heads["code"].module.get_weights()]
    history = made.fit(X, targets("price", "kind", "code"), batch_size=24, verbose=0, validation_data=(X, targets("code")))
    for one, other in zip(before, made.heads["code"].module.get_weights()):
        np.testing.assert_array_equal(one, other)
    found = made.evaluate(X, targets("price", "code"), verbose=0, return_dict=True)
    errors = np.abs(Y["code"] - made.predict(X, verbose=0)["code"])
    assert found["code_mae"] == pytest.approx(np.nanmean(errors), rel=1e-5)
    assert history.history["val_code_mae"][-1] == pytest.approx(found["code_mae"], rel=1e-5)
    assert "code_loss" not in found and found["loss"] == pytest.approx(found["price_loss"])
    assert np.isnan(made.evaluate(X, {"code": np.full_like(Y["code"], np.nan)}, verbose=0, return_dict=True)["code_mae"])


def test_saved_loaded_and_exported(tmp_path):
    made = trainer()
    made.fit(X, targets("price", "kind", "code"), verbose=0)
    made.save(tmp_path / "saved.keras")
    loaded = keras.models.load_model(tmp_path / "saved.keras")
    given = X, targets("price", "kind", "code")
    both = [each.evaluate(*given, verbose=0, return_dict=True) for each in (made, loaded)]
    assert both[0] == pytest.approx(both[1]) and loaded.heads["code"].loss is None
    loaded.fit(*given, verbose=0)
    made.export(tmp_path / "exported")
    served = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"](inputs=tf.constant(X))
    np.testing.assert_allclose(served["code"], made.predict(X, verbose=0)["code"], rtol=1e-4, atol=1e-6)


def test_callbacks_diagnose_and_a_custom_loop_leave_the_head_out():
    made = trainer()
    data = X, targets("price", "kind", "code")
    made.fit(*data, verbose=0, validation_data=data, callbacks=[HeadEarlyStopping()])
    assert made.diagnose(*data, batches=1).heads == ("price", "kind")
    pairs = made.compute_gradients(data)
    held = {id(variable) for _, variable in pairs}
    assert not any(id(variable) in held for variable in made.heads["code"].module.trainable_variables)
    assert list(pairs.losses) == ["price", "kind"]


@pytest.mark.parametrize(
    "option",
    [
        {"weight": 0.0},
        {"class_weight": {0: 2.0}},
        {"learning_rate_multiplier": 0.1},
        {"target_scaling": "standardize"},
        {"teacher_forcing": True},
    ],
    ids=lambda option: next(iter(option)),
)
def test_options_of_training_are_refused(option):
    rule = (
        f"`loss` of head 'code' must not be None with options of training. Received: loss=None with '{next(iter(option))}'"
    )
    with pytest.raises(ValueError, match=rule):
        MultiHeadTrainer(tf.identity).add_head("code", keras.layers.Dense(3), None, **option)


def test_what_trains_nothing_is_refused():
    made = MultiHeadTrainer(keras.layers.Dense(4))
    made.add_head("code", keras.layers.Dense(3), None)
    with pytest.raises(ValueError, match="`compile` needs at least one head with a loss"):
        made.compile("sgd")
    with pytest.raises(ValueError, match="`name` must be one of 'price', 'kind'"):
        trainer().set_weight("code", 0.0)


@pytest.mark.parametrize("when", ["added", "set"])
def test_a_head_of_weight_0_needs_no_targets(when):
    made = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    made.add_head("price", keras.layers.Dense(1), "mse")
    made.add_head("kind", keras.layers.Dense(3), "mse", weight=0.0 if when == "added" else 1.0, metrics=["mae"])
    made.compile("sgd")
    if when == "set":
        made.fit(X, {"price": X[:, :1], "kind": X[:, :3]}, verbose=0)
        made.set_weight("kind", 0.0)
    history = made.fit(X, {"price": X[:, :1]}, verbose=0, epochs=2).history
    assert history["price_loss"][1] < history["price_loss"][0] and np.isnan(history["kind_loss"][-1])
    made.set_weight("kind", 1.0)
    with pytest.raises(ValueError, match="The targets must have a key for every head, but the head 'kind' has none"):
        made.fit(X, {"price": X[:, :1]}, verbose=0)
    assert made.fit(X, {"price": X[:, :1], "kind": X[:, :3]}, verbose=0).history["kind_loss"][-1] > 0


@pytest.mark.skipif(keras.__version__ > "3", reason="Keras 3 has no DatasetCreator")
def test_batches_of_which_nothing_is_known_before_the_first_must_have_targets_of_all_heads():
    made = MultiHeadTrainer(keras.layers.Dense(4))
    made.add_head("price", keras.layers.Dense(1), "mse")
    made.add_head("kind", keras.layers.Dense(3), "mse")
    made.compile("sgd")
    made.fit(X, {"price": X[:, :1], "kind": X[:, :3]}, verbose=0)

    def creator(targets):
        batches = tf.data.Dataset.from_tensor_slices((X, targets)).batch(4).repeat()
        return keras.utils.experimental.DatasetCreator(lambda context: batches)

    with pytest.raises(ValueError, match="The targets must have a key for every head, but the head 'kind' has none"):
        made.fit(creator({"price": X[:, :1]}), steps_per_epoch=2, verbose=0)
    made.fit(creator({"price": X[:, :1], "kind": X[:, :3]}), steps_per_epoch=2, verbose=0)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("moment", ["on_train_begin", "on_epoch_begin", "on_train_batch_end"])
@pytest.mark.parametrize("eager", [False, True])
def test_a_callback_cannot_turn_on_a_head_without_targets_in_the_data(moment, eager):
    made = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    made.add_head("price", keras.layers.Dense(1), "mse")
    made.add_head("kind", keras.layers.Dense(3), "mse", weight=0.0)
    made.compile("sgd", run_eagerly=eager)
    callback = keras.callbacks.Callback()
    setattr(callback, moment, lambda *_, **__: made.set_weight("kind", 1.0))
    with pytest.raises(ValueError, match="without targets in the data of the running `fit`.*name='kind', value=1.0"):
        made.fit(X, {"price": X[:, :1]}, verbose=0, callbacks=[callback])
    history = made.fit(X, {"price": X[:, :1], "kind": X[:, :3]}, epochs=2, verbose=0, callbacks=[callback]).history
    assert history["kind_loss"][-1] > 0
    made.set_weight("kind", 2.0)  # outside of `fit`, whose data are not known
