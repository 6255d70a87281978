"""Training never changes the arrays that it is given."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

pytestmark = pytest.mark.usefixtures("eager_updates")


def aligned(values):
    """An array that starts where TensorFlow takes arrays of generators over without copying them."""
    memory = np.zeros(values.nbytes + 64, "uint8")
    start = -memory.ctypes.data % 64
    array = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    array[:] = values
    return array


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("replicas", [False, True])
def test_labels_of_a_generator_stay(two_replicas, replicas):
    x = aligned(np.ones((16, 5), "float32"))
    kind, size = aligned(np.array([0, -1, 2, 1] * 4)), aligned(np.array([0, np.nan, 2, 1] * 4, "float32"))
    weights = aligned(np.full(16, 2, "float32"))
    before = [kind.copy(), size.copy(), weights.copy()]
    with (two_replicas if replicas else tf.distribute.get_strategy()).scope():
        trainer = MultiHeadTrainer(keras.layers.Dense(4))
        trainer.add_head(
            "kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy", ignore_label=-1
        )
        trainer.add_head("size", keras.layers.Dense(1), "mse")
        trainer.compile("sgd", micro_batches=2, run_eagerly=replicas)
    batch = (x, {"kind": kind, "size": size}, {"size": weights})
    signature = tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), batch)
    data = tf.data.Dataset.from_generator(lambda: iter([batch] * 3), output_signature=signature)
    trainer.fit(data.apply(tf.data.experimental.assert_cardinality(3)), verbose=0)
    for after, wanted in zip((kind, size, weights), before, strict=True):
        np.testing.assert_array_equal(after, wanted)
