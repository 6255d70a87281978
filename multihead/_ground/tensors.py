"""Helpers on tensors: choices, values that may be NaN, loops; gradients (dense, sparse or None) and their inner products."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context

from multihead._ground.types import Function, Gradient, Nested, Tensor

State = TypeVar("State")


def in_xla() -> bool:
    """Whether the graph that is traced, or one around it, will be compiled by XLA."""
    graph = tf.compat.v1.get_default_graph()
    while graph is not None:
        context = graph._get_control_flow_context()
        while context is not None:
            if context.IsXLAContext():
                return True
            context = context.outer_context
        graph = getattr(graph, "outer_graph", None)
    return False


def scan_rows(step: Callable[[State, tf.Tensor], State], state: State, orders: tf.Tensor) -> State:
    """`step(state, others)` over the rows of `orders`: unrolled for few heads, which is faster, otherwise a loop."""
    count = int(orders.shape[0])
    if count < 16:
        for others in tf.unstack(orders):
            state = step(state, others)
        return state
    final_state: State = tf.while_loop(
        lambda index, _: index < count, lambda index, state: (index + 1, step(state, orders[index])), (tf.constant(0), state)
    )[1]
    return final_state


def where(condition: Tensor, then: Tensor, otherwise: Tensor) -> tf.Tensor:
    """As `tf.where` with three arguments, but faster if the shapes match or one operand is a Python number.

    The operation of `tf.where` broadcasts, and copies a tensor for a scalar condition; the one that TensorFlow had before
    takes a fifth of the time for small tensors (CPU), and copies nothing then.
    """
    is_number = isinstance(then, (int, float))
    like, other = tf.convert_to_tensor(otherwise if is_number else then), then if is_number else otherwise
    if isinstance(other, (int, float)):
        other = tf.constant(other, like.dtype, like.shape if like.shape.is_fully_defined() else [])
    else:
        other = tf.convert_to_tensor(other, like.dtype)
    then, otherwise = (other, like) if is_number else (like, other)
    condition = tf.convert_to_tensor(condition)
    has_kernels = then.dtype in (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool)  # on all devices
    is_quick = has_kernels and then.shape.is_fully_defined() and condition.shape.is_fully_defined()
    if is_quick and otherwise.shape == then.shape and condition.shape in ([], then.shape):
        return tf.raw_ops.Select(condition=condition, x=then, y=otherwise)
    return tf.where(condition, then, otherwise)


@contextmanager
def unchecked(*, in_functions: bool = False) -> Iterator[None]:
    """A context, or a decorator, for operations whose results may be NaN, which `enable_check_numerics` would not allow.

    With `in_functions`, what a `tf.function` computes is checked as before, and only its results are not.
    """

    def called(callback: Function, op_type: str | bytes, *values: Nested, graph: object = None, **names: object) -> Nested:
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        if graph is None and (name.startswith("__inference_") or name == "OptionalGetValue"):
            return None
        return callback(op_type, *values, graph=graph, **names)

    callbacks = context.context().op_callbacks
    before = list(callbacks)
    callbacks[:] = [functools.partial(called, callback) for callback in before] if in_functions else []
    try:
        yield
    finally:
        callbacks[:] = before


@contextmanager
def outside_of_graphs() -> Iterator[None]:
    """`tf.init_scope` in which tapes still record: what takes derivatives can be traced inside."""
    with tf.init_scope():
        pywrap_tfe.TFE_Py_TapeSetRestartOnThread()
        try:
            yield
        finally:
            pywrap_tfe.TFE_Py_TapeSetStopOnThread()


def deduplicate(gradient: Gradient) -> Gradient:
    """Sums the rows of an `IndexedSlices` with the same index; anything else is returned unchanged."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices, positions = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, positions, tf.size(indices))
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def map_values(function: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Applies a function to the values of a gradient; None stays None."""
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(function(gradient.values), gradient.indices, gradient.dense_shape)
    return function(gradient)


def scaled(gradient: Gradient, factor: tf.Tensor) -> Gradient:
    """A gradient times a scalar, in at least float32 precision; None stays None."""
    return map_values(lambda values: wide(values) * tf.cast(factor, wide(values).dtype), gradient)


def wide(values: tf.Tensor) -> tf.Tensor:
    """Values in at least float32."""
    return values if values.dtype in (tf.float32, tf.float64) or values.dtype.is_complex else tf.cast(values, tf.float32)


def in_dtype(number: float | tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """A number as a tensor of a dtype; `tf.cast` would round one of Python to float32 first."""
    return tf.cast(number, dtype) if tf.is_tensor(number) else tf.constant(number, dtype)


def as_number(value: object) -> tf.Tensor:
    """What a user's function returns as a tensor; TensorFlow would round a number of Python to float32."""
    return tf.convert_to_tensor(value, tf.float64 if isinstance(value, float) else None)


def as_widest(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Tensors in the widest dtype of them, at least float32: those of a head that does not train are zeros of any dtype."""
    tensors = [wide(tensor) for tensor in tensors]
    dtype = max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.size)
    return [tf.cast(tensor, dtype) for tensor in tensors]


def has_gradients(tensor: Tensor) -> bool:
    """Whether a tensor can have a gradient: its numbers are fractions, real or complex."""
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def as_real(gradient: tf.Tensor) -> tf.Tensor:
    """A gradient with complex numbers as pairs, along another axis: products are then the real parts of Hermitian ones."""
    if not gradient.dtype.is_complex:
        return gradient
    return tf.stack([tf.math.real(gradient), tf.math.imag(gradient)], axis=-1)


def like_complex(gradient: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """The inverse of `as_real` for the gradient of a tensor."""
    if not tensor.dtype.is_complex:
        return gradient
    real, imaginary = tf.unstack(tf.cast(gradient, tensor.dtype.real_dtype), axis=-1)
    return tf.complex(real, imaginary)


def precision_of(dtypes: Iterable[tf.DType]) -> tf.DType:
    """The precision in which losses of predictions of some dtypes are summed: float64 if one of them is, else float32."""
    return tf.float64 if tf.float64 in dtypes else tf.float32


def added(first: Gradient, second: Gradient) -> Gradient:
    """The sum of two gradients, in the wider dtype; None counts as zero, and the sum of two sparse gradients is sparse."""
    if first is None or second is None:
        return second if first is None else first
    dtype = max(first.dtype, second.dtype, key=lambda dtype: dtype.size)
    first, second = (map_values(lambda values: tf.cast(values, dtype), gradient) for gradient in (first, second))
    if isinstance(first, tf.IndexedSlices) and isinstance(second, tf.IndexedSlices):
        values = tf.concat([first.values, second.values], axis=0)
        indices = tf.concat([first.indices, tf.cast(second.indices, first.indices.dtype)], axis=0)
        return tf.IndexedSlices(values, indices, first.dense_shape)
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)


def is_finite(gradient: Gradient) -> tf.Tensor:
    """Whether every element of a gradient (not None) is finite; a boolean scalar."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    number = values.shape.num_elements()
    if values.dtype.size < 8 and number is not None and number <= 2**11:
        return tf.math.is_finite(half_square(gradient))  # which norms need, too: TensorFlow computes it once
    if values.dtype in (tf.float32, tf.float64):
        # A sum is vectorized, `tf.reduce_all` is not (CPU). Scaled by 2^-64, fewer than 2^64 finite numbers have a finite
        # sum; infinity or NaN among them stays in it.
        return tf.math.is_finite(tf.reduce_sum(values * tf.constant(2.0**-64, values.dtype)))
    return tf.reduce_all(tf.math.is_finite(values))


def all_hold(flags: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether all of some boolean scalars hold; a boolean scalar."""
    return tf.reduce_all(tf.stack(flags)) if len(flags) > 1 else flags[0] if flags else tf.constant(True)


def half_square(gradient: Gradient) -> tf.Tensor:
    """Half of the squared Euclidean norm of a gradient without duplicate rows, float64, in which squares do not overflow."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return tf.nn.l2_loss(tf.cast(values, tf.float64))


def norm(*gradients: Gradient) -> tf.Tensor:
    """The Euclidean norm of gradients together, without duplicate rows, float64."""
    halves = [half_square(gradient) for gradient in gradients]
    return tf.sqrt(2.0 * tf.add_n(halves)) if halves else tf.constant(0.0, tf.float64)


def norm_of_present(gradients: Sequence[Gradient]) -> tf.Tensor:
    """`norm` of those that are not None, whose sparse ones may have duplicate rows."""
    return norm(*(deduplicate(gradient) for gradient in gradients if gradient is not None))


def size(gradient: Gradient) -> tf.Tensor:
    """The number of elements of the variable that a gradient belongs to, float64."""
    shape = gradient.dense_shape if isinstance(gradient, tf.IndexedSlices) else tf.shape(gradient)
    return tf.cast(tf.reduce_prod(tf.cast(shape, tf.int64)), tf.float64)


def with_none(values: Sequence[Nested], *, like: Sequence[object]) -> list[Nested]:
    """A list with None where `like` has None, and at the other places the values, in their order."""
    remaining = iter(values)
    return [None if template is None else next(remaining) for template in like]


def computed_if(
    condition: tf.Tensor, compute: Callable[[], list[Gradient]], shapes: Sequence[tf.Tensor | None]
) -> list[Gradient]:
    """`compute()` if a boolean scalar holds; otherwise nothing of it runs, and all results are zeros of the dense shapes.

    Which of the results are None (as their shapes are then) or sparse must be the same at every call.
    """
    templates: list[Gradient] = []  # set while the first branch is traced, read by the second

    def computed() -> list[Gradient]:
        templates[:] = compute()
        return [template for template in templates if template is not None]

    def zeros() -> list[Gradient]:
        if not templates:  # in eager mode, only this branch runs
            templates[:] = [None if shape is None else tf.zeros(shape) for shape in shapes]
        return [zeros_like(template, shape) for template, shape in zip(templates, shapes) if template is not None]

    present = tf.cond(condition, computed, zeros)
    return with_none(present, like=templates)


def zeros_like(gradient: Gradient, shape: Tensor) -> Gradient:
    """Zeros of the type of a gradient, with no rows if it is sparse, and of a dense shape; None for None."""
    if not isinstance(gradient, tf.IndexedSlices):
        return None if gradient is None else tf.zeros(shape, gradient.dtype)
    values = tf.zeros(tf.concat([[0], shape[1:]], axis=0), gradient.values.dtype)
    dense_shape = tf.cast(shape, tf.int32 if gradient.dense_shape is None else gradient.dense_shape.dtype)
    return tf.IndexedSlices(values, tf.zeros([0], gradient.indices.dtype), dense_shape)


class Rows(NamedTuple):
    """The heads' gradients of one tensor as the rows of a matrix."""

    values: tf.Tensor  # `[num_heads, n]`, at least float32
    restore: Callable[[tf.Tensor], Gradient]  # converts `[n]` values back to a gradient of the tensor

    def times(self, factors: tf.Tensor | None) -> Rows:
        """Multiplies the rows by their factors, `[num_heads]`; unchanged for None."""
        if factors is None:
            return self
        return self._replace(values=self.values * tf.cast(factors, self.values.dtype)[:, tf.newaxis])


def as_rows(gradients: Sequence[Gradient]) -> Rows | None:
    """Stacks the heads' gradients of one tensor, in the widest dtype of them; None if no head has one.

    Sparse gradients become rows over the union of their indices, which have the same inner products as dense gradients.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return None
    if all(isinstance(gradient, tf.IndexedSlices) for gradient in present):
        heads = [i for i, gradient in enumerate(gradients) if gradient is not None]
        owners = tf.concat([tf.fill([tf.size(gradient.indices)], i) for i, gradient in zip(heads, present)], axis=0)
        indices, positions = tf.unique(tf.concat([gradient.indices for gradient in present], axis=0))
        values = tf.concat(as_widest([gradient.values for gradient in present]), axis=0)
        # One sum for all heads, whose segments follow one another: XLA cannot split the positions by head.
        segments = owners * tf.size(indices) + positions
        rows = tf.math.unsorted_segment_sum(values, segments, len(gradients) * tf.size(indices))
        shape, dense_shape = tf.concat([[-1], tf.shape(values)[1:]], axis=0), present[0].dense_shape
        return Rows(
            tf.reshape(rows, [len(gradients), -1]),
            lambda values: tf.IndexedSlices(tf.reshape(values, shape), indices, dense_shape),
        )
    dense = as_widest([tf.convert_to_tensor(gradient) for gradient in present])
    template, zero = dense[0], tf.zeros_like(dense[0])
    rows = [tf.reshape(zero if gradient is None else gradient, [-1]) for gradient in with_none(dense, like=gradients)]
    return Rows(tf.stack(rows), lambda values: tf.reshape(values, tf.shape(template)))


def inner_products(by_head: Sequence[Sequence[Gradient]]) -> tf.Tensor:
    """The inner products of the heads' gradients, over all tensors, `[num_heads, num_heads]` float64; some may be None."""
    num_heads = len(by_head)
    terms = [tf.zeros([num_heads, num_heads], tf.float64)]
    for column in zip(*by_head):
        heads = [k for k, gradient in enumerate(column) if gradient is not None]
        present = [column[k] for k in heads]
        if present:
            number = None if isinstance(present[0], tf.IndexedSlices) else present[0].shape.num_elements()
            is_dense = not any(isinstance(gradient, tf.IndexedSlices) for gradient in present)
            if is_dense and len(present) <= 8 and (len(present) == 1 or number is None or number > 2**12):
                # For a few large gradients, products of pairs take half the time: vectors are not joined.
                rows = [tf.reshape(tf.cast(gradient, tf.float64), [1, -1]) for gradient in present]
                pairs: dict[tuple[int, int], tf.Tensor] = {}
                for i, j in itertools.combinations_with_replacement(range(len(rows)), 2):
                    product = 2.0 * half_square(present[i]) if i == j else tf.matmul(rows[i], rows[j], transpose_b=True)
                    pairs[i, j] = pairs[j, i] = tf.reshape(product, [])
                order = range(len(rows))
                products = tf.stack([tf.stack([pairs[i, j] for j in order]) for i in order])
            elif (matrix := as_rows(present)) is not None:
                products = gramian([matrix.values])
            places = [[[row, column] for column in heads] for row in heads]
            is_whole = len(heads) == num_heads
            terms.append(products if is_whole else tf.scatter_nd(places, products, [num_heads, num_heads]))
    return tf.add_n(terms)


def gramian(rows: Sequence[Tensor], num_heads: int | None = None) -> Tensor:
    """The inner products of the heads' gradients: `G_ij = <g_i, g_j>`, summed over tensors `[num_heads, n]`, float64.

    A balancer's result for nearly parallel gradients is only as accurate as this matrix, and squares of float32 numbers can
    leave the range of float32. Pass `num_heads` where there may be no tensor.
    """
    nothing = [] if num_heads is None else [tf.zeros([num_heads, num_heads], tf.float64)]
    precise = [tf.cast(values, tf.float64) for values in rows]
    return tf.add_n([*nothing, *(tf.matmul(values, values, transpose_b=True) for values in precise)])
