"""The fast forms of attention and of a decoding step against the forms that define them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _attention, _cell
from tests.helpers.seq2seq import KINDS, LENGTHS, TOKENS, grow


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("kind", ["luong", "bahdanau"])
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("mixed_float16", 4e-3)])
def test_attention_by_steps_equals_its_definition(kind, width, dtype, tolerance):
    attention = _attention.Attention(5, kind, dtype=dtype)
    attention.build([None, None, 7])
    random = np.random.default_rng(0)
    outputs = tf.constant(2.0 * random.normal(size=[4, 6, 7]), attention.compute_dtype)
    memory = attention.prepare(outputs, tf.sequence_mask([6, 3, 1, 2], 6))
    query = tf.constant(2.0 * random.normal(size=[4, width, 5]), attention.compute_dtype)
    expected, weights = attention(query, memory)
    contexts = attention.step(tf.reshape(query, [-1, 5]), attention.prepare_steps(memory), width)
    np.testing.assert_allclose(tf.reshape(contexts, [4, width, 7]), expected, atol=tolerance)
    assert np.all(np.asarray(weights)[2, :, 1:] == 0.0) and np.ptp(weights[0]) > 0.1


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("cell, num_layers, attention, feeding", KINDS)
def test_fast_step_equals_its_definition(cell, num_layers, attention, feeding):
    encoder = Seq2SeqEncoder(12, 3, 4, cell=cell, num_layers=num_layers)
    options = {"cell": cell, "num_layers": num_layers, "attention": attention, "input_feeding": feeding}
    decoder = Seq2SeqDecoder(9, 3, 4, engine="native", **options)
    decoder(encoder(tf.constant(TOKENS)), tf.constant([[3]] * len(LENGTHS)))
    grow(decoder)
    memory, first = decoder.begin(encoder(tf.constant(TOKENS)))
    for width in (1, 2):
        check_fast_step(decoder.decoder_cell, memory, first, width)


def check_fast_step(steps, memory, first, width):
    """Each example in `width` rows with ids of their own."""
    state = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, width, axis=0), first)
    repeated = tf.nest.map_structure(lambda tensor: tf.repeat(tensor, width, axis=0), memory)
    fast = _cell.FastStep(steps, width)
    prepared = fast.prepare(memory)
    expected_state = state
    for shift in range(3):
        ids = tf.constant([4 + (row + shift) % 5 for row in range(width * len(LENGTHS))])
        vectors, expected_state = steps.step(steps.embedding(ids), expected_state, repeated)
        logits, state = fast(ids, state, prepared)
        np.testing.assert_allclose(logits, steps.next_logits(vectors, repeated), rtol=1e-5, atol=1e-5, err_msg=f"{width=}")
        tf.nest.assert_same_structure(state, expected_state)
        for tensor, expected in zip(tf.nest.flatten(state), tf.nest.flatten(expected_state)):
            np.testing.assert_allclose(tensor, expected, atol=1e-5, err_msg=f"{width=}")
