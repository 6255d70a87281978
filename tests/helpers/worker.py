"""One worker of `conformance/test_workers.py`: trains the tiny network under MultiWorkerMirroredStrategy, once per set of options, and saves its weights."""

from __future__ import annotations

import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def main() -> None:
    all_options, path = json.loads(sys.argv[1]), sys.argv[2]
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from multihead import clipping
    from tests.helpers import tiny

    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices(tiny.data(24)).batch(6).with_options(policy)
    for number, options in enumerate(all_options):
        with strategy.scope():
            import keras

            clip = clipping.ByGlobalNorm(0.3)
            trainer = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), clip=clip, **options)
        history = trainer.fit(data, epochs=2, verbose=0, shuffle=False).history
        arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(trainer))}
        updates = tiny.values([trainer.update_count])[0]
        np.savez(f"{path}_{number}.npz", updates=updates, loss=history["tag_loss"][-1], **arrays)


if __name__ == "__main__":
    main()
