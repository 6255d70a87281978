"""The short programs: each prints what its page says, and that is an answer to its question."""

from __future__ import annotations

import re

import pytest

from examples import (
    accumulate_64_batches,
    balance_a_keras_model,
    freeze_then_fine_tune,
    own_loop,
    watch_gradients,
)
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs

NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def page() -> dict[str, list[str]]:
    """The lines that the page shows for each program."""
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    text = text[text.index("## Short answers") :].partition("\n## Is the")[0]
    found = re.findall(r"`python -m examples\.(\w+)`.*?```text\n(.*?)```", text, re.DOTALL)
    return {name: lines.splitlines() for name, lines in found}


SHOWN = page()


def test_the_page_shows_five_programs_of_at_most_80_lines():
    assert len(SHOWN) == 5
    for name in SHOWN:
        assert len((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 80


def told(program, capsys):
    """What a program returns; its lines must be those of the page, up to the numbers of another stack."""
    found = program.main()
    printed = capsys.readouterr().out.splitlines()
    for shown in SHOWN[program.__name__.rpartition(".")[2]]:
        line = next(each for each in printed if each.partition(":")[0] == shown.partition(":")[0])
        for number, expected in zip(NUMBER.findall(line), NUMBER.findall(shown), strict=True):
            assert float(number) == pytest.approx(float(expected), rel=1.0, abs=0.03), line
    return found


def test_balancing_helps_the_head_that_lags(capsys):
    losses = told(balance_a_keras_model, capsys)
    assert losses["balanced"]["topics"] < 0.85 * losses["plain sum"]["topics"]
    assert losses["balanced"]["hours"] < 1.03 * losses["plain sum"]["hours"]


@pytest.mark.thorough
def test_64_batches_are_one_update_of_the_large_batch(capsys):
    found = told(accumulate_64_batches, capsys)
    assert found["updates"] == 1 and found["difference"] < 1e-5


def test_the_log_shows_the_unit_and_its_remedy(capsys):
    found = told(watch_gradients, capsys)
    assert found["raw"]["size_share"] > 0.99 and 0.2 < found["scaled"]["size_share"] < 0.8


@pytest.mark.thorough  # tests/keras/test_freezing.py shows in short what this program relies on
def test_fine_tuning_helps_the_new_head_and_hardly_hurts_the_other(capsys):
    found = told(freeze_then_fine_tune, capsys)
    assert found["fine-tuned"]["size"] < 0.6 * found["frozen encoder"]["size"]
    assert found["fine-tuned"]["kind"] < 1.2 * found["frozen encoder"]["kind"]


def test_the_loop_learns_both_heads(capsys):
    first, *_, last = told(own_loop, capsys)
    assert last["kind"] < 0.2 * first["kind"] and last["size"] < 0.3 * first["size"]
