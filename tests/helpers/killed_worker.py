"""One of two workers with a checkpoint, which may kill itself (SIGKILL) before an update; saves its weights at the end."""

from __future__ import annotations

import os
import signal

import keras
import numpy as np
import tensorflow as tf

from multihead.callbacks import Checkpoint
from tests.helpers import tiny


class Kill(keras.callbacks.Callback):
    """Kills this process before an update."""

    def __init__(self, update):
        super().__init__()
        self._update = update
        self._seen = 0

    def on_train_batch_begin(self, batch, logs=None):
        self._seen += 1
        if self._seen == self._update:
            os.kill(os.getpid(), signal.SIGKILL)


def main(index, folder, name, killed_at):
    """Trains; `killed_at` is the update before which the second worker is killed, 0 for never."""
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    heads, policy = ("price", "size"), tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(tiny.only(tiny.data(24), *heads)).batch(6).with_options(policy)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        trainer = tiny.trainer(optimizer, heads, balancer="EqualNorms")
    callbacks = [Checkpoint(folder, every=1), *([Kill(killed_at)] if killed_at and index else [])]
    history = trainer.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
    arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(trainer))}
    np.savez(f"{name}_{index}.npz", loss=history["loss"], updates=tiny.values([trainer.update_count])[0], **arrays)
