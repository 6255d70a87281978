"""Heads with scaled targets are those of a trainer whose labels were scaled by hand, in NumPy, and undone in NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, scaling
from tests.helpers import keras_twin
from tests.helpers.tiny import values


@keras.saving.register_keras_serializable(package="tests")
class Arcsinh(keras.layers.Layer):
    """A layer that can be inverted, with a state of its own."""

    def __init__(self, unit=1.0, **options):
        super().__init__(**options)
        self.unit = unit

    def build(self, input_shape=None):
        self.factor = self.add_weight(
            name="factor", shape=(), trainable=False, initializer=keras.initializers.Constant(self.unit)
        )

    def call(self, y):
        return tf.asinh(y / tf.convert_to_tensor(self.factor))

    def inverse(self, z):
        return tf.sinh(z) * tf.convert_to_tensor(self.factor)

    def get_config(self):
        return {**super().get_config(), "unit": self.unit}


ROWS = 22
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
SCALINGS = {
    "sizes": lambda y: "standardize",
    "price": lambda y: scaling.Log(shift=1.0),
    "money": lambda y: Arcsinh(100.0),
    "given": lambda y: keras.layers.Rescaling(0.01, offset=-3.0),
}
COLUMNS = {"sizes": 2, "price": 1, "money": 1, "given": 1}


def targets(labels):
    rng = np.random.default_rng(1)
    found = {
        "sizes": np.stack([5000 + 900 * X[:, 0], 0.01 * X[:, 1]], axis=1),
        "price": np.exp(6 + 2 * X[:, 2]) - 1,
        "money": 1000 * X[:, :1] ** 3,
        "given": 300 + 100 * X[:, 0],
    }
    found = {name: y.astype("float32") for name, y in found.items()}
    if labels != "all":
        for y in found.values():
            y[rng.random(y.shape) < 0.3] = np.nan
    weights = None
    if labels == "weighted":
        weights = {name: rng.choice([0.0, 1.0, 2.5], ROWS).astype("float32") for name in ("sizes", "price")}
    return found, weights


def by_hand(name, y, weights):
    """Scaled labels, and the way back, in NumPy with float64."""
    counted = y.astype("float64")
    if weights and name in weights:
        counted[weights[name] == 0] = np.nan
    if name == "money":
        return np.asarray(Arcsinh(100.0)(y)), lambda z: np.sinh(z) * 100
    if name == "given":
        return ((y.astype("float64") - 300) / 100).astype("float32"), lambda z: 300 + 100 * z
    before, after = (np.log1p, np.expm1) if name == "price" else (lambda y: y, lambda z: z)
    if name == "price":
        before = lambda y: np.log(y + 1)  # noqa: E731
    mean, deviation = (f(before(counted), axis=0) for f in (np.nanmean, np.nanstd))
    return ((before(y.astype("float64")) - mean) / deviation).astype("float32"), lambda z: after(z * deviation + mean)


def trainer_of(scaled, y, **options):
    keras.utils.set_random_seed(5)
    trainer = MultiHeadTrainer(keras.layers.Dense(6, activation="tanh"))
    for name, make in list(SCALINGS.items())[: len(y)]:
        head = keras.layers.Dense(COLUMNS[name])
        trainer.add_head(name, head, "mse", metrics=["mae"], target_scaling=make(y) if scaled else None)
    trainer.compile(keras.optimizers.Adam(0.05), **options)
    return trainer


class Batches:
    """What yields batches for as many passes as are wanted."""

    def __init__(self, parts):
        self.parts = parts

    def __iter__(self):
        return iter(self.parts)


def data_of(kind, x, y, weights):
    parts = (x, y) if weights is None else (x, y, {**{name: np.ones(len(x), "float32") for name in y}, **weights})
    if kind == "arrays":
        return {"x": x, "y": y, "sample_weight": weights, "batch_size": 8, "shuffle": False}
    dataset = tf.data.Dataset.from_tensor_slices(parts).batch(8)
    if kind == "dataset":
        return {"x": dataset}
    batches = [tf.nest.map_structure(lambda tensor: tensor.numpy(), batch) for batch in dataset]
    return {"x": keras_twin.Batches(batches), "shuffle": False} if kind == "sequence" else {"x": Batches(batches)}


@pytest.mark.first_cases(1)
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of Keras 3, at the end of data of unknown length
@pytest.mark.parametrize(
    ("labels", "kind"), [("weighted", "batches"), ("missing", "arrays"), ("all", "dataset"), ("missing", "sequence")]
)
def test_training_is_that_on_labels_scaled_by_hand_bit_for_bit(labels, kind):
    y, weights = targets(labels)
    hand = {name: by_hand(name, of_head, weights) for name, of_head in y.items()}
    found = []
    for scaled, given in ((True, y), (False, {name: z for name, (z, _) in hand.items()})):
        trainer = trainer_of(scaled, y, run_eagerly=True, gradient_accumulation_steps=2)
        logs = trainer.fit(**data_of(kind, X, given, weights), epochs=2, verbose=0).history
        found.append((trainer, logs, trainer.predict(X, verbose=0)))
    (ours, logs, predicted), (theirs, expected, scaled) = found
    for one, other in zip(values(ours.trainable_variables), values(theirs.trainable_variables), strict=True):
        np.testing.assert_array_equal(one, other)
    for name, (_, back) in hand.items():
        assert logs[f"{name}_loss"] == expected[f"{name}_loss"] and predicted[name].dtype == "float32"
        np.testing.assert_allclose(predicted[name], back(scaled[name].astype("float64")), rtol=1e-5, atol=1e-6)
    evaluated = ours.evaluate(X, y, sample_weight=weights, verbose=0, return_dict=True)
    for name, of_head in y.items():
        apart = np.abs(predicted[name] - of_head.reshape(ROWS, -1)).astype("float64")
        weight = np.ones(ROWS) if weights is None or name not in weights else weights[name]
        counted = np.broadcast_to(weight[:, None] > 0, apart.shape) & ~np.isnan(apart)  # `metrics` are not weighted
        mae = apart[counted].mean()
        np.testing.assert_allclose(evaluated[f"{name}_mae"], mae, rtol=1e-5)


# What is learned


def fitted(x, y, target_scaling="standardize", encoder=None, module=None, **arguments):
    trainer = MultiHeadTrainer(encoder or keras.layers.Dense(2))
    trainer.add_head("a", module or keras.layers.Dense(1), "mse", target_scaling=target_scaling)
    trainer.compile("sgd", run_eagerly=True)
    trainer.fit(x, y, verbose=0, **arguments)
    return trainer


def test_both_replicas_have_the_numbers_of_all_labels(two_replicas):
    with two_replicas.scope():
        trainer = fitted(X, {"a": X[:, 0]}, batch_size=11)
    labels = X[:, 0].astype("float64")
    found = trainer.heads["a"].target_scaling
    np.testing.assert_allclose([found.mean, found.deviation], [labels.mean(), labels.std()], rtol=1e-12)


def test_labels_under_a_mask_are_not_learned_from():
    tokens = np.array([[1, 2, 3, 0], [4, 0, 0, 0], [2, 2, 0, 0]])
    y = np.where(tokens > 0, 10.0 * tokens, 999.0).astype("float32")
    encoder = keras.Sequential([keras.layers.Embedding(5, 3, mask_zero=True), keras.layers.Dense(2)])
    found = fitted(tokens, {"a": y}, encoder=encoder).heads["a"].target_scaling
    labels = 10.0 * tokens[tokens > 0]
    np.testing.assert_allclose([found.mean, found.deviation], [labels.mean(), labels.std()], rtol=1e-12)


def test_columns_share_the_numbers_only_if_asked_for():
    y = np.array([[1.0, 100.0], [2.0, np.nan], [3.0, 500.0]], "float32")
    apart = fitted(X[:3], {"a": y}, module=keras.layers.Dense(2)).heads["a"].target_scaling
    np.testing.assert_allclose([apart.mean, apart.deviation], [np.nanmean(y, 0, "float64"), np.nanstd(y, 0, "float64")])
    one = fitted(X[:3], {"a": y}, scaling.Standardize(by_column=False), module=keras.layers.Dense(2))
    one = one.heads["a"].target_scaling
    np.testing.assert_allclose([one.mean, one.deviation], [np.nanmean(y, dtype="float64"), np.nanstd(y, dtype="float64")])


def test_equal_labels_keep_their_scale_and_whole_numbers_their_digits():
    assert fitted(X[:2], {"a": np.array([7.0, 7.0])}).heads["a"].target_scaling.deviation == 1.0
    seconds = np.array([1_700_000_001, 1_700_000_003], "int64")  # float32 cannot tell them apart
    trainer = fitted(X[:2], {"a": seconds})
    assert trainer.heads["a"].target_scaling.mean == 1_700_000_002.0
    module = trainer.heads["a"].module
    module.set_weights([np.zeros_like(each) for each in module.get_weights()])
    assert trainer.evaluate(X[:2], {"a": seconds}, verbose=0, return_dict=True)["a_loss"] == 1.0  # of -1 and 1, to 0


def test_nothing_is_learned_a_second_time_but_by_a_head_added_again():
    trainer = fitted(X[:4], {"a": np.array([1.0, 2.0, 3.0, 4.0])})
    trainer.fit(X[:4], {"a": np.array([10.0, 20.0, 30.0, 40.0])}, verbose=0)
    assert trainer.heads["a"].target_scaling.mean == 2.5
    trainer.add_head("b", keras.layers.Dense(1), "mse", target_scaling="log")
    trainer.compile("sgd", run_eagerly=True)
    with pytest.raises(ValueError, match="`target_scaling` of 'b' must be known before `evaluate`"):
        trainer.evaluate(X[:4], {"a": np.ones(4)}, verbose=0)
    trainer.fit(X[:4], {"a": np.ones(4), "b": np.full(4, np.e)}, verbose=0)
    assert trainer.heads["a"].target_scaling.mean == 2.5
    np.testing.assert_allclose(trainer.heads["b"].target_scaling.mean, 1.0, rtol=1e-6)
    trainer.remove_head("a")
    trainer.add_head("a", keras.layers.Dense(1), "mse", target_scaling="standardize")
    trainer.compile("sgd", run_eagerly=True)
    trainer.fit(X[:4], {"a": np.array([10.0, 20.0, 30.0, 40.0]), "b": np.ones(4)}, verbose=0)
    assert trainer.heads["a"].target_scaling.mean == 25.0


# What is saved


@pytest.fixture(scope="module")
def trained():
    y, _ = targets("missing")
    trainer = trainer_of(True, y, run_eagerly=True)
    trainer.fit(X, y, verbose=0)
    return trainer, y, trainer.predict(X, verbose=0)


def test_a_loaded_trainer_predicts_the_same_and_learns_nothing_again(trained, tmp_path):
    trainer, y, predicted = trained
    trainer.save(tmp_path / "trainer.keras")
    loaded = keras.models.load_model(tmp_path / "trainer.keras")
    again = loaded.predict(X, verbose=0)
    for name, of_head in predicted.items():
        np.testing.assert_array_equal(again[name], of_head)
    loaded.fit(X, {name: 2 * of_head + 7 for name, of_head in y.items()}, verbose=0)
    for name in predicted:
        assert (
            repr(loaded.heads[name].target_scaling).partition("layer")[0]
            == repr(trainer.heads[name].target_scaling).partition("layer")[0]
        )
    trainer.save_weights(tmp_path / "w.weights.h5")
    loaded.load_weights(tmp_path / "w.weights.h5")
    for name, of_head in loaded.predict(X, verbose=0).items():
        np.testing.assert_array_equal(of_head, predicted[name])


def test_an_export_answers_in_the_targets_units(trained, tmp_path):
    trainer, _, predicted = trained
    trainer.export(tmp_path / "all")
    answers = tf.saved_model.load(str(tmp_path / "all")).signatures["serving_default"](inputs=tf.constant(X))
    for name, of_head in predicted.items():
        np.testing.assert_allclose(answers[name], of_head, rtol=1e-5, atol=1e-5)
    twice = {"generate": lambda z: trainer.heads["given"].module(z) * 2, "postprocess": lambda y: y - 300}
    trainer.export(tmp_path / "one", "given", **twice)
    answer = tf.saved_model.load(str(tmp_path / "one")).signatures["serving_default"](inputs=tf.constant(X))["given"]
    np.testing.assert_allclose(answer, 2 * (predicted["given"] - 300), rtol=1e-4, atol=1e-3)


# Modules and precision


class Copying(keras.layers.Layer):
    """Reads its targets in training, and predicts a number alone."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen = []

    def call(self, features, targets):
        self.seen.append(targets)
        return self.dense(features) + 0 * tf.reshape(targets, [-1, 1])

    def generate(self, features):
        return self.dense(features)


