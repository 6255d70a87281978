"""Texts to ids and back, against plain Python; batches with every row once, and similar lengths together."""

from __future__ import annotations

import random
import re
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price.batches import (
    Examples,
    Vectorizers,
    append_end,
    build_vocabulary,
    evaluation_batches,
    standardize_source,
    standardize_target,
    training_batches,
    vectorizer,
    vocabularies,
)
from examples.seq2seq_price.model import END_ID, UNKNOWN_ID

pytestmark = pytest.mark.programs

TARGETS = [
    "name[The Eagle], eatType[coffee shop], near[Café Rouge]",
    "£20-25, isn't (x)!",
    "2 large oak desk varnished; 1 pine chair; express",
    "x - y -z a- b",
    "ein wor@@ t mit f@@ ug@@ en .",
    "שלום 👩‍👩‍👧 é हिन्दी में",
    "...",
    "",
]


def texts_of(vocabulary, ids):
    """The texts of dense ids, up to their ends."""
    texts = Vectorizers(vocabulary, vocabulary).texts(ids, tf.fill([len(ids)], ""))
    return [text.decode() for text in texts.numpy()]


def encode(texts, standardize=standardize_target):
    vocabulary = build_vocabulary(texts, standardize)
    return vocabulary, append_end(vectorizer(vocabulary, standardize)(tf.constant(texts)))


def test_targets_come_back_as_they_were():
    vocabulary, ids = encode(TARGETS)
    assert texts_of(vocabulary, ids.to_tensor()) == TARGETS


def test_random_targets_come_back():
    generator = random.Random(0)
    pieces = ["a", "Bc", "7", "é", "[", "],", "£", "-", " ", " ", "🙂"]
    targets = ["".join(generator.choices(pieces, k=generator.randrange(12))) for _ in range(300)]
    vocabulary, ids = encode(targets)
    assert texts_of(vocabulary, ids.to_tensor()) == [" ".join(target.split()) for target in targets]


def test_reading_stops_at_the_end():
    vocabulary, ids = encode(["a b"])
    tail = tf.concat([ids.to_tensor(), ids.to_tensor()], axis=1)
    assert texts_of(vocabulary, tail) == ["a b"]


def test_special_ids():
    vocabulary, ids = encode(["b a", "a"])
    assert vocabulary == ["<start>", "<end>", "a", "b"]
    assert ids.to_list() == [[5, 4, END_ID], [4, END_ID]]
    unknown = vectorizer(vocabulary, standardize_target)(tf.constant(["a c"]))
    assert unknown.to_list() == [[4, UNKNOWN_ID]]


def words_and_punctuation(line):
    """What a source's tokens are, found letter by letter."""
    tokens, kind = [], None
    for letter in line.lower():
        new = None if letter.isspace() else unicodedata.category(letter)[0] in "LMN" or letter == "_"
        if new is not None:
            tokens[-1:] = [tokens[-1] + letter] if new == kind else [*tokens[-1:], letter]
        kind = new
    return tokens


@pytest.mark.parametrize("line", [*TARGETS, "ÉTÉ costs £20-£25, IT ISN'T so."])
def test_sources_keep_every_character_but_case(line):
    standardized = standardize_source(tf.constant(line)).numpy().decode()
    assert standardized.split() == words_and_punctuation(line)


def test_rare_words_are_unknown_ones():
    lines = ["the cat", "the dog", "the cat"]
    assert build_vocabulary(lines, standardize_source, least=2) == ["<start>", "<end>", "the", "cat"]


def test_what_is_rare_grows_with_the_rows():
    """A word in three of 12,000 rows is no better known than one in none."""
    few, many = (
        vocabularies(Examples(["olive grove"] * 3 + ["the cat"] * rows, ["a[Olive]"] * (3 + rows), {}))
        for rows in (600, 12_000)
    )
    assert set(few[0]) - set(many[0]) == {"olive", "grove"} and {"the", "cat"} <= set(many[0])
    assert few[1] == many[1]  # replies are written with every word


