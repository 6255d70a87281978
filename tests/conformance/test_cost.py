"""Promise 7: passes through the encoder, counted, and one matrix between replicas."""

from __future__ import annotations

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping


class CountingEncoder(keras.layers.Layer):
    """Tells when it runs, and when a gradient passes back through it, by operations without a state."""

    def __init__(self, tell):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.tell = tell

    def call(self, x):
        def counted(kind, tensor):
            def told(value):
                self.tell(kind)
                return value

            found = tf.numpy_function(told, [tensor], tensor.dtype, stateful=False)
            return tf.ensure_shape(found, tensor.shape)

        @tf.custom_gradient
        def through(y):
            return tf.identity(y), lambda upstream: counted("backward", upstream)

        return through(self.dense(counted("forward", x)))


AT_PARAMETERS = {"balance_at": "parameters", "micro_batches": 2}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(
    ("options", "forward", "backward"),
    [
        # Two updates of two micro-batches, and three heads
        ({"balancer": "UPGrad", "micro_batches": 2}, 8, 4),
        ({"balancer": "NormFloor", "micro_batches": 2}, 4, 4),
        ({"balancer": "UPGrad", "micro_batches": 2, "balance_every": 2}, 6, 4),
        ({"balancer": "NormFloor", "balance_every": 2, **AT_PARAMETERS}, 4, 8),
        ({"balancer": "UPGrad", "gradient_accumulation_steps": 2}, 4, 2),
        ({"balancer": "UPGrad", "balance_every": 2, **AT_PARAMETERS}, 4, 8),
        ({"micro_batches": 2}, 4, 4),
        ({"balancer": balancing.Sum({"head_0": 2.0}), "micro_batches": 2}, 4, 4),
        ({"weighting": "LogLoss", "micro_batches": 2}, 8, 4),
        ({"weighting": "Uncertainty", "micro_batches": 2}, 4, 4),
        ({"balancer": "UPGrad", **AT_PARAMETERS}, 4, 12),
        # Of one micro-batch
        ({}, 2, 2),
        ({"balancer": "UPGrad"}, 2, 2),
        ({"balancer": "NormFloor"}, 2, 2),
        ({"balancer": "EqualNorms", "clip": clipping.ByGlobalNorm(1.0)}, 2, 2),
        ({"balancer": "UPGrad", "balance_at": "parameters"}, 2, 6),
        ({"balancer": "UPGrad", "balance_at": "parameters", "balance_every": 2}, 2, 4),
    ],
    ids=str,
)
def test_number_of_passes_through_the_encoder(options, forward, backward):
    passes = []
    trainer = MultiHeadTrainer(CountingEncoder(lambda kind: passes.append(kind)))
    for k in range(3):
        trainer.add_head(f"head_{k}", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", **options)
    x = np.ones((12, 3), "float32")
    y = {name: np.ones((12, 1), "float32") for name in trainer.heads}
    trainer.fit(x, y, batch_size=6, verbose=0)
    updates = int(np.asarray(tf.convert_to_tensor(trainer.update_count)))
    assert updates == 2 / options.get("gradient_accumulation_steps", 1)
    assert collections.Counter(passes) == {"forward": forward, "backward": backward}
