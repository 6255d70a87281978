"""Every balancer of the package, and its updates, traced once for the tests that share them."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from multihead import balancing
from tests.helpers import zoo

METHODS = sorted(
    name for name in balancing.__all__ if isinstance(getattr(balancing, name), type) and name not in ("Balancer", "Chain")
)
CHAINS = {"Chain": lambda: balancing.Chain(balancing.EqualNorms(), balancing.UPGrad())}
ALL = [*METHODS, *CHAINS]

STATEFUL = ("GradVac", "MetaBalance", "NormFloor", "DBMTL", "MoCo", "ExcessMTL")


# With its default, this one changes nothing on rows of similar norms.
CHANGED = {"NormFloor": lambda: balancing.NormFloor(0.9)}


def make(name):
    return {**CHAINS, **CHANGED}.get(name, getattr(balancing, name, None))()


def update_of(name, rows, dtype=np.float64, **used):
    return make(name)(rows.astype(dtype), **used).numpy()


USUAL = zoo.matrix("conflicting", 3, 1.0)


@functools.cache
def usual_update(name, dtype=np.float64):
    """The first update on `USUAL`, with which several tests compare: outside of a graph the solvers take long."""
    return update_of(name, USUAL, dtype)


def xla_heads(name):
    """The number of heads at which XLA compiles a method here: for many it takes long, for CAGrad a minute at three."""
    return 2 if name in ("CAGrad", "ConicGrad", "MoCo") else 3


@functools.cache
def _traced(name, num_heads, xla):
    balancer = make(name)
    balancer.build((num_heads, 31))
    initial = [tf.identity(variable) for variable in map(_value, balancer.variables)]
    # No method relies on AutoGraph, which would read the source of each.
    return balancer, initial, tf.function(lambda matrix: balancer(matrix), autograph=False, jit_compile=xla)


def traced(name, num_heads, xla=False):
    """A new balancer's call in a graph, of float32 rows; several tests share the trace and what XLA compiles."""
    balancer, initial, call = _traced(name, num_heads, xla)
    for variable, value in zip(balancer.variables, initial):
        variable.assign(value)
    return call


def _value(variable):
    return getattr(variable, "value", variable) if not callable(getattr(variable, "value", None)) else variable
