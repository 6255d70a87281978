"""Decoders that copy words of the source, against NumPy in float64 and the other engine."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import Head, MultiHeadTrainer, losses
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, _addons_loops, search
from tests.helpers.numpy_seq2seq import RowDecoder, encode_row
from tests.helpers.seq2seq import ENGINES, LENGTHS, TOKENS, bridge, grow

VOCABULARY, COPIED_ONLY = 12, 4
COPY_IDS = np.where(TOKENS > 0, 4 + (TOKENS * 3 + np.arange(TOKENS.shape[1])) % (VOCABULARY - 4), 0)
INPUTS = {"tokens": TOKENS, "copy_ids": COPY_IDS}
TARGETS = np.array([[4, 11, 3], [6, 3, 0], [3, 0, 0], [8, 9, 3]])
KINDS = [("gru", "luong", False), ("lstm", "bahdanau", False), ("lstm", "luong", True)]


def make(cell, attention, feeding, engine=None, factor=3.0, **options):
    encoder = Seq2SeqEncoder(12, 3, 4, cell=cell)
    options = {"copy_ids": COPIED_ONLY, "maximum_length": 6, "engine": engine, **options}
    decoder = Seq2SeqDecoder(VOCABULARY, 3, 4, cell=cell, attention=attention, input_feeding=feeding, **options)
    decoder(encoder(INPUTS), TARGETS)
    grow(encoder, factor)
    grow(decoder, factor)
    return encoder, decoder, encoder(INPUTS)


def rows(encoder, decoder):
    for row, length in enumerate(LENGTHS):
        outputs, states = encode_row(encoder, TOKENS[row, :length])
        yield row, RowDecoder(decoder, outputs, bridge(decoder, states), COPY_IDS[row, :length])


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_teacher_forcing(kind):
    encoder, decoder, representation = make(*kind)
    logits = decoder(representation, TARGETS).numpy()
    np.testing.assert_allclose(np.exp(logits).sum(axis=2), 1.0, rtol=1e-5)
    for row, reference in rows(encoder, decoder):
        wanted = reference.teacher_forced(TARGETS[row])[0]
        probable = wanted > -60  # ids that can neither be generated nor copied have a floor
        np.testing.assert_allclose(logits[row][probable], wanted[probable], atol=2e-4)
        assert np.all(logits[row][~probable] < -60)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_greedy_and_beam_search(kind, engine):
    encoder, decoder, representation = make(*kind, engine=engine)
    result = decoder.decode(representation)
    np.testing.assert_array_equal(result.ids[:, 0], decoder.generate(representation))
    best = decoder.decode(representation, beam_width=4, num_best=4)
    for row, reference in rows(encoder, decoder):
        ids, score = reference.greedy(6)
        np.testing.assert_array_equal(result.ids[row, 0], ids + [0] * (6 - len(ids)))
        np.testing.assert_allclose(result.scores[row, 0], score, atol=1e-4)
        for sequence, total in zip(best.ids[row].numpy(), best.scores[row].numpy()):
            state, token, wanted = reference.first, decoder.start_id, 0.0
            for following in sequence[: np.argmax(sequence == 3) + 1 if 3 in sequence else None]:
                scores, state = reference.log_probabilities(token, state)
                wanted, token = wanted + scores[following], following
            np.testing.assert_allclose(total, wanted, atol=1e-3)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("beam_width", [1, 3])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_score_is_what_the_loss_gives(kind, engine, beam_width):
    """Given that there is no padding and no start id; without this condition where the model never writes them anyway."""
    encoder, decoder, representation = make(*kind, engine=engine)
    loss = losses.SequenceCrossentropy()
    for is_trained in (False, True):
        if is_trained:
            kernel, bias = decoder.output_layer.get_weights()
            bias[[0, 2]] = -100.0
            decoder.output_layer.set_weights([kernel, bias])
        result = decoder.decode(representation, beam_width=beam_width)
        ids = result.ids[:, 0]
        logits = decoder(representation, ids)
        excluded = tf.reduce_sum(tf.gather(tf.nn.softmax(logits), [0, 2], axis=2), axis=2).numpy()
        assert (np.max(excluded[:3]) < 1e-6) == is_trained  # the last row has no token: it copies padding
        scores = -loss.call(ids, logits) - (0.0 if is_trained else np.log1p(-excluded))
        is_written = np.arange(ids.shape[1]) < result.lengths.numpy()
        np.testing.assert_allclose(np.sum(np.where(is_written, scores, 0.0), axis=1)[:3], result.scores[:3, 0], atol=1e-3)


@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
def test_engines_sample_alike():
    _, addons, representation = make(*KINDS[0], engine="addons")
    native = Seq2SeqDecoder.from_config({**addons.get_config(), "engine": "native"})
    native(representation, TARGETS)
    native.set_weights(addons.get_weights())
    ours, theirs = (each.decode(representation, sample=True, seed=3) for each in (native, addons))
    np.testing.assert_array_equal(ours.ids, theirs.ids)


def test_searching_with_a_step_of_its_own():
    _, decoder, representation = make(*KINDS[0])
    ends = {"start_id": 2, "end_id": 3, "maximum_length": 6}
    found = search.beam(*decoder.begin_search(representation, beam_width=3), **ends, beam_width=3)
    np.testing.assert_array_equal(found.ids[:, 0], decoder.generate(representation, beam_width=3))


def test_what_was_copied():
    encoder, decoder, representation = make(*KINDS[0], factor=1.0)
    ids = np.array([[4, 11, 3, 5]] * 4)
    copied = decoder.copied(representation, ids).numpy()
    for row, reference in rows(encoder, decoder):
        both = np.exp(reference.teacher_forced(ids[row])[0])
        reference.copy_ids = np.ones_like(reference.copy_ids)  # id 1 stands in no target: the others are generated
        generated = np.exp(reference.teacher_forced(ids[row])[0])
        wanted = 1 - (generated / both)[np.arange(4), ids[row]]
        possible = both[np.arange(4), ids[row]] > 1e-20
        np.testing.assert_allclose(copied[row][possible], wanted[possible], atol=1e-4)


def test_a_word_that_was_never_seen_is_copied(tmp_path):
    """The word after a mark is to be copied; its id is that of its place, and the encoder knows none of the words."""
    keras.utils.set_random_seed(0)
    marks = np.random.default_rng(0).integers(0, 6, 256)
    tokens = np.ones([256, 7], np.int32)
    tokens[np.arange(256), marks] = 2
    copy_ids = np.tile(np.arange(4, 11, dtype=np.int32), [256, 1])
    targets = np.stack([5 + marks, np.full(256, 3)], axis=1)
    inputs = {"tokens": tokens, "copy_ids": copy_ids}
    encoder = Seq2SeqEncoder(4, 8, 16, cell="gru", bidirectional=True)
    decoder = Seq2SeqDecoder(11, 8, 16, cell="gru", copy_ids=7, maximum_length=2)
    trainer = MultiHeadTrainer(encoder, {"reply": Head(decoder, losses.SequenceCrossentropy(), teacher_forcing=True)})
    trainer.compile(keras.optimizers.Adam(0.04))
    trainer.fit(inputs, {"reply": targets}, epochs=12, batch_size=64, verbose=0)
    np.testing.assert_array_equal(trainer.predict(inputs, verbose=0)["reply"], targets)
    trainer.save(tmp_path / "trainer.keras")
    others = {**inputs, "copy_ids": copy_ids[:, ::-1]}  # the same words at other places have other ids
    for model in (trainer, keras.models.load_model(tmp_path / "trainer.keras")):
        np.testing.assert_array_equal(model.predict(others, verbose=0)["reply"][:, 0], 9 - marks)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(policy):
    encoder = Seq2SeqEncoder(12, 3, 4, dtype=policy)
    decoder = Seq2SeqDecoder(VOCABULARY, 3, 4, copy_ids=COPIED_ONLY, maximum_length=5, dtype=policy)
    logits = decoder(encoder(INPUTS), TARGETS)
    assert logits.dtype == tf.float32 and np.all(np.isfinite(logits))
    assert decoder.generate(encoder(INPUTS)).shape == (4, 5)


def test_scheduled_sampling():
    _, decoder, representation = make(*KINDS[0], sampling_probability=1.0)
    assert np.all(np.isfinite(decoder(representation, TARGETS, training=True)))


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 255])
def test_ids_that_do_not_exist_are_refused_where_there_is_a_token(wrong):
    encoder, decoder, representation = make(*KINDS[0])
    expected = decoder(representation, TARGETS)

    def logits(ids):
        return decoder(encoder({"tokens": TOKENS, "copy_ids": ids}), TARGETS)

    modes = {"eagerly": logits, "graph": tf.function(logits), "xla": tf.function(logits, jit_compile=True)}
    at_padding, at_a_token = np.where(representation["mask"], COPY_IDS, wrong), COPY_IDS.copy()
    at_a_token[0, 0] = wrong
    for mode, run in modes.items():
        np.testing.assert_allclose(run(tf.constant(at_padding)), expected, atol=1e-4)
        if mode == "xla":  # which cannot raise errors
            assert np.isnan(run(tf.constant(at_a_token))[0]).any(axis=1).all()
            continue
        with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"`copy_ids` must be ids from 0 to 11"):
            run(tf.constant(at_a_token))
    with pytest.raises(ValueError, match=r"`ids` must be ids from 0 to 11"):
        decoder.copied(representation, np.full([4, 2], wrong))


def test_errors():
    with pytest.raises(ValueError, match=r"`copy_ids` needs `attention`.*attention=None"):
        Seq2SeqDecoder(9, 3, 4, attention=None, copy_ids=2)
    with pytest.raises(ValueError, match=r"`copy_ids` .* a vocabulary with other ids.*copy_ids=6"):
        Seq2SeqDecoder(9, 3, 4, copy_ids=6)
    decoder = Seq2SeqDecoder(9, 3, 4, copy_ids=0)
    with pytest.raises(ValueError, match=r"without \['copy_ids'\]"):
        decoder(Seq2SeqEncoder(12, 3, 4)(TOKENS), TARGETS)
    with pytest.raises(ValueError, match=r"`copied` needs a decoder that copies"):
        Seq2SeqDecoder(9, 3, 4).copied(Seq2SeqEncoder(12, 3, 4)(TOKENS), TARGETS)
    with pytest.raises(ValueError, match=r"`tokens` must hold .* without \['copy_ids'\]"):
        Seq2SeqEncoder(12, 3, 4)({"tokens": TOKENS})
