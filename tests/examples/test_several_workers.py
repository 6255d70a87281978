"""Two workers of the example end with the weights of one machine, whatever names the cluster and divides the rows."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from examples.seq2seq_price import command, run
from tests.helpers.example_worker import HEADS
from tests.helpers.sources import ROOT
from tests.helpers.workers import run_workers

pytestmark = pytest.mark.programs

SMALL = ["--epochs", "2", "--units", "3", "--embedding", "2", "--batch-size", "16", "--dropout", "0", "--attention", "none"]
TIMEOUT = 400


def train(folder, *arguments):
    """Trains in this process, without the reply; the weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "_report", lambda *args: None)
        patch.setattr(run, "build_model", partial(run.build_model, heads=HEADS))
        assert command.main([*SMALL, *arguments, "--output", str(folder)]) == 0
    return weights_in(folder)


@pytest.fixture(scope="module")
def one_table(tmp_path_factory):
    """Options for a table of orders, and the weights that one device learns from it."""
    folder = tmp_path_factory.mktemp("alone")
    options = files(folder / "data", [37])
    return options, train(folder / "out", *options)


def weights_in(folder):
    return run.load_model(folder)[0].trainer.get_weights()


def assert_equal(found, wanted):
    assert len(found) == len(wanted) > 8
    for one, other in zip(found, wanted):
        np.testing.assert_allclose(one, other, atol=2e-5)


def files(folder, sizes):
    """Options for tables of orders with so many rows."""
    folder.mkdir()
    rows = iter(range(sum(sizes)))
    for number, size in enumerate(sizes):
        lines = ["text,meaning,price_range,legs"]
        for row in (next(rows) for _ in range(size)):
            text = f"{'a big ' * (row % 3)}table for {row % 4}"
            lines.append(f"{text},table[{row % 4}],{('low', 'high')[row % 2]},{('three', 'four')[row // 2 % 2]}")
        (folder / f"part-{number}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    columns = ["--label", "price_range", "legs"]
    return ["--train", str(folder / "part-*.csv"), "--dev", str(folder / "part-0.csv"), *columns]


def speeds_in(logs):
    """What each worker says of itself."""
    found = []
    for index, log in enumerate(logs):
        assert f"worker {index + 1} of 2, process " in log
        found.append(float(re.search(rf"^worker {index + 1} of 2: ([0-9.]+) examples per second$", log, re.MULTILINE)[1]))
    return found


@pytest.mark.addons
@pytest.mark.thorough
@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="Ray is not installed: it takes 400 MB, so it is not part of the extra `test`",
)
def test_workers_that_ray_starts_and_starts_again(tmp_path, one_table):
    options, alone = one_table
    arguments = [*SMALL, *options, "--strategy", "multi-worker", "--ray-workers", "2", "--output", str(tmp_path / "out")]
    program = [sys.executable, "-W", "ignore", "-m", "tests.helpers.ray_worker", *arguments]
    done = subprocess.run(program, capture_output=True, text=True, cwd=ROOT, timeout=2 * TIMEOUT)
    assert done.returncode == 0, done.stderr[-3000:]
    assert {path.name for path in (tmp_path / "out").glob("been-*")} == {"been-0", "been-1"}
    processes = set(re.findall(r"worker ([12] of 2), process (\d+) ", done.stdout + done.stderr))
    assert len(processes) == 4, processes  # both were started twice
    assert_equal(weights_in(tmp_path / "out"), alone)


@pytest.mark.thorough  # two workers of the library are quicker: tests/conformance/test_workers.py
def test_by_row_from_slurm(tmp_path, one_table):
    options, alone = one_table
    arguments = [*SMALL, *options, "--strategy", "multi-worker", "--output", "out"]
    codes = run_workers("example_worker", [[arguments, 0, 28080]], tmp_path, TIMEOUT)
    logs = [(tmp_path / f"0_{index}.log").read_text() for index in range(2)]
    assert codes == [[0, 0]], logs[0][-3000:]
    assert min(speeds_in(logs)) > 0
    assert_equal(weights_in(tmp_path / "out"), alone)


@pytest.mark.thorough
def test_mirrored(tmp_path, one_table, two_replicas, monkeypatch):
    options, alone = one_table
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda: two_replicas)
    assert_equal(train(tmp_path / "out", *options, "--strategy", "mirrored"), alone)


@pytest.mark.thorough
def test_by_file_and_killed(tmp_path):
    options = [*files(tmp_path / "data", [15, 20, 25]), "--shard", "file"]
    arguments = [*SMALL, *options, "--strategy", "multi-worker", "--output", "out"]
    killed, again = run_workers("example_worker", [[arguments, 8], [[*arguments, "--resume"]]], tmp_path, 2 * TIMEOUT)
    logs = [(tmp_path / f"{number}_{index}.log").read_text() for number in range(2) for index in range(2)]
    assert killed == [1, -9], logs[0][-3000:]
    assert "The other workers must run until `fit` ends, but one of them has stopped." in logs[0]
    assert again == [0, 0], logs[2][-3000:]
    assert "epoch 1/2" in logs[0] and "epoch 1/2" not in logs[2]  # it continues with the second epoch of six updates
    # The first worker has two of the three files.
    first, second = speeds_in(logs[2:])
    assert first / second == pytest.approx((15 + 25) / 20, rel=0.3)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"model.json", "model.weights.h5"}
    assert_equal(weights_in(tmp_path / "out"), train(tmp_path / "alone", *options))
