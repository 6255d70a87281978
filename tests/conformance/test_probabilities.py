"""A loss that takes probabilities gets probabilities: for every such loss of Keras, whatever the head ends in."""

from __future__ import annotations

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead.heads._named import new_head
from tests.helpers.cases import quick

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
CLASSES = RNG.integers(0, 3, 16)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
# By introspection: what can take logits takes probabilities otherwise; and two that never take logits.
TAKE_LOGITS = sorted(
    name
    for name, each in vars(keras.losses).items()
    if isinstance(each, type) and "from_logits" in inspect.signature(each.__init__).parameters
)
LOSSES = [*TAKE_LOGITS, "KLDivergence"]


def targets(loss):
    return (CLASSES > 0).astype("float32")[:, None] if "Binary" in loss else CLASSES if "Sparse" in loss else ONE_HOT


def made(loss, module, **options):
    keras.utils.set_random_seed(1)
    loss = getattr(keras.losses, loss)() if isinstance(loss, str) else loss
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", module, loss)
    trainer.compile("sgd", **{"run_eagerly": True, **options})
    return trainer


def head(loss, activation=None, **options):
    return keras.layers.Dense(1 if "Binary" in loss else 3, activation=activation, **options)


@pytest.mark.parametrize("loss", LOSSES)
def test_predictions_outside_of_0_and_1_are_an_error(loss):
    wanted = targets(loss)

    def loss_sum(predictions, **options):
        head = new_head("a", tf.identity, getattr(keras.losses, loss)(**options))
        return head.loss_sum(tf.constant(wanted), predictions, tf.ones(predictions.shape[: 2 if "Binary" in loss else 1]))

    logits = tf.constant(RNG.normal(size=(16, 1 if "Binary" in loss else 3)).astype("float32"))
    message = "`loss` of head 'a' takes probabilities.*predictions from -.* to .*" + (
        "pass a loss with `from_logits=True`" if loss in TAKE_LOGITS else "End the module with a softmax"
    )
    with pytest.raises(ValueError, match=message):
        loss_sum(logits)
    probabilities = tf.sigmoid(logits) if "Binary" in loss else tf.nn.softmax(logits)
    inside = float(loss_sum(probabilities))
    if loss in TAKE_LOGITS:
        np.testing.assert_allclose(float(loss_sum(logits, from_logits=True)), inside, rtol=1e-4)
    if loss.startswith("Categorical"):  # Keras itself divides by the sum of each row
        np.testing.assert_allclose(float(loss_sum(probabilities * 5)), inside, rtol=1e-4)
    else:
        with pytest.raises(ValueError, match="predictions from .* to [2-9]"):
            loss_sum(probabilities * 5)


@pytest.mark.parametrize(
    "options", quick(1, [{"micro_batches": 2}, {"gradient_accumulation_steps": 2}, {"steps_per_execution": 2}, {}])
)
def test_the_error_comes_in_fit_before_anything_is_trained(options):
    trainer = made("SparseCategoricalCrossentropy", head("Sparse"), run_eagerly=False, **options)
    data = tf.data.Dataset.from_tensor_slices((X, {"a": CLASSES})).batch(8)
    with pytest.raises(
        ValueError, match="^`loss` of head 'a' takes probabilities.*Received: sparse_categorical_crossentropy"
    ):
        trainer.fit(data, verbose=0)
    assert int(trainer.update_count) == 0


def test_logits_are_needed_where_a_loss_takes_them():
    trainer = made(losses.SequenceCrossentropy(padding_id=-1), head("", "softmax"))
    with pytest.raises(ValueError, match="`module` of a head with `SequenceCrossentropy` must return logits.*Leave this"):
        trainer.compute_gradients((X[:, None], {"a": CLASSES[:, None]}))


@pytest.mark.parametrize(
    ("loss", "activation", "message"),
    [
        ("SparseCategoricalCrossentropy", None, r"'a' lie between -\S+ and \S+, .*`from_logits=True`"),
        (
            "CategoricalCrossentropy",
            "exponential",
            r"'a' for an example add up to \S+ to \S+, .*end the module with a softmax",
        ),
        ("BinaryCrossentropy", "sigmoid", None),
        ("SparseCategoricalCrossentropy", "softmax", None),
    ],
)
def test_diagnose_names_them(loss, activation, message):
    trainer = made(loss, head(loss, activation))
    found = trainer.diagnose(X, {"a": targets(loss)}, batch_size=8)
    predicted = np.asarray(trainer.predict(X, verbose=0)["a"])
    sums = predicted.sum(axis=-1)
    np.testing.assert_allclose(found.predicted[0], [predicted.min(), predicted.max(), sums.min(), sums.max()], rtol=1e-5)
    sentences = [str(each) for each in found.findings if each.kind == "no probabilities"]
    assert len(sentences) == (message is not None)
    if message is not None:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(sentences[0])
