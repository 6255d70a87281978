"""The order of the stages, and what the methods are told."""

from __future__ import annotations

import ast
import inspect

import keras
import numpy as np
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, schedules, weighting
from multihead._update import pipeline
from tests.helpers import tiny

STAGES = ["read_labels", "count_over_replicas", "head_weights_at", "split", "accumulate", "weigh", "combine", "total"]


def test_the_order_is_written_once_in_one_short_function():
    tree = ast.parse(inspect.getsource(pipeline.compute_update)).body[0]
    lines = {line for node in ast.walk(tree) for line in [getattr(node, "lineno", None)] if line}
    documented = tree.body[0].end_lineno - tree.body[0].lineno + 1
    assert len(lines) - documented <= 45
    called = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [(node.lineno, getattr(node.func, "id", getattr(node.func, "attr", ""))) for node in called]
    order = [name for _, name in sorted(names) if name in STAGES]
    assert order == STAGES


class Watching(schedules.AbstractSchedule):
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
    trainer = tiny.trainer(keras.optimizers.SGD(0.1), schedule=schedule, run_eagerly=True)
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


class Old(weighting.Weighting):
    """Declared as before 0.1."""

    uses = ("update",)
    reads_losses_after = True

    def _create_state(self, num_heads):
        self.sums = weighting.add_state(self, "sums", (num_heads,))
        self.falls = weighting.add_state(self, "falls", (num_heads,))

    def total(self, losses, active, *, update):
        return tf.reduce_sum(losses**2) * tf.cast(update + 1, tf.float32)

    def observe(self, losses, active):
        self.sums.assign_add(losses)

    def observe_after(self, losses, losses_after, active, made):
        self.falls.assign_add(losses - losses_after)


class OldBalancer(balancing.Balancer):
    needs = "gradients"
    uses = ("update",)

    def combine(self, gradients, *, update):
        return [tf.reduce_sum(rows, 0) * tf.cast(update + 1, rows.dtype) for rows in gradients]


def test_methods_declared_by_the_names_of_before_still_work():
    assert set(Old.uses) == {"update", "losses", "losses_after"} and Old.reads_losses and not Old.reads_norms
    assert set(OldBalancer.uses) == {"update", "gradients"} and OldBalancer.needs == "gradients"
    assert OldBalancer()([[1.0, 2.0], [3.0, 4.0]], update=1).numpy().tolist() == [8.0, 12.0]
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", weighting=Old(), balancer=OldBalancer())
    x = np.ones((4, 2), "float32")
    for _ in range(2):
        loss = trainer.evaluate(x, {"a": x[:, :1]}, verbose=0, return_dict=True)["a_loss"]
        logged = trainer.fit(x, {"a": x[:, :1]}, verbose=0).history
    np.testing.assert_allclose(logged["a_weight"], [4 * loss], rtol=1e-4)  # the derivative at step 1
    sums, falls = tiny.values([trainer.weighting.sums, trainer.weighting.falls])
    assert sums[0] > loss and falls[0] != 0
