"""Learning rates and weight decay by part: a factor of the optimizer's step per variable.

An update of a variable is `v_new = v_old + factor * (v_opt - v_old)`, where `v_opt` is the value that the optimizer would
set. The factor multiplies the applied step, including weight decay, because Adam and its relatives undo a factor of the
gradient. `compile(encoder_learning_rate_multiplier=)` takes the encoder's factors, `add_head(learning_rate_multiplier=)` a
head's; they are one of

- a number: 1 is the optimizer's own step, 0 freezes;
- a function of the step, an int64 scalar: the number of updates applied so far;
- `LayerwiseDecay` or `ByPath`, if it differs by variable;
- `Stages`, if it changes at some steps, for example from frozen to trained.

Variables frozen by the number 0 cost nothing: there is no backward pass for them, their optimizer slots do not change, and
batch normalization whose variables are all frozen runs in inference mode, as with Keras's `trainable = False`. Where a
function returns 0, the variables, the slots and what the layers write in a forward pass (moving averages, spectral norms) do
not change either, but the gradients are computed, and batch normalization uses the statistics of the batch.

Factors of weight decay (`encoder_weight_decay_multiplier=`, `weight_decay_multiplier=`) have the same forms; they multiply
the `weight_decay` of the optimizer.
"""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead._ground.calls import call_users
from multihead._ground.keras import tensor_variable, variable_name
from multihead._ground.layers import blocks, variable_paths
from multihead._ground.tensors import as_number, precision_of
from multihead._ground.types import Config, Layer, Tensor, Variable
from multihead._ground.validation import as_python, check_between, did_you_mean, is_number, quoted

__all__ = ["ByPath", "LayerwiseDecay", "Stages"]

Factor = float | Callable[[tf.Tensor], Tensor]
"""The factor of one variable: a number, or a function of the step."""

Rate = Any
"""The factors of a part: one factor, an `AbstractRate` or `Stages`."""


class AbstractRate(ABC):
    """Factors that differ by variable."""

    @abstractmethod
    def factors(self, module: Layer, variables: Sequence[Variable]) -> list[Factor]:
        """One factor per variable of a module, the encoder's or a head's."""

    @classmethod
    def from_config(cls, config: Config) -> AbstractRate:
        """Creates an instance from the result of `get_config`."""
        return cls(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})


@keras.saving.register_keras_serializable(package="multihead")
class LayerwiseDecay(AbstractRate):
    """Factors that decrease with the distance from the top of a module.

    Of `D` layers, layer `d` (from 0, the lowest) has the factor `top * decay ** (D - 1 - d)`. The layers are those of the
    module with trainable variables, in Keras's order: in the order of the computation in a functional or sequential model,
    otherwise in the order in which they became attributes. A model among them counts as its own layers, any other layer as
    one layer, whatever it contains. Variables that the module itself owns belong to the lowest layer.

    Args:
        decay: The ratio of neighboring layers' factors, above 0 and at most 1.
        top: The factor of the highest layer: a number of at least 0, or a function of the step.

    Raises:
        ValueError: An argument is out of range, or the module is no Keras layer.

    Example:
        >>> layers = [keras.layers.Dense(2), keras.layers.Dense(2)]
        >>> encoder = keras.Sequential(layers)
        >>> _ = encoder(tf.ones([1, 2]))
        >>> LayerwiseDecay(0.5).factors(encoder, encoder.trainable_variables)
        [0.5, 0.5, 1.0, 1.0]

    Source:
        Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", ACL 2018.
    """

    def __init__(self, decay: float = 0.9, *, top: Factor = 1.0) -> None:
        self.decay = check_between("decay", decay, 0, 1, with_low=False)
        self.top = check_factor("top", top)

    def factors(self, module: Layer, variables: Sequence[Variable]) -> list[Factor]:
        if not isinstance(module, keras.layers.Layer):
            raise ValueError(
                "`LayerwiseDecay` must be used for a Keras layer or model, whose layers are known. Received: a module of "
                f"type {type(module).__name__}. Make it a `keras.layers.Layer`, or pass `ByPath` with factors for paths."
            )
        layers = [layer for layer in blocks(module) if layer.trainable_variables]
        depths: dict[int, int] = {}
        for depth, layer in enumerate(layers):
            for variable in layer.trainable_variables:
                depths.setdefault(id(tensor_variable(variable)), depth)
        below_top = [len(layers) - 1 - depths.get(id(tensor_variable(variable)), 0) for variable in variables]
        return [_times(self.top, self.decay ** max(number, 0)) for number in below_top]

    def get_config(self) -> Config:
        return {"decay": self.decay, "top": keras.saving.serialize_keras_object(self.top)}


