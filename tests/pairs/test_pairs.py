"""The covering array of `tests/pairs`: what it covers, what it leaves out, and a few of its rows."""

from __future__ import annotations

import functools
import inspect
import itertools

import keras
import pytest

from multihead import MultiHeadTrainer
from tests.helpers.sources import ROOT
from tests.pairs import oracles
from tests.pairs.factors import EXCLUDED, FACTORS, OF_THE_UPDATE, SAME, VARIED_BY, any_row, as_text, rows, table_of_refusals

NUMBER = 163
"""The number of rows, which take seconds to find."""

all_rows = functools.cache(rows)


def wanted(names, size):
    for chosen in itertools.combinations(names, size):
        for values in itertools.product(*(FACTORS[name] for name in chosen)):
            yield frozenset(zip(chosen, values))


@pytest.mark.thorough
@pytest.mark.mathematics
def test_every_pair_and_every_three_of_the_update_stand_in_a_row_or_are_excluded():
    found = [set(row.items()) for row in all_rows()]
    assert len(found) == NUMBER
    excluded = [set(pair) for pair in EXCLUDED]
    missing = set(wanted(FACTORS, 2)) | set(wanted(OF_THE_UPDATE, 3))
    for row in found:
        assert not any(pair <= row for pair in excluded)
        missing -= {frozenset(each) for each in itertools.combinations(row, 2)}
        ours = [(name, value) for name, value in row if name in OF_THE_UPDATE]
        missing -= {frozenset(each) for each in itertools.combinations(ours, 3)}
    assert {frozenset(pair) for pair in EXCLUDED} == missing


def test_every_argument_has_a_factor_or_is_the_same_in_every_row():
    owners = {"__init__": MultiHeadTrainer, "add_head": MultiHeadTrainer, "compile": MultiHeadTrainer, "fit": keras.Model}
    found = {name for method, owner in owners.items() for name in inspect.signature(getattr(owner, method)).parameters}
    assert found - {"self"} <= {*VARIED_BY, *SAME, *FACTORS} and set(VARIED_BY.values()) <= set(FACTORS)


@pytest.mark.filterwarnings("ignore:.*has no effect:UserWarning")
@pytest.mark.parametrize("pair", EXCLUDED, ids=lambda pair: "+".join(value for _, value in pair))
def test_an_excluded_pair_is_refused_with_an_error_of_the_library(pair, tmp_path):
    refusal = EXCLUDED[pair]
    if not refusal.is_refused_by(keras.__version__):
        pytest.skip("this version of Keras can")
    row = {name: values[0] for name, values in FACTORS.items()} | dict(pair)
    with pytest.raises(ValueError, match=f"(?s)`{refusal.argument}` (must|of) .* Received: "):
        oracles.trained(row, tmp_path)


def test_the_page_lists_what_is_refused():
    page = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert table_of_refusals() in page


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore")
def test_a_row_meets_every_oracle(tmp_path):
    found = map(any_row, itertools.count())
    row = next(row for row in found if row["mode"] == "graph" and oracles.has_tape(row) and oracles.is_resumable(row))
    oracles.check(row, tmp_path)


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(NUMBER))
def test_every_row_meets_every_oracle(number, tmp_path):
    row = all_rows()[number]
    print(as_text(row))
    oracles.check(row, tmp_path)
