"""Options that have no effect with others: each has one, or a warning says that it has none."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

X = np.ones((4, 2), "float32")


def first_column(representation):
    return representation[:, :1]


def made(encoder=None, module=None, compiled=None):
    trainer = MultiHeadTrainer(encoder or keras.layers.Dense(2))
    trainer.add_head("a", module or keras.layers.Dense(1), "mse")
    trainer.compile("sgd", **{"run_eagerly": True, **(compiled or {})})
    return trainer


@pytest.fixture(scope="module")
def plain():
    return made()


IDLE = [
    ({"balance_every": 2}, "`balance_every` has no effect without `balancer`", {"balancer": "EqualNorms"}),
    ({"balance_at": "parameters"}, "`balance_at` has no effect without `balancer`", {"balancer": "EqualNorms"}),
]


@pytest.mark.parametrize(("options", "message", "with_effect"), IDLE)
def test_an_option_that_another_makes_useless_is_named(options, message, with_effect):
    with pytest.warns(UserWarning, match=f"{message}.*Received: {next(iter(options))}="):
        made(compiled=options)
    made(compiled={**options, **with_effect})


@pytest.mark.parametrize("call", ["fit", "train_on_batch", "compute_gradients"])
def test_nothing_trainable_is_an_error_in_training_only(call):
    encoder = keras.layers.Dense(2, trainable=False)
    trainer, batch = made(encoder, first_column), (X, {"a": X[:, :1]})
    assert np.isfinite(trainer.evaluate(*batch, verbose=0, return_dict=True)["a_loss"])
    with pytest.raises(ValueError, match="`encoder` or a head's `module` must have trainable variables. Received: none"):
        trainer.compute_gradients(batch) if call == "compute_gradients" else getattr(trainer, call)(*batch)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"validation_split": 0.5, "validation_data": (X, {"a": X[:, :1]})}, "`validation_split` has no effect with `valid"),
        ({"initial_epoch": 2, "epochs": 2}, "`epochs` must be above `initial_epoch` to train. Received: epochs=2, init"),
    ],
)
def test_arguments_of_fit_without_effect_are_named(given, message, plain):
    with pytest.warns(UserWarning, match=message):
        plain.fit(X, {"a": X[:, :1]}, verbose=0, **given)


def test_in_a_list_of_batches_sizes_and_weights_have_no_place(plain):
    with pytest.raises(ValueError, match="`batch_size` must be left out if `x` yields batches by itself"):
        plain.diagnose([(X, {"a": X[:, :1]})], batch_size=2)
    with pytest.raises(ValueError, match="`sample_weight` must be left out"):
        plain.diagnose([(X, {"a": X[:, :1]})], sample_weight={"a": tf.ones([4])})