@keras.saving.register_keras_serializable(package="multihead")
class ByPath(AbstractRate):
    """Factors by the variables' paths: the names of the layers from the module down, such as `encoder/dense/kernel`.

    Args:
        factors: A dict from regular expressions to factors: the first that matches a part of the path decides, and a
            variable that none matches has the factor 1. Or a function from the path to a factor.

    Raises:
        ValueError: A factor is negative or not finite, or a regular expression is invalid or, once the variables are known,
            matches none of their paths.
        TypeError: `factors` is neither a dict nor a function.

    Example:
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> rates = ByPath({"bias": 0, "kernel": 0.1})
        >>> rates.factors(layer, layer.trainable_variables)
        [0.1, 0.0]
    """

    def __init__(self, factors: Mapping[str, Factor] | Callable[[str], Factor]) -> None:
        if isinstance(factors, Mapping):
            for pattern, factor in factors.items():
                check_factor(f"factors[{pattern!r}]", factor)
                try:
                    re.compile(pattern)
                except (re.error, TypeError) as error:
                    raise ValueError(
                        f"`factors` must have regular expressions as keys. Received: {pattern!r}, {error}. Pass, for "
                        "example, 'embedding'."
                    ) from error
            factors = dict(factors)
        elif not callable(factors):
            raise TypeError(
                "`factors` must be a dict from regular expressions to factors, or a function of the path. "
                f"Received: factors={factors!r}. Pass, for example, {{'embedding': 0}}."
            )
        self._factors = factors

    def factors(self, module: Layer, variables: Sequence[Variable]) -> list[Factor]:
        paths = variable_paths(module)
        own_paths = [paths.get(id(tensor_variable(variable)), variable_name(variable)) for variable in variables]
        if callable(self._factors):
            return [check_factor(f"factors({path!r})", self._factors(path)) for path in own_paths]
        known = list(dict.fromkeys([*own_paths, *paths.values()]))
        absent = [pattern for pattern in self._factors if not any(re.search(pattern, path) for path in known)]
        if absent:
            parts = [*(part for path in known for part in path.split("/")), *known]
            raise ValueError(
                "`factors` must have regular expressions that are found in the path of a variable. Received: "
                f"{quoted(absent)}; the paths are {quoted(known, most=20)}. "
                f"{did_you_mean(absent, parts, 'Correct it, or leave it out.')}"
            )
        matches = {path: [pattern for pattern in self._factors if re.search(pattern, path)] for path in known}
        for pattern, factor in self._factors.items():
            first = {patterns[0] for patterns in matches.values() if pattern in patterns}
            if pattern not in first and any(self._factors[other] != factor for other in first):
                warnings.warn(
                    f"`factors` has a key without effect: {pattern!r}. The first key that is found in a path decides, and "
                    f"{quoted(sorted(first))} comes before it. Put {pattern!r} first, or leave it out.",
                    UserWarning,
                    stacklevel=2,
                )
        return [check_factor("factors", self._factors[matches[path][0]]) if matches[path] else 1.0 for path in own_paths]

    def get_config(self) -> Config:
        return {"factors": keras.saving.serialize_keras_object(self._factors)}


