"""A short program for many machines: your own model, trained by workers that read TF_CONFIG and share one folder."""

from __future__ import annotations

import argparse
import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.callbacks import Checkpoint


def read_data(rows: int) -> tf.data.Dataset:
    """Your data: the same batches in the same order on every worker, of which each takes its rows."""
    x = np.random.default_rng(0).normal(size=(rows, 8)).astype("float32")
    targets = {"kind": (x[:, 0] > 0).astype("int64"), "size": x[:, 1:2]}
    by_row = tf.data.Options()
    by_row.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    batches = tf.data.Dataset.from_tensor_slices((x, targets)).shuffle(rows, seed=0)
    return batches.batch(64).with_options(by_row)  # 64 rows on all workers together


def build() -> MultiHeadTrainer:
    """Your model."""
    trainer = MultiHeadTrainer(keras.layers.Dense(16, activation="tanh"))
    trainer.add_head("kind", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.01), balancer="UPGrad")
    return trainer


def main(arguments: list[str] | None = None) -> int:
    """Trains; after a worker was killed, start the same command on all of them again to resume."""
    parser = argparse.ArgumentParser("python -m examples.many_machines", description=__doc__)
    parser.add_argument("--output", default="runs/many_machines", help="a folder that all workers share")
    parser.add_argument("--epochs", type=int, default=5, help="passes over the data")
    parser.add_argument("--rows", type=int, default=4096, help="the number of examples, over all workers")
    options = parser.parse_args(arguments)
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before anything else of TensorFlow is used
    is_chief = strategy.extended.should_checkpoint
    keras.utils.set_random_seed(0)
    with strategy.scope():
        trainer = build()
    callbacks = [Checkpoint(options.output, every=100)]
    trainer.fit(read_data(options.rows), epochs=options.epochs, callbacks=callbacks, verbose=2)
    with tempfile.TemporaryDirectory() as folder:  # all workers read the weights, and only the chief keeps them
        trainer.save_weights(f"{options.output if is_chief else folder}/model.weights.h5")
    print(f"{int(trainer.update_count)} updates by {strategy.num_replicas_in_sync} replicas")
    return 0


if __name__ == "__main__":
    sys.exit(main())
