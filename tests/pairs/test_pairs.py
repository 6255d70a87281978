"""The covering array of `tests/pairs` has every pair of values, and every three of the factors that touch the update."""

from __future__ import annotations

import itertools

import pytest

from tests.pairs.factors import EXCLUDED, FACTORS, OF_THE_UPDATE, rows

pytestmark = pytest.mark.mathematics


def wanted(names, size):
    for chosen in itertools.combinations(names, size):
        for values in itertools.product(*(FACTORS[name] for name in chosen)):
            yield frozenset(zip(chosen, values))


def test_every_combination_stands_in_a_row_or_is_excluded():
    found = [set(row.items()) for row in rows()]
    excluded = [set(pair) for pair in EXCLUDED]
    missing = set(wanted(FACTORS, 2)) | set(wanted(OF_THE_UPDATE, 3))
    for row in found:
        assert not any(pair <= row for pair in excluded)
        missing -= {frozenset(each) for each in itertools.combinations(row, 2)}
        ours = [(name, value) for name, value in row if name in OF_THE_UPDATE]
        missing -= {frozenset(each) for each in itertools.combinations(ours, 3)}
    assert {frozenset(pair) for pair in EXCLUDED} == missing
