"""Decoding by either engine against NumPy, exhaustive search, and the other engine."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops
from tests.helpers.cases import pairwise
from tests.helpers.numpy_seq2seq import RowDecoder, encode_row
from tests.helpers.seq2seq import ENGINES, KINDS, KINDS_BY_ENGINES, LENGTHS, TOKENS, bridge, grow


def make(engine, *, vocabulary=9, maximum_length=6, factor=4.0, **options):
    encoder = Seq2SeqEncoder(12, 3, 4, cell=options.get("cell", "lstm"), num_layers=options.get("num_layers", 1))
    decoder = Seq2SeqDecoder(vocabulary, 3, 4, engine=engine, maximum_length=maximum_length, **options)
    representation = encoder(tf.constant(TOKENS))
    decoder(representation, tf.constant([[3]] * 4))
    grow(encoder, factor)
    grow(decoder, factor)
    return encoder, decoder, encoder(tf.constant(TOKENS))


def rows(encoder, decoder):
    for row, length in enumerate(LENGTHS):
        outputs, states = encode_row(encoder, TOKENS[row, :length])
        yield row, RowDecoder(decoder, outputs, bridge(decoder, states))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("cell, num_layers, attention, feeding, engine", KINDS_BY_ENGINES)
def test_greedy_equals_numpy(cell, num_layers, attention, feeding, engine):
    encoder, decoder, representation = make(
        engine, cell=cell, num_layers=num_layers, attention=attention, input_feeding=feeding
    )
    result = decoder.decode(representation, return_attention=attention is not None)
    np.testing.assert_array_equal(result.ids[:, 0], decoder.generate(representation))
    for row, reference in rows(encoder, decoder):
        ids, score = reference.greedy(6)
        np.testing.assert_array_equal(result.ids[row, 0], ids + [0] * (6 - len(ids)))
        assert result.lengths[row, 0] == len(ids)
        np.testing.assert_allclose(result.scores[row, 0], score, atol=1e-4)
        if attention is not None:
            weights = reference.teacher_forced(ids)[1]
            np.testing.assert_allclose(result.attention[row, 0, : len(ids), : LENGTHS[row]], weights, atol=5e-5)
            np.testing.assert_array_equal(result.attention[row, 0, len(ids) :], 0.0)


BEAMS = [(), (("attention", None), ("cell", "gru")), (("input_feeding", True),)]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options, length_penalty, engine",
    [(dict(options), *others) for options, *others in pairwise(BEAMS, [0.0, 1.0], ENGINES)],
)
def test_wide_beam_equals_exhaustive_search(options, length_penalty, engine):
    encoder, decoder, representation = make(engine, vocabulary=6, maximum_length=4, factor=2.0, **options)
    result = decoder.decode(representation, beam_width=81, num_best=7, length_penalty=length_penalty)
    for row, reference in rows(encoder, decoder):
        expected = reference.every_sequence(4, length_penalty)[:7]
        np.testing.assert_allclose(result.scores[row], [score for score, _ in expected], atol=1e-4)
        for found, (_, ids) in zip(np.asarray(result.ids[row]), expected):
            np.testing.assert_array_equal(found, ids + [0] * (4 - len(ids)))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_results_that_do_not_exist_are_padding(engine):
    encoder, decoder, representation = make(engine, vocabulary=6, maximum_length=1)
    result = decoder.decode(representation, beam_width=6, num_best=6)
    np.testing.assert_array_equal(np.sort(result.ids[0, :4, 0]), [1, 3, 4, 5])
    np.testing.assert_array_equal(result.ids[:, 4:], 0)
    np.testing.assert_array_equal(result.lengths[:, 4:], 0)
    np.testing.assert_array_equal(result.scores[:, 4:], -np.inf)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length_penalty", [0.8, pytest.param(0.0, marks=pytest.mark.thorough)])
def test_each_row_decodes_as_if_alone(length_penalty, engine):
    encoder, decoder, representation = make(engine, factor=3.0)
    together = decoder.decode(representation, beam_width=4, num_best=4, length_penalty=length_penalty)
    for row, length in enumerate(LENGTHS):
        alone = decoder.decode(
            encoder(tf.constant(TOKENS[row : row + 1, :length])),
            beam_width=4,
            num_best=4,
            length_penalty=length_penalty,
        )
        np.testing.assert_array_equal(together.ids[row], alone.ids[0])
        np.testing.assert_allclose(together.scores[row], alone.scores[0], atol=1e-5)


@pytest.mark.first_cases(1)
@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
@pytest.mark.parametrize("cell, num_layers, attention, feeding", KINDS)
def test_engines_agree(cell, num_layers, attention, feeding):
    options = {"cell": cell, "num_layers": num_layers, "attention": attention, "input_feeding": feeding}
    _, addons, representation = make("addons", **options)
    native = Seq2SeqDecoder.from_config({**addons.get_config(), "engine": "native"})
    native(representation, tf.constant([[3]] * 4))
    native.set_weights(addons.get_weights())
    targets = tf.constant([[4, 5, 3], [6, 3, 0], [3, 0, 0], [7, 7, 3]])
    np.testing.assert_allclose(native(representation, targets), addons_logits(addons, representation, targets), atol=1e-5)
    beams = {"num_best": 3}, {"num_best": 2, "length_penalty": 1.0}  # in turn: their scores know nothing of the layers
    for arguments in (
        {},
        {"beam_width": 3, **beams[num_layers - 1]},
        {"sample": True, "temperature": 0.8, "top_k": 4, "seed": 5},
    ):
        arguments["return_attention"] = attention is not None
        ours, theirs = native.decode(representation, **arguments), addons.decode(representation, **arguments)
        np.testing.assert_array_equal(ours.ids, theirs.ids)
        np.testing.assert_array_equal(ours.lengths, theirs.lengths)
        np.testing.assert_allclose(ours.scores, theirs.scores, atol=1e-5)
        if attention is not None:
            np.testing.assert_allclose(ours.attention, theirs.attention, atol=1e-5)


def addons_logits(decoder, representation, targets):
    """Logits by Addons' `BasicDecoder`, also where training takes the faster way."""
    memory, state = decoder.begin(representation)
    inputs = np.pad(np.asarray(targets)[:, :-1], [(0, 0), (1, 0)], constant_values=decoder.start_id)
    vectors = _addons_loops.run_stepwise(decoder.decoder_cell, decoder.embedding(tf.constant(inputs)), memory, state)
    return decoder.output_layer(vectors)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("beam_width", [1, 3])
