"""Every option of `compile` in every way to train: the same update as in `fit`, or an error that says what to do."""

from __future__ import annotations

import functools
import inspect
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, clipping, scaling, schedules
from multihead._ground.keras import KERAS_3
from tests.helpers import tiny

pytestmark = pytest.mark.first_cases(2)  # the others are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=[4, 4, 3]).astype("float32")
A, B = RNG.normal(size=[4, 4, 2]).astype("float32"), RNG.normal(size=[4, 4, 1]).astype("float32")
A[1, :3] = B[2, 1] = np.nan  # missing labels
BATCHES = [(x, {"a": a, "b": b}) for x, a, b in zip(X, A, B)]
BROKEN = [*BATCHES[:2], (np.full_like(X[2], np.inf), BATCHES[2][1]), BATCHES[3]]
INVALID = [(*batch, {"a": np.full([4], weight, "float32")}) for batch, weight in zip(BATCHES, [1, -1, 1, 1])]

UPDATES = {
    "optimizer": {"optimizer": lambda: keras.optimizers.Adam(0.1)},
    "weighting": {"weighting": "Uncertainty"},
    "balancer": {"balancer": "EqualNorms"},
    "balance_at": {"balancer": "EqualNorms", "balance_at": "parameters"},
    "balance_every": {"balancer": "EqualNorms", "balance_every": 2},
    "head_schedule": {"head_schedule": lambda: schedules.Alternate({"a": 1, "b": 1})},
    "clip": {"clip": lambda: clipping.ByGlobalNorm(0.1)},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3},
    "encoder_learning_rate_multiplier": {"encoder_learning_rate_multiplier": 0.25},
    "encoder_weight_decay_multiplier": {"encoder_weight_decay_multiplier": 0.0},
    "target_scaling": {"target_scaling": lambda: {"b": scaling.Standardize(mean=0.5, deviation=2.0)}},
}
"""By option, arguments that change the updates."""

OTHERS = {
    "micro_batches": {"micro_batches": 2},
    "telemetry": {"telemetry": "full"},
    "on_nonfinite": {"on_nonfinite": "raise"},
    "max_skipped_updates": {"max_skipped_updates": 1},
    "check_labels": {"check_labels": False},
    "run_eagerly": {"run_eagerly": False},
    "steps_per_execution": {"steps_per_execution": 2, "run_eagerly": False},
    "jit_compile": {"jit_compile": True, "run_eagerly": False},
}
"""The same of those that leave them as they are."""


class ThroughSuper(MultiHeadTrainer):
    def train_step(self, data):
        return {**super().train_step(data), "own": 1.0}


class ByItself(MultiHeadTrainer):
    def train_step(self, data):
        pairs = self.compute_gradients(data)
        self.apply_gradients(pairs)
        return {"loss": pairs.loss}


def made(option, kind=MultiHeadTrainer):
    given = {"run_eagerly": True, **({**UPDATES, **OTHERS}.get(option, {}))}
    given = {name: value() if callable(value) else value for name, value in given.items()}
    keras.utils.set_random_seed(0)
    trainer = kind(keras.layers.Dense(4, "tanh"))
    trainer.add_head("a", keras.layers.Dense(2), "mse")
    trainer.add_head("b", keras.layers.Dense(1), "mse", weight=0.5)
    trainer.compile(given.pop("optimizer", None) or keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1), **given)
    return trainer


def by_fit(trainer, batches):
    parts = [np.stack(part) for part in zip(*(tf.nest.flatten(batch) for batch in batches))]
    data = tf.data.Dataset.from_tensor_slices(tf.nest.pack_sequence_as(batches[0], parts))
    trainer.fit(data, verbose=0, shuffle=False)


def by_batch(trainer, batches):
    for x, y, *weights in batches:
        trainer.train_on_batch(x, y, *weights)


def by_loop(trainer, batches, compute=None):
    steps = trainer.get_compile_config()["gradient_accumulation_steps"]
    for i in range(0, len(batches), steps):
        of_update = batches[i : i + steps] if steps > 1 else batches[i]
        (compute or (lambda given: trainer.apply_gradients(trainer.compute_gradients(given))))(of_update)


