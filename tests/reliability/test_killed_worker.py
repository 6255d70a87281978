"""One of two workers is killed: the other one ends with an error, and both go on from the checkpoint."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import tiny, worker
from tests.helpers.workers import run_workers

TIMEOUT = 240
"""Seconds after which workers that have not ended count as hanging: TensorFlow's own limit is 10 to 30."""


@pytest.mark.thorough
@pytest.mark.programs
def test_the_other_worker_ends_with_an_error_and_both_go_on(tmp_path):
    heads, options = ("price", "size"), {"balancer": "EqualNorms"}
    rounds = [(name, options, heads, "checkpoint", update) for name, update in (("killed", 6), ("again", 0))]
    killed, again = run_workers("worker", rounds, tmp_path, TIMEOUT)
    text = (tmp_path / "0_0.log").read_text()
    assert killed == [1, -9], text[-3000:]
    assert "RuntimeError: The other workers must run until `fit` ends, but one of them has stopped. Received: " in text
    assert again == [0, 0], (tmp_path / "1_0.log").read_text()[-3000:]
    alone, data = worker.trainer({**options, "run_eagerly": True}, heads), worker.data(heads)
    history = alone.fit(data, epochs=2, verbose=0, shuffle=False).history
    for index in range(2):
        with np.load(tmp_path / f"again_{index}.npz") as got:
            assert got["updates"] == 8
            np.testing.assert_allclose(got["loss"], history["loss"], rtol=1e-5)
            for i, weight in enumerate(tiny.weights_of(alone)):
                np.testing.assert_allclose(got[f"weight_{i}"], weight, atol=1e-6)
