"""Promises 2 and 3: sums and counts add up, the division happens once, and one update is one update."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import reference, tiny

pytestmark = pytest.mark.usefixtures("eager_updates")


def test_masks_of_predictions_count_as_in_keras():
    rng = np.random.default_rng(0)
    x = rng.integers(1, 9, (12, 5))
    x[np.arange(5) >= rng.integers(1, 6, (12, 1))] = 0
    y = rng.integers(0, 3, (12, 5))

    def layers():
        keras.utils.set_random_seed(2)
        embed = keras.layers.Embedding(9, 4, mask_zero=True)
        encoder = keras.Sequential([embed, keras.layers.Dense(3, activation="tanh")])
        return encoder, keras.layers.Dense(3, activation="softmax")

    encoder, head = layers()
    plain = keras.Sequential([encoder, head])
    plain.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    plain.fit(x, y, batch_size=12, verbose=0, shuffle=False)
    for micro_batches in (1, 4):
        encoder_2, head_2 = layers()
        trainer = MultiHeadTrainer(encoder_2)
        trainer.add_head("tag", head_2, "sparse_categorical_crossentropy")
        trainer.compile(keras.optimizers.SGD(0.5), micro_batches=micro_batches, run_eagerly=micro_batches > 1)
        tiny.fit_once(trainer, x, {"tag": y})
        # A tape over the promised formula; Keras 3 divides by all positions, so its own fit is another sum there.
        encoder_3, head_3 = layers()
        with tf.GradientTape() as tape:
            probabilities = head_3(encoder_3(tf.constant(x)))
            values = keras.losses.sparse_categorical_crossentropy(tf.constant(y), probabilities)
            mask = tf.cast(x > 0, tf.float32)
            loss = tf.reduce_sum(values * mask) / tf.reduce_sum(mask)
        variables = [*encoder_3.trainable_variables, *head_3.trainable_variables]
        gradients = tape.gradient(loss, [tiny.tensor_variable(v) for v in variables])
        wanted = [v - 0.5 * tf.convert_to_tensor(g).numpy() for v, g in zip(tiny.values(variables), gradients)]
        for a, b in zip(wanted, tiny.weights_of(trainer), strict=True):
            np.testing.assert_allclose(b, a, atol=2e-7)


def test_sample_weights_and_missing_labels_follow_the_formula():
    batches = [tiny.data(9, seed=2)]
    rng = np.random.default_rng(1)
    weights = [{"price": rng.integers(0, 3, 9).astype("float32"), "tag": rng.random((9, 6)).astype("float32")}]
    trainer = tiny.trainer("sgd", run_eagerly=True)
    actual = {id(tiny.tensor_variable(v)): g for g, v in trainer.compute_gradients((*batches[0], weights[0]))}
    heads = {name: head.module for name, head in trainer.heads.items()}
    made = reference.Reference(trainer.encoder, heads, None, tiny.WEIGHTS)
    for gradient, variable in zip(made.gradients(batches, weights)[0], made.variables):
        got = tf.convert_to_tensor(actual[id(tiny.tensor_variable(variable))])
        np.testing.assert_allclose(got, gradient, atol=1e-6)


@pytest.mark.thorough
def test_updates_are_what_keras_counts(tmp_path):
    """Seven batches in windows of three are three updates, whatever `steps_per_execution` is."""
    inputs, targets = tiny.data(14)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(2)
    of_two = data.map(lambda x, y: (x, {name: y[name] for name in ("tag", "size")}))
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([2], [0.1, 0.0])
    weights = []
    for steps in (1, 2):
        options = {"gradient_accumulation_steps": 3, "steps_per_execution": steps}
        trainer = tiny.trainer(keras.optimizers.SGD(rates), ("tag", "size"), **options)
        ends = []
        count = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: ends.append(batch))  # noqa: B023
        history = trainer.fit(of_two, epochs=1, verbose=0, shuffle=False, callbacks=[count])
        assert len(ends) == {1: 3, 2: 2}[steps]
        assert history.history["tag_updates"] == [3.0]
        assert tiny.values([trainer.optimizer.iterations, trainer.update_count]) == [3, 3]
        weights.append(tiny.weights_of(trainer))
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)
    endless = tiny.trainer(keras.optimizers.SGD(rates), gradient_accumulation_steps=3, run_eagerly=True)
    endless.fit(data.repeat(), steps_per_epoch=4, epochs=2, verbose=0, shuffle=False)
    assert tiny.values([endless.update_count]) == [8]
    arrays = tiny.trainer("sgd", gradient_accumulation_steps=3, run_eagerly=True)
    assert arrays.fit(inputs, targets, batch_size=2, verbose=0).history["tag_updates"] == [3.0]
