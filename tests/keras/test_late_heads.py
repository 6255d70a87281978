"""A head is added to a trained trainer: what is trained stays as it is."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

LATE = [
    {},
    {"balancer": "UPGrad", "balance_at": "parameters", "run_eagerly": False},
    {"balancer": "UPGrad", "micro_batches": 2, "gradient_accumulation_steps": 2},
]


def trained_then_added(optimizer, freeze=lambda encoder: None, **compiled):
    """A trained trainer of two heads that got a third; what it had before; and data for all."""
    inputs, targets = tiny.data(12)
    trainer = tiny.trainer("adam", heads=("tag", "price"))
    for _ in range(2):
        trainer.apply_gradients(trainer.compute_gradients(tiny.only((inputs, targets), "tag", "price")))
    before = tiny.weights_of(trainer)
    freeze(trainer.encoder)
    trainer.add_head("size", tiny.On("mean", 1), "mse")
    trainer.compile(optimizer, **compiled)
    return trainer, before, (inputs, targets)


def test_a_late_head_leaves_every_trained_weight():
    trainer, before, batch = trained_then_added("adam")
    trainer.compute_gradients(batch)
    after = tiny.weights_of(trainer)
    assert len(after) == len(before) + 2
    for old, new in zip(before, after):
        np.testing.assert_array_equal(old, new)
    trainer.fit(*batch, verbose=0)
    assert not any(np.array_equal(old, new) for old, new in zip(before, tiny.weights_of(trainer)))


def all_weights(trainer):
    """The weights of the encoder and of the heads in order, frozen or not."""
    return tiny.values(v for part in (trainer.encoder, *(h.module for h in trainer.heads.values())) for v in part.variables)


def freeze_all(encoder):
    encoder.trainable = False


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("compiled", LATE, ids=str)
def test_on_a_frozen_encoder_a_late_head_learns_by_its_own_gradient(compiled):
    """It moves as by a tape over its loss alone; the encoder, and heads without labels, stay bit for bit."""
    trainer, before, (inputs, targets) = trained_then_added(keras.optimizers.SGD(0.1), freeze_all, **compiled)
    targets |= {"tag": np.zeros_like(targets["tag"]), "price": np.full_like(targets["price"], -1)}
    trained = [variable for _, variable in trainer.compute_gradients((inputs, targets))]
    module = trainer.heads["size"].module
    variables = [tiny.tensor_variable(variable) for variable in module.trainable_variables]
    labelled = ~np.isnan(targets["size"])
    with tf.GradientTape() as tape:
        errors = module(trainer.encoder(inputs))[:, 0] - tf.constant(np.nan_to_num(targets["size"]))
        loss = tf.reduce_sum(tf.boolean_mask(errors**2, labelled)) / labelled.sum()
    wanted = [variable - 0.1 * gradient for variable, gradient in zip(variables, tape.gradient(loss, variables))]
    batch_size = len(inputs) // compiled.get("gradient_accumulation_steps", 1)
    trainer.fit(inputs, targets, batch_size=batch_size, shuffle=False, verbose=0)
    for got, expected_value in zip(variables, wanted):
        np.testing.assert_allclose(got, expected_value, rtol=1e-5, atol=1e-7)
    for old, new in zip(before, all_weights(trainer)):
        np.testing.assert_array_equal(old, new)
    assert len(trained) == 6 and int(trainer.update_count) == 3


@pytest.mark.thorough
def test_on_a_frozen_encoder_the_optimizer_keeps_nothing_for_it():
    trainer, before, (inputs, targets) = trained_then_added(keras.optimizers.Adam(0.05), freeze_all)
    pairs = trainer.compute_gradients((inputs, targets))
    losses_before = trainer.evaluate(inputs, targets, return_dict=True, verbose=0)
    for _ in range(30):
        trainer.apply_gradients(trainer.compute_gradients((inputs, targets)))
    losses_after = trainer.evaluate(inputs, targets, return_dict=True, verbose=0)
    assert all(losses_after[f"{head}_loss"] < losses_before[f"{head}_loss"] for head in trainer.heads)
    frozen = {id(tiny.tensor_variable(variable)) for variable in trainer.encoder.variables}
    assert not frozen & {id(tiny.tensor_variable(variable)) for _, variable in pairs}
    moments = [variable for variable in trainer.optimizer.variables if len(variable.shape) > 0]
    assert len(moments) == 2 * len(pairs) == 12
    for old, new in zip(before, tiny.values(trainer.encoder.variables)):
        np.testing.assert_array_equal(old, new)


def test_one_frozen_layer_stays_and_the_rest_learns():
    def freeze(encoder):
        encoder.embed.trainable = False

    trainer, before, batch = trained_then_added("adam", freeze, balancer="UPGrad")
    trainer.fit(*batch, verbose=0)
    (embedding,), (kernel, bias) = (tiny.values(layer.variables) for layer in (trainer.encoder.embed, trainer.encoder.dense))
    np.testing.assert_array_equal(embedding, before[0])
    assert not np.array_equal(kernel, before[1]) and not np.array_equal(bias, before[2])
    late = trainer.heads["size"].module
    trained = [variable for _, variable in trainer.compute_gradients(batch)]
    assert len(trained) == 2 + 6 and any(variable is late.trainable_variables[0] for variable in trained)
