"""Promise 5 in `fit` on labels that are all there, whose steps may rely on heads that never are idle."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, callbacks
from multihead._update.spec import Idle
from tests.helpers import tiny
from tests.helpers.operations import by_stage
from tests.helpers.plans import plans_of, record_plans

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype("float32")
Y = {"kind": RNG.integers(0, 3, 12), "size": X.sum(1, keepdims=True)}
MISSING = {**Y, "size": np.full([12, 1], np.nan, "float32")}


def trainer_of(**options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.05), **options)
    return trainer


def fit(trainer, targets=Y, **options):
    return trainer.fit(X, targets, batch_size=4, shuffle=False, verbose=0, **options)


def state_of(trainer, head):
    """The variables of a head, which Adam moves also by a gradient of 0."""
    return tiny.values(trainer.heads[head].module.variables)


class At(keras.callbacks.Callback):
    """Calls functions of the trainer after batches."""

    def __init__(self, **actions):
        super().__init__()
        self.actions, self.states = {int(name[6:]): action for name, action in actions.items()}, []

    def on_train_batch_end(self, batch, logs=None):
        self.states.append(state_of(self.model, "size"))
        if batch in self.actions:
            self.actions[batch](self.model)


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_the_updates_are_those_of_steps_that_rely_on_nothing():
    trainer = trainer_of()
    fit(trainer, epochs=2)
    other = trainer_of(run_eagerly=True)
    for _ in range(2):
        for start in range(0, 12, 4):
            rows = slice(start, start + 4)
            other.train_on_batch(X[rows], {name: labels[rows] for name, labels in Y.items()})
    for one, two in zip(tiny.weights_of(trainer), tiny.weights_of(other), strict=True):
        np.testing.assert_allclose(one, two, atol=1e-6)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("made_idle", [lambda t: t.set_weight("size", 0.0), lambda t: t.set_idle(["size"])])
def test_a_callback_makes_a_head_idle_and_wakes_it(made_idle):
    trainer = trainer_of()
    wake = {"batch_3": lambda t: (t.set_weight("size", 1.0), t.set_idle([]))}
    at = At(batch_1=made_idle, **wake)
    trainer.fit(
        np.tile(X, (2, 1)), {n: np.concatenate([v, v]) for n, v in Y.items()}, batch_size=4, verbose=0, callbacks=[at]
    )
    changes = [not same(one, other) for one, other in zip(at.states, at.states[1:])]
    assert changes == [True, False, False, True, True]
    fit(trainer)
    assert not same(at.states[-1], state_of(trainer, "size"))


def test_labels_that_are_missing_later_leave_the_head_as_it_was():
    trainer = trainer_of()
    fit(trainer)
    before = state_of(trainer, "size")
    fit(trainer, MISSING)
    assert same(before, state_of(trainer, "size"))
    fit(trainer, callbacks=[At(batch_0=lambda t: t.train_on_batch(X[:4], {n: y[:4] for n, y in MISSING.items()}))])
    assert not same(before, state_of(trainer, "size"))
    assert np.isfinite(trainer.evaluate(X, Y, verbose=0, return_dict=True)["loss"])


def test_the_mask_of_predictions_may_leave_no_label():
    """Labels under a mask count in no batch, and nobody looks for missing ones among them before."""
    trainer = MultiHeadTrainer(keras.layers.Masking())
    trainer.add_head("tag", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("number", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.05))
    x, tags = np.ones([8, 2, 3], "float32"), np.ones([8, 2], "int64")
    numbers = np.ones([8, 2, 1], "float32")
    trainer.fit(x, {"tag": tags, "number": numbers}, batch_size=4, verbose=0)
    before = [state_of(trainer, head) for head in ("tag", "number")]
    with pytest.warns(RuntimeWarning, match="2 of the epoch's updates were skipped"):
        trainer.fit(np.zeros_like(x), {"tag": tags, "number": numbers}, batch_size=4, verbose=0)
    assert all(same(one, state_of(trainer, head)) for one, head in zip(before, ("tag", "number")))
    numbers = np.full_like(numbers, np.nan)
    trainer.fit(x, {"tag": tags, "number": numbers}, batch_size=4, verbose=0)
    after = [state_of(trainer, head) for head in ("tag", "number")]
    assert not same(before[0], after[0]) and same(before[1], after[1])


def test_a_weight_of_0_that_is_loaded_is_seen_by_the_next_fit(tmp_path):
    trainer = trainer_of()
    of_other_file(trainer, tmp_path / "of.weights.h5")
    fit(trainer)
    trainer.load_weights(tmp_path / "of.weights.h5")
    before = state_of(trainer, "size")
    fit(trainer)
    assert same(before, state_of(trainer, "size"))


def of_other_file(trainer, path):
    other = trainer_of(run_eagerly=True)
    fit(other)
    other.set_weight("size", 0.0)
    other.save_weights(path)


UNTOLD = {
    "a variable is assigned": lambda trainer, path: trainer.head_weights.by_head["size"].assign(0.0),
    "weights are loaded": lambda trainer, path: trainer.load_weights(path),
    "weights are set": lambda trainer, path: trainer.head_weights.set_weights([np.array(1.0), np.array(0.0)]),
    "heads are idle by their variable": lambda trainer, path: trainer.update_spec.running.enabled.assign([1.0, 0.0]),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("way", UNTOLD)
def test_nobody_has_to_be_told_how_a_head_becomes_idle(way, tmp_path):
    trainer, path = trainer_of(), tmp_path / "of.weights.h5"
    of_other_file(trainer, path)
    at = At(batch_1=lambda t: UNTOLD[way](t, path))
    at.states, x = [], np.tile(X, (2, 1))
    trainer.fit(x, {n: np.concatenate([v, v]) for n, v in Y.items()}, batch_size=4, verbose=0, callbacks=[at])
    changes = [not same(one, other) for one, other in zip(at.states, at.states[1:])]
    assert changes[0] and changes[2:] == [False, False, False]


class Plain(keras.callbacks.Callback):
    """A callback that does nothing, as far as anybody knows."""


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("callback", "relies"),
    [
        (keras.callbacks.CSVLogger, True),
        (callbacks.UpdateLogger, True),
        (lambda path: keras.callbacks.EarlyStopping("loss"), True),
        (lambda path: Plain(), False),
        (lambda path: keras.callbacks.LambdaCallback(), False),
        (lambda path: keras.callbacks.LearningRateScheduler(lambda epoch: 0.1), False),
    ],
)
def test_steps_rely_on_heads_only_where_no_code_of_users_runs_between_updates(callback, relies, tmp_path):
    trainer = trainer_of(run_eagerly=True)
    record_plans(trainer)
    fit(trainer, callbacks=[callback(str(tmp_path / "file"))])
    assert {plan.idle is Idle.NEVER for plan in plans_of(trainer)} == {relies}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("weight", [1e-39, 1e-46])
def test_a_weight_that_is_0_in_single_precision_makes_a_head_idle(weight):
    trainer = trainer_of()
    fit(trainer, callbacks=[At(batch_1=lambda t: t.set_weight("size", weight))])
    before = state_of(trainer, "size")
    fit(trainer)
    assert same(before, state_of(trainer, "size"))


class Masked(MultiHeadTrainer):
    """A trainer whose step leaves the labels of a head out."""

    def train_step(self, data):
        x, y = data[0], dict(data[1])
        return super().train_step((x, {**y, "size": tf.fill(tf.shape(y["size"]), float("nan"))}))


def test_a_step_of_a_subclass_may_change_labels():
    keras.utils.set_random_seed(1)
    trainer = Masked(keras.layers.Dense(4, activation="tanh"))
    trainer.add_head("kind", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.05))
    trainer.evaluate(X, Y, verbose=0)  # which creates the variables
    before = tiny.values(trainer.heads["size"].module.trainable_variables)
    fit(trainer)
    assert same(before, tiny.values(trainer.heads["size"].module.trainable_variables))


def test_a_batch_without_elements_leaves_its_head_idle():
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("tag", keras.layers.Dense(3), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(0.05))

    def batches():
        for time in (2, 0, 2):
            x = np.ones([4, time, 3], "float32")
            yield x, {"tag": np.ones([4, time], "int64"), "size": np.ones([4, time, 1], "float32")}

    specs = (
        tf.TensorSpec([None, None, 3]),
        {"tag": tf.TensorSpec([None, None], tf.int64), "size": tf.TensorSpec([None, None, 1])},
    )
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped"):
        data = tf.data.Dataset.from_generator(batches, output_signature=specs)
        trainer.fit(data.apply(tf.data.experimental.assert_cardinality(3)), verbose=0)


def test_weights_of_one_head_do_not_make_another_conditional():
    """Keras takes weights for all heads or for none; those of the others are ones."""

    def conditions(*weights):
        trainer = trainer_of()
        record_plans(trainer)
        fit(trainer, sample_weight=weights[0] if weights else None)
        trainer._state.plan = plans_of(trainer)[-1]
        ones = [{"size": np.ones(12), **weights[0]}] if weights else []
        step = tf.function(lambda *batch: trainer.train_step(batch), autograph=False)
        return by_stage(step.get_concrete_function(*tf.nest.map_structure(tf.constant, (X, Y, *ones))))["conditions"]

    assert conditions({"kind": np.linspace(1, 2, 12)}) == conditions()
