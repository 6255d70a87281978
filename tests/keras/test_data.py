"""What `fit`, `evaluate`, `predict` and `diagnose` take: all that Keras's take, and errors of our own for the rest."""

from __future__ import annotations

import functools
import gc
import itertools
import weakref

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

from multihead import Head, MultiHeadTrainer
from multihead._data.reading import as_arrays
from tests.helpers import tiny

# Keras 3 says so at the end of every dataset whose length it does not know.
pytestmark = [
    pytest.mark.usefixtures("eager_updates"),
    pytest.mark.filterwarnings("ignore:Your input ran out of data:UserWarning"),
]

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3))  # float64, as NumPy makes them
Y = RNG.normal(size=(10, 1))
W = RNG.uniform(0.5, 2.0, size=10)
BATCH = 4


def batches(*parts):
    """The batches of arrays, or of dicts of arrays, as tuples."""
    return [tuple(tiny.rows(part, i, i + BATCH) for part in parts) for i in range(0, 10, BATCH)]


class Batches(keras.utils.Sequence):
    """A `PyDataset`."""

    def __init__(self, given):
        super().__init__()
        self.given = given
        self.epochs = 0

    def __len__(self):
        return len(self.given)

    def __getitem__(self, index):
        return self.given[index]

    def on_epoch_end(self):
        self.epochs += 1


class Again:
    """Can be iterated again and again, and is nothing that Keras knows."""

    def __init__(self, given):
        self.given = given

    def __iter__(self):
        return iter(self.given)


def generator(given):
    yield from given


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(tf.nest.map_structure(lambda a: a.astype("float32"), parts)).batch(BATCH)


def frame(**columns):
    return pytest.importorskip("pandas").DataFrame(columns)


def series(values, name):
    return pytest.importorskip("pandas").Series(values, name=name)


KINDS = {
    "arrays": lambda: (X, {"size": Y}),
    "one array": lambda: (X, Y),
    "rank 1": lambda: (X, {"size": Y[:, 0]}),
    "lists": lambda: (X.tolist(), {"size": Y.tolist()}),
    "tensors": lambda: (tf.constant(X, tf.float32), {"size": tf.constant(Y, tf.float32)}),
    "frames": lambda: (frame(a=X[:, 0], b=X[:, 1], c=X[:, 2]), frame(size=Y[:, 0])),
    "series": lambda: (X, series(Y[:, 0], "size")),
    "dict of series": lambda: (X, {"size": series(Y[:, 0], None)}),
    "dataset": lambda: (dataset(X, {"size": Y}), None),
    "generator": lambda: (generator(batches(X, {"size": Y})), None),
    "iterator": lambda: (iter(batches(X, {"size": Y})), None),
    "generator of lists": lambda: (generator([[x.tolist(), {"size": y.tolist()}] for x, y in batches(X, Y)]), None),
    "PyDataset": lambda: (Batches(batches(X, Y)), None),
    "iterable": lambda: (Again(batches(X, Y)), None),
}
WAYS = ["arrays", "dataset", "generator", "PyDataset", "iterable"]
"""Those that are read in different ways: all others become arrays or a generator."""

WEIGHTED = {
    "arrays": lambda: (X, {"size": Y}, {"size": W}),
    "lists": lambda: (X, {"size": Y}, {"size": W.tolist()}),
    "series": lambda: (X, {"size": Y}, series(W, "size")),
    "generator": lambda: (generator(batches(X, {"size": Y}, {"size": W})), None, None),
    "PyDataset": lambda: (Batches(batches(X, Y, W)), None, None),
}


def start(layers):
    """The same initial weights, whatever was trained before."""
    keras.utils.set_random_seed(1)
    for layer in layers:
        layer.set_weights([np.random.default_rng(2).normal(size=w.shape) for w in layer.get_weights()])


def network():
    return keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)


def make(steps, **options):
    trainer = MultiHeadTrainer(network()[0])
    trainer.add_head("size", network()[1], "mse")
    trainer.compile(keras.optimizers.SGD(0.1), gradient_accumulation_steps=steps, **options)
    return trainer


@pytest.fixture(scope="module")
def trainers():
    """Trainers with and without accumulation, built; the tests set their weights."""
    return {steps: make(steps) for steps in (1, 2)}


