"""What every weighting is: the heads' losses in, one total loss out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._keras import Untracked, add_learned, tensor_variable
from multihead._method import Method
from multihead._validation import quoted


class Weighting(Method):
    """Makes one total loss of the heads' losses `L_k`; a head's weight is the derivative `w_k` of the total by `L_k`.

    A weighting of your own is a subclass that implements `total`. Its weights, and the gradients of variables that it
    learns (made with `add_learned`), follow by differentiation.

    The losses are means over the labelled elements of the whole update, times the head's own `weight=`. A head that takes
    no part in an update (left out by a schedule, or without labels) has a loss of 0 there, and `active` says so: the
    others must get what they would get without it.

    Attributes:
        uses: What the method needs: `"losses"` (the weights depend on the losses of this very update; where they do not,
            they are known before the gradients are computed, and several micro-batches cost no further backward passes),
            `"norms"` (`objective` needs the norms of the heads' gradients), `"losses_after"` (`observe` needs the losses on
            the same examples after the update: one more forward pass), and `"step"`, a further keyword argument of `total`
            and `objective`: the number of updates applied so far, an int64 scalar.
        head_names: The heads' names, once `bind` has been called, else None.

    Args:
        name: Name of the layer.
    """

    uses: tuple[str, ...] = ("losses",)
    _may_use = ("losses", "norms", "losses_after", "step")

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name, trainable=True)
        self._owners = Untracked({})  # heads by the identity of the variable that belongs to them alone

    def bind(self, head_names: Sequence[str]) -> None:
        """Tells the weighting the heads' names in the order of the losses.

        Args:
            head_names: One name per head.

        Raises:
            ValueError: An option names a head that is not there, or there is a state for other heads.
        """
        names = tuple(head_names)
        if self.built and self.head_names != names:
            raise ValueError(
                f"`weighting` keeps a state for the heads {quoted(self.head_names or ())}. Received: the heads "
                f"{quoted(names)}. Make a new one."
            )
        super().bind(head_names)

    def build(self, input_shape: Any) -> None:
        """Creates the state, once. A second call does nothing.

        Args:
            input_shape: `(num_heads,)`.
        """
        if self.built:
            return
        self._create_state(int(input_shape[0]))
        self._built_for.value = input_shape
        super().build(input_shape)

    def _create_state(self, num_heads: int) -> None:
        """Creates the variables: learned ones with `add_learned`, others with `multihead.weighting.add_state`."""

    def add_learned(self, name: str, num_heads: int, initial: float = 0.0) -> list[Any]:
        """One trainable scalar per head, float32, trained by the trainer's optimizer; an idle head's stays.

        Args:
            name: Start of the variables' names; the head's name follows.
            num_heads: How many.
            initial: Their first value.
        """
        names = [re.sub(r"[^\w.-]", "_", head) for head in self.head_names or map(str, range(num_heads))]
        if len(set(names)) < len(names):
            names = [f"{k}_{head}" for k, head in enumerate(names)]
        created = [add_learned(self, f"{name}_{head}", initial) for head in names]
        self._owners.value.update({id(tensor_variable(variable)): k for k, variable in enumerate(created)})
        return created

    def owners(self, num_heads: int) -> list[list[int]]:
        """For each trainable variable the positions of the heads that train it: all, but for those of `add_learned`."""
        everyone = list(range(num_heads))
        found = [self._owners.value.get(id(tensor_variable(variable))) for variable in self.trainable_variables]
        return [everyone if k is None else [k] for k in found]

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        """The total loss.

        Args:
            losses: `[num_heads]` float32, 0 for a head that is not active.
            active: `[num_heads]` booleans.

        Returns:
            A scalar, differentiable by `losses` and by the variables that are learned.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must implement `total(losses, active)`. Received: a class without it. "
            "See docs/extending.md."
        )

    def regularizer(self, active: tf.Tensor) -> tf.Tensor | None:
        """The part of `total` that no loss is in, logged apart; None if there is none.

        Args:
            active: `[num_heads]` booleans.
        """
        return None

    def objective(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor) -> tf.Tensor:
        """What the learned variables minimise: by default the total loss.

        Args:
            losses: As for `total`.
            norms: `[num_heads]` norms of the gradients of the losses where they are combined, before weighting; None unless
                `uses` names `"norms"`.
            active: As for `total`.
        """
        return self.total(losses, active)

    def end_epoch(self) -> None:
        """Called by `fit` at the end of every epoch, before callbacks. By default nothing happens."""
        return None

    def weigh(self, losses: tf.Tensor, active: tf.Tensor, **used: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """The derivatives of the total by the losses, `[num_heads]` (0 for heads that are not active), and the total."""
        losses = tf.where(active, losses, 0.0)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(losses)
            total = tf.convert_to_tensor(self.total(losses, active, **used))
        if total.shape.rank != 0:
            raise ValueError(
                f"`total` of {type(self).__name__} must give a scalar. Received: shape {total.shape}. Sum over the heads."
            )
        weights = tape.gradient(total, losses, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        return tf.where(active, weights, 0.0), total

    def gradients(self, losses: tf.Tensor, norms: tf.Tensor | None, active: tf.Tensor, **used: Any) -> list[tf.Tensor]:
        """The gradients of `objective` by the learned variables, in the order of `trainable_variables`."""
        variables = [tensor_variable(variable) for variable in self.trainable_variables]
        if not variables:
            return []
        losses = tf.stop_gradient(tf.where(active, losses, 0.0))
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            objective = self.objective(losses, norms, active, **used)
        return tape.gradient(objective, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    def call(self, losses: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        """See `__call__`."""
        return self.weigh(losses, tf.ones_like(losses, tf.bool), **self.used(step=step))[0]

    def __call__(self, losses: Any, *, step: Any = 0, update: Any = None) -> tf.Tensor:
        """The weights of some losses; nothing is learned or observed.

        Args:
            losses: `[num_heads]` numbers.
            step: The number of updates applied so far, for methods that use it.
            update: The earlier name of `step`.

        Returns:
            `[num_heads]` float32.

        Raises:
            ValueError: The losses are no vector, or there is a state for another number of heads.
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
                f"`losses` must hold one loss for each of the heads {quoted(self.head_names or ())}. "
                f"Received: {losses.shape[0]}. Use one weighting per set of heads."
            )
        self.build((losses.shape[0],))
        return self.call(losses, tf.cast(step if update is None else update, tf.int64))


def values(variables: Sequence[Any]) -> tf.Tensor:
    """Scalar variables as one vector."""
    return tf.stack([tf.convert_to_tensor(tensor_variable(variable)) for variable in variables])


def sum_over(terms: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The sum of the terms of active heads."""
    return tf.reduce_sum(tf.where(active, terms, tf.zeros_like(terms)))


def count_of(active: tf.Tensor) -> tf.Tensor:
    """The number of active heads, float32."""
    return tf.reduce_sum(tf.cast(active, tf.float32))


def softmax_over(logits: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """The softmax over active heads, 0 for the others."""
    lowest = tf.fill(tf.shape(logits), logits.dtype.min)
    shares = tf.nn.softmax(tf.where(active, logits, lowest))
    return tf.where(active, shares, tf.zeros_like(shares))


def logarithm(losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
    """`log(L_k + 1e-8)` of active heads, 0 for the others; not a number for a loss below 0."""
    # Times NaN, since the derivative of the logarithm is a number there, too: it would train the head upwards.
    valid = losses * tf.where(losses < 0, float("nan"), 1.0)
    return tf.math.log(tf.where(active, valid + 1e-8, tf.ones_like(losses)))
