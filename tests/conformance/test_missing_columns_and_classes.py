"""Missing columns and class weights: one update however it is gathered, equal to a tape by hand over complete rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import balancing_reference, tiny
from tests.helpers.cases import quick
from tests.helpers.gathering import BALANCINGS, GATHERINGS, assert_alike

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(5)
SIZES = (5, 3, 4)
X = RNG.normal(size=(12, 5)).astype("float32")
COLUMNS = RNG.integers(0, 2, (12, 3)).astype("float32")
KIND = RNG.integers(0, 3, 12)
WEIGHTS = RNG.uniform(0.5, 2.0, (12, 3)).astype("float32")
CLASSES = {0: 2.0, 2: 0.25}
OF_CLASS = np.array([2.0, 1.0, 0.25], "float32")

# Missing in three ways; the last batch has no label of the second column at all.
HOW = RNG.random((12, 3))
HOW[8:, 1] = 0
MARKED = np.where(HOW < 0.2, np.nan, np.where(HOW < 0.3, -1, COLUMNS)).astype("float32")
GIVEN = np.where((0.3 <= HOW) & (HOW < 0.4), 0, WEIGHTS).astype("float32")
USED = np.where(HOW < 0.4, 0, WEIGHTS).astype("float32")
MARKED_KIND = np.where(np.arange(12) % 5 == 1, -1, KIND)
USED_KIND = np.where(MARKED_KIND < 0, 0, OF_CLASS[KIND]).astype("float32")


def dense(inputs, units, activation, seed):
    """A built layer with the same values at every call."""
    layer = keras.layers.Dense(units, activation=activation)
    layer.build((None, inputs))
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return layer


def modules():
    return dense(5, 4, "tanh", 1), {"columns": dense(4, 3, "sigmoid", 2), "kind": dense(4, 3, "softmax", 3)}


def by_tape(balancer, level):
    """The weights after one step of size 1: a tape over complete targets, weighted by hand."""
    encoder, heads = modules()
    shared = [tiny.tensor_variable(v) for v in encoder.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        representation = encoder(X)
        p, q = heads["columns"](representation), heads["kind"](representation)
        of_columns = -COLUMNS * tf.math.log(p) - (1 - COLUMNS) * tf.math.log(1 - p)
        of_kind = -tf.math.log(tf.gather(q, KIND, axis=1, batch_dims=1))
        losses = [
            tf.reduce_sum(values * weights) / weights.sum() for values, weights in ((of_columns, USED), (of_kind, USED_KIND))
        ]
        total = losses[0] + losses[1]
    own = tape.gradient(total, [tiny.tensor_variable(v) for head in heads.values() for v in head.trainable_variables])
    seen = representation if level == "representation" else shared
    rows = [np.concatenate([np.ravel(g) for g in tf.nest.flatten(tape.gradient(loss, seen))]) for loss in losses]
    coefficients = [1, 1]
    if balancer is not None:
        rows = np.stack(rows).astype("float64")
        coefficients = balancing_reference.coefficients(balancer, rows @ rows.T)
    by_head = [tape.gradient(loss, shared) for loss in losses]
    gradients = [sum(c * g.numpy() for c, g in zip(coefficients, of_heads)) for of_heads in zip(*by_head)]
    gradients += [g.numpy() for g in own]
    before = tiny.values([*encoder.trainable_variables, *(v for head in heads.values() for v in head.trainable_variables)])
    return [value - gradient for value, gradient in zip(before, gradients)]


def trained(gathering, balancer, level, **options):
    num_batches, micro_batches = GATHERINGS[gathering]
    encoder, heads = modules()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("columns", heads["columns"], "binary_crossentropy", ignore_label=-1)
    trainer.add_head("kind", heads["kind"], "sparse_categorical_crossentropy", ignore_label=-1, class_weight=CLASSES)
    options = {"balancer": balancer, "balance_at": level, "micro_batches": micro_batches, **options}
    trainer.compile(keras.optimizers.SGD(1.0), gradient_accumulation_steps=num_batches, **options)
    whole = (X, {"columns": MARKED, "kind": MARKED_KIND}, {"columns": GIVEN})
    ends = np.cumsum(SIZES) if num_batches > 1 else [12]
    batches = [tiny.rows(whole, end - size, end) for end, size in zip(ends, SIZES if num_batches > 1 else [12])]
    signature = tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), whole)
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)
    trainer.fit(data.apply(tf.data.experimental.assert_cardinality(len(batches))), verbose=0, shuffle=False)
    assert tiny.values([trainer.update_count]) == [1]
    return tiny.weights_of(trainer)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("gathering", "balanced", "eagerly"),
    [
        ("whole", "sum", True),
        ("micro-batches", "representation", False),
        ("micro-batches", "parameters", True),
        ("batches", "parameters", False),
        ("batches", "representation", True),
        pytest.param("both", "sum", False, marks=pytest.mark.thorough),
    ],
)
def test_an_update_is_that_of_a_tape(gathering, balanced, eagerly):
    assert_alike(trained(gathering, *BALANCINGS[balanced], run_eagerly=eagerly), by_tape(*BALANCINGS[balanced]))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("gathering", "balanced"), quick(1, [("batches", "representation"), ("micro-batches", "parameters")])
)
def test_an_update_of_two_replicas_is_that_of_a_tape(two_replicas, gathering, balanced):
    expected = by_tape(*BALANCINGS[balanced])
    with two_replicas.scope():
        actual = trained(gathering, *BALANCINGS[balanced])
    assert_alike(actual, expected)


def test_a_compiled_update_is_that_of_a_tape():
    assert_alike(trained("whole", "UPGrad", "representation", jit_compile=True), by_tape("UPGrad", "representation"))
