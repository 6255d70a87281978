"""`benchmarks.input_wait`: how long a step waits for its input."""

from __future__ import annotations

import time

import pytest

from benchmarks import input_wait

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_quick_prints_the_share_of_the_example_and_of_arrays(capsys, monkeypatch):
    input_wait.main(["--quick"])
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    shares = {row[0].strip(): [float(cell) for cell in row[1:] if cell.strip()] for row in rows if "---" not in row[0]}
    assert list(shares) == ["batches of the example", "arrays, small dense model", "arrays, GRU"]
    waiting, _ = shares["batches of the example"]
    assert 0.0 < waiting < 100.0
    assert all(figure < 100.0 for found in shares.values() for figure in found)


def test_waiting_is_the_time_inside_the_iterator():
    def slow():
        for number in range(4):
            time.sleep(0.03)
            yield number

    waiting, seconds, read = input_wait.epoch(lambda number: time.sleep(0.01), slow())
    assert read == [0, 1, 2, 3]
    assert 0.12 <= waiting <= seconds - 0.04
