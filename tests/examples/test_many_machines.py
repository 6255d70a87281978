"""The program trains on two workers as on one machine, in at most 60 lines."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import h5py
import numpy as np
import pytest

from examples import many_machines
from tests.helpers.workers import run_workers

pytestmark = pytest.mark.programs

OPTIONS = ["--rows", "130", "--epochs", "2"]


@pytest.mark.thorough
def test_two_workers_end_with_the_weights_of_one_machine(tmp_path):
    codes = run_workers("many_machines_worker", [[[*OPTIONS, "--output", "out"]]], tmp_path, timeout=240)
    logs = [(tmp_path / f"0_{index}.log").read_text() for index in range(2)]
    assert codes == [[0, 0]], logs[0][-3000:]
    assert all(log.endswith("6 updates by 2 replicas\n") for log in logs) and "Epoch 2/2" in logs[0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.weights.h5", "run.checkpoint", "run.lock"}
    with contextlib.redirect_stdout(io.StringIO()):
        assert many_machines.main([*OPTIONS, "--output", str(tmp_path / "alone")]) == 0
    found, alone = (arrays_in(tmp_path / folder / "model.weights.h5") for folder in ("out", "alone"))
    assert found.keys() == alone.keys() and len(alone) > 10
    for name, values in alone.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)


def arrays_in(path):
    """The arrays of a file of weights by name, but those of metrics."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, each: found.update({name: each[()]}) if isinstance(each, h5py.Dataset) else None)
    return {name: values for name, values in found.items() if not name.startswith("metrics")}


def test_it_is_short():
    assert len(Path(many_machines.__file__).read_text(encoding="utf-8").splitlines()) <= 60
