"""The base class of all balancers: the heads' gradients in, one encoder gradient out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.tensors import Rows, as_rows, deduplicate, gramian
from multihead._ground.types import Config, Gradient, Shape, Tensor
from multihead._ground.validation import quoted
from multihead._method import Method, find

MAX_HEADS = 128
"""The largest number of heads for methods that need the exact solvers, whose time grows with its fourth power."""

MANY_HEADS = 1024
"""The largest number of heads for methods whose time grows with its third power."""


class Balancer(Method):
    """Combines the heads' encoder gradients, the rows `g_k` of a matrix, into one gradient `d`.

    To write your own balancer, subclass this class and implement one method. If the inner products of the rows are enough,
    implement `coefficients`: the update is `d = sum_k coefficients_k g_k`. If the method needs the gradients themselves,
    name `"gradients"` in `uses` and implement `combine`.

    A row of zeros is an idle head: it must not change the coefficients of the other heads.

    State: `coefficients`, `combine` and `rescale` are called once per update, as `observe` is, and a method with state may
    move it there: a second call with the same gradients is a second update. Whether an update is applied is known only
    later; the trainer puts the state back if it is not, and if the update trains no head that trains the encoder.

    Attributes:
        uses: What the method needs: `"gradients"` (the rows themselves, not only their inner products) and, passed as
            keyword arguments, `"step"` (an int64 scalar, the number of updates applied so far) and `"losses"`
            (`[num_heads]` float32, the heads' mean losses before weighting).
        levels: Where the method can be applied: `"representation"`, `"parameters"`.
        max_heads: The largest number of heads that the method supports, or None.
        rescales: Whether the method multiplies the rows by factors, so that `Chain` can pass the rows to the next method.
        norms_only: Whether the norms of the rows are enough: of the Gramian, only the diagonal is read.
        lags: Whether the coefficients of an update depend only on the updates before it: they are known before, and what the
            update measures serves the next. Such a method implements `known`, too.
        head_names: The heads' names after `bind` has been called, otherwise None.
        sizes: The numbers of parameters of the gradient tensors after `build` has been called; None if unknown.

    Args:
        name: Name of the layer.
    """

    levels: tuple[str, ...] = ("representation", "parameters")
    max_heads: int | None = None
    rescales: bool = True
    norms_only: bool = False
    lags: bool = False
    sizes: tuple[int | None, ...] = ()
    _built_heads: int = 0
    _may_use = ("gradients", "step", "losses")
    _argument = "balancer"

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name=name, trainable=False)

    def build(self, input_shape: Shape) -> None:
        """Creates the state, once. A second call does nothing.

        Args:
            input_shape: `(num_heads, num_parameters)`; `num_parameters` may be None. Methods with `"gradients"` in `uses`
                also accept a list with one such shape per gradient tensor.

        Raises:
            ValueError: There is no head, there are more heads than the method supports, or it has state for others.
        """
        shapes = [tuple(shape) for shape in input_shape] if isinstance(input_shape[0], (tuple, list)) else [input_shape]
        num_heads, sizes = int(shapes[0][0]), tuple(None if shape[1] is None else int(shape[1]) for shape in shapes)
        self._check_num_heads(num_heads)
        if self.built and self.variables:
            has_gradients = "gradients" in self.uses
            if num_heads != self._built_heads or (has_gradients and sizes != self.sizes):
                raise ValueError(
                    f"`balancer` has state for {self._built_heads} heads and gradients of the sizes {list(self.sizes)}. "
                    f"Received: {num_heads} heads and gradients of the sizes {list(sizes)}. Create a new one."
                )
            return
        self.sizes, self._built_heads = sizes, num_heads
        if self.built:
            return
        super().build((num_heads, None))
        self._built_for.value = input_shape

    def _check_num_heads(self, num_heads: int) -> None:
        if num_heads < 1 or (self.max_heads is not None and num_heads > self.max_heads):
            limit = "at least 1 head" if self.max_heads is None else f"1 to {self.max_heads} heads"
            raise ValueError(
                f"`{type(self).__name__}` supports {limit}. Received: num_heads={num_heads}. "
                "Merge some heads, or use a method without a limit, such as Sum or EqualNorms."
            )

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        """The coefficients of the rows in the update; called once per update, and may move the state.

        Args:
            gramian: `[num_heads, num_heads]` inner products of the rows, float32 or float64.

        Returns:
            `[num_heads]` coefficients of the same dtype.
        """
        raise NotImplementedError(
            f"`{type(self).__name__}` must implement `coefficients(gramian)`, or name 'gradients' in `uses` and "
            "implement `combine(gradients)`. Received: a class with neither. See docs/extending.md."
        )

    def combine(self, gradients: Sequence[tf.Tensor], *_: Any, **used: Any) -> list[tf.Tensor]:
        """The update from the rows themselves, split into tensors; called once per update, and may move the state.

        Args:
            gradients: Tensors `[num_heads, n_i]`, float32 or float64, one per encoder variable or leaf of the
                representation.
            *_: Not used: all other arguments are keyword-only.
            **used: The arguments named in `uses`.

        Returns:
            One tensor `[n_i]` per tensor of `gradients`, of the same dtype.
        """
        return [
            tf.cast(tf.reduce_sum(rows, axis=0), gradient.dtype)
            for rows, gradient in zip(self.rescale(gradients, **used), gradients)
        ]

    def rescale(self, gradients: Sequence[tf.Tensor], *_: Any, **used: Any) -> list[tf.Tensor]:
        """The rows multiplied by their coefficients; their sum is the update. Only if `rescales` is True.

        Called once per update in place of `combine`, and may move the state.

        Args:
            gradients: As for `combine`.
            *_: Not used: all other arguments are keyword-only.
            **used: The arguments named in `uses`.

        Returns:
            One tensor `[num_heads, n_i]` per tensor of `gradients`, float64.
        """
        # In float64, the squares of float32 numbers neither overflow nor underflow.
        wide = [tf.cast(gradient, tf.float64) for gradient in gradients]
        weights = tf.cast(self.coefficients(gramian(wide), **used), tf.float64)
        return [rows * weights[:, None] for rows in wide]

    def known(self, step: tf.Tensor, active: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor] | None:
        """The coefficients of an update that are known before its gradients are, where there are any.

        Args:
            step: The number of updates applied so far.
            active: `[num_heads]` booleans: which heads the update trains.

        Returns:
            A boolean scalar, whether the method needs the inner products of this update, and `[num_heads]` numbers, the
            coefficients: with `lags` of every update, otherwise of those that do not need inner products. None, the default:
            the coefficients are computed in every update.
        """
        return None

    def __call__(self, matrix: Tensor, *, step: Tensor = None, losses: Tensor = None) -> tf.Tensor:
        """Combines the rows of a matrix.

        Args:
            matrix: `[num_heads, num_parameters]`, anything that converts to a tensor. Float64 is kept, everything else
                is converted to float32.
            step: The number of updates applied so far, for methods that depend on it (0 if None).
            losses: `[num_heads]` losses, for methods that use them.

        Returns:
            `[num_parameters]`, float64 for a float64 matrix, otherwise float32.

        Raises:
            ValueError: The matrix does not have rank 2, has more rows than the method supports or another number of rows
                than the balancer was built for or, in eager mode, has rows that are not finite.
        """
        if not tf.is_tensor(matrix):
            matrix = np.asarray(matrix) if isinstance(matrix, np.ndarray) else np.asarray(matrix, np.float32)
        matrix = tf.convert_to_tensor(matrix)
        matrix = matrix if matrix.dtype == tf.float64 else tf.cast(matrix, tf.float32)
        if matrix.shape.rank != 2 or matrix.shape[0] is None:
            raise ValueError(
                "`matrix` must have the shape [num_heads, num_parameters], with a known number of heads. "
                f"Received: shape {matrix.shape}. Flatten the heads' gradients and stack them."
            )
        num_heads = int(matrix.shape[0])
        self._check_num_heads(num_heads)
        if not self.built:
            self.build((num_heads, matrix.shape[1]))
        if self.variables and num_heads != self._built_heads:
            raise ValueError(
                f"`{type(self).__name__}` has state for {self._built_heads} heads. Received: num_heads={num_heads}. "
                "Use one balancer per encoder, always with the same heads; an idle head has a row of zeros."
            )
        check_finite_rows([matrix], self.head_names)
        return self.combine([matrix], **self.used(step=step, losses=losses))[0]


def check_finite_rows(matrices: Sequence[tf.Tensor], head_names: Sequence[str] | None) -> None:
    """Raises a `ValueError` that names the heads whose gradients are not finite; does nothing in a graph."""
    if not tf.executing_eagerly():
        return
    finite = np.all([np.isfinite(matrix.numpy()).all(axis=1) for matrix in matrices], axis=0)
    if not finite.all():
        names = head_names if head_names is not None and len(head_names) == len(finite) else range(len(finite))
        culprits = quoted(name for name, is_finite in zip(names, finite) if not is_finite)
        raise ValueError(
            "`matrix` must be finite: an infinity or NaN of one head would spread to the whole encoder. "
            f"Received: non-finite gradients of head {culprits}. Skip this update, or look for the cause in its loss."
        )


def get(identifier: Balancer | Config | str | None) -> Balancer | None:
    """Returns a balancer.

    Args:
        identifier: A balancer, which is returned unchanged; the name of a balancer (such as `"UPGrad"`, ignoring case and
            underscores), which is created with its defaults; a configuration from `keras.saving.serialize_keras_object`; or
            None, which stays None.

    Raises:
        ValueError: There is no balancer with this name.
        TypeError: `identifier` is none of these.
    """
    return find("balancer", identifier, Balancer)


def balance(
    gradients: Sequence[Sequence[Gradient]] | Mapping[str, Sequence[Gradient]],
    balancer: Balancer | str,
    *,
    step: Tensor = None,
    losses: Tensor = None,
) -> list[tf.Tensor | None]:
    """Combines the heads' gradients of shared variables, in a custom training loop.

    Take the heads' gradients of the shared variables, combine them here, and apply the result together with the heads'
    gradients of their own variables. Balance once per update, after accumulating over micro-batches and reducing over
    replicas: balancing is not linear.

    Args:
        gradients: One list per head, with one gradient per shared variable, in the same order: dense tensors,
            `tf.IndexedSlices` or None, as `tape.gradient` returns them. Or a dict of these by head name, such as
            `MultiHeadTrainer.head_gradients` returns.
        balancer: A balancer or its name. If the balancer has state, always pass the same instance.
        step: The number of updates applied so far, for balancers that use it (0 if None).
        losses: `[num_heads]` losses, for balancers that use them.

    Returns:
        One dense gradient per variable, with the variable's shape and the gradients' dtype; None if every head's gradient
        is None.

    Raises:
        ValueError: `balancer` is None or not the name of a balancer, the lists differ in length, a variable's gradients
            differ in shape or, in eager mode, a gradient is not finite; the message then names the head.

    Example:
        >>> first = [tf.constant([-4.0, 1.0]), tf.constant([[1.0]])]
        >>> second = [tf.constant([6.0, 1.0]), tf.constant([[1.0]])]
        >>> balanced = balance([first, second], "mgda")
        >>> [gradient.numpy().tolist() for gradient in balanced]
        [[0.0, 1.0], [[1.0]]]
    """
    chosen = get(balancer)
    if chosen is None:
        raise ValueError("`balancer` must be a balancer or its name. Received: None. Pass 'sum' for the plain sum.")
    if isinstance(gradients, Mapping):
        if chosen.head_names != tuple(gradients):
            chosen.bind(list(gradients))
        gradients = list(gradients.values())
    lengths = [len(row) for row in gradients]
    if not lengths or len(set(lengths)) > 1:
        raise ValueError(
            "`gradients` must be one list per head, with one gradient (or None) per shared variable. "
            f"Received: lists of lengths {lengths}. Compute all heads' gradients for the same list of variables."
        )
    results: list[tf.Tensor | None] = [None] * lengths[0]
    rows: dict[int, Rows] = {}
    for index, column in enumerate(zip(*gradients)):
        dense = [None if gradient is None else tf.convert_to_tensor(deduplicate(gradient)) for gradient in column]
        shapes = [gradient.shape for gradient in dense if gradient is not None]
        if not all(shape.is_compatible_with(shapes[0]) for shape in shapes):
            raise ValueError(
                f"`gradients` of variable {index} must all have the variable's shape. Received: shapes "
                f"{sorted({str(shape) for shape in shapes})}. Compute all heads' gradients for the same list of variables."
            )
        stacked = as_rows(dense)
        if stacked is not None:
            rows[index] = stacked
    if not rows:
        return results
    matrices = [matrix.values for matrix in rows.values()]
    check_finite_rows(matrices, chosen.head_names)
    if not chosen.built:
        with tf.init_scope():
            chosen.build([tuple(matrix.shape) for matrix in matrices])
    combined = chosen.combine(matrices, **chosen.used(step=step, losses=losses))
    for (index, matrix), update in zip(rows.items(), combined):
        like = next(row[index] for row in gradients if row[index] is not None)
        results[index] = tf.cast(matrix.restore(update), like.dtype)
    return results
