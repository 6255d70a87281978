"""Promise 6, in the step: what a balancer claims holds for the update."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import balancing_reference, reference, tiny
from tests.helpers.balancers import ALL, make
from tests.helpers.cases import quick

METHODS = ["Sum", "EqualNorms", "UPGrad", "MGDA", "NashMTL", "IMTLG", "PCGrad"]


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("level", ["representation", "parameters"])
@pytest.mark.parametrize("method", METHODS)
def test_balancer_in_the_step_is_its_definition_in_float64(method, level):
    batch = tiny.data(9, seed=5)
    trainer = tiny.trainer("sgd", balancer=method, balance_at=level, run_eagerly=True)
    actual = {id(tiny.tensor_variable(v)): g for g, v in trainer.compute_gradients(batch)}
    heads = {name: head.module for name, head in trainer.heads.items()}

    def by_hand(combine):
        made = reference.Reference(trainer.encoder, heads, None, tiny.WEIGHTS, combine, level)
        return made.gradients([batch])[0], made.variables

    if method == "PCGrad":
        count = len(balancing_reference.coefficients_of_pcgrad(np.eye(3)))
        wanted = [by_hand(lambda g, i=i: balancing_reference.coefficients_of_pcgrad(g)[i]) for i in range(count)]
    else:
        wanted = [by_hand(lambda gramian: balancing_reference.coefficients(method, gramian))]
    errors = []
    for gradients, variables in wanted:
        pairs = [(actual[id(tiny.tensor_variable(v))], g) for g, v in zip(gradients, variables)]
        scale = max(np.abs(g).max() for _, g in pairs)
        errors.append(max(np.abs(tf.convert_to_tensor(a) - g).max() for a, g in pairs) / scale)
    assert min(errors) < 2e-6


def one_of_each_kind_first():
    """The methods, of those that ask for the same at the same levels one before all others; and the number of such kinds."""
    kinds = {}
    for name in ALL:
        made = make(name)
        kinds.setdefault((*made.uses, *made.levels, type(made).observe), []).append(name)
    names = [name for rank in range(len(ALL)) for same in kinds.values() for name in same[rank : rank + 1]]
    return len(kinds), names


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("method", quick(*one_of_each_kind_first()))
def test_every_balancer_trains(method):
    balancer = make(method)
    level = balancer.levels[-1]
    trainer = tiny.trainer("sgd", balancer=balancer, balance_at=level, run_eagerly=True)
    history = tiny.fit_once(trainer, *tiny.data(8), epochs=2).history
    assert history["skipped_updates"][-1] == 0 and np.isfinite(history["loss"]).all()
