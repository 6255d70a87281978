"""Gradients as pairs with their variables: what a custom training loop gets and gives back."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tests.helpers import tiny


@pytest.fixture(scope="module")
def trainer():
    built = tiny.trainer("adam")
    built.compute_gradients(tiny.data(4, missing=False))
    return built


def test_the_list_applies_as_it_came_and_a_new_one_of_its_pairs_by_its_gradients(trainer):
    pairs = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "price"))
    zeros = [(tf.zeros_like(variable) if gradient is None else gradient, variable) for gradient, variable in pairs]
    before = tiny.values(trainer.heads["tag"].module.trainable_variables)
    for given in (pairs, zeros):
        assert trainer.apply_gradients(given)
        for old, new in zip(before, tiny.values(trainer.heads["tag"].module.trainable_variables)):
            np.testing.assert_array_equal(old, new)


def test_in_a_graph_the_list_still_knows_which_heads_are_idle(trainer):
    absent = []

    @tf.function
    def update(inputs, targets):
        pairs = trainer.compute_gradients((inputs, targets))
        absent.extend(gradient is None for gradient, _ in pairs)
        return trainer.apply_gradients(pairs)

    before = tiny.values(trainer.heads["size"].module.trainable_variables)
    inputs, targets = tiny.data(4, missing=False)
    targets["size"][:] = np.nan
    assert update(*tf.nest.map_structure(tf.constant, (inputs, targets)))
    assert absent and not any(absent)
    for old, new in zip(before, tiny.values(trainer.heads["size"].module.trainable_variables)):
        np.testing.assert_array_equal(old, new)


def test_nothing_to_apply(trainer):
    pairs = trainer.compute_gradients(tiny.data(4))
    count = int(trainer.update_count)
    assert not trainer.apply_gradients([(None, variable) for _, variable in pairs])
    assert int(trainer.update_count) == count


def test_other_variables_are_refused(trainer):
    with pytest.raises(ValueError, match="must contain only trainable variables of the trainer. Received: 1 others"):
        trainer.apply_gradients([(tf.ones([]), tf.Variable(1.0))])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{"weighting": "LogLoss"}, {"balancer": "UPGrad"}], ids=str)
def test_a_batch_without_examples_changes_nothing(options):
    trainer = tiny.trainer("adam", weights=dict.fromkeys(tiny.WEIGHTS, 1.0), micro_batches=2, run_eagerly=True, **options)
    whole = tiny.data(4)
    trainer.compute_gradients(whole)
    before = tiny.values(trainer.variables)
    assert not trainer.apply_gradients(trainer.compute_gradients(tiny.rows(whole, 0, 0)))
    for old, new in zip(before, tiny.values(trainer.variables), strict=True):
        np.testing.assert_array_equal(old, new)


# Losses


def test_the_losses_are_those_that_a_step_of_fit_logs():
    batch = tiny.data(6)
    built = tiny.trainer("adam", weighting="Uncertainty", run_eagerly=True)
    pairs = built.compute_gradients(batch)
    logs = built.train_on_batch(*batch, return_dict=True)
    assert list(pairs.losses) == ["tag", "price", "size"]
    np.testing.assert_allclose(float(pairs.loss), logs["loss"], rtol=1e-6)
    for name, loss in pairs.losses.items():
        np.testing.assert_allclose(float(loss), logs[f"{name}_loss"], rtol=1e-6)
    of_one = built.compute_gradients(tiny.only(batch, "tag")).losses
    assert np.isfinite(of_one["tag"]) and np.isnan(of_one["price"]) and np.isnan(of_one["size"])


def test_a_list_that_left_its_graph_has_no_losses():
    with pytest.raises(ValueError, match="`losses` must be read where `compute_gradients` is called"):
        _ = type(tiny.shared().compute_gradients(tiny.data(2)))([]).losses
