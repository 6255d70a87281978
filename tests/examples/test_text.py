"""Texts to ids and back, against plain Python."""

from __future__ import annotations

import random
import re
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import text

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


def encode(texts, standardize=text.standardize_target):
    vocabulary = text.build_vocabulary(texts, standardize)
    return vocabulary, text.append_end(text.vectorizer(vocabulary, standardize)(tf.constant(texts)))


def test_targets_come_back_as_they_were():
    vocabulary, ids = encode(TARGETS)
    assert text.TargetReader(vocabulary)(ids.to_tensor()) == TARGETS


def test_random_targets_come_back():
    generator = random.Random(0)
    pieces = ["a", "Bc", "7", "é", "[", "],", "£", "-", " ", " ", "🙂"]
    targets = ["".join(generator.choices(pieces, k=generator.randrange(12))) for _ in range(300)]
    vocabulary, ids = encode(targets)
    assert text.TargetReader(vocabulary)(ids.to_tensor()) == [" ".join(target.split()) for target in targets]


def test_reading_stops_at_the_end():
    vocabulary, ids = encode(["a b"])
    tail = tf.concat([ids.to_tensor(), ids.to_tensor()], axis=1)
    assert text.TargetReader(vocabulary)(tail) == ["a b"]


def test_special_ids():
    vocabulary, ids = encode(["b a", "a"])
    assert vocabulary == ["<start>", "<end>", "a", "b"]
    assert ids.to_list() == [[5, 4, text.END_ID], [4, text.END_ID]]
    unknown = text.vectorizer(vocabulary, text.standardize_target)(tf.constant(["a c"]))
    assert unknown.to_list() == [[4, text.UNKNOWN_ID]]


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
    standardized = text.standardize_source(tf.constant(line)).numpy().decode()
    assert standardized.split() == words_and_punctuation(line)


def test_rare_words_are_unknown_ones():
    lines = ["the cat", "the dog", "the cat"]
    assert text.build_vocabulary(lines, text.standardize_source, least=2) == ["<start>", "<end>", "the", "cat"]
    assert text.longest(["a, b", "c"], text.standardize_source) == 3


def test_the_layer_survives_saving(tmp_path):
    layer = text.vectorizer(["<start>", "<end>", "isn", "'", "t"], text.standardize_source)
    config = keras.saving.serialize_keras_object(layer)
    restored = keras.saving.deserialize_keras_object(config)
    lines = tf.constant(["Isn't it?"])
    np.testing.assert_array_equal(restored(lines).to_list(), layer(lines).to_list())
    assert re.search("standardize_source", str(config))
