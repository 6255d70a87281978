"""A batch that is split: everything in it is split by its rows, so everything must have as many as the others."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

ROWS = 8
KINDS = {"dense": lambda x: x, "ragged": tf.RaggedTensor.from_tensor, "sparse": tf.sparse.from_dense}


class Encoder(keras.layers.Layer):
    """One dense layer, and the mean of another input, whatever its kind and its number of rows."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, inputs):
        other = inputs["z"]
        other = getattr(other, "flat_values", getattr(other, "values", other))
        return self.dense(inputs["x"]) + tf.reduce_mean(other)


def trainer(**options):
    made = MultiHeadTrainer(Encoder())
    made.add_head("a", keras.layers.Dense(1), "mse")
    made.compile("sgd", **{"micro_batches": 2, **options})
    return made


def batch(kind="dense", **rows):
    """Ones, so many rows in each part, the other input of some kind."""
    rows = {"x": ROWS, "other": ROWS, "y": ROWS, "weights": ROWS, **rows}
    x, other, y, weights = (np.ones([number, 3], "float32") for number in rows.values())
    return {"x": x, "z": KINDS[kind](other)}, {"a": y[:, 0]}, {"a": weights[:, 0]}


def of_any_size(data):
    """A data set of this batch, of which nobody knows the numbers of rows before it runs."""
    return tf.data.Dataset.zip(
        tf.nest.map_structure(lambda value: tf.data.Dataset.from_tensor_slices(value).batch(ROWS), data)
    )


def train(data, options, *, is_known):
    if is_known:
        trainer(**options).compute_gradients(data)
    else:
        trainer(**options).fit(of_any_size(data), verbose=0)


PARTS = {
    "other": ("dense", "inputs['z']"),
    "other, ragged": ("ragged", "inputs['z']"),
    "other, sparse": ("sparse", "inputs['z']"),
    "y": ("dense", "targets['a']"),
    "weights": ("dense", "sample_weights['a']"),
}


@pytest.mark.first_cases(7)
@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"gradient_accumulation_steps": 1, "balancer": "UPGrad"}], ids=str
)
@pytest.mark.parametrize("is_known", [False, True], ids=["when it runs", "before"])
@pytest.mark.parametrize("part", PARTS)
def test_other_numbers_of_rows_are_refused(part, is_known, options):
    kind, name = PARTS[part]
    data = batch(kind, **{part.partition(",")[0]: 5})
    expected = rf"^`{re.escape(name)}` must have one row per example.* Received: 5 for {ROWS} in `inputs\['x'\]`. Pass "
    if part.startswith("other"):  # labels are checked however the batch is trained
        expected = expected.replace("example.*", "example, since micro_batches=2 splits .* by rows.")
    with pytest.raises(ValueError, match=expected):
        train(data, options, is_known=is_known)


def test_other_numbers_of_rows_are_refused_in_xla():
    """XLA has no errors with a text of their own."""
    with pytest.raises(Exception, match="(?i)reshape"):
        train(batch(other=5), {"jit_compile": True}, is_known=False)


def test_a_number_is_no_input_of_a_batch_that_is_split():
    inputs, *labels = batch()
    with pytest.raises(ValueError, match=r"^`inputs\['z'\]` .* Received: 0 for 8 in `inputs\['x'\]`"):
        train(({**inputs, "z": np.float32(1)}, *labels), {}, is_known=True)


@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_takes_other_numbers_of_rows(kind):
    """What belongs to no example needs no row for each; equal numbers are split."""
    for rows, number in ((5, 1), (ROWS, 2)):
        train(batch(kind, other=rows), {"micro_batches": number}, is_known=False)
