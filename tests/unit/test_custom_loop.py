"""Gradients as pairs with their variables: what a custom training loop gets and gives back."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf

from multihead import Stages, balancing
from multihead._trainer.custom_loop import to_apply
from tests.helpers import tiny


@pytest.fixture(scope="module")
def trainer():
    built = tiny.trainer("adam")
    built.compute_gradients(tiny.data(4, missing=False))
    return built


def test_an_idle_head_has_no_gradient(trainer):
    pairs = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "price"))
    assert all(pair.update.active.numpy().tolist() == [False, True, False] for pair in pairs)
    of_tag = {id(tiny.tensor_variable(variable)) for variable in trainer.heads["tag"].module.trainable_variables}
    missing = {id(tiny.tensor_variable(variable)) for gradient, variable in pairs if gradient is None}
    assert of_tag <= missing


def test_the_list_applies_as_it_came_and_a_new_one_of_its_pairs_by_its_gradients(trainer):
    pairs = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "price"))
    zeros = [(tf.zeros_like(variable) if gradient is None else gradient, variable) for gradient, variable in pairs]
    before = tiny.values(trainer.heads["tag"].module.trainable_variables)
    for given in (pairs, zeros):
        assert trainer.apply_gradients(given)
        for old, new in zip(before, tiny.values(trainer.heads["tag"].module.trainable_variables)):
            np.testing.assert_array_equal(old, new)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "copied", [list, copy.copy, lambda pairs: pairs[:], lambda pairs: [(None, pairs[0][1]), *pairs[1:]]], ids=range(4)
)
def test_copies_and_lists_of_the_same_pairs_are_the_same_update(trainer, copied):
    pairs = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "price"))
    change = to_apply(trainer._built.spec.network, copied(pairs), trainer.update_count)
    assert change.roll_back is pairs[0].update.roll_back and not change.without_heads
    assert change.active.numpy().tolist() == [False, True, False]
    assert trainer.apply_gradients(copied(pairs))


def test_gradients_of_the_encoder_alone_are_applied(trainer):
    kernel = trainer.encoder.dense.trainable_variables[0]
    (before,), count = tiny.values([kernel]), int(trainer.update_count)
    heads = tiny.values(
        [*trainer.heads["tag"].module.trainable_variables, *trainer.heads["size"].module.trainable_variables]
    )
    assert trainer.apply_gradients([(tf.ones_like(kernel), kernel)])
    assert int(trainer.update_count) == count + 1 and np.any(before != tiny.values([kernel])[0])
    after = tiny.values(
        [*trainer.heads["tag"].module.trainable_variables, *trainer.heads["size"].module.trainable_variables]
    )
    for old, new in zip(heads, after, strict=True):
        np.testing.assert_array_equal(old, new)


def test_pairs_of_two_updates_are_applied_by_their_gradients(trainer):
    first = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "price"))
    second = trainer.compute_gradients(tiny.only(tiny.data(4, missing=False), "tag"))
    half = len(first) // 2
    change = to_apply(trainer._built.spec.network, [*first[:half], *second[half:]], trainer.update_count)
    assert change.without_heads and change.active.shape == (3,)


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


class Remembering(balancing.Balancer):
    """A class of a user's own, with a state, and one without a line that AutoGraph could read."""

    def create_state(self, num_heads):
        self.seen = self.add_state("seen", (num_heads,))

    def coefficients(self, gramian):
        self.seen.assign(tf.cast(tf.linalg.diag_part(gramian), tf.float32))
        return tf.ones_like(tf.convert_to_tensor(self.seen))


class Silent(balancing.Balancer):
    coefficients = eval("lambda self, gramian: tf.ones(tf.shape(gramian)[:1])")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("balancer", [Remembering, Silent])
def test_a_graph_gives_the_same_losses_and_autograph_has_nothing_to_say(balancer, caplog):
    batch, found = tiny.data(6), []
    for in_graph in (True, False):
        built = tiny.trainer("sgd", balancer=balancer(), run_eagerly=not in_graph)

        def step(inputs, targets, built=built):
            pairs = built.compute_gradients((inputs, targets))
            built.apply_gradients(pairs)
            return pairs.loss, pairs.losses

        step = tf.function(step) if in_graph else step
        found.append([step(batch[0], {k: tf.constant(v) for k, v in batch[1].items()}) for _ in range(2)])
    assert [record.getMessage() for record in caplog.records if "AutoGraph" in record.getMessage()] == []
    for one, other in zip(*(tf.nest.flatten(each) for each in found)):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_list_that_left_its_graph_has_no_losses():
    with pytest.raises(ValueError, match="`losses` must be read where `compute_gradients` is called"):
        _ = type(tiny.shared().compute_gradients(tiny.data(2)))([]).losses


def test_a_traced_loop_ends_with_its_period():
    stages = tiny.trainer("sgd", encoder_learning_rate_multiplier=Stages({0: 0, 2: 1}))
    batch = tiny.data(4, missing=False)
    stages.compute_gradients(batch)
    step = tf.function(lambda stage: stages.apply_gradients(stages.compute_gradients(batch)), autograph=False)
    before = tiny.values(stages.encoder.trainable_variables)
    assert step(0) and step(0)
    for old, new in zip(before, tiny.values(stages.encoder.trainable_variables)):
        np.testing.assert_array_equal(old, new)
    with pytest.raises(tf.errors.InvalidArgumentError, match="traced for the updates from 0 to 1"):
        step(0)
    assert step(stages.stage)
    assert any((old != new).any() for old, new in zip(before, tiny.values(stages.encoder.trainable_variables)))