def test_a_module_that_reads_its_targets_has_scaled_ones():
    module = Copying()
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", module, "mse", teacher_forcing=True, target_scaling=scaling.Standardize(100.0, 10.0))
    trainer.compile("sgd", run_eagerly=True)
    trainer.train_on_batch(X[:3], {"a": np.array([110.0, np.nan, 90.0])})
    assert module.seen[-1].numpy().tolist() == [1.0, 0.0, -1.0]
    alone = np.asarray(module.generate(trainer.encoder(X[:3])))
    np.testing.assert_allclose(trainer.predict(X[:3], verbose=0)["a"], alone * 10 + 100, rtol=1e-5)
    module.generate = lambda features: {"a": features}
    with pytest.raises(ValueError, match="`target_scaling` of head 'a' requires predictions that are one floating tensor"):
        trainer.predict_on_batch(X[:3])


# What is rejected


def one_head(target_scaling="standardize", loss="mse", **options):
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), loss, target_scaling=target_scaling, **options)
    trainer.compile("sgd", run_eagerly=True)
    return trainer


def generator():
    while True:
        yield X[:4], {"a": np.arange(4.0)}


def unending():
    return tf.data.Dataset.from_tensor_slices((X, {"a": X[:, 0]})).batch(4).repeat()


def of_generator():
    signature = (tf.TensorSpec([None, 3]), {"a": tf.TensorSpec([None])})
    return tf.data.Dataset.from_generator(lambda: iter([(X, {"a": X[:, 0]})]), output_signature=signature)