def test_examples_that_leave_disturb_no_other(beam_width):
    encoder, decoder, _ = make("native", maximum_length=12)
    random = np.random.default_rng(0)
    for layer in (encoder, decoder):  # the same on either stack
        layer.set_weights([random.normal(size=weight.shape) for weight in layer.get_weights()])
    tokens = random.integers(4, 10, [40, 6]) * (np.arange(6) < random.integers(1, 7, [40, 1]))
    together = np.asarray(decoder.generate(encoder(tf.constant(tokens, tf.int32)), beam_width=beam_width))
    alone = tf.function(lambda row: decoder.generate(encoder(row), beam_width=beam_width))
    rows = [np.asarray(alone(tf.constant(row[np.newaxis], tf.int32)))[0] for row in tokens]
    np.testing.assert_array_equal(together, rows)
    assert len(set((together > 0).sum(axis=1))) > 2  # they end at several steps


def test_decoding_builds_an_unbuilt_decoder():
    representation = Seq2SeqEncoder(12, 3, 4)(tf.constant(TOKENS))
    assert Seq2SeqDecoder(9, 3, 4, maximum_length=5).generate(representation).shape == [4, 5]
    assert Seq2SeqDecoder(9, 3, 4).decode(representation, maximum_length=3).ids.shape == [4, 1, 3]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"beam_width": 0}, r"`beam_width` must be an integer of at least 1\. Received: beam_width=0\."),
        ({"num_best": 2}, r"`num_best` must not be above `beam_width`\. Received: num_best=2, beam_width=1\."),
        ({"sample": True, "beam_width": 2}, r"`sample` needs `beam_width=1`\. Received: sample=True, beam_width=2\."),
        ({"sample": True, "temperature": 0.0}, r"`temperature` must be above 0\. Received: temperature=0\.0\."),
        ({"top_k": 3}, r"`temperature` and `top_k` need `sample=True`\. Received: temperature=1\.0, top_k=3"),
        ({"maximum_length": 0}, r"`maximum_length` must be an integer of at least 1\."),
    ],
)
def test_wrong_arguments(arguments, message):
    _, decoder, representation = make("native")
    with pytest.raises(ValueError, match=message):
        decoder.decode(representation, **arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"beam_width": 3}, {"sample": True, "seed": 1}], ids=str)
def test_inside_of_a_model_in_half_precision(options):
    """Which asks Keras 3 to round the variables of its layers."""
    policy = "mixed_bfloat16"
    encoder, decoder = Seq2SeqEncoder(12, 3, 4, dtype=policy), Seq2SeqDecoder(9, 3, 4, dtype=policy, maximum_length=6)
    decoder(encoder(TOKENS), [[3]] * 4)
    grow(encoder, 4.0)
    grow(decoder, 4.0)

    class Model(keras.Model):
        def __init__(self):
            super().__init__(dtype=policy)
            self.encoder, self.decoder = encoder, decoder

        def call(self, tokens):
            return self.decoder.decode(self.encoder(tokens), **options).ids

    np.testing.assert_array_equal(Model()(TOKENS), decoder.decode(encoder(TOKENS), **options).ids)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_in_a_function_with_unknown_shapes(engine):
    encoder, decoder, _ = make(engine)

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def decode(tokens):
        representation = encoder(tokens)
        best = decoder.decode(representation, beam_width=3, num_best=2, length_penalty=0.5, return_attention=True)
        return decoder.generate(representation), best

    greedy, best = decode(tf.constant(TOKENS))
    representation = encoder(tf.constant(TOKENS))
    np.testing.assert_array_equal(greedy, decoder.generate(representation))
    alone = decoder.decode(representation, beam_width=3, num_best=2, length_penalty=0.5, return_attention=True)
    np.testing.assert_array_equal(best.ids, alone.ids)
    assert best.ids.shape == [4, 2, 6]
    for tokens in (TOKENS[:0], TOKENS[:, :0], TOKENS[:1, :1]):
        greedy, best = decode(tf.constant(tokens))
        assert greedy.shape == [len(tokens), 6]
        assert best.attention.shape[:3] == [len(tokens), 2, 6]
