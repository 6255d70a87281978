"""What a module may have beside its call: an argument for the step, and rules for its targets."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


class TimesStep(keras.layers.Dense):
    """A dense layer whose result is multiplied by the number of updates plus one."""

    def call(self, inputs, training=None, step=None):
        factor = tf.constant(1.0) if step is None else tf.cast(step + 1, tf.float32)
        return super().call(inputs) * factor


@pytest.mark.parametrize("options", [{"micro_batches": 2}, {"gradient_accumulation_steps": 2}], ids=str)
def test_the_step_is_the_number_of_updates(options):
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", TimesStep(1, use_bias=False), "mae")
    trainer.add_head("b", keras.layers.Dense(1), "mae")
    trainer.compile(keras.optimizers.SGD(0.0), **options)
    y = {"a": np.zeros(8), "b": np.zeros(8)}
    history = trainer.fit(
        X, y, batch_size=8 // options.get("gradient_accumulation_steps", 1), epochs=3, shuffle=False, verbose=0
    )
    found = np.array(history.history["a_loss"])
    np.testing.assert_allclose(found / found[0], [1, 2, 3], rtol=1e-5)
    # Evaluation and prediction have no step.
    np.testing.assert_allclose(trainer.evaluate(X, y, return_dict=True, verbose=0)["a_loss"], found[0], rtol=1e-5)


class Tokens(keras.layers.Layer):
    """Logits of two tokens for each row, whose targets must not fall."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(10)

    def call(self, inputs):
        return tf.reshape(self.dense(inputs), [-1, 2, 5])

    def target_problems(self, targets, present):
        falls = present[:, 0] & present[:, 1] & (targets[:, 1] < targets[:, 0])
        return [(falls, "not fall", "Sort them.")]


@pytest.mark.parametrize(("form", "jit_compile"), [("arrays", True), ("dataset", False), ("one batch", False)])
def test_rules_of_a_module(form, jit_compile):
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", Tokens(), losses.SequenceCrossentropy(padding_id=4), ignore_label=-1)
    trainer.compile("sgd", jit_compile=jit_compile)
    rows = np.array([[0, 3], [2, 2], [2, -1], [4, 1], [3, 0], [1, 1], [2, 1], [0, 0]])

    def fit(y, weights=None):
        if form == "arrays":
            return trainer.fit(X, {"a": y}, sample_weight=weights and {"a": np.array(weights)}, verbose=0)
        batch = (X, {"a": y}, {"a": np.array(weights or [1.0] * 8, "float32")})
        if form == "dataset":
            return trainer.fit(tf.data.Dataset.from_tensors(batch), verbose=0)
        return trainer.train_on_batch(*batch)

    with pytest.raises(
        ValueError, match=r"`targets\['a'\]` must not fall\. Received: \[*3 0\]* \(2 of 8 rows break this\)\. Sort"
    ):
        fit(rows)
    fit(np.where((rows[:, 1:] < rows[:, :1]) & (rows >= 0).all(axis=1, keepdims=True), 1, rows))
    fit(rows, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    trainer.compile("sgd", check_labels=False, jit_compile=jit_compile)
    fit(rows)
