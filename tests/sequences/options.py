"""What is passed to `compile` and `add_head`, by the names that the twin has for it."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from multihead import Stages, clipping, schedules
from tests.sequences.twin import PIECES, Optimizer


@keras.saving.register_keras_serializable(package="sequences")
def every_other(step: Any) -> Any:
    return tf.cast(step % 2, tf.float64)


@keras.saving.register_keras_serializable(package="sequences")
def falling(step: Any) -> Any:
    return 1 / (1 + tf.cast(step % 4, tf.float64))


@keras.saving.register_keras_serializable(package="sequences")
def at_times(step: Any) -> Any:
    return tf.cast(step % 3 != 1, tf.float64)


RATES: dict[str, Any] = {
    "one": 1.0,
    "third": 1 / 3,
    "frozen": 0.0,
    "every_other": every_other,
    "staged": Stages({0: 0, 3: 1 / 3}),
}
WEIGHTS: dict[str, Any] = {"falling": falling, "at_times": at_times}
CLIPS: dict[str, Any] = {"value": clipping.ByValue, "norm": clipping.ByNorm, "global_norm": clipping.ByGlobalNorm}


def optimizer_of(options: dict[str, Any]) -> Any:
    """Keras's optimizer of some options of the twin's."""
    rate = options["rate"]
    if rate == "pieces":
        rate = keras.optimizers.schedules.PiecewiseConstantDecay(*map(list, PIECES))
    if options["kind"] == "sgd":
        return keras.optimizers.SGD(rate, options.get("momentum", 0.0), weight_decay=options.get("decay") or None)
    first, second = Optimizer.BETAS
    epsilon = Optimizer.EPSILON
    return keras.optimizers.AdamW(rate, weight_decay=options["decay"], beta_1=first, beta_2=second, epsilon=epsilon)


def schedule_of(kind: str, names: list[str]) -> tuple[Any, Any]:
    """A schedule, and the twin's."""
    turns = {name: 1 + place % 2 for place, name in enumerate(names)}
    if kind == "together":
        return schedules.Together(), None
    if kind == "alternate":
        order = [name for name, number in turns.items() for _ in range(number)]

        def following(able: list[str], step: int) -> list[str]:
            return [name for name in (order * 2)[step % len(order) :] if name in able][:1]

        return schedules.Alternate(turns), {"active": lambda step: [order[step % len(order)]], "passed_on": following}
    drawn = schedules.Sample(turns, seed=3)
    drawn.bind(names)

    def active(step: int) -> list[str]:
        return [name for name, is_active in zip(names, drawn.active(tf.constant(step, tf.int64)).numpy()) if is_active]

    def others(able: list[str], step: int) -> list[str]:
        passed_on = drawn.passed_on(tf.constant([name in able for name in names]), tf.constant(step, tf.int64))
        return [name for name, is_active in zip(names, passed_on.numpy()) if is_active]

    return schedules.Sample(turns, seed=3), {"active": active, "passed_on": others}