def by_graph(trainer, batches):
    trainer.compute_gradients(batches[:1])  # creates the variables
    step = tf.function(lambda given: trainer.apply_gradients(trainer.compute_gradients(given)), autograph=False)
    by_loop(trainer, batches, lambda given: step(tf.nest.map_structure(tf.constant, given)))


ENTRIES = {
    "train_on_batch": (MultiHeadTrainer, by_batch),
    "custom loop": (MultiHeadTrainer, by_loop),
    "custom loop in a graph": (MultiHeadTrainer, by_graph),
    "train_step with super": (ThroughSuper, by_fit),
    "train_step of its own": (ByItself, by_fit),
}

STEPS = "train_on_batch", "gradient_accumulation_steps"
REFUSED = {STEPS: "`train_on_batch` requires gradient_accumulation_steps=1.*compute_gradients"}
if not KERAS_3:
    REFUSED["train_on_batch", "steps_per_execution"] = "`train_on_batch` requires steps_per_execution=1.*`fit`"


@functools.cache
def as_by_fit(option, broken=False):
    return trained(option, "fit", BROKEN if broken else BATCHES)


def trained(option, entry, batches=BATCHES):
    kind, run = (MultiHeadTrainer, by_fit) if entry == "fit" else ENTRIES[entry]
    trainer = made(option, kind)
    run(trainer, batches)
    return [*tiny.weights_of(trainer), *tiny.values(trainer.optimizer.variables)]


def test_every_option_of_compile_is_here():
    parameters = inspect.signature(MultiHeadTrainer.compile).parameters
    assert {*UPDATES, *OTHERS} == set(parameters) - {"self", "others", "options_of_heads"}


@pytest.mark.parametrize("option", UPDATES)
def test_the_option_changes_what_is_trained(option):
    pairs = zip(as_by_fit(option)[:6], as_by_fit(None)[:6])
    assert not all(np.allclose(one, other, rtol=1e-4) for one, other in pairs)


IN_TURN = itertools.cycle(ENTRIES)
CASES = dict.fromkeys([*REFUSED, *((next(IN_TURN), option) for option in (*UPDATES, *OTHERS) for _ in range(2))])
SLOW = (
    "run_eagerly",
    "steps_per_execution",
    "jit_compile",
    "custom loop in a graph",
)  # tracing takes longer than all updates


@pytest.mark.parametrize(
    ("entry", "option"), [pytest.param(*each, marks=[pytest.mark.thorough] * bool({*each} & {*SLOW})) for each in CASES]
)
def test_the_update_is_that_of_fit_or_an_error(entry, option):
    message = REFUSED.get((entry, option))
    if message is not None:
        with pytest.raises(ValueError, match=message):
            trained(option, entry)
        return
    for one, other in zip(trained(option, entry), as_by_fit(option), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*was skipped because a loss:RuntimeWarning")
@pytest.mark.parametrize(
    ("entry", "option"), list(zip(["fit", *ENTRIES], itertools.cycle(["on_nonfinite", "max_skipped_updates"])))
)
def test_updates_that_are_not_finite_end_training_everywhere(entry, option):
    in_numbers = "not finite.*skipped in a row"  # in a graph of the user's
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=f"{option}|{in_numbers}"):
        trained(option, entry, BROKEN)
    for one, other in zip(trained(None, entry, BROKEN), as_by_fit(None, broken=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("entry", ["fit", *ENTRIES])
def test_labels_are_checked_everywhere(entry):
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="sample_weight"):
        trained(None, entry, INVALID)
    trained("check_labels", entry, INVALID)


@pytest.mark.parametrize(
    ("given", "received"),
    [(BATCHES[0], "one batch"), (BATCHES, "a list of 4"), ([], "a list of 0"), ({"window": tuple(BATCHES)}, "a list of 4")],
)
def test_an_update_has_as_many_batches_as_compile_says(given, received):
    with pytest.raises(ValueError, match=f"`batch` must be a list of at most 3 batches.*Received: {received}. Pass"):
        made("gradient_accumulation_steps").compute_gradients(given)


def test_a_list_of_batches_needs_the_option():
    with pytest.raises(
        ValueError, match="Received: a list of 2. Pass one batch, or `gradient_accumulation_steps=2` to `compile`"
    ):
        made(None).compute_gradients(BATCHES[:2])
