"""A schedule decides which heads train at a step.

A schedule is a function of the number of updates applied so far (and, for `WhileConflicting`, of its own state, which is
saved with the trainer), never of time, so a resumed run repeats an uninterrupted one. A head that is left out is idle: its
forward and backward pass are not computed, and it does not change.

A turn of heads that cannot train, because they have no labels in the update, a weight of 0, or are made idle, passes on to
others that can: otherwise no update would be applied, and the turn would never end. A missed turn is not made up for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multihead._ground.keras import Untracked, tensor_variable
from multihead._ground.random import uniform
from multihead._ground.tensors import where
from multihead._ground.types import Config
from multihead._ground.validation import check_between, check_head_names, check_positive, check_positive_whole, check_whole
from multihead._method import Method, Observation

__all__ = ["Schedule", "Alternate", "Sample", "Together", "WhileConflicting"]


class Schedule(Method):
    """Decides which heads train at a step. Subclasses implement `active`.

    It is a Keras layer only so that its state, if any, is saved with the trainer.

    Attributes:
        always_all: Whether every head trains at every step.
        uses: What `observe` needs from an update: `"gramian"` (the inner products of the representation gradients),
            `"losses"`, `"losses_after"`.
        head_names: The heads' names after `bind` has been called, otherwise None.

    Args:
        name: Name of the layer.
    """

    always_all: bool = False
    _may_use = ("gramian", "losses", "losses_after")
    _argument = "head_schedule"

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name, trainable=False)
        # Keras warns of a trainer with unbuilt layers; most schedules have no state to build.
        self.built = type(self).create_state is Method.create_state

    def active(self, step: tf.Tensor) -> tf.Tensor:
        """Returns which heads train.

        Args:
            step: The number of updates applied so far, an int64 scalar.

        Returns:
            Booleans of shape `[num_heads]`, in the order of the heads.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must implement `active(step)`. Received: a class without it. See docs/extending.md."
        )

    def passed_on(self, able: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Returns which heads train if none of the active ones can; by default all that can.

        Args:
            able: Booleans of shape `[num_heads]`: the heads that have labels in the update and a weight above 0, and were
                not made idle. The same on all replicas.
            step: As for `active`.

        Returns:
            Booleans of shape `[num_heads]`: some of those that are able, unless none is.
        """
        return able

    def among(self, able: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """Which heads train, of those that can; as for `passed_on`, which decides if no active head can."""
        active = self.active(step) & able
        return active | (self.passed_on(able, step) & able & ~tf.reduce_any(active))

    @property
    def num_heads(self) -> int:
        """The number of heads, after `bind` has been called."""
        return len(self.head_names or ())

    def get_config(self) -> Config:
        """The constructor's arguments."""
        return self._options()


@keras.saving.register_keras_serializable(package="multihead")
class Together(Schedule):
    """All heads train at every step."""

    always_all = True

    def active(self, step: tf.Tensor) -> tf.Tensor:
        return tf.ones([self.num_heads], tf.bool)


class _ByTurns(Schedule):
    """A schedule with a number of turns per head."""

    def __init__(self, turns: Mapping[str, float], check: Callable[[str, object], float]) -> None:
        super().__init__()
        if not isinstance(turns, Mapping) or not turns:
            raise ValueError(
                "`turns` must be a mapping from head names to numbers of updates. "
                f"Received: turns={turns!r}. Pass, for example, {{'price': 1, 'reply': 9}}."
            )
        self.turns: dict[str, Any] = {str(name): check(f"turns[{name!r}]", count) for name, count in turns.items()}

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        check_head_names("turns", self.turns, head_names, complete=True)


@keras.saving.register_keras_serializable(package="multihead")
class Alternate(_ByTurns):
    """Heads alternate: each trains for its number of updates, in the given order, repeatedly.

    With turns `t_1 .. t_K` and `T = sum_k t_k`, head `k` trains at step `s` if
    `t_1 + .. + t_(k-1) <= s mod T < t_1 + .. + t_k`. If this head cannot train, the next one in this order that can does.

    Args:
        turns: Updates per turn by head name, whole numbers of at least 1; every head must be named.

    Raises:
        ValueError: A number of turns is below 1 or not whole; `turns` is empty.

    Example:
        >>> schedule = Alternate({"price": 1, "reply": 2})
        >>> schedule.bind(["reply", "price"])
        >>> steps = [tf.constant(step, tf.int64) for step in range(3)]
        >>> [schedule.active(step).numpy().tolist() for step in steps]
        [[False, True], [True, False], [True, False]]
    """

    def __init__(self, turns: Mapping[str, int]) -> None:
        super().__init__(turns, check_positive_whole)

    def active(self, step: tf.Tensor) -> tf.Tensor:
        first, last = self._limits()
        position = tf.cast(step, tf.int64) % sum(self.turns.values())
        return tf.logical_and(first <= position, position < last)

    def passed_on(self, able: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        (first, _), length = self._limits(), sum(self.turns.values())
        wait = (first - tf.cast(step, tf.int64)) % length  # the number of updates until a head's next turn begins
        wait = where(able, wait, tf.constant(length, tf.int64, [self.num_heads]))
        return able & tf.equal(wait, tf.reduce_min(wait))

    def _limits(self) -> tuple[tf.Tensor, tf.Tensor]:
        """`[num_heads]`: the first positions of the heads' turns, and the first after them."""
        ends = dict(zip(self.turns, np.cumsum(list(self.turns.values()))))
        names = self.head_names or ()
        last = tf.constant([int(ends[name]) for name in names], tf.int64)
        return last - tf.constant([int(self.turns[name]) for name in names], tf.int64), last


@keras.saving.register_keras_serializable(package="multihead")
class Sample(_ByTurns):
    """One head trains per step, sampled at random.

    With turns `t_1 .. t_K`, head `k` is sampled with probability `t_k / sum_j t_j`. If it cannot train, another one is
    sampled among those that can. The samples are functions of only `seed`, the step and, then, which heads can train.

    Args:
        turns: Relative numbers of updates by head name, above 0; every head must be named.
        seed: Random seed, a whole number.

    Raises:
        ValueError: A number of turns is not above 0, `turns` is empty, or `seed` is not a whole number.

    Example:
        >>> schedule = Sample({"price": 1, "reply": 9}, seed=1)
        >>> schedule.bind(["price", "reply"])
        >>> steps = [tf.constant(step, tf.int64) for step in range(100)]
        >>> drawn = [schedule.active(step).numpy().tolist() for step in steps]
        >>> 0 < drawn.count([True, False]) < 30
        True
    """

    def __init__(self, turns: Mapping[str, float], *, seed: int = 0) -> None:
        super().__init__(turns, check_positive)
        self.seed = check_whole("seed", seed)

    def active(self, step: tf.Tensor) -> tf.Tensor:
        return self._drawn(uniform([1], self.seed, step), tf.ones([self.num_heads], tf.bool))

    def passed_on(self, able: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        return self._drawn(uniform([1], self.seed, step, 1), able)

    def _drawn(self, number: tf.Tensor, able: tf.Tensor) -> tf.Tensor:
        """The head that a number in [0, 1) draws, `[num_heads]` booleans."""
        turns = tf.constant([float(np.log(self.turns[name])) for name in self.head_names or ()], tf.float32)
        until = tf.cumsum(where(able, tf.nn.softmax(turns), 0.0))
        below = until[:-1] <= number * until[-1]
        return able & (tf.range(self.num_heads) == tf.reduce_sum(tf.cast(below, tf.int32)))


@keras.saving.register_keras_serializable(package="multihead")
class WhileConflicting(Schedule):
    """Heads alternate while their representation gradients conflict, and train together otherwise.

    Conflict is measured by the smallest cosine between the representation gradients of two heads, as an exponential running
    average `m_t = momentum * m_(t-1) + (1 - momentum) * cosine_t`, divided by `1 - momentum^t` (Kingma and Ba, "Adam", ICLR
    2015). Below `threshold` the heads alternate, with one update each (or the numbers in `turns`). Gradients of heads that
    train separately cannot be compared, so every `probe_every`-th update trains all heads, regardless of the average.

    Args:
        threshold: A cosine, from -1 to 1.
        momentum: Decay rate of the running average, at least 0 and below 1.
        probe_every: A whole number of at least 2.
        turns: Updates per turn by head name while they conflict; None means one each.

    Raises:
        ValueError: An argument is out of range, or `turns` does not name every head.

    Example:
        >>> schedule = WhileConflicting(turns={"price": 1, "reply": 9})
        >>> schedule.bind(["price", "reply"])
        >>> schedule.build((2,))
        >>> schedule.active(tf.constant(1, tf.int64)).numpy().tolist()  # no conflict has been observed
        [True, True]
    """

    uses = ("gramian",)

    def __init__(
        self, threshold: float = 0.0, *, momentum: float = 0.9, probe_every: int = 10, turns: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self.threshold = check_between("threshold", threshold, -1, 1)
        self.momentum = check_between("momentum", momentum, 0, 1, with_high=False)
        self.probe_every = check_whole("probe_every", probe_every, least=2)  # otherwise the heads never alternate
        self.turns = None if turns is None else Alternate(turns).turns

    def create_state(self, num_heads: int) -> None:
        self.mean_cosine = self.add_state("mean_cosine", ())
        self.observations = self.add_state("observations", (), dtype="int64")

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        # Untracked: Keras 3 lets no built layer have another one, but a second `compile` binds again.
        self._alternate = Untracked(Alternate(self.turns or dict.fromkeys(head_names, 1)))
        self._alternate.value.bind(head_names)

    def average_cosine(self) -> tf.Tensor:
        """The running average of the smallest cosine, a float32 scalar; 1 before the first observation."""
        observations = tf.cast(tensor_variable(self.observations), tf.float32)
        mean = tensor_variable(self.mean_cosine) / (1 - tf.pow(self.momentum, tf.maximum(observations, 1.0)))
        return where(observations > 0, mean, 1.0)

    def active(self, step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.int64)
        together = (self.average_cosine() >= self.threshold) | (step % self.probe_every == 0)
        return together | self._alternate.value.active(step)

    def passed_on(self, able: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        return self._alternate.value.passed_on(able, step)

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        gramian = tf.cast(update.gramian, tf.float64)
        norms = tf.sqrt(tf.linalg.diag_part(gramian))
        scales = norms[:, tf.newaxis] * norms[tf.newaxis, :]
        pairs = (scales > 0) & tf.math.is_finite(scales) & ~tf.eye(self.num_heads, dtype=tf.bool)
        cosines = tf.cast(where(pairs, gramian / where(pairs, scales, 1.0), 2.0), tf.float32)
        is_observed = applied & tf.reduce_any(pairs)
        mean, observations = tensor_variable(self.mean_cosine), tensor_variable(self.observations)
        blended = self.momentum * mean + (1 - self.momentum) * tf.reduce_min(cosines)
        mean.assign(where(is_observed, blended, mean))
        observations.assign_add(tf.cast(is_observed, tf.int64))
