"""One worker of `conformance/test_workers.py`: trains the tiny network under MultiWorkerMirroredStrategy and saves its weights."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead import clipping
from tests.helpers import tiny


def main(index, options):
    """Trains with some options of `compile`."""
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(tiny.data(24)).batch(6).with_options(policy)
    with strategy.scope():
        clip = clipping.ByGlobalNorm(0.3)
        trainer = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), clip=clip, target_scaling="standardize", **options)
    history = trainer.fit(data, epochs=2, verbose=0, shuffle=False).history
    arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(trainer))}
    updates = tiny.values([trainer.update_count])[0]
    size = trainer.heads["size"].target_scaling
    arrays["scaling"] = np.array([size.mean, size.deviation])
    np.savez(f"worker_{index}.npz", updates=updates, loss=history["tag_loss"][-1], **arrays)
