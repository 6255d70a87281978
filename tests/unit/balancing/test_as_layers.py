"""Every balancer as a Keras layer: traced and compiled, saved and restored, from its configuration."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import balancing
from tests.helpers import zoo
from tests.helpers.balancers import ALL, STATEFUL, USUAL, make, usual_update


@pytest.mark.parametrize("name", ALL)
def test_config_round_trip(name):
    balancer = make(name)
    config = keras.saving.serialize_keras_object(balancer)
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(balancer) and copy.get_config() == balancer.get_config()
    np.testing.assert_array_equal(copy(USUAL).numpy(), usual_update(name))


class _Holder(keras.Model):
    def __init__(self, balancer):
        super().__init__()
        self.balancer = balancer

    def call(self, inputs):
        return inputs


@pytest.mark.parametrize("name", STATEFUL)
def test_state_is_saved_and_restored(name, tmp_path):
    first, second, third = (zoo.matrix("conflicting", 3, seed=seed) for seed in range(3))
    original = make(name)
    original(first), original(second)
    holder, restored = _Holder(original), _Holder(make(name))
    restored.balancer.build((3, 31))
    for each in (holder, restored):
        each(tf.zeros([1, 1]))
    holder.save_weights(tmp_path / "state.weights.h5")
    restored.load_weights(tmp_path / "state.weights.h5")
    continued = restored.balancer(third).numpy()
    np.testing.assert_array_equal(continued, original(third).numpy())
    fresh = make(name)
    assert not np.array_equal(continued, fresh(third).numpy())


@pytest.mark.parametrize("name", ALL)
def test_a_non_finite_gradient_is_reported_with_its_head(name):
    rows = zoo.matrix("random", 3)
    rows[2, 0] = np.inf
    balancer = make(name)
    balancer.bind(["reply", "price", "tags"])
    with pytest.raises(ValueError, match="`matrix` must be finite: .* Received: non-finite gradients of head 'tags'"):
        balancer(rows)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("method", [name for name in balancing.__all__ if name[0].isupper() and name != "Balancer"])
def test_reset_undoes_every_update(method):
    balancer = getattr(balancing, method)()
    rows = zoo.matrix("random", 3)
    first = balancer(rows, step=0, losses=[1.0, 2.0, 3.0]).numpy()
    balancer(3 * rows[::-1].copy(), step=0, losses=[3.0, 1.0, 2.0])
    balancer.reset()
    np.testing.assert_array_equal(balancer(rows, step=0, losses=[1.0, 2.0, 3.0]), first)
