"""Marks of missing labels that Python and NumPy have: masked arrays, and None in a list. They count, or are rejected."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, class_weights, losses
from multihead._data.batch import unmasked
from multihead.comparison._data import _rows_of, data_parts
from multihead.heads._named import new_head

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype("float32")
LACKING = RNG.random((12, 1)) < 0.5
MASKED = np.ma.masked_array(np.where(LACKING, -999.0, X[:, :1]).astype("float32"), LACKING)
LISTED = [[None if lacking else float(value)] for value, lacking in zip(X[:, 0], LACKING[:, 0])]


@pytest.fixture(scope="module")
def trainer():
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, "tanh"))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.0))
    return trainer


WAYS = {
    "evaluate": lambda trainer, y: trainer.evaluate(X, {"a": y}, verbose=0, return_dict=True)["a_loss"],
    "fit": lambda trainer, y: trainer.fit(X, {"a": y}, batch_size=12, verbose=0).history["a_loss"][0],
    "one head alone": lambda trainer, y: trainer.evaluate(X, y, verbose=0, return_dict=True)["a_loss"],
    "generator": lambda trainer, y: trainer.evaluate(
        ((X[k : k + 6], {"a": y[k : k + 6]}) for k in (0, 6)), steps=2, verbose=0, return_dict=True
    )["a_loss"],
    "validation": lambda trainer, y: trainer.fit(X, {"a": X[:, :1]}, validation_data=(X, {"a": y}), verbose=0).history[
        "val_a_loss"
    ][0],
    "one batch": lambda trainer, y: trainer.test_on_batch(X, {"a": y}, return_dict=True)["a_loss"],
    "gradients": lambda trainer, y: gradient_loss(trainer, y),
}


def gradient_loss(trainer, y):
    """The loss whose gradient of the bias of the head is `2 * mean(p - y)`, from that gradient."""
    bias = trainer.head_gradients((X, {"a": y})).own[-1]
    assert tuple(bias[1].shape) == (1,)
    p = np.asarray(trainer.heads["a"].module(trainer.encoder(X)))
    there = ~LACKING
    np.testing.assert_allclose(bias[0], [2 * (p - X[:, :1])[there].mean()], rtol=1e-5)
    return ((p - X[:, :1])[there] ** 2).mean()


@pytest.mark.parametrize("y", [MASKED, LISTED], ids=["masked array", "None in a list"])
@pytest.mark.parametrize("way", WAYS)
def test_what_is_marked_does_not_count(way, y, trainer):
    found = WAYS[way](trainer, y)
    p = np.asarray(trainer.heads["a"].module(trainer.encoder(X)), "float64")
    assert found == pytest.approx(((p - X[:, :1])[~LACKING] ** 2).mean(), rel=1e-5)


REFUSED = {
    "class numbers": ("targets", np.ma.masked_array([0, 1], [True, False]), True, r"dtype int64.*`array\.filled\(-1\)`"),
    "booleans": ("targets", np.ma.masked_array([True, False], [True, False]), True, "dtype bool, which has no NaN"),
    "inputs": ("x", np.ma.masked_array([0.5, 1], [True, False]), False, "`x` must be an array without a mask"),
    "weights": ("sample_weight", np.ma.masked_array([0.5, 1], [True, False]), False, r"filled\(0\)"),
    "rows of different lengths": ("targets", [[1.0, None], [2.0]], True, "must have rows of one length"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_marked_is_refused(name):
    argument, value, are_targets, words = REFUSED[name]
    with pytest.raises(TypeError, match=words):
        unmasked(argument, value, are_targets=are_targets)


def test_the_trainer_refuses_them(trainer):
    with pytest.raises(TypeError, match="`x` must be an array without a mask"):
        trainer.fit(np.ma.masked_array(X, X > 1), {"a": X[:, :1]}, verbose=0)
    with pytest.raises(TypeError, match=r"`sample_weights\['a'\]` must be an array without a mask"):
        trainer.fit(X, {"a": X[:, :1]}, sample_weight={"a": np.ma.masked_array(X[:, 0], X[:, 0] > 0)}, verbose=0)
    with pytest.raises(TypeError, match=r"`targets\['a'\]` must be an array without a mask.*int64"):
        trainer.fit(X, {"a": np.ma.masked_array(np.zeros((12, 1), int), LACKING)}, verbose=0)


def test_without_masked_values_it_is_an_array_as_any_other():
    whole = np.ma.masked_array([1, 2], [False, False])
    assert type(unmasked("targets", whole, are_targets=True)) is np.ndarray
    assert unmasked("targets", [1, 2], are_targets=True) == [1, 2]
    np.testing.assert_array_equal(unmasked("targets", [0, None, 2], are_targets=True), [0, np.nan, 2])


def test_class_weights_and_comparisons_see_the_mask():
    labels = np.ma.masked_array([0, 0, 1, 1, 1], [False, False, False, True, True])
    assert class_weights(labels) == class_weights([0, 0, 1])
    read = data_parts({"train": (X, {"a": MASKED}), "validation": (X, {"a": LISTED})}, 0)
    for part in read.values():
        np.testing.assert_array_equal(np.isnan(part[1]["a"]), LACKING)


def test_comparisons_take_sparse_inputs():
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.where(X > 0, X, 0)
    part = data_parts({"train": (sparse.csr_matrix(dense), {"a": X[:, :1]}), "validation": (X, {"a": X[:, :1]})}, 0)["train"]
    rows = np.array([7, 2, 11])
    np.testing.assert_array_equal(tf.sparse.to_dense(_rows_of(part[0], rows)), dense[rows])
    np.testing.assert_array_equal(_rows_of(part[1]["a"], rows), X[rows, :1])


# What else an error says
# ---------------------------------------------------------------------------------------------------------------------


def test_weights_with_a_sign_have_a_way_out():
    head = new_head("pi", lambda x: x, "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="advantages, pass them as another column of the targets to a loss of your own"):
        head.mask_missing(tf.constant([0, 1]), tf.constant([0.5, -1.0]), tf.TensorSpec([None, 3]), None)


def test_a_sum_and_a_count_may_be_a_list():
    def listed(y, p):
        return [keras.backend.abs(y - p) if keras.__version__ < "3" else keras.ops.abs(y - p), y * 0 + 2.0]

    found = losses.get(listed).terms(tf.constant([[1.0], [2.0]]), tf.constant([[3.0], [5.0]]))
    np.testing.assert_array_equal(found, [[[2], [3]], [[2], [2]]])


def test_a_loss_is_called_once_and_its_own_error_is_raised():
    calls = []

    def strict(y, p):
        calls.append(y.dtype)
        raise ValueError("needs three columns")

    with pytest.raises(ValueError, match="^needs three columns$"):
        losses.get(strict).terms(tf.constant([[1], [2]]), tf.constant([[3.0], [5.0]]))
    assert len(calls) == 1


class Coded(ValueError):
    """An error that takes other arguments than a text."""

    def __init__(self, code, detail):
        super().__init__(f"code {code}: {detail}")


def test_errors_of_other_signatures_keep_their_message(trainer, monkeypatch):
    import multihead._data.call as arguments  # noqa: PLC0415

    real = arguments.as_data
    for error in (Coded(7, "no rows"), UnicodeDecodeError("utf-8", b"x", 0, 1, "no text")):

        def read(x, *others, error=error, **options):
            if x is None:
                raise error
            return real(x, *others, **options)

        monkeypatch.setattr(arguments, "as_data", read)
        with pytest.raises(ValueError, match="In `validation_data`: .*(code 7: no rows|no text)") as raised:
            trainer.fit(X, {"a": X[:, :1]}, validation_data=(None, None), verbose=0)
        assert raised.value.__cause__ is error


def test_an_encoder_of_a_fixed_batch_size_trains_on_arrays_as_keras_does():
    x = np.random.default_rng(1).normal(size=(8, 4, 3)).astype("float32")
    y, found = x.sum(axis=(1, 2))[:, None], []
    for kind in ("keras", "trainer"):
        keras.utils.set_random_seed(0)
        symbol = keras.Input(batch_shape=(4, 4, 3))
        encoder, head = keras.Model(symbol, keras.layers.SimpleRNN(5, stateful=True)(symbol)), keras.layers.Dense(1)
        if kind == "keras":
            model = keras.Sequential([encoder, head])
            model.compile(keras.optimizers.SGD(0.01), "mse")
            history = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        else:
            model = MultiHeadTrainer(encoder)
            model.add_head("a", head, "mse")
            model.compile(keras.optimizers.SGD(0.01), run_eagerly=False)
            history = model.fit(x, {"a": y}, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        found.append(history["loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
