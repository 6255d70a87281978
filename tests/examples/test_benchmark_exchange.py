"""The bytes that two workers exchange are those of the formula, which the command prints."""

from __future__ import annotations

import json

import pytest

from benchmarks.speed import exchange
from tests.helpers.exchanging_worker import sizes
from tests.helpers.workers import run_workers

CASES = [
    ("none", 3, {}),
    ("representation", 3, {"balancer": "UPGrad"}),
    # The coefficients are reused in between, but the graph sums the gradients of all heads at every update.
    ("parameters", 2, {"balancer": "UPGrad", "balance_at": "parameters", "balance_every": 5}),
]


@pytest.mark.thorough
@pytest.mark.programs
def test_two_workers_exchange_what_the_formula_says(tmp_path):
    cases = [(heads, options) for _, heads, options in CASES]
    codes = run_workers("exchanging_worker", [[cases]], tmp_path, timeout=400)
    assert codes == [[0, 0]], (tmp_path / "0_0.log").read_text()[-3000:]
    for index in range(2):
        counted = json.loads((tmp_path / f"counted_{index}.json").read_text())
        for (level, heads, _), found in zip(CASES, counted, strict=True):
            encoder, own = sizes(heads)
            counts, flags, products = 4 * (heads + 1), 4 * 2 * heads, 8 * heads**2
            of_update = [counts, flags, 4 * own, *[4 * encoder] * (heads if level == "parameters" else 1)]
            of_update += [] if level == "parameters" else [products]
            assert sum(of_update) == exchange.summed_bytes(level, heads, encoder, own)
            for number in of_update:
                found.remove(number)  # which is an error if there is no such operation
            # What is left tells whether batches are left, and adds up the statistics of the logs.
            assert sum(found) < 1000 and max(found) < 4 * own


def test_a_ring_passes_every_byte_twice_but_for_the_part_of_one_replica():
    assert exchange.sent_bytes(100, 1) == 0
    assert exchange.sent_bytes(100, 2) == 100
    assert exchange.seconds(1e9, 2, 10) == pytest.approx(0.8)


def test_the_command_prints_what_each_replica_sends(capsys):
    exchange.main([])
    sent = exchange.sent_bytes(exchange.summed_bytes("representation", 3, 100_000_000, 3_000_000), 64)
    assert f"| representation | 64 | {sent / 1e6:.1f} MB | 648.9 ms (76%) | 64.9 ms (24%) |" in capsys.readouterr().out
