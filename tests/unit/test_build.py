"""What the first batch settles."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from multihead._ground.tensors import inner_products
from multihead._trainer.modules import trace_predictions
from multihead._update.batch import Batch
from multihead._update.representation import products, squared_norms
from multihead._update.ways import CombinedFirst, PassPerHead, Summed
from multihead.heads._named import new_head
from tests.helpers import tiny

SPECS = Batch(tf.TensorSpec([None, 3], tf.float32), {"b": tf.TensorSpec([None, 1], tf.float32)}, {})


def test_predictions_are_found_without_computing_anything():
    ran = tf.Variable(0, trainable=False)

    def encoder(x):
        ran.assign_add(1)
        return {"hidden": 2 * x, "again": x + 1}

    heads = [new_head("a", lambda r: r["hidden"][:, :2], "mse"), new_head("b", lambda r: r["again"], "mse")]
    found, _ = trace_predictions(encoder, heads, SPECS, {})
    assert int(ran) == 0 and found.num_leaves == 2
    assert {name: known.spec.shape.as_list() for name, known in found.predictions.items()} == {
        "a": [None, 2],
        "b": [None, 3],
    }
    assert {name: known.leaves for name, known in found.predictions.items()} == {"a": (False, True), "b": (True, False)}


def test_a_sample_shows_the_same_and_leaves_the_state_as_it_is():
    """For modules that cannot be traced; sizes that the specs leave open stay open."""
    counted = keras.layers.Dense(4)
    ran = []

    class Counting(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = counted
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False, name="count")

        def call(self, x):
            self.count.assign_add(1.0)
            ran.append(float(tf.reduce_max(x)))  # no trace has a value for this
            return {"steps": self.inner(x), "last": self.inner(x)[:, -1]}

    encoder = Counting()
    heads = [new_head("a", lambda r: r["steps"], "mse"), new_head("b", lambda r: r["last"][:, :2], "mse")]
    specs = Batch(tf.TensorSpec([None, None, 3]), {"b": tf.TensorSpec([None, 2])}, {})
    sample = Batch(5 * tf.ones([6, 7, 3]), {"b": tf.ones([6, 2])}, {})
    found, _ = trace_predictions(encoder, heads, specs, {}, sample)
    assert ran[-1] == 5 and float(tiny.tensor_variable(encoder.count)) == 0 and found.num_leaves == 2
    assert found.predictions["a"].spec.shape.as_list() == [None, None, 4]
    assert found.predictions["b"].spec.shape.as_list() == [None, 2]
    assert [found.predictions[name].leaves for name in "ab"] == [(False, True), (True, False)]


def test_a_head_that_reads_its_targets_needs_them_once():
    head = new_head("reply", lambda r, targets: r, "mse", teacher_forcing=True)
    with pytest.raises(ValueError, match="The head 'reply' reads its targets, so the first batch must have targets for it"):
        trace_predictions(tf.identity, [head], SPECS, {})
    assert trace_predictions(tf.identity, [head], SPECS, {"reply": "built"})[0].predictions == {}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("options", "kind", "measure"),
    [
        ({}, Summed, squared_norms),
        ({"telemetry": None}, Summed, None),
        ({"telemetry": "full"}, Summed, products),
        ({"telemetry": None, "weighting": "GradNorm"}, Summed, squared_norms),
        ({"telemetry": None, "weighting": "LogLoss"}, CombinedFirst, None),
        ({"telemetry": None, "weighting": "LogLoss", "micro_batches": 2}, PassPerHead, None),
        ({"balancer": "UPGrad"}, CombinedFirst, inner_products),
        ({"balancer": "UPGrad", "gradient_accumulation_steps": 2}, PassPerHead, inner_products),
        ({"balancer": "UPGrad", "balance_at": "parameters"}, PassPerHead, None),
    ],
)
def test_the_options_choose_the_way_through_the_encoder_and_what_is_measured(options, kind, measure):
    trainer = tiny.trainer("sgd", heads=("price", "size"), **options)
    batch = tuple(tf.nest.map_structure(tf.constant, part) for part in _two(tiny.data(2)))
    trainer.compute_gradients([batch] if "gradient_accumulation_steps" in options else batch)
    way = trainer._built.spec.way
    assert type(way) is kind and way.measure is measure


def _two(batch):
    inputs, targets = batch
    return inputs, {name: targets[name] for name in ("price", "size")}


def test_a_new_head_is_built_and_the_others_keep_their_variables():
    inputs, targets = tiny.data(4)
    trainer = tiny.trainer("sgd")
    trainer.compute_gradients((inputs, targets))
    spec = trainer._built.spec
    trainer.add_head("more", keras.layers.Lambda(lambda r: r["mean"][:, :1]), "mse")
    assert trainer._built is None
    trainer.compile("sgd")
    trainer.compute_gradients((inputs, {**targets, "more": targets["size"]}))
    before = [id(tiny.tensor_variable(v)) for v in spec.network.variables.all]
    assert [id(tiny.tensor_variable(v)) for v in trainer._built.spec.network.variables.all] == before
