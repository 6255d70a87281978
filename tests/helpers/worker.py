"""One worker of `conformance/test_workers.py`: trains the tiny network under MultiWorkerMirroredStrategy and saves its weights."""

from __future__ import annotations

import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402


def main() -> None:
    options, path = json.loads(sys.argv[1]), sys.argv[2]
    # A strategy of several workers must exist before anything else of TensorFlow is used.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    from multihead import clipping
    from tests.helpers import tiny

    with strategy.scope():
        import keras

        clip = clipping.ByGlobalNorm(0.3)
        trainer = tiny.trainer(keras.optimizers.SGD(0.05, momentum=0.9), clip=clip, **options)
    data = tf.data.Dataset.from_tensor_slices(tiny.data(24)).batch(6)
    policy = tf.data.Options()
    policy.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    history = trainer.fit(data.with_options(policy), epochs=2, verbose=0, shuffle=False).history
    arrays = {f"weight_{i}": value for i, value in enumerate(tiny.weights_of(trainer))}
    np.savez(path, updates=tiny.values([trainer.update_count])[0], loss=history["tag_loss"][-1], **arrays)


if __name__ == "__main__":
    main()
