"""The base class of all weightings: the heads' losses in, one total loss out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from multihead._ground.keras import Untracked, add_learned, tensor_variable
from multihead._ground.tensors import unchecked, where
from multihead._ground.types import Config, Tensor, Variable
from multihead._ground.validation import check_head_names, is_number, quoted
from multihead._method import Method, find


class Weighting(Method):
    """Combines the heads' losses `L_k` into one total loss; the weight `w_k` of a head is the derivative of the total.

    To write your own weighting, subclass this class and implement `total`. Its weights, and the gradients of its learned
    variables (created with `add_learned`), are computed by differentiation.

    The losses are means over the labelled elements of the whole update, times `weight=` of the head. An idle head has a
    loss of 0, and `active` is False for it: it must not change the weights of the other heads.

    Attributes:
        uses: What the method needs: `"losses"` (the weights depend on the losses of the same update; otherwise they are
            known before the gradients are computed, and several micro-batches need no additional backward passes),
            `"norms"` (`objective` needs the norms of the heads' gradients), `"losses_after"` (`observe` needs the losses on
            the same examples after the update, which costs one more forward pass), and `"step"` (the number of updates
            applied so far, an int64 scalar, as a keyword argument of `total` and `objective`).
        head_names: The heads' names after `bind` has been called, otherwise None.

    Args:
        name: Name of the layer.
    """

    uses: tuple[str, ...] = ("losses",)
    _may_use = ("losses", "norms", "losses_after", "step")
    _argument = "weighting"

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name, trainable=True)
        # Heads by the identity of the variable that belongs to them alone.
        self._owners: Untracked[dict[int, int]] = Untracked({})

    def add_learned(self, name: str, num_heads: int, initial: float = 0.0) -> list[Variable]:
        """Creates one trainable float32 scalar per head, trained by the trainer's optimizer unless the head is idle.

        Args:
            name: Prefix of the variables' names, followed by the head's name.
            num_heads: The number of heads.
            initial: Their initial value.
        """
        names = [re.sub(r"[^\w.-]", "_", head) for head in self.head_names or map(str, range(num_heads))]
        if len(set(names)) < len(names):
            names = [f"{k}_{head}" for k, head in enumerate(names)]
        created = [add_learned(self, f"{name}_{head}", initial) for head in names]
        self._owners.value.update({id(tensor_variable(variable)): k for k, variable in enumerate(created)})
        return created

    def owners(self, num_heads: int) -> list[list[int]]:
        """By trainable variable, the positions of the heads that train it: one for `add_learned`, otherwise all."""
        everyone = list(range(num_heads))
        owners = [self._owners.value.get(id(tensor_variable(variable))) for variable in self.trainable_variables]
        return [everyone if k is None else [k] for k in owners]

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        """The total loss.

        Args:
            losses: `[num_heads]` float32, 0 for an idle head.
            active: `[num_heads]` booleans.

        Returns:
            A scalar, differentiable with respect to `losses` and the learned variables.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must implement `total(losses, active)`. Received: a class without it. "
            "See docs/extending.md."
        )

    def regularizer(self, active: tf.Tensor) -> tf.Tensor | None:
        """The part of `total` that does not depend on the losses, logged separately; None if there is none.

        Args:
            active: `[num_heads]` booleans.
        """
        return None

    def objective(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor) -> tf.Tensor:
        """The objective that the learned variables minimize: by default the total loss.

        Args:
            losses: As for `total`.
            norms: `[num_heads]` norms of the gradients of the losses, before weighting, at the level where they are
                combined; None unless `uses` contains `"norms"`.
            active: As for `total`.
        """
        return self.total(losses, active)

    def end_epoch(self) -> None:
        """Called by `fit` at the end of every epoch, before callbacks. By default it does nothing."""

    def weigh(self, losses: tf.Tensor, active: tf.Tensor, **used: Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The weights, `[num_heads]` derivatives of the total by the losses (0 for idle heads), and the total."""
        losses = where(active, losses, 0.0)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(losses)
            total = tf.convert_to_tensor(self.total(losses, active, **used))
        weights = tape.gradient(total, losses, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return where(active, weights, 0.0), total

    def gradients(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor, **used: Tensor) -> list[tf.Tensor]:
        """The gradients of `objective` for the learned variables, in the order of `trainable_variables`."""
        variables = [tensor_variable(variable) for variable in self.trainable_variables]
        if not variables:
            return []
        losses = tf.stop_gradient(where(active, losses, 0.0))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            objective = self.objective(losses, norms, active, **used)
        return list(tape.gradient(objective, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO))

    def __call__(self, losses: Tensor, *, step: Tensor = 0) -> tf.Tensor:
        """Computes the weights for some losses, without changing the state.

        Args:
            losses: `[num_heads]` numbers.
            step: The number of updates applied so far, for methods that use it.

        Returns:
            `[num_heads]` float32.

        Raises:
            ValueError: The losses are not a vector, or the weighting has state for another number of heads.
        """
        losses = tf.cast(tf.convert_to_tensor(losses), tf.float32)
        if losses.shape.rank != 1 or losses.shape[0] is None:
            raise ValueError(
                "`losses` must have the shape [num_heads], with a known number of heads. "
                f"Received: shape {losses.shape}. Stack one mean loss per head."
            )
        if self.head_names is None:
            self.bind([str(k) for k in range(losses.shape[0])])
        if len(self.head_names or ()) != losses.shape[0]:
            raise ValueError(
                f"`losses` must contain one loss for each of the heads {quoted(self.head_names or ())}. "
                f"Received: {losses.shape[0]}. Use one weighting per set of heads."
            )
        self.build((losses.shape[0],))
        return self.weigh(losses, tf.ones_like(losses, tf.bool), **self.used(step=step))[0]


class BoundedWeighting(Weighting):
    """A weighting with lower bounds of the losses by head name; 0 for a head that is missing."""

    def __init__(self, least_losses: Mapping[str, float] | None, *, name: str | None) -> None:
        super().__init__(name=name)
        bounds = dict(least_losses or {})
        if not all(is_number(value) for value in bounds.values()):
            raise ValueError(
                f"`least_losses` must map head names to finite numbers. Received: least_losses={bounds!r}. Correct them."
            )
        # In a form that Keras does not track.
        self.least_losses = MappingProxyType({str(name): float(value) for name, value in bounds.items()})

    def bind(self, head_names: Sequence[str]) -> None:
        super().bind(head_names)
        check_head_names("least_losses", self.least_losses, head_names)

    def _above(self, losses: tf.Tensor) -> tf.Tensor:
        return losses - [self.least_losses.get(name, 0.0) for name in self.head_names or ()]


class LearnedWeighting(Weighting):
    """`total = factor sum_k (exp(sign s_k) L_k - sign s_k)`, with one learned scalar `s_k` per head, initially 0."""

    uses = ()
    prefix: str
    factor = 1.0
    sign = 1.0

    def create_state(self, num_heads: int) -> None:
        self.learned = self.add_learned(self.prefix, num_heads)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        weights = self.factor * tf.exp(self.sign * values(self.learned))
        return sum_over(weights * losses, active) + self.regularizer(active)

    def regularizer(self, active: tf.Tensor) -> tf.Tensor:
        return sum_over(-self.factor * self.sign * values(self.learned), active)


def values(variables: Sequence[Variable]) -> tf.Tensor:
    """Scalar variables as one vector."""
    return tf.stack([tf.convert_to_tensor(tensor_variable(variable)) for variable in variables])


def sum_over(terms: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(where(active, terms, tf.zeros_like(terms)))


def count_of(active: tf.Tensor) -> tf.Tensor:
    """The number of active heads, float32."""
    return tf.reduce_sum(tf.cast(active, tf.float32))


def softmax_over(logits: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The softmax over active heads, 0 for idle heads."""
    lowest = tf.fill(tf.shape(logits), logits.dtype.min)
    shares = tf.nn.softmax(where(active, logits, lowest))
    return where(active, shares, tf.zeros_like(shares))


def logarithm(losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """`log(L_k + 1e-8)` of active heads, 0 for idle heads; NaN for a loss below 0."""
    # Multiplied by NaN, because the derivative of the logarithm is finite for negative losses and would increase them.
    return tf.math.log(where(active, valid(losses) + 1e-8, tf.ones_like(losses)))


def valid(losses: tf.Tensor) -> tf.Tensor:
    """`[num_heads]` losses; NaN for losses below 0, and in the gradients of these losses."""
    with unchecked():
        factors = where(losses < 0, float("nan"), 1.0)
    return losses * factors


def get(identifier: Weighting | Config | str | None) -> Weighting | None:
    """Returns a weighting.

    Args:
        identifier: A weighting, which is returned unchanged; the name of a weighting (such as `"Uncertainty"`, ignoring case
            and underscores), which is created with its defaults; a configuration from
            `keras.saving.serialize_keras_object`; or None, which stays None.

    Raises:
        ValueError: There is no weighting with this name.
        TypeError: `identifier` is none of these.
    """
    return find("weighting", identifier, Weighting)
