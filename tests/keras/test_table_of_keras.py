"""Each public name of `keras.Model` has a row in `docs/developing/architecture.md`, and is in a trainer what the row says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import keras
import numpy as np
import pytest

from multihead import Head, MultiHeadTrainer

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "keras_table.py"
SPECIFICATION = importlib.util.spec_from_file_location("keras_table", SCRIPT)
TABLE = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(TABLE)
NAMES = sorted(name for name in dir(keras.Model) if not name.startswith("_"))


class Plain(keras.Model):
    """A model with code of its own, as a trainer is one."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


@pytest.fixture(scope="module")
def models():
    """A trainer and a plain model, both trained."""
    x = np.ones((4, 2), "float32")
    trainer = MultiHeadTrainer(keras.layers.Dense(2), {"a": Head(keras.layers.Dense(1), "mse")})
    trainer.compile("sgd", run_eagerly=True)
    trainer.fit(x, {"a": x[:, :1]}, verbose=0)
    plain = Plain()
    plain.compile("sgd", "mse", run_eagerly=True)
    plain.fit(x, x[:, :1], verbose=0)
    return trainer, plain


def outcome(model, name):
    """Whether an attribute can be read; the class of the error if not."""
    try:
        getattr(model, name)
    except Exception as error:  # noqa: BLE001 - of any class
        return type(error)
    return None


def test_the_page_is_up_to_date():
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.page(), "run `python docs/keras_table.py`"
    assert sum(len(names.split()) for names in TABLE.ROWS.values()) == len(TABLE.kinds())


@pytest.mark.parametrize("name", NAMES)
def test_each_name_of_keras_is_what_its_row_says(name, models):
    kind = TABLE.kinds()[name]  # a name without a row is new in this Keras
    trainer, plain = models
    ours, theirs = (
        next(vars(each)[name] for each in kind_.__mro__ if name in vars(each)) for kind_ in (MultiHeadTrainer, Plain)
    )
    is_own = ours is not theirs and name != "call"
    if kind == "works as in Keras":
        assert not is_own and outcome(trainer, name) == outcome(plain, name)
    elif kind == "works as in Keras, for heads":
        assert is_own and outcome(trainer, name) is None
    elif kind.startswith("an error to override"):
        changed = type("Changed", (MultiHeadTrainer,), {name: lambda self, *args, **kwargs: None})
        model = changed(keras.layers.Dense(2), {"a": Head(keras.layers.Dense(1), "mse")})
        with pytest.raises(ValueError, match=f"`{name}` must not be overridden"):
            model.compile("sgd")
    elif kind.startswith("an error to call"):
        with pytest.raises(ValueError, match=f"`{name}` must .*Received: "):
            getattr(trainer, name)(1.0)
    else:
        assert not is_own and kind.startswith("does not apply: ")
        if "functional" in kind:
            assert outcome(trainer, name) == outcome(plain, name)