@keras.saving.register_keras_serializable(package="multihead")
class Stages:
    """Factors that change at certain steps, so that a part can be frozen and trained later within one `fit`.

    The updates between two of these steps are a period. Frozen variables are known when a step is traced, and cost no
    backward pass; a period is traced once. Optimizer slots, logs and the step continue. With `steps_per_execution` above
    1, a period begins with the first execution at or after its step. Steps are counted over the lifetime of a trainer: after
    3000 updates and another `compile`, the next update is step 3000, `int(trainer.update_count)`.

    Args:
        stages: A dict from steps to the factors from this step on: numbers, functions of the step, `LayerwiseDecay` or
            `ByPath`. The first step must be 0.

    Raises:
        ValueError: The steps are not whole numbers that begin with 0 and increase, or a factor is out of range.
        TypeError: `stages` is not a dict, or contains something else.

    Example:
        >>> stages = Stages({0: 0, 1000: 0.1})
        >>> stages.at(999), stages.at(1000)
        (0.0, 0.1)
    """

    def __init__(self, stages: Mapping[int, object]) -> None:
        if not isinstance(stages, Mapping):
            raise TypeError(
                "`stages` must be a dict from steps to factors. "
                f"Received: stages={stages!r}. Pass, for example, {{0: 0, 1000: 0.1}}."
            )
        are_whole = all(str(step).isdecimal() for step in stages)  # a dict that was saved has strings as keys
        steps = [int(step) for step in stages] if are_whole else []
        if steps[:1] != [0] or sorted(set(steps)) != steps:
            raise ValueError(
                "`stages` must have whole numbers as keys, from 0 on and increasing. "
                f"Received: {list(stages)}. Pass, for example, {{0: 0, 1000: 0.1}}."
            )
        self.stages = {
            step: factors if isinstance(factors, AbstractRate) else check_factor(f"stages[{step}]", factors)
            for step, factors in zip(steps, stages.values())
        }

    def at(self, step: int) -> Rate:
        """The factors at a step."""
        return self.stages[max(start for start in self.stages if start <= step)]

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return {"stages": {str(step): keras.saving.serialize_keras_object(factors) for step, factors in self.stages.items()}}

    @classmethod
    def from_config(cls, config: Config) -> Stages:
        """Creates an instance from the result of `get_config`."""
        return cls({step: keras.saving.deserialize_keras_object(factors) for step, factors in config["stages"].items()})


def check_rate(argument: str, rate: object) -> Rate:
    """Returns the factors of a part; raises like `check_factor` if they have none of the forms in the module's docstring."""
    return rate if isinstance(rate, (Stages, AbstractRate)) else check_factor(argument, rate)


def check_factor(argument: str, factor: object) -> Factor:
    """Returns a factor if it is a finite number of at least 0, or a function."""
    if callable(factor) and not isinstance(factor, type):
        return factor
    factor = as_python(factor)
    if is_number(factor) and factor >= 0:
        return float(factor)
    error = ValueError if isinstance(factor, (int, float)) and not isinstance(factor, bool) else TypeError
    raise error(
        f"`{argument}` must be a finite number of at least 0, or a function of the step; it is a factor of the optimizer's "
        f"own. Received: {argument}={factor!r}. Pass, for example, 0.1, or 0 to freeze."
    )


def values_at(factors: Sequence[Factor], step: tf.Tensor) -> list[Tensor]:
    """Factors at a step: numbers, and for functions, which are called once, scalars in at least float32."""
    known: dict[Factor, tf.Tensor] = {}
    for factor in dict.fromkeys(factor for factor in factors if callable(factor)):
        value = _factor_at(factor, step)
        if value.shape.rank != 0:
            raise ValueError(
                f"A learning rate's function must return one number. Received: the shape {value.shape} from {factor!r}. "
                "Return a number or a scalar tensor."
            )
        message = "A function of a learning rate or weight decay must return a finite number of at least 0 at every step"
        with tf.control_dependencies([tf.debugging.assert_non_negative(value, message=message)]):
            known[factor] = tf.identity(value)
    return [known.get(factor, factor) for factor in factors]


def largest(factors: Sequence[Factor]) -> Factor:
    """The largest of several factors of one variable; 0 for none."""
    if len(factors) == 1:
        return factors[0]
    constant = max((factor for factor in factors if not callable(factor)), default=0.0)
    changing = [factor for factor in factors if callable(factor)]
    if not changing:
        return constant
    return lambda step: tf.reduce_max(
        [tf.constant(constant, tf.float64), *(tf.cast(_factor_at(factor, step), tf.float64) for factor in changing)]
    )


