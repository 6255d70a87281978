"""The program trains on two workers as on one machine, in at most 60 lines."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from examples import many_machines
from tests.helpers.workers import run_workers

pytestmark = [pytest.mark.programs, pytest.mark.addons]

OPTIONS = ["--rows", "130", "--epochs", "2"]


def test_two_workers_end_with_the_weights_of_one_machine(tmp_path, monkeypatch):
    codes = run_workers("many_machines_worker", [[[*OPTIONS, "--output", "out"]]], tmp_path, timeout=240)
    logs = [(tmp_path / f"0_{index}.log").read_text() for index in range(2)]
    assert codes == [[0, 0]], logs[0][-3000:]
    assert all(log.endswith("6 updates by 2 replicas\n") for log in logs) and "Epoch 2/2" in logs[0]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.weights.h5", "run.checkpoint", "run.lock"}
    built, build = [], many_machines.build
    monkeypatch.setattr(many_machines, "build", lambda: built.append(build()) or built[0])
    with contextlib.redirect_stdout(io.StringIO()):
        assert many_machines.main([*OPTIONS, "--output", str(tmp_path / "alone")]) == 0
    (trainer,) = built
    alone = trainer.get_weights()
    trainer.load_weights(str(tmp_path / "out" / "model.weights.h5"))
    assert len(alone) > 6
    for one, other in zip(trainer.get_weights(), alone):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_it_is_short():
    assert len(Path(many_machines.__file__).read_text(encoding="utf-8").splitlines()) <= 60
