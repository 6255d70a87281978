"""Promise 5: an idle head changes neither its variables nor their optimizer slots, bit for bit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import schedules
from tests.helpers import tiny
from tests.helpers.cases import quick

pytestmark = pytest.mark.usefixtures("eager_updates")

OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(0.1),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "ema": lambda: keras.optimizers.SGD(0.1, momentum=0.9, use_ema=True),
}


def state_of(trainer, head):
    """A head's variables and every optimizer variable that has the shape and the name of one of them."""
    own = trainer.heads[head].module.trainable_variables
    spec = trainer.update_spec
    everything, owner = spec.network.variables.all, (list(trainer.heads).index(head),)
    (members,) = [group.variables for group in spec.groups if group.heads == owner]
    assert len(members) >= 2 * len(own)  # at least one slot each
    assert len({id(v) for v in everything}) == len(everything)
    return tiny.values(members)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("reason", "optimizer"),
    quick(
        3,
        [
            ("schedule", "momentum"),
            ("data", "adamw"),
            ("schedule", "ema"),
            ("schedule", "adam"),
            ("schedule", "adadelta"),
            ("schedule", "adamw"),
            ("data", "momentum"),
        ],
    ),
)
def test_idle_head_stays_bit_for_bit(reason, optimizer):
    inputs, targets = tiny.data(8)
    schedule = schedules.Alternate({"tag": 2, "size": 2, "price": 4}) if reason == "schedule" else None
    trainer = tiny.trainer(OPTIMIZERS[optimizer](), head_schedule=schedule)
    trainer.fit(inputs, targets, batch_size=2, epochs=1, verbose=0)  # four updates: slots are no longer zero
    if reason == "data":
        targets = {**targets, "price": np.full(8, -1), "size": np.full(8, np.nan, "float32")}
        idle, busy = ["price", "size"], "tag"
    else:
        idle, busy = ["tag", "size"], "price"
    before = {name: state_of(trainer, name) for name in trainer.heads}
    trainer.fit(inputs, targets, batch_size=2, epochs=1, verbose=0)
    after = {name: state_of(trainer, name) for name in trainer.heads}
    for name in idle:
        for old, new in zip(before[name], after[name], strict=True):
            np.testing.assert_array_equal(old, new)
    assert any(np.any(old != new) for old, new in zip(before[busy], after[busy]))


def test_without_any_label_an_update_is_skipped_and_counted():
    inputs, targets = tiny.data(4)
    nothing = {"tag": np.zeros((4, 6), "int64"), "price": np.full(4, -1), "size": np.full(4, np.nan, "float32")}
    trainer = tiny.shared("adam")
    trainer.fit(inputs, targets, verbose=0)
    before = tiny.weights_of(trainer)
    with pytest.warns(RuntimeWarning, match="no head had labels"):
        history = trainer.fit(inputs, nothing, verbose=0).history
    assert history["skipped_updates"] == [1.0]
    assert tiny.values([trainer.update_count, trainer.optimizer.iterations]) == [1, 1]
    for old, new in zip(before, tiny.weights_of(trainer), strict=True):
        np.testing.assert_array_equal(old, new)


def changed_in_place(pairs):
    gradient, variable = pairs[0]
    pairs[0] = 2.0 * tf.convert_to_tensor(gradient), variable
    return pairs


def halved(pairs):
    return [(None if gradient is None else 0.5 * tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs]


CHANGES = {
    "as given": lambda pairs: pairs,
    "changed in place": changed_in_place,
    "scaled": halved,
    "without None": lambda pairs: [(gradient, variable) for gradient, variable in pairs if gradient is not None],
}

CASES = [*((change, False, "data") for change in CHANGES), ("scaled", True, "data"), ("without None", True, "schedule")]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("change", "in_graph", "reason"), CASES)
def test_in_a_custom_loop_an_idle_head_stays_bit_for_bit(change, in_graph, reason):
    inputs, targets = tiny.data(4)
    schedule = schedules.Alternate({"tag": 1, "price": 1, "size": 9}) if reason == "schedule" else None
    trainer = tiny.trainer(keras.optimizers.AdamW(0.1, weight_decay=0.1), head_schedule=schedule)
    if reason == "data":
        targets = {**targets, "price": np.full(4, -1)}

    def step(inputs, targets):
        return trainer.apply_gradients(CHANGES[change](trainer.compute_gradients((inputs, targets))))

    trainer.compute_gradients((inputs, targets))
    run = tf.function(step) if in_graph else step
    batch = tf.nest.map_structure(tf.constant, (inputs, targets))
    assert run(*batch)  # with the schedule, the first head alone
    before = {head: state_of(trainer, head) for head in trainer.heads}
    assert run(*batch)
    idle, busy = ("tag", "price") if reason == "schedule" else ("price", "tag")
    for old, new in zip(before[idle], state_of(trainer, idle), strict=True):
        np.testing.assert_array_equal(old, new)
    assert any(np.any(old != new) for old, new in zip(before[busy], state_of(trainer, busy)))


def test_gradients_of_the_encoder_alone_are_applied():
    inputs, targets = tiny.data(4)
    trainer = tiny.shared("adam")
    pairs = trainer.compute_gradients((inputs, targets))
    own = {id(variable) for head in trainer.heads.values() for variable in head.module.trainable_variables}
    before, encoder = {head: state_of(trainer, head) for head in trainer.heads}, tiny.values(trainer.encoder.variables)
    assert trainer.apply_gradients([(g * 0.0 if id(v) in own else g, v) for g, v in pairs])
    for head, values in before.items():
        for old, new in zip(values, state_of(trainer, head), strict=True):
            np.testing.assert_array_equal(old, new)
    assert not np.array_equal(encoder[1], tiny.values(trainer.encoder.variables)[1])


def test_heads_that_are_made_idle_before_fit_are_trained_and_it_is_said():
    inputs, targets = tiny.data(4)
    trainer = tiny.trainer("adam")
    trainer.train_on_batch(inputs, targets)
    trainer.set_idle(["tag"])
    before = state_of(trainer, "tag")
    trainer.train_on_batch(inputs, targets)
    for old, new in zip(before, state_of(trainer, "tag"), strict=True):
        np.testing.assert_array_equal(old, new)
    with pytest.warns(UserWarning, match="`fit` begins without idle heads, so it trains 'tag'.*`on_train_begin`"):
        trainer.fit(inputs, targets, verbose=0)
    trainer.fit(inputs, targets, verbose=0)  # what is said once
