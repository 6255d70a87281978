"""Methods of one's own that keep a state: saved, resumed, left as it is by a skipped update, equal on every replica."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, schedules, weighting
from tests.helpers.tiny import values, weights_of

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


@keras.saving.register_keras_serializable(package="own_state")
class Averaging(balancing.Balancer):
    """Divides each gradient by the running mean of its norms."""

    def create_state(self, num_heads):
        self.norms = self.add_state("norms", (num_heads,))
        self.solves = self.add_state("solves", (), dtype="int64")

    def coefficients(self, gramian):
        norms = tf.cast(tf.sqrt(tf.linalg.diag_part(gramian)), tf.float32)
        mean = 0.5 * tf.convert_to_tensor(self.norms) + 0.5 * norms
        self.norms.assign(tf.where(norms > 0, mean, self.norms))
        self.solves.assign_add(1)
        return tf.math.divide_no_nan(tf.ones_like(mean), mean)


@keras.saving.register_keras_serializable(package="own_state")
class Fading(weighting.Weighting):
    """Weights that fall by a tenth with every update that trains the head."""

    uses = ()

    def create_state(self, num_heads):
        self.factors = self.add_state("factors", (num_heads,), "ones")

    def total(self, losses, active):
        return tf.reduce_sum(tf.where(active, tf.convert_to_tensor(self.factors) * losses, 0.0))

    def observe(self, update, applied):
        factors = tf.convert_to_tensor(self.factors)
        self.factors.assign(tf.where(update.active & applied, 0.9 * factors, factors))


@keras.saving.register_keras_serializable(package="own_state")
class LeastTrained(schedules.Schedule):
    """The head that has trained least so far, and every third time all of them."""

    def create_state(self, num_heads):
        self.trained = self.add_state("trained", (num_heads,), dtype="int64")

    def active(self, step):
        trained = tf.convert_to_tensor(self.trained)
        return (trained == tf.reduce_min(trained)) | (step % 3 == 0)

    def observe(self, update, applied):
        self.trained.assign_add(tf.cast(update.active & applied, tf.int64))


def dense(units, seed, activation=None):
    return keras.layers.Dense(units, activation, kernel_initializer=keras.initializers.GlorotUniform(seed))


def trainer(**options):
    result = MultiHeadTrainer(dense(4, 1, "tanh"))
    result.add_head("price", dense(1, 2), "mse")
    result.add_head("size", dense(1, 3), "mse")
    result.compile(
        keras.optimizers.SGD(0.1), balancer=Averaging(), weighting=Fading(), head_schedule=LeastTrained(), **options
    )
    return result


def batches(bad=()):
    """Five updates; those of `bad` are not finite."""
    rng = np.random.default_rng(1)
    targets = rng.normal(size=(2, 5, 4, 1)).astype("float32")
    for update in bad:
        targets[0, update] = 3e38  # its square overflows
    return tf.data.Dataset.from_tensor_slices((np.tile(X, (5, 1, 1)), {"price": targets[0], "size": targets[1]}))


def state(model):
    return values([*model.balancer.variables, *model.weighting.variables, *model.head_schedule.variables])


@pytest.mark.thorough
def test_a_skipped_update_leaves_it_as_it_is():
    model = trainer(run_eagerly=False)
    with pytest.warns(RuntimeWarning, match="2 of the epoch's updates were skipped"):
        model.fit(batches(bad=(1, 3)), verbose=0)
    assert state(model)[1] == 3 and state(model)[3].tolist() == [3, 3]
    again = trainer()
    kept = [batch for i, batch in enumerate(batches()) if i not in (1, 3)]
    for inputs, targets in kept:
        again.fit(inputs, targets, batch_size=4, verbose=0)
    for one, other in zip(state(model) + weights_of(model), state(again) + weights_of(again)):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.thorough
def test_it_is_saved_and_resumed(tmp_path):
    whole, first = trainer(), trainer()
    whole.fit(batches(), epochs=2, verbose=0)
    first.fit(batches(), verbose=0)
    first.save(str(tmp_path / "trainer.keras"))
    resumed = keras.models.load_model(str(tmp_path / "trainer.keras"))
    for one, other in zip(state(first), state(resumed)):
        np.testing.assert_array_equal(one, other)
    resumed.fit(batches(), verbose=0)
    for one, other in zip(state(whole) + weights_of(whole), state(resumed) + weights_of(resumed)):
        np.testing.assert_allclose(one, other, rtol=1e-5)