@pytest.mark.parametrize(
    ("x", "steps"), [(generator, 2), (unending, 2), (of_generator, 1)], ids=["generator", "no end", "unknown end"]
)
def test_data_that_pass_once_need_given_numbers(x, steps):
    message = "`target_scaling` of 'a' cannot be learned from data that can be read only once.* with steps_per_epoch="
    with pytest.raises(ValueError, match=message):
        one_head().fit(x(), steps_per_epoch=steps, verbose=0)
    trainer = one_head(scaling.Standardize(2.0, 5.0))
    trainer.fit(x(), steps_per_epoch=steps, verbose=0)
    assert repr(trainer.heads["a"].target_scaling) == "scaling.Standardize(mean=2.0, deviation=5.0)"


@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # of Keras 3, at the end of each such data set
def test_a_dataset_of_unknown_length_ends_where_the_epoch_does():
    trainer = one_head()
    trainer.fit(of_generator(), verbose=0)
    np.testing.assert_allclose(trainer.heads["a"].target_scaling.mean, X[:, 0].astype("float64").mean(), rtol=1e-9)


def test_nothing_uses_numbers_that_are_not_known():
    trainer, batch = one_head(), (X[:2], {"a": np.ones(2)})
    calls = {
        "predict": lambda: trainer.predict(X, verbose=0),
        "predict` *": lambda: trainer.predict_on_batch(X),
        "evaluate": lambda: trainer.evaluate(*batch, verbose=0),
        "train_on_batch": lambda: trainer.train_on_batch(*batch),
        "test_on_batch": lambda: trainer.test_on_batch(*batch),
        "compute_gradients": lambda: trainer.compute_gradients(batch),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=rf"`target_scaling` of 'a' must be known before `{name}"):
            call()
    trainer.diagnose([batch])  # measures with the numbers of its batches, and builds
    with pytest.raises(ValueError, match="must be known before `export`"):
        trainer.export("nowhere")