@pytest.fixture(scope="module")
def expected():
    """From the batch size, and whether samples are weighted, to the weights after an epoch of Keras's own `fit`."""
    inputs = keras.Input([3])
    layers = network()
    model = keras.Model(inputs, layers[1](layers[0](inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")

    @functools.cache
    def fitted(size, is_weighted=False):
        start(layers)
        if not is_weighted:
            model.fit(X, Y, batch_size=size, shuffle=False, verbose=0)
        else:  # Keras divides by the number of examples, the trainer by the sum of their weights
            for i in range(0, 10, size):
                part = W[i : i + size]
                model.train_on_batch(X[i : i + size], Y[i : i + size], part * len(part) / part.sum())
        return model.get_weights()

    return fitted


def fitted(trainer, x, y, w=None, **options):
    layers = [trainer.encoder, trainer.heads["size"].module]
    if not trainer.encoder.built:
        trainer.compute_gradients([(X, {"size": Y})])
    start(layers)
    if y is not None:
        options["batch_size"] = BATCH
    trainer.fit(x, y, sample_weight=w, shuffle=False, verbose=0, **options)
    return [w for layer in layers for w in layer.get_weights()]


def assert_same(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)


@pytest.mark.first_cases(10)
@pytest.mark.parametrize(("kind", "steps"), [*((kind, 1) for kind in KINDS), *((kind, 2) for kind in WAYS)])
def test_one_head_is_trained_as_by_keras_whatever_the_kind_of_data(trainers, expected, kind, steps):
    assert_same(fitted(trainers[steps], *KINDS[kind]()), expected(BATCH * steps))


@pytest.mark.filterwarnings("error:`shuffle=True` was passed")  # which Keras 3 says of its own default
@pytest.mark.first_cases(4)
@pytest.mark.parametrize(("kind", "steps"), [*((kind, 1) for kind in WEIGHTED), ("arrays", 2), ("generator", 2)])
def test_sample_weights_of_every_kind_of_data(trainers, expected, kind, steps):
    assert_same(fitted(trainers[steps], *WEIGHTED[kind]()), expected(BATCH * steps, True))


def test_evaluate_predict_and_diagnose_take_the_same(trainers):
    trainer = trainers[1]
    fitted(trainer, X, Y)
    loss = trainer.evaluate(X, Y, verbose=0, return_dict=True)["size_loss"]
    np.testing.assert_allclose(loss, np.mean((trainer.predict(X, verbose=0)["size"] - Y) ** 2), rtol=1e-5)
    for kind in ("lists", "frames", "dataset", "generator", "PyDataset", "iterable"):
        found = trainer.evaluate(*KINDS[kind](), verbose=0, return_dict=True)
        np.testing.assert_allclose(found["size_loss"], loss, rtol=1e-5)
    np.testing.assert_array_equal(trainer.predict(X.tolist(), verbose=0)["size"], trainer.predict(X, verbose=0)["size"])
    weighted = trainer.evaluate(X, Y, 5, 0, W, return_dict=True)["size_loss"]  # by position, as in Keras
    squares = (trainer.predict(X, verbose=0)["size"] - Y) ** 2
    np.testing.assert_allclose(weighted, np.average(squares[:, 0], weights=W), rtol=1e-5)
    reports = [trainer.diagnose(X, Y, batch_size=BATCH, batches=2), trainer.diagnose(batches(X, Y)[:2])]
    reports += [trainer.diagnose(KINDS[kind]()[0], batches=2) for kind in ("dataset", "generator", "PyDataset")]
    for report in reports:
        assert report.batches == 2
        np.testing.assert_allclose(report.norms["parameters"], reports[0].norms["parameters"], rtol=1e-5)
    by_weight = trainer.diagnose(X, Y, sample_weight={"size": W}, batches=1)
    np.testing.assert_allclose(by_weight.losses, weighted, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------------- two heads


@pytest.fixture(scope="module")
def pair():
    """A trainer of two heads; the tests set its weights."""
    trainer = MultiHeadTrainer(network()[0])
    for name in ("a", "b"):
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.1))
    return trainer


def fitted_pair(trainer, x, y, **options):
    if not trainer.encoder.built:
        trainer.compute_gradients([(X, {"a": Y, "b": Y})])
    start([trainer.encoder, *(head.module for head in trainer.heads.values())])
    if y is not None:
        options["batch_size"] = BATCH
    trainer.fit(x, y, shuffle=False, verbose=0, **options)
    return tiny.weights_of(trainer)


def test_heads_that_have_targets_in_some_batches_only(pair):
    is_first = np.arange(10)[:, None] < BATCH
    missing = {"a": np.where(is_first, Y, np.nan), "b": np.where(is_first, np.nan, Y)}
    expected = fitted_pair(pair, X, missing)
    (x1, y1), (x2, y2), (x3, y3) = batches(X, Y)
    given = [(x1, {"a": y1}), (x2, {"b": y2}), (x3, {"b": y3})]
    for kind in (generator, Batches):
        assert_same(fitted_pair(pair, kind(given), None), expected)


def test_targets_that_are_none_are_absent(pair):
    trainer = pair
    assert set(trainer.evaluate(X, {"a": Y, "b": None}, verbose=0, return_dict=True)) == {"loss", "a_loss"}
    with pytest.raises(ValueError, match="head 'b' has none in the data"):
        trainer.fit(X, {"a": Y, "b": None})
    history = trainer.fit(X, {"a": Y, "b": Y}, validation_data=(X, {"a": Y}), verbose=0).history
    assert "val_a_loss" in history and "val_b_loss" not in history


# ---------------------------------------------------------------------------------------------- structures of inputs


class Dense(keras.layers.Layer):
    """A dense layer on ragged or sparse rows, filled up to three columns."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")

    def call(self, inputs):
        if isinstance(inputs, tf.RaggedTensor):
            inputs = inputs.to_tensor(shape=[None, 3])
        elif isinstance(inputs, tf.SparseTensor):
            inputs = tf.sparse.to_dense(inputs)
        return self.dense(tf.ensure_shape(inputs, [None, 3]))


SPARSE = np.where(np.arange(3) < RNG.integers(1, 4, size=(10, 1)), X, 0).astype("float32")
COMPOSITES = {
    "ragged": lambda: tf.RaggedTensor.from_tensor(SPARSE, padding=0.0),
    "sparse": lambda: tf.sparse.from_dense(SPARSE),
    "of SciPy": lambda: scipy.sparse.csr_matrix(SPARSE),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{"micro_batches": 2}, {"gradient_accumulation_steps": 2}], ids=str)
def test_ragged_and_sparse_inputs(options):
    trainer = MultiHeadTrainer(Dense())
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.1), **options)
    trainer.compute_gradients([(SPARSE, {"size": Y})])
    weights = []
    for inputs in (SPARSE, *(make_inputs() for make_inputs in COMPOSITES.values())):
        start([trainer.encoder.dense, trainer.heads["size"].module])
        trainer.fit(inputs, {"size": Y}, batch_size=BATCH, shuffle=False, verbose=0)
        weights.append(tiny.weights_of(trainer))
    for each in weights[1:]:
        assert_same(each, weights[0])


DTYPES = ["Int8", "Int64", "UInt16", "Float32", "Float64", "boolean", "object"]


@pytest.mark.parametrize("form", ["series", "frame", "objects"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_pandas_calls_missing_is_missing(dtype, form):
    """In each dtype of pandas that has missing values, and among objects in each form that they have."""
    pandas = pytest.importorskip("pandas")
    values, missing = [i % 2 for i in range(len(X))], [1, 4]
    wanted = np.array([np.nan if i in missing else value for i, value in enumerate(values)], "float32")
    marks = iter([None, np.nan] if form == "objects" else [pandas.NA, pandas.NA])
    column = pandas.Series([next(marks) if i in missing else bool(v) for i, v in enumerate(values)], dtype="object")
    column = column if dtype == "object" else column.astype("boolean").astype(dtype)
    losses = []
    for y in (wanted, column if form != "frame" else column.to_frame("size")):
        keras.utils.set_random_seed(1)
        trainer = make(1)
        losses.append(trainer.fit(X, {"size": y}, verbose=0, shuffle=False).history["size_loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
    assert np.isfinite(losses[0]).all()


def test_whole_numbers_of_pandas_stay_whole_where_none_is_missing():
    pandas = pytest.importorskip("pandas")
    large = [2**24 + 1, 3, 5, 7] * 3
    frame = pandas.DataFrame({"id": np.array(large[: len(X)]), "flag": [True, False] * (len(X) // 2)})
    read = as_arrays("x", frame)
    assert read.dtype.kind == "i" and read[0].tolist() == [2**24 + 1, 1]
    trainer = make(1)
    times = pandas.Series([1_600_000_000 + i if i else None for i in range(len(X))], dtype=object)
    with pytest.raises(ValueError, match="must keep its differences"):
        trainer.fit(X, {"size": times}, verbose=0)
    with pytest.raises(TypeError, match="must be numbers of one dtype"):
        trainer.fit(X, {"size": pandas.Series([None] * len(X), dtype=object)}, verbose=0)


# ------------------------------------------------------------------------------------------------------------- errors


def categories():
    return pytest.importorskip("pandas").Series(list("abcabcabca"), dtype="category")


BOTH = {"a": Y, "b": Y}
ERRORS = [
    (lambda: (dataset(X, BOTH, {"a": W}, W), None), {}, r"A batch must be .*Received: 4 parts"),
    (lambda: (generator(batches(X, BOTH, {"a": W}, W)), None), {}, r"A batch must be .*Received: 4 parts"),
    (
        lambda: (dataset(X, BOTH), None),
        {"sample_weight": {"a": W}},
        r"`sample_weight` must be left out if `x` yields batches.*sample_weight of type dict with x of type \w*Dataset",
    ),
    (
        lambda: (generator(batches(X, BOTH)), None),
        {"batch_size": 4},
        r"`batch_size` must be left out.*x of type generator",
    ),
    (lambda: (dataset(X, BOTH), Y), {}, r"`y` must be left out"),
    (lambda: (X, None), {}, r"`y` must be given if `x` are arrays.*type ndarray"),
    (lambda: (X, Y), {}, r"`targets` must be a dict by head name.*Received: a ndarray"),
    (lambda: (dataset(X, Y), None), {}, r"Received: one tensor of shape \(None, 1\)"),
    (lambda: (X, {"a": Y, "b": Y[:7]}), {}, r"one row per example.*10 in `x`, 7 in `y\['b'\]`"),
    (lambda: (X, BOTH), {"sample_weight": {"a": W[:3]}}, r"10 in `x`, 3 in `sample_weight\['a'\]`"),
    (lambda: (X, BOTH), {"sample_weight": {"c": W}}, r"`sample_weights` must name only heads: 'c' is not a head"),
    (
        lambda: (dataset(X, BOTH).unbatch(), None),
        {},
        r"must yield batches.*Received: a \w+ of tensors of shapes \(3,\), \(1,\).*call `.batch\(32\)`",
    ),
    (lambda: (X, {"a": Y, "b": categories()}), {}, r"`targets\['b'\]` must be numbers.*dtype string"),
    (
        lambda: (X, {"a": Y, "b": np.array([None, 1.0] * 5, object)}),
        {},
        r"`y\['b'\]` must be numbers of one dtype.*objects of type 'NoneType', 'float'",
    ),
    *[
        (lambda labels=labels: (X, {"a": Y, "b": labels}), {}, r"`y\['b'\]` must be numbers, or strings.*since one of them")
        for labels in (np.zeros(10, "M8[s]"), np.zeros(10, "m8[D]"), np.zeros(10, [("u", "f4")]))
    ],
    *[
        (
            lambda y=y: (X, {"a": Y, "b": y}),
            {},
            r"`y\['b'\]` must keep its differences in float32.*rounded by up to.*as integers",
        )
        for y in (1.7e9 + 60 * np.arange(10.0), (1e8 + X[:, 0]).tolist(), np.where(X > 1, np.nan, -1e6 - X / 50))
    ],
    (lambda: (np.zeros(10, "M8[s]"), BOTH), {}, r"`x` must be numbers, or strings. Received: a ndarray of dtype datetime64"),
    (lambda: ([[1, 2], [3]], {"a": [1, 2], "b": [1, 2]}), {}, r"`x` must have rows of one length"),
    (lambda: (X, {"a": Y, "b": [Y, Y]}), {}, r"`y\['b'\]` must be one array. Received: a list of 2.* Add a head per array"),
    (lambda: ({"x": object()}, BOTH), {}, r"`x\['x'\]` must be an array.*Received: a object"),
    (lambda: (generator([]), None), {}, r"`x` must yield at least one batch. Received: x of type generator"),
    (lambda: (generator(batches(X, {"a": Y})), None), {}, r"head 'b' has none in the data"),
    (
        lambda: (generator([(X, BOTH), (X.astype(int), BOTH)]), None),
        {},
        r"same dtypes and numbers of axes. Received: float32 of shape .* and int",
    ),
    (
        lambda: (X, BOTH),
        {"validation_data": dataset(X, {"c": Y})},
        r"In `validation_data`: `targets` must name only heads: 'c'",
    ),
    (
        lambda: (X, BOTH),
        {"validation_data": (X, {"a": Y}, None, None)},
        r"`validation_data` must be \(x, y\).*Received: a tuple of 4",
    ),
    (lambda: (dataset(X, BOTH), None), {"validation_split": 0.5}, r"`validation_split` must be 0 unless.*with x of type"),
    (lambda: (X, BOTH), {"validation_split": 1.0}, r"`validation_split` must be a frac"),
]


def test_validations_by_a_generator_go_on_from_batch_to_batch(pair):
    """Also through the batches that were looked at to know what it yields."""

    def batch(i):
        return np.full((2, 3), i / 4, "float32"), {name: np.full((2, 1), 10.0**i, "float32") for name in "ab"}

    pair.compile(keras.optimizers.SGD(0.0))
    fitted = pair.fit(
        *batch(0), epochs=3, validation_data=map(batch, itertools.cycle(range(4))), validation_steps=3, verbose=0
    )
    alone = [pair.evaluate(*batch(i), return_dict=True, verbose=0)["b_loss"] for i in range(4)]
    expected = [np.mean([alone[i] for i in places]) for places in ((0, 1, 2), (3, 0, 1), (2, 3, 0))]
    np.testing.assert_allclose(fitted.history["val_b_loss"], expected, rtol=1e-5)


def test_labels_that_single_precision_keeps_apart_are_taken(pair):
    noise = 0.1 * (1 + 2e-16 * np.arange(10))  # equal, but for the last digits of the program that made them
    for labels in (1.7e9 + 1e5 * np.arange(10.0), noise, 1_700_000_000 + np.arange(10), np.full(10, np.nan)):
        assert np.isfinite(pair.evaluate(X, {"a": Y, "b": labels}, verbose=0)[0])


@pytest.mark.parametrize(("make_data", "options", "message"), ERRORS)
def test_errors_name_what_was_passed_before_anything_is_trained(pair, make_data, options, message):
    before = int(np.array(pair.update_count))
    x, y = make_data()
    with pytest.raises((ValueError, TypeError), match=f"(?s){message}"):
        pair.fit(x, y, verbose=0, **options)
    assert int(np.array(pair.update_count)) == before


class Alive(keras.callbacks.Callback):
    """Counts the arrays that are still there, at the end of each epoch."""

    def __init__(self):
        super().__init__()
        self.made, self.counts = [], []

    def batches(self):
        for _ in range(6):
            made = np.ones([4, 3], "float32"), np.ones([4, 1], "float32")
            self.made += map(weakref.ref, made)
            yield made

    def on_epoch_end(self, epoch, logs=None):
        gc.collect()
        self.counts.append(sum(each() is not None for each in self.made[:4]))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("kind", ["generator", "iterable"])
def test_no_more_of_the_first_batches_is_kept_than_by_keras(kind):
    counts = []
    for trainer in (keras.Sequential([keras.layers.Dense(1)]), MultiHeadTrainer(keras.layers.Dense(2))):
        alive = Alive()
        x = alive.batches()
        if kind == "iterable" and isinstance(trainer, MultiHeadTrainer):
            x = type("Again", (), {"__iter__": lambda _, alive=alive: alive.batches()})()
        if isinstance(trainer, MultiHeadTrainer):
            trainer.add_head("a", keras.layers.Dense(1), "mse")
            trainer.compile("sgd")
        else:
            trainer.compile("sgd", "mse")
        trainer.fit(x, verbose=0, callbacks=[alive])
        counts += alive.counts
    assert counts[1] <= (counts[0] if kind == "generator" else 0)


@pytest.mark.parametrize("is_dataset", [True, False], ids=["dataset", "arrays"])
@pytest.mark.parametrize("part", ["x", "y", "sample_weight"])
def test_what_is_said_of_a_scalar_among_batches_helps(part, is_dataset):
    class Times(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs["x"]) * tf.reshape(inputs["scale"], [-1, 1])

    def fit(value):
        trainer = MultiHeadTrainer(Times(), {name: Head(keras.layers.Dense(1), "mse") for name in BOTH})
        trainer.compile("sgd")
        data = {
            "x": {"x": X, "scale": np.ones(10, "float32")},
            "y": dict(BOTH),
            "sample_weight": {"a": np.ones(10, "float32")},
        }
        changed = {"x": "scale", "y": "b", "sample_weight": "a"}[part]
        if not is_dataset:
            data[part][changed] = value(X)
            return trainer.fit(**data, verbose=0)

        def replaced(*parts):
            parts = dict(zip(data, parts))
            parts[part] = {**parts[part], changed: value(parts["x"]["x"])}
            return tuple(parts.values())

        return trainer.fit(tf.data.Dataset.from_tensor_slices(tuple(data.values())).batch(4).map(replaced), verbose=0)

    said = (
        r"`tf\.fill\(tf\.shape\(other_tensor\)\[:1\], scalar\)`"
        if is_dataset
        else r"`np\.full\(number_of_examples, value\)`"
    )
    with pytest.raises(ValueError, match=said):
        fit(lambda other_tensor: tf.constant(2.0) if is_dataset else np.float32(2.0))
    if is_dataset:
        fit(lambda other_tensor: tf.fill(tf.shape(other_tensor)[:1], 2.0))
    else:
        fit(lambda array: np.full(len(array), 2.0, "float32"))
