"""One of two workers that train the tiny network, with a checkpoint if they may be killed; saves its weights."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import tensorflow as tf

from multihead import clipping
from multihead.callbacks import Checkpoint
from tests.helpers import tiny


class Kill(keras.callbacks.Callback):
    """Kills this process (SIGKILL) before an update."""

    def __init__(self, update):
        super().__init__()
        self.left = update

    def on_train_batch_begin(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def trainer(options, heads=("tag", "price", "size")):
    """What both workers train."""
    return tiny.trainer(optimizer(), heads, clip=clipping.ByGlobalNorm(0.3), target_scaling="standardize", **options)


def data(heads=("tag", "price", "size")):
    return tf.data.Dataset.from_tensor_slices(tiny.only(tiny.data(24), *heads)).batch(6)


def main(index, name, options, heads=("tag", "price", "size"), folder=None, killed_at=0):
    """Trains with some options of `compile`.

    Args:
        index: The worker's number.
        name: The beginning of the name of its file.
        options: Options of `compile`.
        heads: The heads.
        folder: A folder for a checkpoint, or None.
        killed_at: The update before which the second worker is killed, 0 for never.
    """
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    limit = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20 if folder else None)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=limit)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    with strategy.scope():
        made = trainer(options, heads)
    callbacks = [Checkpoint(folder, every=1)] if folder else []
    callbacks += [Kill(killed_at)] if killed_at and index else []
    rows = data(heads).with_options(policy)
    history = made.fit(rows, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
    arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(made))}
    size = made.heads["size"].target_scaling
    arrays["scaling"] = np.array([size.mean, size.deviation])
    np.savez(f"{name}_{index}.npz", loss=history["loss"], updates=tiny.values([made.update_count])[0], **arrays)
