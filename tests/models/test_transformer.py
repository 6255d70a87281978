"""The transformer against NumPy, against itself without stored keys and values, and in training."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead.models import (
    Classifier,
    Decoded,
    Seq2SeqEncoder,
    TransformerDecoder,
    TransformerEncoder,
    search,
)
from tests.helpers import tiny
from tests.helpers.numpy_seq2seq import softmax, tensor_variables, weights_of
from tests.helpers.seq2seq import LENGTHS, TARGETS, TOKENS

VOCABULARY = 9


def make(*, dtype=None, layers=2, embedding=6, length=6, scale=0.5, **options):
    """Both sides with large random weights, the same on either stack."""
    encoder = TransformerEncoder(12, embedding, 8, num_heads=2, num_layers=layers, dtype=dtype, **options)
    decoder = TransformerDecoder(
        VOCABULARY, embedding, 8, num_heads=2, num_layers=layers, dtype=dtype, maximum_length=length, **options
    )
    decoder(encoder(tf.constant(TOKENS)), tf.constant(TARGETS))
    for layer in (encoder, decoder):
        grown(layer, scale)
    return encoder, decoder, encoder(tf.constant(TOKENS))


def grown(layer, scale):
    random = np.random.default_rng(1)
    spreads = [scale if np.ptp(weight) else 0.2 for weight in layer.get_weights()]  # those of biases are narrow
    values = [random.normal(scale=spread, size=each.shape) for spread, each in zip(spreads, layer.get_weights())]
    layer.set_weights([value + round(each.mean()) for value, each in zip(values, layer.get_weights())])


# NumPy, row by row, without padding, from the formulas


def norm(weights, x):
    gamma, beta = weights
    return gamma * (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6) + beta


def gelu(x):
    from scipy.special import erf

    return 0.5 * x * (1.0 + erf(x / np.sqrt(2.0)))


def attend(layer, x, memory=None, causal=False):
    weights = weights_of(layer)
    query = norm(weights[:2], x)
    memory = query if memory is None else memory
    q, qb, k, kb, v, vb, o, ob = weights[2:]
    queries, keys, values = (
        np.einsum("td,dhs->hts", source, kernel) + bias[:, None]
        for source, kernel, bias in ((query, q, qb), (memory, k, kb), (memory, v, vb))
    )
    scores = queries @ keys.transpose(0, 2, 1) / np.sqrt(queries.shape[-1])
    if causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, -1e30)
    shares = softmax(scores)
    return x + np.einsum("hts,hsd->td", shares @ values, o) + ob, shares.mean(0)


def feed(layer, x):
    gamma, beta, inner, inner_bias, outer, outer_bias = weights_of(layer)
    return x + gelu(norm((gamma, beta), x) @ inner + inner_bias) @ outer + outer_bias


def embed(layer, ids):
    table, *mapped = weights_of(layer)
    vectors = table[ids]
    if mapped:
        vectors = vectors @ mapped[0] + mapped[1]
    rates = 10000.0 ** -(np.arange(4) / 3)
    angles = np.arange(len(ids))[:, None] * rates
    return vectors * np.sqrt(8) + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def encode(encoder, ids):
    x, states = embed(encoder.embedded, ids), []
    for attention, feed_forward in zip(encoder.attention_layers, encoder.feed_forward_layers):
        x = feed(feed_forward, attend(attention, x)[0])
        states.append(norm(weights_of(encoder.norm), x).mean(0))
    return norm(weights_of(encoder.norm), x), states


def logits_of(decoder, memory, targets):
    x = embed(decoder.embedded, np.array([decoder.start_id, *targets[:-1]]))
    for own, source, feed_forward in zip(decoder.own_layers, decoder.source_layers, decoder.feed_forward_layers):
        x, shares = attend(source, attend(own, x, causal=True)[0], memory)
        x = feed(feed_forward, x)
    kernel, bias = weights_of(decoder.output_layer)
    return norm(weights_of(decoder.norm), x) @ kernel + bias, shares


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("embedding", [6, 8])
def test_both_sides_equal_numpy(embedding):
    encoder, decoder, representation = make(embedding=embedding)
    logits = decoder(representation, tf.constant(TARGETS))
    assert logits.dtype == tf.float32
    np.testing.assert_array_equal(representation["mask"], np.arange(5) < np.array(LENGTHS)[:, np.newaxis])
    for row, length in enumerate(LENGTHS):
        outputs, states = encode(encoder, TOKENS[row, :length])
        np.testing.assert_allclose(representation["outputs"][row, :length], outputs, atol=1e-4)
        np.testing.assert_array_equal(representation["outputs"][row, length:], 0.0)
        for state, expected in zip(representation["state"], states, strict=True):
            np.testing.assert_allclose(state[row], expected, atol=1e-4)
        np.testing.assert_array_equal(representation["final"][row], representation["state"][-1][row])
        np.testing.assert_allclose(logits[row], logits_of(decoder, outputs, TARGETS[row])[0], atol=1e-3)


def test_padding_and_batch_mates_change_nothing():
    encoder, decoder, _ = make(layers=1)
    wide, late = np.pad(TOKENS, [(0, 0), (0, 4)]), np.pad(TARGETS, [(0, 0), (0, 3)])
    together = encoder(tf.constant(wide))
    logits, best = decoder(together, tf.constant(late)), decoder.decode(together, beam_width=3, num_best=3)
    for row, length in list(enumerate(LENGTHS))[1:3]:
        alone = encoder(tf.constant(TOKENS[row : row + 1, :length]))
        np.testing.assert_allclose(together["outputs"][row, :length], alone["outputs"][0], atol=1e-5)
        np.testing.assert_allclose(together["final"][row], alone["final"][0], atol=1e-5)
        np.testing.assert_allclose(logits[row, :4], decoder(alone, tf.constant(TARGETS[row : row + 1]))[0], atol=1e-4)
        np.testing.assert_array_equal(best.ids[row], decoder.decode(alone, beam_width=3, num_best=3).ids[0])
    # What stands at padding is never read, however large.
    spoilt = np.where(np.asarray(together["mask"])[:, :, np.newaxis], together["outputs"], 1e4).astype("float32")
    again = decoder({**together, "outputs": tf.constant(spoilt)}, tf.constant(late))
    np.testing.assert_array_equal(again, logits)
    result = decoder.decode({**together, "outputs": tf.constant(spoilt)}, beam_width=3, num_best=3)
    np.testing.assert_array_equal(result.scores, best.scores)


# Decoding


def naive(decoder, representation, length, choose):
    """Ids chosen one by one from the logits of a whole, teacher-forced pass, without anything stored."""
    whole = tf.function(lambda ids: decoder(representation, ids))
    ids = np.zeros([len(TOKENS), length], np.int32)
    for time in range(length):
        logits = np.asarray(whole(tf.constant(ids)))[:, time].copy()
        logits[:, [0, decoder.start_id]] = -np.inf
        done = (ids == decoder.end_id).any(axis=1)
        ids[:, time] = np.where(done, 0, choose(logits, time))
    return ids


def log_probabilities(decoder, representation, length):
    """A function of a row and its ids, without anything stored."""
    whole = tf.function(lambda ids: decoder(representation, ids))

    def of_row(row, ids):
        targets = np.zeros([len(TOKENS), length], np.int32)
        targets[row, : len(ids)] = ids
        logits = np.asarray(whole(tf.constant(targets)), np.float64)[row]
        logits[:, [0, decoder.start_id]] = -np.inf
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    return of_row


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("source", ["transformer", "lstm"])
def test_greedy_from_stored_keys_equals_a_loop_without_them(source):
    _, decoder, representation = make(length=8, scale=1.0)
    if source == "lstm":
        decoder = TransformerDecoder(VOCABULARY, 6, 8, num_heads=2, maximum_length=8)
        representation = Seq2SeqEncoder(12, 3, 5, bidirectional=True)(tf.constant(TOKENS))
        decoder(representation, tf.constant(TARGETS))
        grown(decoder, 1.0)
    expected = naive(decoder, representation, 8, lambda logits, time: logits.argmax(-1))
    assert len(set(expected.ravel().tolist())) > 2
    np.testing.assert_array_equal(decoder.generate(representation), expected)
    result = tf.function(lambda: decoder.decode(representation)[:3])()
    result, scored = Decoded(*result, None), log_probabilities(decoder, representation, 8)
    np.testing.assert_array_equal(result.ids[:, 0], expected)
    for row, length in enumerate(np.asarray(result.lengths)[:, 0]):
        ids = expected[row, :length]
        scores = scored(row, ids)[np.arange(length), ids]
        np.testing.assert_allclose(result.scores[row, 0], scores.sum(), atol=1e-3)


@pytest.mark.thorough
def test_beams_and_samples_from_stored_keys_equal_a_loop_without_them():
    _, decoder, representation = make(length=5, layers=1, scale=1.0)
    found = Decoded(*tf.function(lambda: decoder.decode(representation, beam_width=3, num_best=3)[:3])(), None)
    scored = log_probabilities(decoder, representation, 5)
    for row in range(len(TOKENS)):
        beams = [((), 0.0)]
        for _ in range(5):
            longer = [beam for beam in beams if beam[0][-1:] == (decoder.end_id,)]
            for ids, total in beams:
                if ids[-1:] != (decoder.end_id,):
                    scores = scored(row, ids)[len(ids)]
                    longer += [((*ids, token), total + scores[token]) for token in range(VOCABULARY)]
            beams = sorted(longer, key=lambda beam: -beam[1])[:3]
        np.testing.assert_allclose(found.scores[row], [total for _, total in beams], atol=1e-3)
        for ids, (expected, _) in zip(np.asarray(found.ids[row]).tolist(), beams):
            assert ids == [*expected, *([0] * (5 - len(expected)))]

    def drawn(logits, time):
        logits = tf.constant(logits / 0.7, tf.float32)
        return tf.random.stateless_categorical(logits, 1, seed=[5, time], dtype=tf.int32)[:, 0].numpy()

    sampled = decoder.decode(representation, sample=True, temperature=0.7, seed=5)
    np.testing.assert_array_equal(sampled.ids[:, 0], naive(decoder, representation, 5, drawn))


def test_the_public_searches_take_its_step():
    _, decoder, representation = make()
    ends = dict(start_id=2, end_id=3, maximum_length=6)
    best = decoder.decode(representation, beam_width=3, num_best=2, length_penalty=0.5)
    parts = decoder.begin_search(representation, beam_width=3)
    found = search.beam(*parts, beam_width=3, num_best=2, length_penalty=0.5, **ends)
    np.testing.assert_array_equal(found.ids, best.ids)


# As layers


def test_every_weight_gets_a_gradient_and_dropout_is_for_training_only():
    encoder, decoder, _ = make(layers=1, dropout=0.3)
    variables = [*tensor_variables(encoder), *tensor_variables(decoder)]
    with tf.GradientTape() as tape:
        logits = decoder(encoder(tf.constant(TOKENS), training=True), tf.constant(TARGETS), training=True)
        loss = tf.reduce_sum(logits**2)
    gradients = tape.gradient(loss, variables)
    assert all(gradient is not None for gradient in gradients)
    plain = decoder(encoder(tf.constant(TOKENS)), tf.constant(TARGETS))
    again = decoder(encoder(tf.constant(TOKENS), training=False), tf.constant(TARGETS), training=False)
    np.testing.assert_array_equal(plain, again)
    assert np.abs(plain - logits).max() > 0.1


@pytest.mark.parametrize("kind", [TransformerEncoder, TransformerDecoder])
def test_config_makes_the_same_layer(kind):
    layer = kind(9, 6, 8, num_heads=2, num_layers=3, feed_forward_units=5, dropout=0.1, name="words")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert type(again) is kind and again.get_config() == layer.get_config()


@pytest.mark.thorough
def test_training_saving_and_exporting(tmp_path):
    keras.utils.set_random_seed(0)
    source = np.array([[4, 5, 6, 3], [7, 8, 3, 0], [5, 3, 0, 0]] * 8, np.int32)
    trainer = MultiHeadTrainer(TransformerEncoder(9, 8, 16, num_layers=1, dropout=0.05))
    decoder = TransformerDecoder(9, 8, 16, num_layers=1, dropout=0.05, maximum_length=4)
    trainer.add_head("copy", decoder, losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.add_head("kind", Classifier(3, pool=True), "sparse_categorical_crossentropy")
    trainer.compile(keras.optimizers.Adam(0.01))
    targets = {"copy": source, "kind": np.array([0, 1, 2] * 8)}
    trainer.fit(source, targets, batch_size=24, epochs=60, verbose=0)
    answers = trainer.predict(source, batch_size=24, verbose=0)
    np.testing.assert_array_equal(answers["copy"], source)
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    for one, other in zip(tiny.weights_of(trainer), tiny.weights_of(loaded), strict=True):
        np.testing.assert_array_equal(one, other)
    loaded.export(str(tmp_path / "served"), "copy")
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    (result,) = served(tf.constant(source[:3])).values()
    np.testing.assert_array_equal(result, source[:3])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_heads": 3}, r"`num_heads` must divide `units`\. Received: num_heads=3, units=8\. "),
        ({"num_heads": 0}, r"`num_heads` must be an integer of at least 1\. Received: num_heads=0\."),
        ({"num_layers": 0}, r"`num_layers` must be an integer of at least 1\."),
        ({"feed_forward_units": -1}, r"`feed_forward_units` must be an integer of at least 1\."),
        ({"dropout": 1.0}, r"`dropout` must be a number from 0 up to, not including, 1\."),
    ],
)
def test_wrong_options(options, message):
    for kind in (TransformerEncoder, TransformerDecoder):
        with pytest.raises(ValueError, match=message):
            kind(9, 6, 8, **options)


def test_wrong_use():
    decoder = TransformerDecoder(9, 6, 8, num_heads=2)
    representation = TransformerEncoder(12, 6, 8, num_heads=2)(tf.constant(TOKENS))
    with pytest.raises(ValueError, match=r"`end_id` must be below `vocabulary_size`\. Received: end_id=9"):
        TransformerDecoder(9, 6, 8, end_id=9)
    with pytest.raises(ValueError, match=r"`targets` must be integer ids of shape \[batch, time\]\."):
        decoder(representation, tf.zeros([4, 3]))
    with pytest.raises(ValueError, match=r"`representation` must hold \['outputs', 'mask'\] .*without \['outputs'\]\."):
        decoder.generate({"mask": representation["mask"]})
    with pytest.raises(ValueError, match=r"`engine` must be one of 'native', None\. Received: engine='addons'\."):
        decoder.generate(representation, engine="addons")
    with pytest.raises(ValueError, match=r"`maximum_length` must be an integer of at least 1\."):
        decoder.begin_search(representation, maximum_length=0)
    with pytest.raises(ValueError, match=r"`tokens` must be integer ids"):
        TransformerEncoder(12, 6, 8)(tf.zeros([2, 3]))


@pytest.mark.thorough
def test_attention_of_decoded_ids_equals_numpy():
    encoder, decoder, representation = make()
    result = decoder.decode(representation, beam_width=2, num_best=2, return_attention=True)
    for row, length in enumerate(LENGTHS):
        memory, _ = encode(encoder, TOKENS[row, :length])
        for place, size in enumerate(np.asarray(result.lengths[row])):
            expected = logits_of(decoder, memory, np.asarray(result.ids[row, place, :size]))[1]
            np.testing.assert_allclose(result.attention[row, place, :size, :length], expected, atol=1e-4)
            np.testing.assert_array_equal(result.attention[row, place, size:], 0.0)
            np.testing.assert_array_equal(result.attention[row, place, :, length:], 0.0)


@pytest.mark.thorough
def test_unknown_shapes_and_empty_batches():
    encoder, decoder, representation = make()
    signature = [tf.TensorSpec([None, None], tf.int32)]
    decode = tf.function(lambda tokens: decoder.generate(encoder(tokens), beam_width=2), input_signature=signature)
    np.testing.assert_array_equal(decode(tf.constant(TOKENS)), decoder.generate(representation, beam_width=2))
    for tokens in (TOKENS[:0], TOKENS[:, :0], TOKENS[:1, :1]):
        assert decode(tf.constant(tokens)).shape == [len(tokens), 6]


@pytest.mark.thorough
def test_mixed_precision():
    encoder, decoder, representation = make(dtype="mixed_float16", layers=1)
    assert representation["outputs"].dtype == representation["final"].dtype == tf.float16
    logits = decoder(representation, tf.constant(TARGETS))
    assert logits.dtype == tf.float32 and np.isfinite(logits).all()
    exact = make(layers=1)
    np.testing.assert_allclose(logits, exact[1](exact[2], tf.constant(TARGETS)), atol=0.05)
    expected = naive(decoder, representation, 6, lambda logits, time: logits.argmax(-1))
    np.testing.assert_array_equal(decoder.generate(representation), expected)
