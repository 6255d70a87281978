"""The decoder's teacher-forced logits against NumPy, row by row."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops
from tests.helpers.numpy_seq2seq import RowDecoder, encode_row, weights_of
from tests.helpers.seq2seq import ENGINES, KINDS_BY_ENGINES, LENGTHS, TARGETS, TOKENS, bridge, grow


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("cell, num_layers, attention, feeding, engine", KINDS_BY_ENGINES)
def test_logits_equal_numpy(cell, num_layers, attention, feeding, engine):
    encoder = Seq2SeqEncoder(12, 3, 4, cell=cell, num_layers=num_layers, bidirectional=num_layers == 2)
    decoder = Seq2SeqDecoder(
        9, 3, 4, cell=cell, num_layers=num_layers, attention=attention, input_feeding=feeding, engine=engine
    )
    representation = encoder(tf.constant(TOKENS))
    decoder(representation, tf.constant(TARGETS))
    grow(encoder)
    grow(decoder)
    representation = encoder(tf.constant(TOKENS))
    logits = decoder(representation, tf.constant(TARGETS))
    assert logits.dtype == tf.float32 and logits.shape == [4, 4, 9]
    for row, length in enumerate(LENGTHS):
        outputs, states = encode_row(encoder, TOKENS[row, :length])
        expected, _ = RowDecoder(decoder, outputs, bridge(decoder, states)).teacher_forced(TARGETS[row])
        np.testing.assert_allclose(logits[row], expected, atol=2e-5)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("copy_ids", [None, 2])
@pytest.mark.parametrize("mode", ["eagerly", "graph", "xla"])
@pytest.mark.parametrize("feeding, sampling", [(False, 0.0), (True, 0.0), (False, 0.5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_targets_of_any_time_have_the_logits_of_the_first_steps_of_longer_ones(engine, feeding, sampling, mode, copy_ids):
    """From no targets at all, in a graph that does not know their time."""
    encoder = Seq2SeqEncoder(12, 3, 4)
    options = {"input_feeding": feeding, "sampling_probability": sampling, "engine": engine, "copy_ids": copy_ids}
    decoder = Seq2SeqDecoder(12, 3, 4, **options)
    representation = encoder(TOKENS if copy_ids is None else {"tokens": TOKENS, "copy_ids": TOKENS})
    expected = decoder(representation, tf.constant(TARGETS))

    def logits(targets):
        decoder(representation, targets, training=True)
        return decoder(representation, targets)

    is_compiled = mode == "xla" and (engine == "native" or not (feeding or sampling))  # the steps of Addons cannot be
    options = {"input_signature": [tf.TensorSpec([None, None], tf.int32)], "jit_compile": is_compiled}
    run = logits if mode == "eagerly" else tf.function(logits, **options)
    for time in range(TARGETS.shape[1] + 1):
        found = run(tf.constant(TARGETS[:, :time]))
        assert found.shape == (len(TARGETS), time, 12)
        np.testing.assert_allclose(found, expected[:, :time], atol=1e-5)
    if copy_ids is not None:
        assert decoder.copied(representation, TARGETS[:, :0]).shape == (len(TARGETS), 0)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "encoder_options, decoder_options",
    [
        ({"cell": "lstm", "num_layers": 3}, {"cell": "lstm", "num_layers": 2}),
        ({"cell": "gru", "num_layers": 1}, {"cell": "gru", "num_layers": 3}),
        ({"cell": "lstm", "bidirectional": True}, {"cell": "gru"}),
        ({"cell": "gru"}, {"cell": "lstm", "num_layers": 2}),
    ],
)
def test_states_are_fitted_between_different_sides(encoder_options, decoder_options):
    encoder = Seq2SeqEncoder(12, 3, 4, **encoder_options)
    decoder = Seq2SeqDecoder(9, 3, 4, engine="native", **decoder_options)
    representation = encoder(tf.constant(TOKENS))
    logits = decoder(representation, tf.constant(TARGETS))
    assert np.isfinite(logits).all()
    first = decoder.bridge(representation["state"])
    assert len(first) == decoder.num_layers
    last = representation["state"][-1]
    if encoder_options["cell"] == decoder_options["cell"]:
        tf.nest.map_structure(np.testing.assert_array_equal, first[-1], last)
    elif encoder_options["cell"] == "lstm":
        kernel, bias = weights_of(decoder.bridge.maps[0])
        np.testing.assert_allclose(first[0], np.tanh(np.asarray(last[0]) @ kernel + bias), atol=1e-6)
    else:
        kernel, bias = weights_of(decoder.bridge.maps[3])
        np.testing.assert_array_equal(first[1][0], last)
        np.testing.assert_allclose(first[1][1], np.tanh(np.asarray(last) @ kernel + bias), atol=1e-6)


def test_a_state_that_is_one_tensor_is_that_of_one_layer():
    representation = Seq2SeqEncoder(12, 3, 4, cell="gru")(tf.constant(TOKENS))
    (state,) = representation["state"]
    decoder = Seq2SeqDecoder(9, 3, 4, cell="gru", engine="native")
    ids = decoder.generate({**representation, "state": state})
    np.testing.assert_array_equal(ids, decoder.generate(representation))
    logits = decoder({**representation, "state": state}, tf.constant(TARGETS))
    np.testing.assert_array_equal(logits, decoder(representation, tf.constant(TARGETS)))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("attention, feeding", [("luong", False), (None, False), ("bahdanau", True)])
def test_scheduled_sampling_reads_the_decoders_own_ids(attention, feeding, engine):
    options = {"attention": attention, "input_feeding": feeding, "engine": engine, "sampling_probability": 1.0}
    encoder, decoder = Seq2SeqEncoder(12, 3, 4), Seq2SeqDecoder(9, 3, 4, **options)
    targets = tf.fill([4, 5], 4)
    decoder(encoder(tf.constant(TOKENS)), targets)
    grow(encoder)
    grow(decoder, 6.0)
    decoder.output_layer.set_weights([weight * 1e4 for weight in decoder.output_layer.get_weights()])  # no doubt left
    representation = encoder(tf.constant(TOKENS))
    sampled = decoder(representation, targets, training=True)
    for row, length in enumerate(LENGTHS):
        outputs, states = encode_row(encoder, TOKENS[row, :length])
        reference = RowDecoder(decoder, outputs, bridge(decoder, states))
        ids = reference.greedy(5, stop=False)[0]
        expected, _ = reference.teacher_forced(ids)
        np.testing.assert_allclose(sampled[row] / 1e4, expected / 1e4, atol=1e-4)
        plain, _ = reference.teacher_forced(np.asarray(targets[row]))
        np.testing.assert_allclose(decoder(representation, targets)[row] / 1e4, plain / 1e4, atol=1e-4)


def test_config_makes_the_same_decoder():
    decoder = Seq2SeqDecoder(
        9, 3, 4, cell="gru", num_layers=2, attention="bahdanau", input_feeding=True, dropout=0.1, maximum_length=7
    )
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(decoder))
    assert again.get_config() == decoder.get_config()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"attention": "dot"}, r"`attention` must be one of 'luong', 'bahdanau', None\. Received: attention='dot'\."),
        (
            {"attention": None, "input_feeding": True},
            r"`input_feeding` needs `attention`\. Received: input_feeding=True",
        ),
        ({"engine": "tfa"}, r"`engine` must be one of 'addons', 'native', None\."),
        ({"end_id": 9}, r"`end_id` must be below `vocabulary_size`\. Received: end_id=9, vocabulary_size=9\."),
        ({"sampling_probability": 1.1}, r"`sampling_probability` must be a number from 0 to 1\. Received: .*=1\.1\."),
        ({"maximum_length": 0}, r"`maximum_length` must be an integer of at least 1\. Received: maximum_length=0\."),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Seq2SeqDecoder(9, 3, 4, **options)


def test_wrong_inputs():
    encoder, decoder = Seq2SeqEncoder(12, 3, 4), Seq2SeqDecoder(9, 3, 4)
    representation = encoder(tf.constant(TOKENS))
    with pytest.raises(ValueError, match=r"`targets` must be integer ids of shape \[batch, time\]\. Received: dtype float"):
        decoder(representation, tf.zeros([4, 3]))
    with pytest.raises(ValueError, match=r"`representation` must hold .*without \['outputs', 'state'\]\. Pass what"):
        decoder.generate({"mask": representation["mask"]})
    with pytest.raises(ValueError, match=r"`representation` must be a dict .* Received: .*Tensor\. Pass what"):
        decoder.generate(representation["final"])


@pytest.mark.skipif(_addons_loops.is_installed(), reason="TensorFlow Addons is installed")
def test_addons_must_be_installed():
    with pytest.raises(ImportError, match=r'`engine="addons"` needs TensorFlow Addons.* Received: TensorFlow 2\.'):
        Seq2SeqDecoder(9, 3, 4, engine="addons")


def test_mixed_precision_gives_float32_logits_and_decodes():
    encoder = Seq2SeqEncoder(12, 3, 4, dtype="mixed_float16")
    decoder = Seq2SeqDecoder(9, 3, 4, dtype="mixed_float16", input_feeding=True, maximum_length=5)
    representation = encoder(tf.constant(TOKENS))
    assert decoder(representation, tf.constant(TARGETS)).dtype == tf.float32
    assert decoder.generate(representation, beam_width=3).shape == [4, 5]
