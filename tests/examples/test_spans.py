"""Spans of tags against hand-counted cases of conlleval, and against a count in plain Python."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from examples._spans import SpanF1, iob
from multihead import Head, MultiHeadTrainer, losses
from multihead.models import CRFTagger, Seq2SeqEncoder

pytestmark = pytest.mark.programs

NAMES = ["", "O", "B-a", "I-a", "E-a", "S-a", "B-b", "I-b", "E-b", "S-b"]
CASES = {
    "equal": ("B-a I-a O B-b", "B-a I-a O B-b", (2, 2, 2)),
    "one of two": ("B-a I-a O B-b", "B-a I-a O O", (1, 1, 2)),
    "too short": ("B-a I-a O", "B-a O O", (0, 1, 1)),
    "too long": ("B-a O O", "B-a I-a O", (0, 1, 1)),
    "too long at the end of the sentence": ("B-a I-a", "B-a I-a", (1, 1, 1)),
    "another type": ("B-a I-a", "B-b I-b", (0, 1, 1)),
    "starts later": ("B-a I-a I-a", "O B-a I-a", (0, 1, 1)),
    "I after O starts a span": ("B-a I-a O", "I-a I-a O", (1, 1, 1)),
    "I after O, both": ("O I-a", "O B-a", (1, 1, 1)),
    "I of another type starts a span": ("B-a I-b I-b", "B-a B-b I-b", (2, 2, 2)),
    "B splits what I would continue": ("B-a I-a", "B-a B-a", (0, 2, 1)),
    "and joins": ("B-a B-a", "B-a I-a", (0, 1, 2)),
    "neighbors": ("B-a B-a B-b", "B-a B-a B-b", (3, 3, 3)),
    "E ends a span": ("B-a E-a I-a", "B-a I-a B-a", (2, 2, 2)),
    "S is a span": ("S-a S-a O", "B-a B-a O", (2, 2, 2)),
    "I after S starts a span": ("S-a I-a", "B-a B-a", (2, 2, 2)),
    "E after O is a span": ("E-a O", "S-a O", (1, 1, 1)),
    "none labelled": ("O O", "B-a O", (0, 1, 0)),
    "none predicted": ("B-a O", "O O", (0, 0, 1)),
}


def ids(tags, time=6):
    found = [NAMES.index(tag) for tag in tags.split()]
    return found + [0] * (time - len(found))


def scores(tags):
    return np.eye(len(NAMES), dtype="float32")[np.asarray(tags)]


def f1(right, predicted, labelled):
    return 2 * right / max(1, predicted + labelled)


@pytest.mark.parametrize("case", CASES)
def test_counts_are_those_of_conlleval(case):
    labelled, predicted, counts = CASES[case]
    metric = SpanF1(NAMES)
    metric.update_state(np.array([ids(labelled)]), scores([ids(predicted)]))
    assert float(metric.result()) == pytest.approx(f1(*counts))
    assert iob(labelled.split()) == iob(iob(labelled.split()))
    metric.reset_state()
    normal = [ids(" ".join(iob(tags.split()))) for tags in (labelled, predicted)]
    metric.update_state(np.array(normal[:1]), scores(normal[1:]))
    assert float(metric.result()) == pytest.approx(f1(*counts))


def test_sentences_end_spans_and_counts_add_up():
    labelled, predicted, counts = zip(*CASES.values())
    metric = SpanF1(NAMES)
    whole = np.array([ids(tags) for tags in labelled]), scores([ids(tags) for tags in predicted])
    update = tf.function(lambda *batch: (metric.update_state(*batch), tf.zeros([]))[1], jit_compile=True)
    for part in np.array_split(np.arange(len(CASES)), 3):
        update(*(tf.constant(each[part]) for each in whole))
    assert float(metric.result()) == pytest.approx(f1(*np.sum(counts, axis=0)))
    assert float(metric.result()) > 0.5


def spans(tags):
    """What conlleval counts, by its own rules of starts and ends, word by word."""
    found, start, before, kind_before = set(), None, "O", ""
    for place, name in enumerate([*(NAMES[tag] or "O" for tag in tags), "O"]):
        mark, _, kind = name.partition("-")
        ends = before in ("E", "S") or (before in ("B", "I") and mark in ("B", "S", "O"))
        if before != "O" and (ends or kind != kind_before):
            found.add((kind_before, start, place))
        starts = mark in ("B", "S") or (before in ("E", "S", "O") and mark in ("E", "I"))
        if mark != "O" and (starts or kind != kind_before):
            start = place
        before, kind_before = mark, kind
    return found


def test_random_tags_are_counted_as_word_by_word():
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 200)
    labelled = np.where(np.arange(8) < lengths[:, np.newaxis], rng.integers(1, len(NAMES), [200, 8]), 0)
    predicted = np.where(rng.random([200, 8]) < 0.8, labelled, rng.integers(1, len(NAMES), [200, 8]))
    pairs = [(spans(one), spans(np.where(one > 0, other, 0))) for one, other in zip(labelled, predicted)]
    expected = f1(*(sum(map(len, each)) for each in zip(*((one & other, other, one) for one, other in pairs))))
    metric = SpanF1(NAMES)
    metric.update_state(labelled, scores(predicted))
    assert 0.2 < expected < 0.9 and float(metric.result()) == pytest.approx(expected)
    weighted = SpanF1.from_config(metric.get_config())
    weighted.update_state(np.maximum(labelled, 1), scores(predicted), sample_weight=(labelled > 0) * 0.3)
    assert float(weighted.result()) == pytest.approx(expected)


def test_it_measures_a_head():
    rng = np.random.default_rng(1)
    words = rng.integers(1, 6, [40, 7]) * (np.arange(7) < rng.integers(1, 8, [40, 1]))
    tags = np.where(words > 0, rng.integers(1, len(NAMES), words.shape), 0)
    keras.utils.set_random_seed(2)
    head = Head(
        CRFTagger(len(NAMES)), losses.SequenceCrossentropy(), teacher_forcing=True, metrics=[SpanF1(NAMES)]
    )  # fmt: skip
    trainer = MultiHeadTrainer(Seq2SeqEncoder(6, 4, 5), heads={"slots": head})
    trainer.compile(keras.optimizers.Adam(0.05))
    trainer.fit(words, {"slots": tags}, epochs=15, verbose=0)
    predicted = trainer.predict(words, verbose=0)["slots"]
    metric = SpanF1(NAMES)
    metric.update_state(tags, scores(predicted))
    found = trainer.evaluate(words, {"slots": tags}, batch_size=8, verbose=0, return_dict=True)["slots_span_f1"]
    assert float(metric.result()) > 0.05 and found == pytest.approx(float(metric.result()))
