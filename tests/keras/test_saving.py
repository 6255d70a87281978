"""A whole trainer is saved, loaded and trained further."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, balancing, clipping, schedules
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")


def test_a_whole_trainer_is_saved_and_goes_on(tmp_path):
    x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
    y = {"a": x.sum(1, keepdims=True), "b": (x[:, 0] > 0).astype("int64")}

    def fitted():
        keras.utils.set_random_seed(1)
        trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        trainer.add_head("a", keras.layers.Dense(1), "mse", weight=0.5)
        trainer.add_head(
            "b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy", metrics=["accuracy"]
        )
        trainer.compile(
            keras.optimizers.Adam(0.05),
            balancer=balancing.NormBudget({"a": 0.3}),
            head_schedule=schedules.Alternate({"a": 1, "b": 2}),
            clip=clipping.ByGlobalNorm(1.0),
            micro_batches=2,
        )
        tiny.fit_once(trainer, x, y, epochs=2)
        return trainer

    trainer = fitted()
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    assert tiny.values([loaded.update_count]) == [2]
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(a, b)
    tiny.fit_once(trainer, x, y, epochs=2)
    tiny.fit_once(loaded, x, y, epochs=2)
    for a, b in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("whole", [False, True], ids=["weights", "trainer"])
def test_on_two_replicas_a_trainer_with_metrics_is_saved_and_loaded(whole, two_replicas, tmp_path):
    def made():
        trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        for name in "ab":
            trainer.add_head(name, keras.layers.Dense(1), "mse", metrics=[keras.metrics.MeanAbsoluteError()])
        trainer.compile("sgd")
        return trainer

    y = {"a": X[:, :1], "b": X[:, 1:2]}
    with two_replicas.scope():
        trainer = made()
    trainer.fit(X, y, batch_size=6, verbose=0)
    if whole:
        trainer.save(tmp_path / "trainer.keras")
        with two_replicas.scope():
            loaded = keras.models.load_model(tmp_path / "trainer.keras")
    else:
        trainer.save_weights(tmp_path / "a.weights.h5")
        with two_replicas.scope():
            loaded = made()
        loaded.fit(X, {**y, "a": y["b"]}, batch_size=6, verbose=0)
        loaded.load_weights(tmp_path / "a.weights.h5")
    for one, other in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(one, other)


X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": (X[:, 0] > 0).astype("int64"), "c": X[:, :1]}


def small(heads="ab", optimizer="adam", **options):
    """A trainer of some of the heads a, b and c; the modules of a and c have variables of the same shapes."""
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    for name in heads:
        units, loss = {"a": (1, "mse"), "b": (2, keras.losses.SparseCategoricalCrossentropy(True)), "c": (1, "mae")}[name]
        trainer.add_head(name, keras.layers.Dense(units), loss)
    if optimizer:
        trainer.compile(optimizer, **options)
    return trainer


def fit(trainer, **options):
    return tiny.fit_once(trainer, X, {name: Y[name] for name in trainer.heads}, **options)


def assert_equal_weights(one, other):
    for name in one.heads:
        for a, b in zip(
            tiny.values(one.heads[name].module.weights), tiny.values(other.heads[name].module.weights), strict=True
        ):
            np.testing.assert_array_equal(a, b)
    for a, b in zip(tiny.values(one.encoder.weights), tiny.values(other.encoder.weights), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "loss",
    [
        keras.losses.Huber(delta=0.3),
        keras.losses.Huber,
        keras.losses.CosineSimilarity(axis=-1),
        keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.2),
        keras.losses.BinaryFocalCrossentropy(gamma=3.0, alpha=0.4, apply_class_balancing=True),
    ],
    ids=["option", "class", "axis", "logits", "focal"],
)
def test_a_loss_keeps_its_options(loss, tmp_path):
    """Keras 3 saves some losses without their options, so that they would come back as others."""
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    metric = keras.metrics.BinaryCrossentropy(from_logits=True, label_smoothing=0.1, name="entropy")
    trainer.add_head("a", keras.layers.Dense(2, activation="hard_sigmoid"), loss, metrics=[metric])
    trainer.compile("sgd", run_eagerly=True)
    targets = {"a": (X[:, :2] > 0).astype("float32")}
    trainer.compute_gradients((X, targets))
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    wanted = trainer.evaluate(X, targets, verbose=0, return_dict=True)
    assert loaded.evaluate(X, targets, verbose=0, return_dict=True) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
@pytest.mark.parametrize("change", ["not compiled", "head added", "head added and compiled", "head dropped"])
def test_a_trainer_is_loaded_again_whatever_was_done_to_it_last(change, tmp_path):
    trainer = small("ab", optimizer=None if change == "not compiled" else "adam", run_eagerly=True)
    if change != "not compiled":
        fit(trainer)
    if change.startswith("head added"):
        trainer.add_head("c", keras.layers.Dense(1), "mse")
    if change == "head added and compiled":
        trainer.compile("adam", run_eagerly=True)
    if change == "head dropped":
        trainer.remove_head("b")
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    assert list(loaded.heads) == list(trainer.heads)
    if change != "not compiled":
        assert_equal_weights(trainer, loaded)
    loaded.compile("adam", run_eagerly=True)
    fit(loaded)
    assert int(loaded.update_count) == int(trainer.update_count) + 1


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:You are saving a model that has not yet been built")
@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_trainer_that_has_seen_no_data_is_saved_and_loaded_again_and_again(times, tmp_path):
    layers = [keras.layers.LayerNormalization(), keras.layers.Dense(3), keras.layers.Dense(2)]
    parts = [keras.Sequential(layers[:2]), layers[2], keras.layers.Dense(1)]
    for part in parts:
        part(np.zeros((1, 3), "float32"))
    trainer = MultiHeadTrainer(parts[0], heads={"a": Head(parts[1], "mse"), "b": Head(parts[2], "mse")})
    expected = [parts[0](X[:2]), *(trainer.heads[name].module(np.ones((2, 3), "float32")) for name in "ab")]
    for _ in range(times):
        trainer.save(tmp_path / "trainer.keras")
        trainer = keras.models.load_model(tmp_path / "trainer.keras")
    found = [trainer.encoder(X[:2]), *(trainer.heads[name].module(np.ones((2, 3), "float32")) for name in "ab")]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("balancer", quick(2, ["MoCo", "Chain", "DBMTL", "ExcessMTL", "GradVac"]))
def test_tensorflows_checkpoints_hold_the_state_of_methods(balancer, tmp_path):
    def built():
        config = balancing.Chain("EqualNorms", "MoCo") if balancer == "Chain" else balancer
        trainer = small("ab", "sgd", balancer=config, balance_at="parameters", run_eagerly=True)
        trainer.compute_gradients((X, {name: Y[name] for name in "ab"}))
        return trainer

    saved, restored = built(), built()
    fit(saved, epochs=2)
    path = tf.train.Checkpoint(saved).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(restored).restore(path)
    state = tiny.values(saved.balancer.non_trainable_variables)
    assert state
    for a, b in zip(state, tiny.values(restored.balancer.non_trainable_variables), strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_of_an_earlier_epoch_leave_one_count_of_updates():
    class Worse(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_loss"] = float(epoch)

    trainer = small(run_eagerly=True)
    stop = keras.callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True)
    fit(trainer, epochs=4, callbacks=[Worse(), stop])
    assert tiny.values([trainer.update_count, trainer.optimizer.iterations]) == [2, 2]
    assert int(small(optimizer=None).update_count) == 0


def test_weights_are_loaded_into_the_head_of_the_same_name(tmp_path):
    saved, other = small("ac"), small("ca")
    for trainer in (saved, other):
        trainer.compute_gradients((X, {name: Y[name] for name in "ac"}))
    saved.save_weights(tmp_path / "of.weights.h5")
    other.load_weights(tmp_path / "of.weights.h5")
    assert_equal_weights(saved, other)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # as Keras does for its models
def test_weights_are_loaded_into_a_new_trainer_once_it_has_seen_inputs(tmp_path):
    saved, new = small(), small()
    fit(saved, epochs=1)
    saved.save_weights(tmp_path / "of.weights.h5")
    with pytest.raises(ValueError, match="Received: a trainer that has seen no data. Call `fit` with a batch first"):
        new.load_weights(tmp_path / "of.weights.h5")
    new.predict(X[:1], verbose=0)
    new.load_weights(tmp_path / "of.weights.h5")
    assert_equal_weights(saved, new)


def test_a_new_trainer_with_a_scaling_loads_weights_as_the_error_says(tmp_path):
    saved, new = (tiny.trainer("adam", ["size"], target_scaling="standardize") for _ in range(2))
    tokens, targets = tiny.data(8, missing=False)
    sizes = {"size": targets["size"]}
    tiny.fit_once(saved, tokens, sizes, epochs=2)
    saved.save_weights(tmp_path / "of.weights.h5")
    with pytest.raises(ValueError, match="Call `fit` with a batch first, all of which the weights replace"):
        new.load_weights(tmp_path / "of.weights.h5")
    tiny.fit_once(new, tokens[:3], {"size": 5.0 * targets["size"][:3] + 7.0}, epochs=1)
    new.load_weights(tmp_path / "of.weights.h5")
    assert_equal_weights(saved, new)
    np.testing.assert_array_equal(saved.predict(tokens, verbose=0)["size"], new.predict(tokens, verbose=0)["size"])
    assert new.num_updates == saved.num_updates


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # as Keras does for its models
@pytest.mark.parametrize("after", ["evaluate", "fit"])
def test_weights_that_were_saved_before_any_targets_are_loaded(after, tmp_path):
    saved, new = small(), small()
    saved.predict(X, verbose=0)
    saved.save_weights(tmp_path / "of.weights.h5")
    fit(new, epochs=1) if after == "fit" else new.evaluate(X, {"a": Y["a"], "b": Y["b"]}, verbose=0)
    new.load_weights(tmp_path / "of.weights.h5")
    assert_equal_weights(saved, new)
    fit(new, epochs=1)


@pytest.mark.filterwarnings("ignore:Skipping variable loading for optimizer")  # as Keras does for its models
@pytest.mark.first_cases(2)
@pytest.mark.parametrize("balancer", ["NormFloor", None, "UPGrad", "MoCo"])
def test_weights_are_loaded_into_a_new_trainer_of_built_modules(balancer, tmp_path):
    def new():
        inputs = keras.Input((3,))
        hidden = keras.layers.Dense(4)(inputs)
        model = keras.Model(inputs, [keras.layers.Dense(1, name=name)(hidden) for name in "ab"])
        model.compile("adam", "mse")
        trainer = MultiHeadTrainer.from_model(model)
        trainer.compile(balancer=balancer, balance_at="parameters" if balancer == "MoCo" else "representation")
        return trainer

    saved, other = new(), new()
    tiny.fit_once(saved, X, {"a": Y["a"], "b": Y["a"]}, epochs=1)
    saved.save_weights(tmp_path / "of.weights.h5")
    if balancer == "MoCo":  # whose state has the shapes of gradients
        with pytest.raises(ValueError, match="a trainer that has seen no data. Call `fit` with a batch first"):
            other.load_weights(tmp_path / "of.weights.h5")
        other.evaluate(X[:1], {"a": Y["a"][:1], "b": Y["a"][:1]}, verbose=0)
    other.load_weights(tmp_path / "of.weights.h5")
    assert_equal_weights(saved, other)


def test_weights_of_a_model_that_is_no_trainer_are_refused_with_what_to_do(tmp_path):
    trainer = small()
    fit(trainer, epochs=1)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
    model.save_weights(tmp_path / "of.weights.h5")
    before = tiny.values(trainer.encoder.variables)
    with pytest.raises(ValueError, match="must be those of a trainer.*Call `load_weights` of that model"):
        trainer.load_weights(tmp_path / "of.weights.h5")
    np.testing.assert_equal(tiny.values(trainer.encoder.variables), before)


def test_weights_that_do_not_fit_change_nothing(tmp_path):
    saved, other = small("ab"), small("ac")
    for trainer in (saved, other):
        fit(trainer, epochs=1)
    saved.save_weights(tmp_path / "of.weights.h5")
    state = [*other.variables, *other.optimizer.variables]
    before = tiny.values(state)
    with pytest.raises(ValueError, match="(?s)`filepath` must hold what the encoder and the heads.*skip_mismatch=True"):
        other.load_weights(tmp_path / "of.weights.h5")
    np.testing.assert_equal(tiny.values(state), before)


class Linear(tf.Module):
    def __init__(self, inputs):
        super().__init__()
        self.kernel = tf.Variable(tf.ones([inputs, 1]) * 0.1)

    def __call__(self, inputs):
        return tf.matmul(inputs, self.kernel)


def test_weights_of_tf_modules_are_saved_which_keras_alone_does_not_restore(tmp_path):
    def trained(updates):
        trainer = MultiHeadTrainer(Linear(3))
        trainer.add_head("a", Linear(1), "mse")
        trainer.compile(keras.optimizers.SGD(0.1))
        for _ in range(updates):
            trainer.apply_gradients(trainer.compute_gradients((X, {"a": Y["a"]})))
        return trainer

    saved, other = trained(2), trained(1)
    saved.save_weights(tmp_path / "all.weights.h5")
    other.load_weights(tmp_path / "all.weights.h5")
    for of in (lambda trainer: trainer.encoder, lambda trainer: trainer.heads["a"].module):
        np.testing.assert_array_equal(of(other).kernel.numpy(), of(saved).kernel.numpy())
    assert tiny.values([other.update_count]) == [2]
