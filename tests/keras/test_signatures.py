"""The methods that users know from Keras show Keras's own parameters, so that an editor completes them."""

from __future__ import annotations

import inspect

import keras
import pytest

from multihead import MultiHeadTrainer

# The parameters of Keras 2 that Keras 3 does not have, and the other way round: they pass by `**kwargs`.
OF_ONE_STACK = {
    "max_queue_size",
    "workers",
    "use_multiprocessing",
    "reset_metrics",
    "save_format",
    "zipped",
    "options",
    "by_name",
    "max_shard_size",
    "format",
    "verbose of export",
    "input_signature",
}
METHODS = "fit evaluate predict train_on_batch test_on_batch summary save save_weights load_weights export".split()


def explicit(function):
    """The parameters with a name of their own."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in inspect.signature(function).parameters.items() if each.kind not in kinds}


@pytest.mark.parametrize("name", METHODS)
def test_the_parameters_of_keras_come_first_with_their_defaults(name):
    of_keras = explicit(getattr(keras.Model, name))
    common = [each for each in of_keras if each not in OF_ONE_STACK and f"{each} of {name}" not in OF_ONE_STACK]
    ours = explicit(getattr(MultiHeadTrainer, name))
    assert list(ours)[: len(common)] == common
    assert [ours[each].default for each in common] == [of_keras[each].default for each in common]


@pytest.mark.parametrize("name", METHODS)
def test_every_parameter_has_a_type(name):
    parameters = inspect.signature(getattr(MultiHeadTrainer, name)).parameters
    assert [each for each, of in parameters.items() if of.annotation is of.empty and each != "self"] == []