def _times(factor: Factor, number: float) -> Factor:
    return (lambda step: number * _factor_at(factor, step)) if callable(factor) else factor * number


def _factor_at(factor: Callable[[Tensor], Tensor], step: tf.Tensor) -> tf.Tensor:
    """The result of a function of the step, in at least float32."""
    value = as_number(call_users(factor, step))
    return tf.cast(value, precision_of([value.dtype]))


class Rates(NamedTuple):
    """The factors in one period of training, in which the same variables are frozen."""

    start: int  # the step at which the period begins
    steps: tuple[Factor, ...]  # the factors of the applied step, one per variable of the network
    decays: tuple[Factor, ...]  # the factors of the optimizer's weight decay, one per variable
    positions: tuple[tuple[int, ...], ...]  # the positions of the encoder's variables, and of each head's own, among these

    @property
    def frozen(self) -> frozenset[int]:
        """The positions of frozen variables: those whose factor is the number 0."""
        return frozenset(i for i, factor in enumerate(self.steps) if factor == 0)

    def at(self, step: tf.Tensor) -> tf.Tensor:
        """`[1 + num_heads]`: the largest factor of the encoder's variables, and of each head's own; 0 without variables."""
        values = values_at([largest([self.steps[i] for i in positions]) for positions in self.positions], step)
        return tf.stack([tf.cast(value, tf.float32) for value in values])


def periods_of(network: Any, encoder_rate: Rate, encoder_decay: Rate) -> tuple[Rates, ...]:
    """The factors of all variables by period, from those of the encoder and of the heads.

    The encoder's variables have the encoder's factors, even if a head's module also contains them. A variable that only
    heads share has the largest of their factors. A weighting's variables have the factor 1.

    Raises:
        ValueError: Everything is frozen in one of the periods.
    """
    rates = [encoder_rate, *(head.learning_rate_multiplier for head in network.heads)]
    decays = [encoder_decay, *(head.weight_decay_multiplier for head in network.heads)]
    num_encoder = len(network.variables.encoder)
    positions = (tuple(range(num_encoder)), *(tuple(num_encoder + i for i in own) for own in network.own))
    periods = []
    for start in sorted({0, *(step for rate in (*rates, *decays) if isinstance(rate, Stages) for step in rate.stages)}):
        step_factors, decay_factors = _variable_factors(network, rates, start), _variable_factors(network, decays, start)
        periods.append(Rates(start=start, steps=step_factors, decays=decay_factors, positions=positions))
        if step_factors and all(factor == 0 for factor in step_factors):
            raise ValueError(
                "`learning_rate_multiplier` and `encoder_learning_rate_multiplier` must leave something to train at every "
                f"step. Received: everything is frozen from step {start} on. Give the encoder or a head a factor above 0."
            )
    return tuple(periods)


def _variable_factors(network: Any, rates: Sequence[Rate], step: int) -> tuple[Factor, ...]:
    """The factors of the variables in the period of a step, from the rates of the encoder and of the heads."""
    variables = network.variables
    parts = [(network.encoder, list(range(len(variables.encoder))), variables.encoder)]
    for head, positions in zip(network.heads, network.own):
        # A head's loss may also read variables of other modules.
        own = {id(tensor_variable(variable)) for variable in getattr(head.module, "trainable_variables", [])}
        positions = [i for i in positions if id(tensor_variable(variables.heads[i])) in own]
        parts.append((head.module, positions, [variables.heads[i] for i in positions]))
    part_factors: list[list[Factor]] = []
    for (module, _, own_variables), rate in zip(parts, rates):
        rate = rate.at(step) if isinstance(rate, Stages) else rate
        is_uniform = not isinstance(rate, AbstractRate)
        part_factors.append([rate] * len(own_variables) if is_uniform else rate.factors(module, own_variables))
    head_factors: list[list[Factor]] = [[] for _ in variables.heads]
    for (_, positions, _), factors in zip(parts[1:], part_factors[1:]):
        for i, factor in zip(positions, factors):
            head_factors[i].append(factor)
    return (*part_factors[0], *(largest(factors) for factors in head_factors), *(1.0 for _ in variables.weighting))
