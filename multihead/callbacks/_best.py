"""The best value so far, what is kept of an epoch, and options by head."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.types import Given, Trainer


class Best:
    """The best value so far, its epoch, and the epochs since then, by the rules of Keras's `EarlyStopping`."""

    def __init__(self, mode: str, min_delta: float = 0.0) -> None:
        self._sign, self._min_delta = (1 if mode == "max" else -1), abs(min_delta)
        self.value: float | None = None
        self.epoch: int | None = None
        self.wait = 0

    def add(self, epoch: int, value: float) -> bool:
        """Adds an epoch's value; whether it is the best so far. NaN never is."""
        self.wait += 1
        if self.value is None:
            is_best = not math.isnan(value)
        else:
            is_best = self._sign * value - self._min_delta > self._sign * self.value
        if is_best:
            self.value, self.epoch, self.wait = value, epoch, 0
        return is_best


def variables_of(trainer: Trainer, heads: Sequence[str]) -> list[tf.Variable]:
    """All variables of the encoder and of some heads, each once."""
    modules = [trainer.encoder, *(trainer.heads[head].module for head in heads)]
    found = [tensor_variable(variable) for module in modules for variable in getattr(module, "variables", [])]
    return list({id(variable): variable for variable in found}.values())


def by_head(option: Given, head: str, default: Given) -> Given:
    """The value for a head of an option that is one value, or a dict of values by head name."""
    return option.get(head, default) if isinstance(option, Mapping) else option


def check_by_head(argument: str, option: Given, is_valid: Callable[[Given], bool], rule: str, example: Given) -> Given:
    """Returns an option that is one value, or a dict of values by head name."""
    for value in option.values() if isinstance(option, Mapping) else [option]:
        if not is_valid(value):
            raise ValueError(
                f"`{argument}` must be {rule}, or a dict of these by head name. Received: {argument}={option!r}. "
                f"Pass, for example, {example!r}."
            )
    return dict(option) if isinstance(option, Mapping) else option
