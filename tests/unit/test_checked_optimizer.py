"""What is no optimizer that can be used: the error names `optimizer` and says what to pass."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from multihead._ground.keras import KERAS_3
from multihead._trainer.options import check_optimizer

ADAM = keras.optimizers.Adam
ONE = "Pass one optimizer, which trains everything"
INSTANCE = r"Pass an instance, as in keras.optimizers.Adam\(0.001\)"

WRONG = {
    "nothing": (lambda: None, INSTANCE),
    "a number": (lambda: 0.01, INSTANCE),
    "a schedule": (lambda: keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5), INSTANCE),
    "a class": (lambda: ADAM, INSTANCE),
    "a function": (lambda: ADAM.from_config, INSTANCE),
    "a name": (lambda: "Adamm", "Did you mean 'adam'"),
    "bytes": (lambda: b"adam", "Did you mean 'adam'"),
    "another name": (lambda: "mse", INSTANCE),
    "a layer": (lambda: keras.layers.Dense(1), INSTANCE),
    "a list": (lambda: [ADAM(), ADAM()], INSTANCE),
    "by head": (lambda: {"encoder": ADAM(), "a": ADAM()}, INSTANCE),
    "a pair": (lambda: ("adam", 0.1), INSTANCE),
    "an empty dict": (dict, INSTANCE),
    "arguments": (lambda: {"name": "adam", "learning_rate": 0.1}, INSTANCE),
    "a part of a configuration": (ADAM().get_config, INSTANCE),
    "an unknown configuration": (lambda: {"class_name": "Qqq", "config": {}}, "Keras says: .*Qqq"),
    "a wrong argument": (lambda: {"class_name": "Adam", "config": {"qqq": 1}}, "Keras says: .*qqq"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_optimizer(kind):
    given, remedy = WRONG[kind]
    with pytest.raises(ValueError, match=rf"(?s)`optimizer` must be a Keras optimizer, .*Received: optimizer=.*{remedy}"):
        check_optimizer(given())


@pytest.mark.parametrize("config", [{"class_name": "Adam", "config": {"learning_rate": 0.25}}, None])
def test_a_configuration_is_an_optimizer_and_stays_as_it_was(config):
    given = config or keras.optimizers.serialize(ADAM(0.25))
    before = repr(given)
    found = check_optimizer(given)
    assert type(found) is ADAM and float(tf.convert_to_tensor(found.learning_rate)) == 0.25
    assert repr(given) == before


def test_an_optimizer_in_another_one_is_refused():
    class Slow(keras.optimizers.SGD):
        def __init__(self):
            super().__init__()
            self.inner = ADAM()

    given = [Slow()]
    if hasattr(keras.optimizers, "MultiOptimizer"):
        given.append(keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(ADAM())))
    for each in given:
        with pytest.raises(ValueError, match=f"`optimizer` must be one optimizer.*Received: {type(each).__name__}.*{ONE}"):
            check_optimizer(each)


@pytest.mark.skipif(KERAS_3, reason="Keras 3 has none")
@pytest.mark.parametrize(
    "name", [name for name in vars(getattr(keras.optimizers, "legacy", keras)) if name[0].isupper() and name != "Optimizer"]
)
def test_legacy_optimizers_are_refused(name):
    kind = getattr(keras.optimizers.legacy, name)
    with pytest.raises(ValueError, match=rf"Received: {name} of .*legacy optimizer. Use its counterpart"):
        check_optimizer(kind())


@pytest.mark.skipif(KERAS_3, reason="Keras 3 does not take them")
def test_an_optimizer_of_tensorflow_1():
    with pytest.raises(ValueError, match="Received: AdamOptimizer of tensorflow.*Use its counterpart in keras.optimizers"):
        check_optimizer(tf.compat.v1.train.AdamOptimizer())
