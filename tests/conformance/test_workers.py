"""Promise 4 over processes: two workers on the loopback address make the update of one device."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers import tiny, worker
from tests.helpers.workers import run_workers

OPTIONS = {"balancer": "UPGrad", "gradient_accumulation_steps": 2, "micro_batches": 2}


@pytest.mark.programs
def test_two_workers_make_the_updates_of_one_device(tmp_path):
    codes = run_workers("worker", [["worker", OPTIONS]], tmp_path, timeout=240)
    assert codes == [[0, 0]], (tmp_path / "0_0.log").read_text()[-3000:]
    trainer, data = worker.trainer({**OPTIONS, "run_eagerly": True}), worker.data()
    history = trainer.fit(data, epochs=2, verbose=0, shuffle=False).history
    for index in range(2):
        with np.load(tmp_path / f"worker_{index}.npz") as got:
            assert got["updates"] == tiny.values([trainer.update_count])[0]
            size = tiny.data(24)[1]["size"].astype("float64")
            np.testing.assert_allclose(got["scaling"], [np.nanmean(size), np.nanstd(size)], rtol=1e-12)
            np.testing.assert_allclose(got["loss"], history["loss"], rtol=1e-5)
            for i, weight in enumerate(tiny.weights_of(trainer)):
                np.testing.assert_allclose(got[f"weight_{i}"], weight, atol=1e-6 * np.abs(weight).max())
