"""`tf.config.experimental.enable_op_determinism`, which TensorFlow cannot take back: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer

tf.config.experimental.enable_op_determinism()
x = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
y = {"a": x.sum(1, keepdims=True), "b": (x[:, 0] > 0).astype("int64")}

def run():
    keras.utils.set_random_seed(1)
    encoder = keras.Sequential([keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile("adam", balancer="PCGrad", weighting="RandomLossWeighting", run_eagerly=True)
    trainer.fit(x, y, batch_size=4, epochs=2, verbose=0)
    return trainer.get_weights()

for one, other in zip(run(), run(), strict=True):
    np.testing.assert_array_equal(one, other)
"""


@pytest.mark.thorough
@pytest.mark.programs
def test_two_runs_of_one_seed_end_in_the_same_weights():
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    done = subprocess.run(command, cwd=os.getcwd(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
