"""What a step costs, counted: a number that grows is a decision, made here."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing
from tests.helpers.operations import CONDITIONS, by_stage, operations
from tests.helpers.plans import plans_of, record_plans

pytestmark = pytest.mark.usefixtures("noted_stacks")

X = np.ones([8, 4], "float32")
Y = {"size": np.ones([8, 1], "float32"), "kind": np.zeros([8], "int64")}


def made(**options):
    trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Dense(8, activation="relu")]))
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.add_head("kind", keras.layers.Dense(3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trainer.compile(keras.optimizers.Adam(), **options)
    return trainer


@functools.cache
def counted(name):
    """The operations of a step of two dense heads, traced as in `fit`."""
    trainer = made(**{key: value() if isinstance(value, type) else value for key, value in CONFIGURATIONS[name].items()})
    if name.startswith("fit"):
        record_plans(trainer)
        trainer.fit(X, Y, verbose=0)
        trainer._state.plan = plans_of(trainer)[-1]  # a step that relies on what `fit` knows of the arrays
    else:
        trainer.compute_gradients((X, Y))  # creates the variables
    step = tf.function(lambda x, y: trainer.train_step((x, y)), autograph=False)
    return by_stage(step.get_concrete_function(tf.constant(X), tf.nest.map_structure(tf.constant, Y)))


CONFIGURATIONS = {
    "plain": {},
    "without statistics": {"telemetry": None},
    "all statistics": {"telemetry": "full"},
    "UPGrad": {"balancer": balancing.UPGrad},
    "UPGrad at the parameters": {"balancer": balancing.UPGrad, "balance_at": "parameters"},
    "micro-batches": {"micro_batches": 4},
    "labels checked before": {"check_labels": False},
    "fit on arrays": {},
    "fit on arrays, without statistics": {"telemetry": None},
}

COLUMNS = (
    "labels",
    "passes",
    "weights",
    "combine",
    "optimizer",
    "apply",
    "faults",
    "statistics",
    "others",
    "conditions",
    "assignments",
)

MOST = {
    "plain": (66, 85, 26, 39, 242, 124, 86, 83, 21, 1, 38),
    "without statistics": (66, 85, 21, 30, 242, 124, 83, 45, 15, 1, 36),
    "all statistics": (66, 85, 26, 103, 242, 180, 86, 150, 36, 1, 40),
    "UPGrad": (66, 85, 26, 206, 242, 124, 86, 83, 23, 1, 38),
    "UPGrad at the parameters": (66, 93, 26, 229, 242, 124, 86, 83, 23, 1, 38),
    "micro-batches": (169, 117, 26, 142, 242, 124, 86, 83, 152, 3, 38),
    "labels checked before": (19, 85, 26, 39, 242, 124, 86, 83, 21, 1, 38),
    "fit on arrays": (15, 85, 26, 39, 254, 60, 86, 83, 21, 1, 26),
    "fit on arrays, without statistics": (15, 85, 21, 30, 254, 60, 83, 45, 15, 1, 24),
}
"""By configuration the operations of each stage and, among all, the conditions and loops, and the assignments of variables.

Of both versions of Keras the larger, with those that run only in an update that is skipped, and with the identities that
`tf.gradients` adds to upstream gradients, which TensorFlow removes before it runs a graph. One condition is left where
nothing can be idle: around the optimizer, so that an update that is not finite changes nothing.
"""


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_step_has_no_more_operations_than_written_here(name):
    found = counted(name)
    assert sum(found.values()) > 500
    more = {stage: (found[stage], most) for stage, most in zip(COLUMNS, MOST[name], strict=True) if found[stage] > most}
    assert not more, f"found and written: {more}"


FORMULAS = {"UPGrad": 165, "DualProj": 160, "NashMTL": 160, "MGDA": 205}


def of_solver(name, num_heads):
    """The operations of a balancer's coefficients."""
    balancer = getattr(balancing, name)()
    balancer.build((num_heads, None))
    solve = tf.function(balancer.coefficients, autograph=False)
    return operations(solve.get_concrete_function(tf.TensorSpec([num_heads, num_heads])))


@pytest.mark.parametrize(("name", "most"), FORMULAS.items())
def test_for_two_heads_a_solver_is_a_formula(name, most):
    found = of_solver(name, 2)
    assert len(found) <= most and not any(each.type in CONDITIONS for each in found)


LOOPS = {"UPGrad": (460, 1), "CAGrad": (425, 1), "ConicGrad": (470, 1), "DualProj": (950, 3), "MGDA": (950, 3)}


@pytest.mark.parametrize(("name", "most"), LOOPS.items())
def test_a_solver_is_traced_no_more_often_than_written_here(name, most):
    """Operations and loops for three heads, which a first `fit` waits for."""
    found = of_solver(name, 3)
    loops = sum("While" in operation.type for operation in found)
    assert 300 < len(found) <= most[0] and 0 < loops <= most[1]


def test_what_no_log_shows_is_not_computed():
    norms, nothing = counted("plain"), counted("without statistics")
    assert nothing["statistics"] < norms["statistics"] and nothing["combine"] < norms["combine"]


def test_where_nothing_can_be_idle_only_the_optimizer_is_under_a_condition():
    assert counted("plain")["conditions"] == 1
