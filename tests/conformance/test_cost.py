"""Promise 7: one backward pass through the encoder, and one matrix between replicas."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping
from tests.helpers import tiny


class CountingEncoder(keras.layers.Layer):
    """Counts how often a gradient passes back through it."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)
        self.passes = [tf.Variable(0, trainable=False, dtype=tf.int32)]

    def call(self, x):
        counter = self.passes[0]

        @tf.custom_gradient
        def counted(y):
            def backward(upstream):
                with tf.control_dependencies([counter.assign_add(1)]):
                    return tf.identity(upstream)

            return tf.identity(y), backward

        return counted(self.dense(x))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("options", "passes"),
    [
        ({}, 1),
        ({"balancer": "UPGrad"}, 1),
        ({"balancer": "EqualNorms", "clip": clipping.ByGlobalNorm(1.0)}, 1),
        ({"micro_batches": 2}, 2),
        ({"balancer": "UPGrad", "micro_batches": 2}, 6),
        ({"balancer": "NormFloor", "micro_batches": 2}, 2),
        ({"balancer": "NormFloor"}, 1),
        ({"balancer": "UPGrad", "balance_at": "parameters", "micro_batches": 2}, 6),
        ({"balancer": "UPGrad", "balance_at": "parameters"}, 3),
    ],
)
def test_number_of_backward_passes_through_the_encoder(options, passes):
    encoder = CountingEncoder()
    trainer = MultiHeadTrainer(encoder)
    for k in range(3):
        trainer.add_head(f"head_{k}", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", **options)
    x = np.ones((6, 3), "float32")
    tiny.fit_once(trainer, x, {name: np.ones((6, 1), "float32") for name in trainer.heads})
    assert int(encoder.passes[0]) == passes
