"""The encoder against NumPy, row by row."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import Seq2SeqEncoder
from tests.helpers.numpy_seq2seq import encode_row, tensor_variables

TOKENS = np.array([[4, 5, 6, 7, 8], [9, 4, 0, 0, 0], [5, 0, 0, 0, 0], [0, 0, 0, 0, 0]], np.int32)
OPTIONS = list(itertools.product(["gru", "lstm"], [1, 2], [False, True]))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("cell, num_layers, bidirectional", OPTIONS)
def test_each_row_is_as_if_alone_and_unpadded(cell, num_layers, bidirectional):
    encoder = Seq2SeqEncoder(12, 3, 4, cell=cell, num_layers=num_layers, bidirectional=bidirectional)
    result = encoder(tf.constant(TOKENS))
    lengths = [5, 2, 1, 1]
    np.testing.assert_array_equal(result["mask"], np.arange(5) < np.array(lengths)[:, np.newaxis])
    assert len(result["state"]) == num_layers
    for row, length in enumerate(lengths):
        outputs, states = encode_row(encoder, TOKENS[row, :length])
        np.testing.assert_allclose(result["outputs"][row, :length], outputs, atol=1e-6)
        np.testing.assert_array_equal(result["outputs"][row, length:], 0.0)
        np.testing.assert_allclose(result["final"][row], states[-1][0], atol=1e-6)
        for state, expected in zip(result["state"], states):
            parts = state if cell == "lstm" else (state,)
            for part, values in zip(parts, expected):
                np.testing.assert_allclose(part[row], values, atol=1e-6)


def test_every_weight_gets_a_gradient():
    encoder = Seq2SeqEncoder(12, 3, 4, num_layers=2, bidirectional=True)
    encoder(tf.constant(TOKENS))
    variables = tensor_variables(encoder)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(encoder(tf.constant(TOKENS))["outputs"])
    assert all(gradient is not None for gradient in tape.gradient(loss, variables))
    assert len(variables) == 1 + 4 * 3


def test_dropout_is_for_training_only():
    encoder = Seq2SeqEncoder(12, 16, 4, dropout=0.5)
    tokens = tf.constant(TOKENS)
    plain = encoder(tokens)["final"]
    np.testing.assert_array_equal(plain, encoder(tokens, training=False)["final"])
    assert np.abs(plain - encoder(tokens, training=True)["final"]).max() > 1e-3


def test_config_makes_the_same_encoder():
    encoder = Seq2SeqEncoder(12, 3, 4, cell="gru", num_layers=2, bidirectional=True, dropout=0.1, name="words")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(encoder))
    assert again.get_config() == encoder.get_config()
    encoder(tf.constant(TOKENS))
    again(tf.constant(TOKENS))
    again.set_weights(encoder.get_weights())
    np.testing.assert_array_equal(again(tf.constant(TOKENS))["final"], encoder(tf.constant(TOKENS))["final"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"units": 0}, r"`units` must be an integer of at least 1\. Received: units=0\. "),
        ({"vocabulary_size": 1.5}, r"`vocabulary_size` must be an integer"),
        ({"cell": "rnn"}, r"`cell` must be one of 'lstm', 'gru'\. Received: cell='rnn'\. "),
        ({"dropout": 1.0}, r"`dropout` must be a number from 0 up to, not including, 1\. Received: dropout=1\.0\. "),
        ({"num_layers": True}, r"`num_layers` must be an integer"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqEncoder(**{"vocabulary_size": 10, "embedding_size": 3, "units": 4, **options})


@pytest.mark.parametrize("tokens", [np.zeros([2, 3], np.float32), np.zeros([3], np.int32)])
def test_tokens_must_be_a_matrix_of_ids(tokens):
    encoder = Seq2SeqEncoder(12, 3, 4)
    with pytest.raises(ValueError, match=r"`tokens` must be integer ids of shape \[batch, time\]\. Received: dtype"):
        encoder(tf.constant(tokens))


def test_half_precision_keeps_the_compute_dtype():
    encoder = Seq2SeqEncoder(12, 3, 4, dtype="mixed_float16")
    result = encoder(tf.constant(TOKENS))
    assert result["outputs"].dtype == result["final"].dtype == tf.float16
    assert all(tf.as_dtype(weight.dtype) == tf.float32 for weight in encoder.weights)
