"""Promise 4 over processes: two workers on the loopback address make the update of one device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import clipping
from tests.helpers import tiny
from tests.helpers.ports import free_ports

OPTIONS = [{"balancer": "UPGrad", "accumulate_steps": 2, "micro_batches": 2}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where two workers, which took long enough to start once, have saved what they trained with each of the options."""
    folder = tmp_path_factory.mktemp("workers")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    workers = []
    for index in range(2):
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}}),
            "PYTHONPATH": os.getcwd(),
        }
        command = [sys.executable, "-m", "tests.helpers.worker", json.dumps(OPTIONS), str(folder / f"worker_{index}")]
        workers.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        for worker in workers:
            output, _ = worker.communicate(timeout=240)
            assert worker.returncode == 0, output[-3000:]
    finally:
        for worker in workers:
            worker.kill()
    return folder


@pytest.mark.one_in(2, start=1)  # the other stack runs the workers of docs/howto/several_machines.md
@pytest.mark.parametrize("number", range(len(OPTIONS)))
def test_two_workers_make_the_updates_of_one_device(folder, number):
    clip = clipping.ByGlobalNorm(0.3)
    trainer = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), clip=clip, **OPTIONS[number])
    data = tf.data.Dataset.from_tensor_slices(tiny.data(24)).batch(6)
    history = trainer.fit(data, epochs=2, verbose=0, shuffle=False).history
    wanted = tiny.weights_of(trainer)
    for index in range(2):
        with np.load(folder / f"worker_{index}_{number}.npz") as got:
            assert got["updates"] == tiny.values([trainer.update_count])[0]
            np.testing.assert_allclose(got["loss"], history["tag_loss"][-1], rtol=1e-5)
            for i, weight in enumerate(wanted):
                np.testing.assert_allclose(got[f"weight_{i}"], weight, atol=1e-6 * np.abs(weight).max())
