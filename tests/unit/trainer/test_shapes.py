"""What data show of a trainer, without one."""

from __future__ import annotations

import keras
import tensorflow as tf

from multihead._trainer.modules import Shapes, build_modules
from multihead._update.batch import Batch
from multihead.heads._named import new_head


def specs(length, **targets):
    inputs = tf.TensorSpec([None, length, 3], tf.float32)
    return Batch(inputs, {name: tf.TensorSpec([None, size], tf.float32) for name, size in targets.items()}, {})


def two_heads():
    return [
        new_head("a", keras.layers.Dense(1), "mse", reads="last"),
        new_head("b", keras.layers.Dense(2), "mse", reads="last"),
    ]


class Last(keras.layers.Layer):
    def call(self, x):
        return {"last": x[:, -1]}


def test_modules_are_built_for_the_targets_that_there_are():
    heads = two_heads()
    before = Shapes()
    assert before.lack(heads, {"a": None}) and not before.lack(heads, {})
    found = build_modules(Last(), heads, specs(5, a=1), before, None, eagerly=False)
    assert found.specs == specs(5, a=1) and found.num_leaves == 1
    assert {name: each.spec.shape.as_list() for name, each in found.predictions.items()} == {"a": [None, 1], "b": [None, 2]}
    assert not found.lack(heads, {"a": None}) and found.lack(heads, {"a": None, "b": None})
    assert before == Shapes()  # values do not change
    later = build_modules(Last(), heads, specs(5, a=1, b=2), found, None, eagerly=False)
    assert not later.lack(heads, {"a": None, "b": None})


def test_a_head_can_be_left_out():
    found = build_modules(Last(), two_heads(), specs(5, a=1, b=2), Shapes(), None, eagerly=False).of_heads(["b"])
    assert set(found.predictions) == {"b"} == set(found.specs.targets)
    assert Shapes().of_heads(["b"]) == Shapes()


def test_modules_that_run_eagerly_run_on_a_sample():
    seen = []

    class Looking(keras.layers.Layer):
        def call(self, x):
            seen.append(float(tf.reduce_max(x)))  # no trace has a value for this
            return {"last": x[:, -1]}

    found = build_modules(Looking(), two_heads(), specs(5, a=1, b=2), Shapes(), None, eagerly=True)
    assert seen == [1.0] and found.predictions["b"].spec.shape.as_list() == [None, 2]
