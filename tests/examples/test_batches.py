"""Batches: every row once, like lengths together, values swapped anew in text and target."""

from __future__ import annotations

import numpy as np
import pytest

from examples.seq2seq_price import text
from examples.seq2seq_price.batches import (
    Examples,
    Vectorizers,
    buckets_by_length,
    evaluation_batches,
    padding_share,
    training_batches,
)

pytestmark = pytest.mark.programs

GENERATOR = np.random.default_rng(0)
LENGTHS = GENERATOR.integers(1, 30, 500)
ROWS = Examples(
    [" ".join(["w"] * (length - 1) + [f"id{row}"]) for row, length in enumerate(LENGTHS)],
    [" ".join(["v"] * (length // 2) + [f"id{row}"]) for row, length in enumerate(LENGTHS)],
    np.arange(500, dtype=np.int32),
)


def vectorizers_for(examples):
    return Vectorizers(
        text.vectorizer(text.build_vocabulary(examples.texts, text.standardize_source), text.standardize_source),
        text.vectorizer(text.build_vocabulary(examples.targets, text.standardize_target), text.standardize_target),
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
    data, again = (training_batches(ROWS, vectorizers_for(ROWS), 32, seed=0)[0] for _ in range(2))
    used = total = 0
    for source, reply, _ in epoch(data):
        used, total = used + np.sum(source > 0) + np.sum(reply > 0), total + source.size + reply.size
    share = padding_share(again)
    assert share == pytest.approx(1 - used / total)
    assert share < 0.15 < padding_share(evaluation_batches(ROWS, vectorizers_for(ROWS), 500))


def test_evaluation_goes_from_short_to_long():
    batches = epoch(evaluation_batches(ROWS, vectorizers_for(ROWS), 64))
    labels = np.concatenate([batch[2] for batch in batches])
    assert sorted(labels) == list(range(500))
    assert np.all(np.diff(LENGTHS[labels] + LENGTHS[labels] // 2) >= 0)


def test_values_are_swapped_anew_in_text_and_target():
    names = ["The Eagle", "Café Rouge", r"A+B\1", ""]
    rows = Examples(
        ["the eagle, near Ranch.", "See café rouge!", r"at a+b\1", "no name", "Eagleton is said", "The Eagle only here"],
        ["name[The Eagle]", "name[Café Rouge]", r"name[A+B\1]", "name[]", "name[The Eagle]", "name[]"],
        np.arange(6, dtype=np.int32),
    )
    column = ["The Eagle", "Café Rouge", r"A+B\1", "", "The Eagle", "The Eagle"]
    everything = Examples(
        [*rows.texts, *(f"{name} {name.lower()}" for name in names)], [*rows.targets, *names], np.zeros(10)
    )
    vectorizers = vectorizers_for(everything)
    words = vectorizers.source.get_vocabulary()
    reader = text.TargetReader(vectorizers.target.get_vocabulary()[2:])
    data, steps = training_batches(rows, vectorizers, 2, seed=1, swaps=[column])
    seen = [set() for _ in range(6)]
    for each in (data, evaluation_batches(rows, vectorizers, 2)):
        assert each.options().autotune.enabled is False  # it may sleep at the end of an epoch
    assert data.cardinality() == steps  # Keras would take an epoch of fewer batches than the first for an accident, and stop
    for _ in range(12):
        assert len(epoch(data)) == steps
        for source, reply, labels in epoch(data):
            for row, ids, target in zip(labels, source, reader(reply)):
                seen[row].add((" ".join(words[number] for number in ids if number), target))
    values = {
        "name[The Eagle]": "the eagle", "name[Café Rouge]": "café rouge", r"name[A+B\1]": r"a + b \ 1",
    }  # fmt: skip
    assert seen[0] == {(f"{value} , near ranch .", target) for target, value in values.items()}
    assert seen[1] == {(f"see {value} !", target) for target, value in values.items()}
    assert seen[2] == {(f"at {value}", target) for target, value in values.items()}
    for row, unchanged in ((3, "no name"), (4, "eagleton is said"), (5, "the eagle only here")):
        assert seen[row] == {(unchanged, rows.targets[row])}


def test_buckets_hold_about_equal_shares_by_source_and_within_by_target():
    sources = GENERATOR.permutation(np.arange(240))
    targets = GENERATOR.integers(0, 1000, 240)
    buckets = buckets_by_length(sources, targets, (4, 3))
    assert np.bincount(buckets).tolist() == [20] * 12
    for first in range(0, 12, 3):
        members = np.isin(buckets, range(first, first + 3))
        assert sources[members].max() - sources[members].min() == 59
        for bucket in (first, first + 1):
            assert targets[buckets == bucket].max() <= targets[buckets == bucket + 1].min()
    assert buckets_by_length(np.full(5, 7), np.full(5, 3), (8, 2)).tolist() == [0] * 5