class Broken(Arcsinh):
    def inverse(self, z):
        return z


class Learned(Arcsinh):
    def build(self, input_shape=None):
        self.factor = self.add_weight(name="factor", shape=(), initializer="ones")


UNSCALABLE = [
    ("log", np.full(4, np.nan), True, "`target_scaling` of head 'a' is learned from its labels.* Received: no label"),
    ("log", [1.0, 0.0, 2.0, 3.0], True, r"`targets\['a'\]` must be above 0 for the logarithm.* Received: 0 \(1 of 4"),
    ("log", [1.0, -1.0, 2.0, 3.0], False, "learned from its labels, which must be finite. Received: labels of mean .nan."),
    (scaling.Standardize([1.0, 2.0, 3.0], 1.0), np.ones(4), True, "'a' must have one mean and deviation per column"),
    (Broken(), np.ones(4), True, "a layer whose `inverse` gives back what it was given.* which makes 0.88.* of 1"),
    (Learned(), np.ones(4), True, "must be a layer without trainable variables"),
]


@pytest.mark.parametrize(("target_scaling", "labels", "checked", "message"), UNSCALABLE)
def test_labels_that_cannot_be_scaled(target_scaling, labels, checked, message):
    trainer = one_head(target_scaling)
    trainer.compile("sgd", check_labels=checked, run_eagerly=True)
    with pytest.raises(ValueError, match=message):
        trainer.fit(X[:4], {"a": np.array(labels)}, verbose=0)


