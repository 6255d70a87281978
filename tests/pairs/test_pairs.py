"""The covering array of `tests/pairs`: what it covers, what it leaves out, and a few of its rows."""

from __future__ import annotations

import inspect
import itertools
import json
from concurrent.futures import Future

import keras
import pytest

from multihead import MultiHeadTrainer
from tests.helpers.sources import ROOT
from tests.pairs import __main__ as program
from tests.pairs import oracles
from tests.pairs.factors import EXCLUDED, FACTORS, OF_THE_UPDATE, SAME, VARIED_BY, any_row, rows, table_of_refusals


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


class InThisProcess:
    """Does at once what `ProcessPoolExecutor` has another process do, which would import TensorFlow first."""

    def __init__(self, processes, context, initializer):
        del processes, context, initializer

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


@pytest.mark.programs
def test_a_row_meets_every_oracle(tmp_path, monkeypatch, capsys):
    row = next(
        row
        for row in map(any_row, itertools.count())
        if row["mode"] == "graph" and oracles.has_tape(row) and oracles.is_resumable(row)
    )
    monkeypatch.setattr(program, "rows", lambda salt: [row])
    monkeypatch.setattr(program, "ProcessPoolExecutor", InThisProcess)
    code = program.main(["--output", str(tmp_path / "rows.jsonl")])
    told = capsys.readouterr().out
    assert code == 0 and told.endswith("1 rows, 0 with errors\n"), told
    (line,) = map(json.loads, (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    assert line["row"] == row and line["checks"] == ["mode"] * oracles.draws_alike(row) + ["tape", "resume"]
