"""One of two workers with a checkpoint, which may kill itself (SIGKILL) before an update; saves its weights at the end.

`python -m tests.helpers.killed_worker FOLDER RESULT UPDATE`, with `TF_CONFIG` set; UPDATE 0: it is not killed.
"""

from __future__ import annotations

import os
import signal
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def main() -> None:
    folder, result, update = sys.argv[1], sys.argv[2], int(sys.argv[3])
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=20)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    import keras

    from multihead.callbacks import Checkpoint
    from tests.helpers import tiny

    class Kill(keras.callbacks.Callback):
        seen = 0

        def on_train_batch_begin(self, batch, logs=None):
            self.seen += 1
            if self.seen == update:
                os.kill(os.getpid(), signal.SIGKILL)

    heads, policy = ("price", "size"), tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(tiny.only(tiny.data(24), *heads)).batch(6).with_options(policy)
    with strategy.scope():
        optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
        trainer = tiny.trainer(optimizer, heads, balancer="EqualNorms")
    callbacks = [Checkpoint(folder, every=1), *([Kill()] if update else [])]
    history = trainer.fit(data, epochs=2, verbose=0, shuffle=False, callbacks=callbacks).history
    arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(trainer))}
    np.savez(result, loss=history["loss"], updates=tiny.values([trainer.update_count])[0], **arrays)


if __name__ == "__main__":
    main()
