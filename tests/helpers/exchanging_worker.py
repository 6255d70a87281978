"""One of two workers that writes down the bytes of each collective operation in the graph of its training step."""

from __future__ import annotations

import json
import math

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.framework import func_graph

from multihead import MultiHeadTrainer

UNITS = 16


def sizes(heads):
    """The parameters of the encoder, and of all heads together."""
    return (8 + 1) * UNITS + (UNITS + 1) * UNITS, heads * (UNITS + 1)


def _trainer(heads, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Dense(UNITS), keras.layers.Dense(UNITS)]))
    for k in range(heads):
        trainer.add_head(f"head{k}", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.01), **options)
    return trainer


def _batches(heads):
    x = np.random.default_rng(0).normal(size=(8, 8)).astype("float32")
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    targets = {f"head{k}": x[:, :1] for k in range(heads)}
    return tf.data.Dataset.from_tensor_slices((x, targets)).batch(8).with_options(policy)


def main(index, cases):
    """Trains each of some models for one update.

    Args:
        index: The worker's number.
        cases: Pairs of a number of heads and options of `compile`.
    """
    found = []
    create = func_graph.FuncGraph._create_op_internal

    def noting(self, op_type, inputs, *args, **kwargs):
        if op_type.startswith(("CollectiveReduce", "CollectiveGather")):
            found.append(math.prod(inputs[0].shape.as_list()) * inputs[0].dtype.size)
        return create(self, op_type, inputs, *args, **kwargs)

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    func_graph.FuncGraph._create_op_internal = noting
    counted = []
    for heads, options in cases:
        with strategy.scope():
            trainer = _trainer(heads, **options)
        found.clear()
        trainer.fit(_batches(heads), epochs=1, verbose=0)
        counted.append([*found])
    with open(f"counted_{index}.json", "w", encoding="utf-8") as file:
        json.dump(counted, file)
