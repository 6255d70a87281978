"""One of two workers is killed: the other one ends with an error, and both go on from the checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tiny
from tests.helpers.ports import free_ports

TIMEOUT = 120
"""Seconds after which a worker that has not ended counts as hanging: TensorFlow's own limit is 10 to 30."""


def run(folder, name, killed_at=0):
    """Runs two workers, of which the second is killed before an update; returns what they have printed, and their codes."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index in range(2):
        task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task), "PYTHONPATH": os.getcwd()}
        arguments = [str(folder / "checkpoint"), str(folder / f"{name}_{index}.npz"), str(killed_at if index else 0)]
        with open(folder / f"{name}_{index}.log", "w") as log:
            command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.killed_worker", *arguments]
            workers.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        end = time.monotonic() + TIMEOUT
        codes = [worker.wait(max(1.0, end - time.monotonic())) for worker in reversed(workers)][::-1]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    return codes, [(folder / f"{name}_{index}.log").read_text() for index in range(2)]


@pytest.mark.one_in(2)
def test_the_other_worker_ends_with_an_error_and_both_go_on(tmp_path):
    codes, (text, _) = run(tmp_path, "killed", killed_at=6)
    assert codes == [1, -9]
    assert "RuntimeError: The other workers must run until `fit` ends, but one of them has stopped. Received: " in text
    codes, texts = run(tmp_path, "again")
    assert codes == [0, 0], texts[0][-3000:]
    heads = ("price", "size")
    alone = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), heads, balancer="EqualNorms", run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices(tiny.only(tiny.data(24), *heads)).batch(6)
    history = alone.fit(data, epochs=2, verbose=0, shuffle=False).history
    for index in range(2):
        with np.load(tmp_path / f"again_{index}.npz") as got:
            assert got["updates"] == 8
            np.testing.assert_allclose(got["loss"], history["loss"], rtol=1e-5)
            for i, weight in enumerate(tiny.weights_of(alone)):
                np.testing.assert_allclose(got[f"weight_{i}"], weight, atol=1e-6)