def test_the_layer_survives_saving(tmp_path):
    layer = vectorizer(["<start>", "<end>", "isn", "'", "t"], standardize_source)
    config = keras.saving.serialize_keras_object(layer)
    restored = keras.saving.deserialize_keras_object(config)
    lines = tf.constant(["Isn't it?"])
    np.testing.assert_array_equal(restored(lines).to_list(), layer(lines).to_list())
    assert re.search("standardize_source", str(config))


GENERATOR = np.random.default_rng(0)
LENGTHS = GENERATOR.integers(1, 30, 500)
ROWS = Examples(
    [" ".join(["w"] * (length - 1) + [f"id{row}"]) for row, length in enumerate(LENGTHS)],
    [" ".join(["v"] * (length // 2) + [f"id{row}"]) for row, length in enumerate(LENGTHS)],
    {"price": np.arange(500, dtype=np.int32)},
)


def vectorizers_for(examples):
    return Vectorizers(
        build_vocabulary(examples.texts, standardize_source), build_vocabulary(examples.targets, standardize_target)
    )


def epoch(data):
    return [(source, targets["reply"], targets["price"]) for source, targets in data.as_numpy_iterator()]


def test_an_epoch_holds_every_row_once_in_an_order_of_its_own():
    data, steps = training_batches(ROWS, vectorizers_for(ROWS), 32, seed=5)
    first, second = epoch(data), epoch(data)
    again = epoch(training_batches(ROWS, vectorizers_for(ROWS), 32, seed=5)[0])
    labels = [np.concatenate([batch[2] for batch in batches]) for batches in (first, second, again)]
    assert sorted(labels[0]) == sorted(labels[1]) == list(range(500))
    assert not np.array_equal(labels[0], labels[1])
    assert np.array_equal(labels[0], labels[2])
    assert len(first) == steps
    assert {len(batch[2]) for batch in first} <= set(range(1, 33))


def test_ids_belong_to_their_rows():
    vectorizers = vectorizers_for(ROWS)
    for source, reply, labels in epoch(training_batches(ROWS, vectorizers, 32, seed=0)[0]):
        assert source.dtype == reply.dtype == labels.dtype == np.int32
        np.testing.assert_array_equal(np.count_nonzero(source, axis=1), LENGTHS[labels])
        np.testing.assert_array_equal(np.count_nonzero(reply, axis=1), LENGTHS[labels] // 2 + 2)


def test_like_lengths_save_padding():
    def padding(data):
        ids = [each for source, reply, _ in epoch(data) for each in (source, reply)]
        return 1 - sum(map(np.count_nonzero, ids)) / sum(each.size for each in ids)

    vectorizers = vectorizers_for(ROWS)
    data, steps = training_batches(ROWS, vectorizers, 32, seed=0)
    assert padding(data) < 0.15 < padding(evaluation_batches(ROWS, vectorizers, 500))
    assert data.options().autotune.enabled is False  # it may sleep at the end of an epoch
    assert data.cardinality() == steps  # Keras would take an epoch of fewer batches than the first for an accident, and stop


def test_evaluation_goes_from_short_to_long():
    batches = epoch(evaluation_batches(ROWS, vectorizers_for(ROWS), 64))
    labels = np.concatenate([batch[2] for batch in batches])
    assert sorted(labels) == list(range(500))
    assert np.all(np.diff(LENGTHS[labels] + LENGTHS[labels] // 2) >= 0)


def test_at_most_so_many_rows_are_evenly_spaced():
    rows = [str(row) for row in range(10)]
    labels = {"price": np.arange(10), "tags": tf.ragged.constant([[row] * (row % 4) for row in range(10)], ragged_rank=1)}
    some = Examples(rows, rows[::-1], labels).at_most(4)
    assert some.texts == ["0", "3", "6", "9"] and some.targets == ["9", "6", "3", "0"]
    assert some.labels["price"].tolist() == [0, 3, 6, 9] and some.labels["tags"].to_list() == [[], [3, 3, 3], [6, 6], [9]]
    assert Examples(rows, rows, labels).at_most(10).texts == rows
