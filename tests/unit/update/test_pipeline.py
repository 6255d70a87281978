"""The order of the stages, and what the methods are told."""

from __future__ import annotations

import ast
import inspect

import keras
import numpy as np
import tensorflow as tf

from multihead import schedules
from multihead._update import pipeline
from tests.helpers import tiny

STAGES = ["each", "count_over_replicas", "head_weights_at", "MicroBatches", "gradients", "gradients_of_weights", "learned"]


def test_the_order_is_written_once_in_one_short_function():
    tree = ast.parse(inspect.getsource(pipeline.compute_update)).body[0]
    lines = {line for node in ast.walk(tree) for line in [getattr(node, "lineno", None)] if line}
    documented = tree.body[0].end_lineno - tree.body[0].lineno + 1
    assert len(lines) - documented <= 40
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(node.lineno, getattr(node.func, "id", getattr(node.func, "attr", ""))) for node in called]
    order = [name for _, name in sorted(names) if name in STAGES]
    assert order == STAGES


class Watching(schedules.Schedule):
    """All heads, and everything that an update shows."""

    always_all = True
    uses = ("gramian", "losses", "losses_after")

    def active(self, step):
        return tf.ones([self.num_heads], tf.bool)

    def observe(self, update, applied):
        self.seen = (update, applied)


def test_methods_are_told_the_step_the_losses_before_and_after_and_the_inner_products():
    inputs, targets = tiny.data(8, missing=False)
    schedule = Watching()
    trainer = tiny.trainer(keras.optimizers.SGD(0.1), head_schedule=schedule, run_eagerly=True)
    for step in range(2):
        before = [
            trainer.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)[f"{k}_loss"] for k in trainer.heads
        ]
        trainer.fit(inputs, targets, batch_size=8, verbose=0, shuffle=False)
        after = [
            trainer.evaluate(inputs, targets, batch_size=8, verbose=0, return_dict=True)[f"{k}_loss"] for k in trainer.heads
        ]
        update, applied = schedule.seen
        assert bool(applied) and int(update.step) == step and update.active.numpy().all()
        weights = np.array(list(tiny.WEIGHTS.values()))
        np.testing.assert_allclose(update.losses, weights * before, rtol=1e-5)
        np.testing.assert_allclose(update.losses_after, weights * after, rtol=1e-5)
        assert update.gramian.shape == (3, 3) and (np.diag(update.gramian) > 0).all()
        np.testing.assert_allclose(update.norms, np.sqrt(np.diag(update.gramian)), rtol=1e-6)
