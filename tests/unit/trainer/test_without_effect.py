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


def made(encoder=None, module=None, optimizer="sgd", compiled=None, **of_head):
    trainer = MultiHeadTrainer(encoder or keras.layers.Dense(2))
    trainer.add_head("a", module or keras.layers.Dense(1), "mse", **of_head)
    trainer.compile(optimizer, **{"run_eagerly": True, **(compiled or {})})
    return trainer


@pytest.fixture(scope="module")
def plain():
    return made()


IDLE = [
    ({"balance_every": 2}, "`balance_every` has no effect without a balancer", {"balancer": "EqualNorms"}),
    ({"balance_at": "parameters"}, "`balance_at` has no effect without a balancer", {"balancer": "EqualNorms"}),
    ({"layers_every": 5}, '`layers_every` has no effect without `telemetry="full"`', {"telemetry": "full"}),
    (
        {"max_skipped_updates": 5, "on_nonfinite": "raise"},
        '`max_skipped_updates` has no effect with `on_nonfinite="raise"`',
        {"on_nonfinite": "skip"},
    ),
    (
        {"encoder_weight_decay": 0.5, "encoder_learning_rate": 0.0},
        "`encoder_weight_decay` has no effect with `encoder_learning_rate=0`",
        {"encoder_learning_rate": 0.5},
    ),
]


@pytest.mark.parametrize(("options", "message", "with_effect"), IDLE)
def test_an_option_that_another_makes_useless_is_named(options, message, with_effect):
    with pytest.warns(UserWarning, match=f"{message}.*Received: {next(iter(options))}="):
        made(optimizer=keras.optimizers.AdamW(), compiled=options)
    made(optimizer=keras.optimizers.AdamW(), compiled={**options, **with_effect})


def test_weight_decay_of_a_frozen_head_is_named():
    with pytest.warns(UserWarning, match="`weight_decay` of head 'a' has no effect with `learning_rate=0`"):
        made(optimizer=keras.optimizers.AdamW(), learning_rate=0.0, weight_decay=0.5)


def test_rates_of_parts_without_variables_are_named():
    batch = X, {"a": X[:, :1]}
    with pytest.warns(UserWarning, match="`learning_rate` of head 'a' has no effect, since it has no trainable variables"):
        made(module=first_column, learning_rate=0.5).compute_gradients(batch)
    with pytest.warns(UserWarning, match="`encoder_learning_rate` of the encoder has no effect"):
        made(keras.layers.Flatten(), compiled={"encoder_learning_rate": 0.5}).compute_gradients(batch)
    made(module=first_column, compiled={"encoder_learning_rate": 0.5}).compute_gradients(batch)


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
        ({"validation_steps": 1}, "`validation_steps` has no effect without validation data"),
        ({"validation_batch_size": 1}, "`validation_batch_size` has no effect without validation data"),
        ({"validation_freq": 2}, "`validation_freq` has no effect without validation data"),
        ({"initial_epoch": 2, "epochs": 2}, "`epochs` has no effect if `initial_epoch` is not below it, here 2"),
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
