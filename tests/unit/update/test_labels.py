"""Which elements count, and over what."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from multihead._update.batch import Batch
from multihead._update.labels import Labels, count_labels, count_over_replicas
from tests.helpers import tiny


def test_counts_are_sums_of_weights_and_absent_heads_have_none():
    labels = [Labels(tf.zeros([3]), tf.constant([1.0, 0.0, 0.5])), None, Labels(tf.zeros([2, 2]), tf.ones([2, 2]))]
    assert count_labels(labels).numpy().tolist() == [1.5, 0.0, 4.0]
    batches = [Batch(tf.zeros([3, 1]), {}, {}), Batch(tf.zeros([2, 1]), {}, {})]
    local, counts, examples = count_over_replicas(batches, [labels, labels])
    assert counts.numpy().tolist() == local.numpy().tolist() == [3.0, 0.0, 8.0] and float(examples) == 5.0


def test_padding_missing_labels_and_keras_masks_are_left_out():
    inputs, targets = tiny.data(6, seed=2)
    trainer = tiny.trainer("sgd")
    trainer.compute_gradients((inputs, targets))
    counts = count_labels(_labels(trainer, inputs, targets)).numpy()
    present = [(targets["tag"] != 0).sum(), (targets["price"] != -1).sum(), np.isfinite(targets["size"]).sum()]
    np.testing.assert_array_equal(counts, present)


def _labels(trainer, inputs, targets):
    from multihead._update.labels import read_labels

    spec = trainer._built.spec
    batch = Batch(tf.constant(inputs), {name: tf.constant(value) for name, value in targets.items()}, {})
    return read_labels(spec.network, spec.predictions, batch)


def test_the_mask_of_the_predictions_counts():
    from multihead import MultiHeadTrainer

    encoder = keras.Sequential([keras.layers.Masking(), keras.layers.SimpleRNN(3, return_sequences=True)])
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("tag", keras.layers.Dense(4, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile("sgd")
    inputs = np.ones((2, 3, 1), "float32")
    inputs[1, 1:] = 0
    targets = {"tag": np.ones((2, 3), "int64")}
    trainer.compute_gradients((inputs, targets))
    assert count_labels(_labels(trainer, inputs, targets)).numpy().tolist() == [4.0]