@pytest.mark.parametrize(
    ("loss", "options", "reason"),
    [
        ("binary_crossentropy", {}, "takes classes, probabilities or signs"),
        ("poisson", {}, "must keep its 0"),
        ("mape", {}, "must keep its 0"),
        ("msle", {}, "would measure something else"),
        ("cosine_similarity", {}, "would measure something else"),
        ("mse", {"class_weight": {0: 2.0}}, "is weighted by class"),
    ],
)
def test_losses_of_what_is_not_measured(loss, options, reason):
    with pytest.raises(ValueError, match=f"`target_scaling` of head 'a' is for targets that are measured.*{reason}"):
        one_head("standardize", loss, **options)


def two_numbers(**of_price):
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("price", keras.layers.Dense(1), "mse", metrics=["mae"], **of_price)
    trainer.add_head("kind", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy")
    return trainer


def test_a_scaling_given_to_compile_is_that_of_add_head():
    price = (1000 + 300 * X[:, :1]).astype("float32")
    data = (X, {"price": price, "kind": (X[:, 1] > 0).astype("int64")})
    found = []
    for way in ("add_head", "compile"):
        given = {"target_scaling": "standardize"} if way == "add_head" else {}
        trainer = two_numbers(**given)
        trainer.compile("sgd", run_eagerly=True)
        trainer.diagnose(*data)  # builds, perhaps without a scaling
        if way == "compile":
            trainer.compile("sgd", run_eagerly=True, target_scaling={"price": "standardize"})
        for k, module in enumerate([trainer.encoder, *(head.module for head in trainer.heads.values())]):
            module.set_weights([np.full_like(each, 0.1 * (k + 1)) for each in module.get_weights()])
        trainer.fit(*data, epochs=3, shuffle=False, verbose=0)
        found.append(trainer.predict(X, verbose=0)["price"])
    np.testing.assert_allclose(*found, rtol=1e-5)

    learned = trainer.heads["price"].target_scaling
    assert [learned.mean, learned.deviation] == pytest.approx([price.mean(), price.std()], rel=1e-5)
    trainer.compile("sgd", target_scaling={"price": "standardize"})  # the same one: what was learned is kept
    assert trainer.heads["price"].target_scaling.mean == learned.mean
    with pytest.warns(UserWarning, match="another one than in the updates so far"):
        trainer.compile("sgd", target_scaling={"price": None})
    assert trainer.heads["price"].target_scaling is None
    np.testing.assert_allclose(trainer.predict(X, verbose=0)["price"] * price.std() + price.mean(), found[1], rtol=1e-4)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("standardize", "`target_scaling` of `compile` must be a dict by head name. Received: target_scaling='standardize'"),
        ({"prices": "standardize"}, "`target_scaling`.*'prices' is not a head"),
        ({"kind": "standardize"}, "`target_scaling` of head 'kind' is for targets that are measured"),
        ({"price": "standard"}, "standardize"),
    ],
)
def test_scalings_that_compile_refuses_change_nothing(given, match):
    trainer = two_numbers()
    trainer.compile("sgd")
    with pytest.raises((ValueError, TypeError), match=match):
        trainer.compile("sgd", target_scaling=given)
    assert trainer.heads["price"].target_scaling is None


