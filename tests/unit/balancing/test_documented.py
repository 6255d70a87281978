"""Every public method has what a reader looks for, and nothing is listed that is not there."""

from __future__ import annotations

import inspect
import pathlib

import pytest
import tensorflow as tf

from multihead import balancing
from multihead._ground.keras import tensor_variable
from multihead._update.update import RollBack

METHODS = [
    value
    for value in (getattr(balancing, name) for name in balancing.__all__)
    if isinstance(value, type) and value is not balancing.Balancer
]


@pytest.mark.parametrize("method", METHODS)
def test_docstrings_have_a_formula_a_golden_value_a_size_and_a_source(method):
    text = " ".join(inspect.getdoc(method).split())
    assert "Formula" in text and "What it fixes:" in text and "Size of the update:" in text
    assert ">>> " in text and "[[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]]" in text  # doctest runs it
    ours = (balancing.Sum, balancing.EqualNorms, balancing.NormBudget, balancing.NormFloor, balancing.Chain)
    assert ("Source: " in text) != (method in ours)


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_built_without_arguments_and_take_at_most_six(method):
    method()
    parameters = [name for name in inspect.signature(method.__init__).parameters if name not in ("self", "name")]
    assert len(parameters) <= 6
    state = "create_state" in vars(method)
    assert not state or "State:" in inspect.getdoc(method)


def test_files_are_short():
    for path in pathlib.Path(balancing.__file__).parent.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 350, path.name


@pytest.mark.parametrize("method", METHODS)
def test_what_moves_at_a_call_is_documented_and_set_back(method):
    balancer = method()
    rows = tf.constant([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]])
    balancer.build((2, 3))
    first = [tf.convert_to_tensor(each) for each in balancer.variables]
    before = RollBack(map(tensor_variable, balancer.variables))
    balancer(rows)
    moved = [bool(tf.reduce_any(tf.convert_to_tensor(new) != old)) for new, old in zip(balancer.variables, first)]
    assert any(moved) == ("\nState:" in inspect.getdoc(method))
    before.restore()
    assert all(bool(tf.reduce_all(tf.convert_to_tensor(new) == old)) for new, old in zip(balancer.variables, first))
