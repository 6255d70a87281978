"""Which cases a test has: tables of pairs instead of products, and repetitions for the thorough run."""

from __future__ import annotations

import itertools

import pytest


def pairwise(*options):
    """Some of all combinations, in which every two options of different kinds occur together; the same at every call."""
    combinations = list(itertools.product(*options))
    pairs = lambda combination: set(itertools.combinations(enumerate(combination), 2))  # noqa: E731
    missing, chosen = set().union(*map(pairs, combinations)), []
    while missing:
        chosen.append(max(combinations, key=lambda combination: len(pairs(combination) & missing)))
        missing -= pairs(chosen[-1])
    return chosen


def quick(number, cases):
    """Parameters of a test: the first `number` cases are in every run, the others in the thorough one."""
    values = [case if isinstance(case, tuple) else (case,) for case in cases]
    return [pytest.param(*each, marks=[pytest.mark.thorough] * (i >= number)) for i, each in enumerate(values)]


def by_turns(names):
    """Parameters `(name, eagerly)`: a name in a graph, the next one eagerly, and so on; the other way in the thorough run."""
    cases = [(name, (k + turn) % 2 == 1) for turn in (0, 1) for k, name in enumerate(names)]
    return quick(len(names), cases)