@pytest.mark.parametrize(
    ("before", "after"), [(None, "standardize"), (None, "log"), ("log", "standardize"), ("standardize", None)]
)
def test_another_scaling_after_updates_says_that_the_module_has_learned_other_numbers(before, after):
    """As `diagnose` may suggest it to who has trained already. A module that predicts the mean of raw labels, 100, predicts
    100 deviations above it once its numbers are scaled ones."""
    price = np.random.default_rng(1).uniform(99, 101, size=(ROWS, 1))
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head(
        "price", keras.layers.Dense(1, bias_initializer=keras.initializers.Constant(100)), "mse", metrics=["mae"]
    )
    trainer.compile("sgd", run_eagerly=True, target_scaling={"price": before})  # untrained: no warning
    trainer.compile(keras.optimizers.SGD(1e-6), run_eagerly=True, target_scaling={"price": before})
    trainer.fit(X, {"price": price}, verbose=0)
    trainer.compile(keras.optimizers.SGD(1e-6), run_eagerly=True, target_scaling={"price": before})  # the same
    with pytest.warns(UserWarning, match="`target_scaling` of 'price' is another one than in the updates.*Build the"):
        trainer.compile(keras.optimizers.SGD(1e-6), run_eagerly=True, target_scaling={"price": after})
    if (before, after) == (None, "standardize"):
        wrong = trainer.fit(X, {"price": price}, verbose=0).history["price_mae"][0]
        assert wrong > 20 * np.std(price)


def test_a_head_that_is_added_to_a_trained_trainer_may_still_get_a_scaling():
    trainer = two_numbers()
    trainer.compile("sgd", run_eagerly=True)
    data = {"price": 1000 + 300 * X[:, :1], "kind": (X[:, 1] > 0).astype("int64")}
    trainer.fit(X, data, verbose=0)
    trainer.add_head("later", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", run_eagerly=True)
    trainer.compile("sgd", run_eagerly=True, target_scaling={"later": "standardize"})  # no warning
    trainer.fit(X, {**data, "later": data["price"]}, verbose=0)
    with pytest.warns(UserWarning, match="`target_scaling` of 'later' is another one"):
        trainer.compile("sgd", run_eagerly=True, target_scaling={"later": None})
