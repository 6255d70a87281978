"""The covering array of `tests/pairs`: what it covers, what it leaves out, and a few of its rows."""

from __future__ import annotations

import inspect
import itertools
import subprocess
import sys

import keras
import pytest

from multihead import MultiHeadTrainer
from tests.helpers.sources import ROOT
from tests.pairs import oracles
from tests.pairs.factors import ARGUMENTS, EXCLUDED, FACTORS, OF_THE_UPDATE, rows, table_of_refusals


def wanted(names, size):
    for chosen in itertools.combinations(names, size):
        for values in itertools.product(*(FACTORS[name] for name in chosen)):
            yield frozenset(zip(chosen, values))


@pytest.mark.thorough
@pytest.mark.mathematics
def test_every_pair_and_every_three_of_the_update_stand_in_a_row_or_are_excluded():
    found = [set(row.items()) for row in rows()]
    excluded = [set(pair) for pair in EXCLUDED]
    missing = set(wanted(FACTORS, 2)) | set(wanted(OF_THE_UPDATE, 3))
    for row in found:
        assert not any(pair <= row for pair in excluded)
        missing -= {frozenset(each) for each in itertools.combinations(row, 2)}
        ours = [(name, value) for name, value in row if name in OF_THE_UPDATE]
        missing -= {frozenset(each) for each in itertools.combinations(ours, 3)}
    assert {frozenset(pair) for pair in EXCLUDED} == missing


@pytest.mark.parametrize("method", ARGUMENTS)
def test_every_argument_has_a_factor_or_is_the_same_in_every_row(method):
    owner = keras.Model if method == "fit" else MultiHeadTrainer
    found = set(inspect.signature(getattr(owner, method)).parameters) - {"self"}
    assert found <= set(ARGUMENTS[method])
    assert {factor for factor in ARGUMENTS[method].values() if factor} <= set(FACTORS)


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
def test_a_sample_of_rows_meets_every_oracle(tmp_path):
    arguments = ["--sample", "1", "--seed", "0", "--processes", "1", "--output", str(tmp_path / "rows.jsonl")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.pairs", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.endswith("1 rows, 0 with errors\n")
