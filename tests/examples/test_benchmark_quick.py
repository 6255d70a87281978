"""The benchmarks of speed: the command lists them, and `--quick` of each prints a table with a number in each line."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import main, programs

TESTED_ELSEWHERE = {"peers", "many_heads", "serving"}


def test_the_command_lists_a_sentence_of_each(capsys):
    assert main([]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert set(programs()) >= {"step", "exchange", *TESTED_ELSEWHERE} and set(programs()) <= set(printed)
    assert all(text.endswith(".") and len(text) > 20 for text in programs().values())


def test_a_benchmark_that_does_not_exist_is_an_error(capsys):
    assert main(["stop", "--quick"]) == 2
    assert "there is no benchmark 'stop'. Choose among accumulation, " in capsys.readouterr().err


QUICK = ("step", "exchange")
CASES = [*QUICK, *sorted(set(programs()) - TESTED_ELSEWHERE - set(QUICK))]


@pytest.mark.programs
@pytest.mark.first_cases(len(QUICK))
@pytest.mark.parametrize("name", CASES)
def test_quick_prints_a_table(name, capsys):
    assert main([name, "--quick"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert any(re.search(r"\| *-?\d", row) for row in rows)
