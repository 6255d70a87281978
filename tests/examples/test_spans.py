"""Spans of tags against hand-counted cases of conlleval, and against a count in plain Python."""

from __future__ import annotations

import numpy as np
import pytest

from examples._spans import SpanF1, iob

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
