"""Contracts on ids: where padding may stand, what targets a decoder can learn to write, and what it writes itself."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead.models import Classifier, Seq2SeqDecoder, Seq2SeqEncoder, TokenTagger, TransformerDecoder, TransformerEncoder
from tests.helpers.cases import pairwise, quick
from tests.helpers.seq2seq import ENGINES, grow

pytestmark = pytest.mark.first_cases(2)  # the others are thorough

VOCABULARY = 9
ENCODERS = {
    "gru": lambda **ids: Seq2SeqEncoder(VOCABULARY, 3, 4, cell="gru", num_layers=2, **ids),
    "lstm": lambda **ids: Seq2SeqEncoder(VOCABULARY, 3, 4, cell="lstm", bidirectional=True, **ids),
    "transformer": lambda **ids: TransformerEncoder(VOCABULARY, 3, 4, num_heads=2, **ids),
}
DECODERS = {
    "luong": lambda **ids: Seq2SeqDecoder(VOCABULARY, 3, 4, cell="gru", **ids),
    "bahdanau": lambda **ids: Seq2SeqDecoder(VOCABULARY, 3, 4, attention="bahdanau", input_feeding=True, **ids),
    "plain": lambda **ids: Seq2SeqDecoder(VOCABULARY, 3, 4, attention=None, **ids),
    "transformer": lambda **ids: TransformerDecoder(VOCABULARY, 3, 4, num_heads=2, **ids),
}
# Where the tokens of a row stand, P being padding.
PLACES = ["abPPP", "PPPab", "aPPbP", "PaPPb", "aPbPc", "abcde", "PPPPP", "a", "P"]


def row_of(places, padding_id):
    """A row with these places, and its tokens alone."""
    tokens = iter([5, 4, 6, 4, 7])
    row = [padding_id if place == "P" else next(tokens) for place in places]
    return np.array([row]), np.array([[token for token in row if token != padding_id] or [padding_id]])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("kind", "padding_id"), quick(3, pairwise(list(ENCODERS), [0, 8])))
def test_padding_is_skipped_wherever_it_stands(kind, padding_id):
    keras.utils.set_random_seed(1)
    encoder = ENCODERS[kind](padding_id=padding_id)
    encoder(tf.constant([[4]]))
    grow(encoder)
    for places in PLACES:
        row, alone = row_of(places, padding_id)
        found, expected = encoder(row), encoder(alone)
        tf.nest.map_structure(
            lambda one, other: np.testing.assert_allclose(one, other, atol=1e-5), found["state"], expected["state"]
        )
        mask = np.asarray(found["mask"])[0]
        assert mask.tolist() == [place != "P" or (step == 0 and "a" not in places) for step, place in enumerate(places)]
        np.testing.assert_allclose(np.asarray(found["outputs"])[0][mask], expected["outputs"][0], atol=1e-5)
        assert not np.asarray(found["outputs"])[0][~mask].any()


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", list(DECODERS))
def test_heads_do_not_see_where_padding_stands(kind, engine):
    keras.utils.set_random_seed(2)
    if kind == "transformer" and engine == "addons":
        pytest.skip("a transformer has one engine")
    options = {} if kind == "transformer" else {"engine": engine}
    encoder, decoder = ENCODERS["gru"](), DECODERS[kind](maximum_length=5, **options)
    classifier, tagger = Classifier(3, pool=True), TokenTagger(4)
    (behind, _), (front, _), (between, _) = (row_of(places, 0) for places in ("abcPP", "PPabc", "aPbPc"))
    decoder(encoder(behind), np.array([[4, 5, 3]]))
    grow(decoder)
    expected = encoder(behind)
    for row in (front, between):
        found = encoder(row)
        for beam_width in (1, 3):
            np.testing.assert_array_equal(
                decoder.generate(found, beam_width=beam_width), decoder.generate(expected, beam_width=beam_width)
            )
        targets = np.array([[4, 5, 3]])
        np.testing.assert_allclose(decoder(found, targets), decoder(expected, targets), atol=1e-5)
        np.testing.assert_allclose(classifier(found), classifier(expected), atol=1e-6)
        np.testing.assert_allclose(tagger(found)[0][row[0] != 0], tagger(expected)[0][:3], atol=1e-5)


@pytest.mark.parametrize(("kind", "wrong"), quick(1, itertools.product(ENCODERS, [-1, VOCABULARY])))
def test_ids_out_of_range(kind, wrong):
    encoder, rows = ENCODERS[kind](), np.array([[4, 5, 0], [wrong, 4, 0], [4, wrong, wrong]])
    message = r"`tokens` must be ids from 0 to 8, below `vocabulary_size`\. Received: 2 of 3 rows with another id\. Correct"
    with pytest.raises(ValueError, match=message):
        encoder(rows)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("price", Classifier(2), "sparse_categorical_crossentropy")
    trainer.compile("sgd")
    for call in (lambda: trainer.fit(rows, {"price": [0, 1, 0]}, verbose=0), lambda: trainer.predict(rows, verbose=0)):
        with pytest.raises(ValueError, match=message):
            call()


# What a decoder writes
# ---------------------------------------------------------------------------------------------------------------------

# Start, end and padding ids: the defaults; as in BART, GPT-2 and T5; 0 as an ordinary token and as the end.
IDS = [(2, 3, 0), (2, 2, 0), (2, 2, 1), (0, 1, 0), (5, 4, 7), (3, 0, 8)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("kind", "ids"), quick(3, pairwise(list(DECODERS), IDS)))
def test_replies_are_the_best_by_the_logits_of_training(kind, ids, engine):
    if kind == "transformer" and engine == "addons":
        pytest.skip("a transformer has one engine")
    start_id, end_id, padding_id = ids
    options = {} if kind == "transformer" else {"engine": engine}
    keras.utils.set_random_seed(3)
    encoder = ENCODERS["gru"](padding_id=padding_id)
    decoder = DECODERS[kind](start_id=start_id, end_id=end_id, padding_id=padding_id, maximum_length=6, **options)
    tokens = np.random.default_rng(0).permutation(np.tile(np.arange(VOCABULARY), 6)).reshape(18, 3)
    representation = encoder(tokens)
    decoder(representation, tokens)
    grow(encoder, 20.0)
    grow(decoder, 4.0)
    representation = encoder(tokens)
    greedy, best = decoder.decode(representation), decoder.decode(representation, beam_width=9, num_best=2)
    np.testing.assert_array_equal(decoder.generate(representation), greedy.ids[:, 0])
    excluded = {padding_id, start_id} - {end_id}
    for decoded in (greedy, best):
        ids, lengths = np.asarray(decoded.ids[:, 0]), np.asarray(decoded.lengths)[:, 0]
        logits = np.array(decoder(representation, ids))
        logits[:, :, list(excluded)] = -np.inf
        log_probabilities = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        log_probabilities -= logits.max(-1, keepdims=True)
        for row, length in enumerate(lengths):
            assert (ids[row, length:] == padding_id).all() and not excluded & set(ids[row, :length])
            assert length == 6 or ids[row, length - 1] == end_id
            assert end_id not in ids[row, : length - 1]
            total = log_probabilities[row, np.arange(length), ids[row, :length]].sum()
            assert total == pytest.approx(float(decoded.scores[row, 0]), abs=1e-3)
            if decoded is greedy:
                np.testing.assert_array_equal(ids[row, :length], logits[row, :length].argmax(-1))
    assert len(np.unique(greedy.ids, axis=0)) > 1


def test_ids_that_cannot_be():
    for make in (DECODERS["plain"], DECODERS["transformer"]):
        with pytest.raises(ValueError, match=r"`padding_id` must not be `end_id`.*Received: padding_id=3, end_id=3\."):
            make(padding_id=3)
        with pytest.raises(ValueError, match=r"`padding_id` must be below `vocabulary_size`\. Received: padding_id=9"):
            make(padding_id=9)
    with pytest.raises(ValueError, match=r"`padding_id` must be an integer of at least 0\. Received: padding_id=-1\."):
        ENCODERS["gru"](padding_id=-1)


# What a decoder can learn
# ---------------------------------------------------------------------------------------------------------------------

WRONG = {
    "longer than what is written": (
        [[4, 5, 6, 7, 3], [4, 3, 0, 0, 0]],
        "have at most `maximum_length` (4) ids in each row, the end id included: `generate` writes no more. Received: 4 5 6 7 3",
        {"maximum_length": 4},
    ),
    "longer, without an end": ([[4, 5, 6], [3, 0, 0]], "have at most `maximum_length` (2) ids", {"maximum_length": 2}),
    "padding in front": (
        [[0, 0, 5, 3], [4, 5, 3, 0]],
        "padding at the end of each row only. Received: 0 0 5 3 (1 of 2 rows",
    ),
    "padding between": ([[4, 5, 3, 0], [4, 0, 5, 3]], "padding at the end of each row only. Received: 4 0 5 3 (1 of 2 rows"),
    "start id": ([[2, 4, 3, 0], [2, 3, 0, 0]], "not contain the start id, 2, which"),
    "no end id": ([[4, 5, 6, 0], [4, 5, 3, 0]], "have the end id, 3, at the end of each row with fewer than"),
    "no end id in full rows": ([[4, 5, 6, 7], [4, 5, 6, 4]], "have the end id, 3, at the end of each row with fewer"),
    "tokens after the end": (
        [[4, 3, 5, 3], [4, 5, 3, 0]],
        "have only padding after the end id, 3. Received: 4 3 5 3 (1 of 2",
    ),
}
RIGHT = {
    "usual": ([[4, 5, 3, 0], [6, 3, 0, 0]], {}),
    "no tokens": ([[3, 0, 0, 0], [4, 5, 6, 3]], {}),
    "no targets": ([[0, 0, 0, 0], [4, 5, 6, 3]], {}),
    "one step": ([[3], [3]], {}),
    "as long as what is written": ([[4, 5, 6, 3], [4, 3, 0, 0]], {"maximum_length": 4}),
    "padding beyond": ([[4, 5, 3, 0, 0], [4, 3, 0, 0, 0]], {"maximum_length": 3}),
    "cut off": ([[4, 5, 6, 7], [4, 3, 0, 0]], {"maximum_length": 4}),
    "start is end": ([[4, 5, 2, 0], [2, 0, 0, 0]], {"start_id": 2, "end_id": 2}),
    "other padding": ([[4, 5, 3, 8], [0, 3, 8, 8]], {"padding_id": 8}),
    "start is padding": ([[4, 5, 1, 0], [1, 0, 0, 0]], {"start_id": 0, "end_id": 1}),
}


def trainer_for(kind, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(ENCODERS["gru"]())
    loss = losses.SequenceCrossentropy(padding_id=options.get("padding_id", 0))
    trainer.add_head("reply", DECODERS[kind](**options), loss, teacher_forcing=True)
    trainer.compile("sgd", run_eagerly=True)
    return trainer


X = np.array([[4, 5, 0], [6, 0, 0]])
WAYS = {
    "arrays": lambda trainer, y: trainer.fit(X, {"reply": y}, verbose=0),
    "evaluate": lambda trainer, y: trainer.evaluate(X, {"reply": y}, verbose=0),
    "dataset": lambda trainer, y: trainer.fit(tf.data.Dataset.from_tensors((X, {"reply": y})), verbose=0),
    "generator": lambda trainer, y: trainer.fit(((X, {"reply": y}) for _ in range(1)), verbose=0),
    "validation": lambda trainer, y: trainer.fit(
        X, {"reply": np.array([[4, 5, 3, 0], [4, 3, 0, 0]])}, validation_data=(X, {"reply": y}), verbose=0
    ),
    "one batch": lambda trainer, y: trainer.train_on_batch(X, {"reply": y}),
    "own loop": lambda trainer, y: trainer.compute_gradients((X, {"reply": y})),
}


@pytest.mark.parametrize(("way", "kind", "case"), quick(12, pairwise(list(WAYS), ["plain", "transformer"], list(WRONG))))
def test_targets_that_a_decoder_cannot_learn_to_write(way, kind, case):
    targets, message, *options = WRONG[case]
    with pytest.raises(ValueError, match=r"`targets\['reply'\]` must ") as raised:
        WAYS[way](trainer_for(kind, **dict(*options)), np.array(targets))
    assert message in str(raised.value)


@pytest.mark.parametrize(("kind", "case"), quick(len(RIGHT), zip(itertools.cycle(["plain", "transformer"]), RIGHT)))
def test_targets_that_a_decoder_can_learn_to_write(case, kind):
    targets, options = RIGHT[case]
    history = WAYS["arrays"](trainer_for(kind, **options), np.array(targets)).history
    assert np.isfinite(history["loss"]).all()


@pytest.mark.mathematics
def test_errors_of_a_graph_and_marks_that_are_not_padding():
    trainer = trainer_for("plain")
    trainer.compile("sgd")
    data = tf.data.Dataset.from_tensors((X, {"reply": np.array(WRONG["padding in front"][0])}))
    with pytest.raises(
        ValueError, match=r"must have padding at the end of each row only\. Received: .*1 of 2 rows break this"
    ):
        trainer.fit(data, verbose=0)
    trainer.compile("sgd", run_eagerly=True)
    marked = MultiHeadTrainer(ENCODERS["gru"]())
    marked.add_head("reply", DECODERS["plain"](), "sparse_categorical_crossentropy", teacher_forcing=True, ignore_label=-100)
    marked.compile("sgd", run_eagerly=True)
    WAYS["arrays"](marked, np.array([[4, 5, 3, -100], [3, -100, -100, -100]]))
    with pytest.raises(ValueError, match="padding at the end of each row only"):
        WAYS["arrays"](marked, np.array([[-100, 4, 5, 3], [3, -100, -100, -100]]))
    with pytest.raises(ValueError, match=r"`targets\['reply'\]` must be whole numbers from 0 to 8"):
        WAYS["arrays"](trainer, np.array([[4, 9, 3, 0], [4, 5, 3, 0]]))
    with pytest.raises(ValueError, match="padding at the end of each row only.*A token of sample weight 0 is padding, too"):
        trainer.fit(X, {"reply": np.array([[4, 5, 3], [6, 7, 3]])}, sample_weight={"reply": [[0, 1, 1], [1, 1, 1]]})
