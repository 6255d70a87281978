"""An optimizer that was built for other heads, or in another order, is saved and loaded as one that knows only the present ones."""

from __future__ import annotations

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, callbacks
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
CHANGES = {
    "one head less": lambda trainer, module: trainer.remove_head("a"),
    "another order": lambda trainer, module: (trainer.remove_head("a"), trainer.add_head("a", module, "mse")),
    "frozen": lambda trainer, module: setattr(module, "trainable", False),
}
OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "averages": lambda: keras.optimizers.SGD(0.05, use_ema=True),
    "scaled": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(0.05)),
}
WAYS = ["file", "weights", "keras"]


def trained(optimizer, change):
    """A trainer whose optimizer was built before its heads were changed."""
    keras.utils.set_random_seed(1)
    trainer, module = MultiHeadTrainer(keras.layers.Dense(3)), keras.layers.Dense(2)
    trainer.add_head("a", module, "mse")
    trainer.add_head("b", keras.layers.Dense(2), "mse")
    trainer.compile(OPTIMIZERS[optimizer]())
    fit(trainer)
    CHANGES[change](trainer, module)
    trainer.compile(trainer.optimizer)
    fit(trainer)
    return trainer


def fit(trainer, **options):
    y = {"a": X[:, :2], "b": X[:, 2:]}
    return trainer.fit(X, {name: y[name] for name in trainer.heads}, batch_size=4, shuffle=False, verbose=0, **options)


def state(trainer):
    """The slots of the variables that are trained, in their order, and the counts."""
    slots = [slot for of_variable in trainer.update_spec.running.slots for slot in of_variable]
    return [*tiny.values([*slots, trainer.optimizer.iterations]), trainer.num_updates]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_the_state_is_saved_and_loaded(way, change, optimizer, tmp_path):
    trainer, path = trained(optimizer, change), tmp_path / ("one.weights.h5" if way == "weights" else "one.keras")
    expected = state(trainer)
    if way == "weights":
        trainer.save_weights(path)
        fit(trainer)
        trainer.load_weights(path)
        assert_same(state(trainer), expected)
    elif way == "keras":
        keras.saving.save_model(trainer, path)
    else:
        trainer.save(path)
    if way != "weights":
        loaded = keras.models.load_model(path)
        assert_same(state(loaded), expected)
        fit(trainer), fit(loaded)
        assert_same(state(loaded), state(trainer))
        assert_same(tiny.weights_of(loaded), tiny.weights_of(trainer))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("optimizer", ["scaled", "adam"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_holds_it_in_the_same_order(change, optimizer, tmp_path):
    trainer = trained(optimizer, change)
    trainer.save(tmp_path / "start.keras")
    fit(trainer, epochs=2, callbacks=[callbacks.Checkpoint(tmp_path / "run")])
    loaded = keras.models.load_model(tmp_path / "start.keras")
    assert loaded.num_updates != trainer.num_updates
    fit(loaded, epochs=2, callbacks=[callbacks.Checkpoint(tmp_path / "run")])
    assert_same(state(loaded), state(trainer))


def test_an_optimizer_in_its_own_order_is_saved_by_its_own_method():
    trainer = trained("adam", "another order")
    assert "save_own_variables" in vars(trainer.optimizer)
    module = trainer.heads["b"].module
    trainer.remove_head("b")
    trainer.add_head("b", module, "mse")
    trainer.compile(trainer.optimizer)
    fit(trainer)
    assert "save_own_variables" not in vars(trainer.optimizer)


# An optimizer that is assigned, not compiled
# ---------------------------------------------------------------------------------------------------------------------

BATCH = (X, {"a": X[:, :2]})
UPDATES = {
    "fit": lambda trainer: trainer.fit(*BATCH, verbose=0),
    "train_on_batch": lambda trainer: trainer.train_on_batch(*BATCH),
    "compute_gradients": lambda trainer: trainer.compute_gradients(BATCH),
    "apply_gradients": lambda trainer: trainer.apply_gradients([(0 * v, v) for v in trainer.trainable_variables]),
}


@pytest.mark.first_cases(3)
@pytest.mark.parametrize("update", UPDATES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_another_optimizer_than_that_of_compile_is_rejected(update, optimizer):
    """What `compile` checks of an optimizer would not hold, its slots do not exist, and steps do not know it."""
    trainer = MultiHeadTrainer(keras.layers.Dense(3, kernel_initializer="ones"))
    trainer.add_head("a", keras.layers.Dense(2), "mse")
    trainer.compile(keras.optimizers.SGD(0.0))
    first, another = trainer.optimizer, OPTIMIZERS[optimizer]()
    for change in (lambda made: made.fit(*BATCH, verbose=0), UPDATES[update]):  # before anything is built, and after
        trainer.optimizer = another
        with pytest.raises(
            ValueError, match="`optimizer` must be given to `compile`.*in place of the SGD.*Call `compile` again"
        ):
            change(trainer)
        trainer.optimizer = first
        trainer.fit(*BATCH, verbose=0)
    still = np.array(trainer.encoder.kernel)
    np.testing.assert_array_equal(still, 1)
    trainer.optimizer = another
    trainer.evaluate(*BATCH, verbose=0)
    np.testing.assert_array_equal(still, trainer.encoder.kernel)
    trainer.optimizer = first
    UPDATES[update](trainer)
    trainer.compile(OPTIMIZERS[optimizer]())
    trainer.fit(*BATCH, verbose=0)
    assert np.all(still != np.array(trainer.encoder.kernel))
