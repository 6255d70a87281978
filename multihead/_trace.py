"""What a forward pass without computation shows of the encoder and the heads; it also creates their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._keras import (
    AUTOGRAPH,
    call_module,
    created_outside_of_graphs,
    keras_mask,
    recurrent_states,
    tensor_variable,
    variable_name,
)
from multihead._reads import described
from multihead._stopping import in_short
from multihead._update.batch import Batch
from multihead._update.labels import Predictions
from multihead._update.representation import DetachedRepresentation
from multihead._validation import quoted
from multihead.heads import Head


class Traced(NamedTuple):
    """What a forward pass has shown.

    Attributes:
        predictions: By head name the spec of its predictions, and what an update must know of them.
        num_leaves: The number of floating leaves of the representation.
    """

    predictions: dict[str, tuple[tf.TensorSpec, Predictions]]
    num_leaves: int


def trace_predictions(encoder: Any, heads: Sequence[Head], specs: Batch, known: Mapping[str, Any]) -> Traced:
    """Builds the encoder and the heads for a batch, and finds out what the heads predict; nothing is computed.

    Args:
        encoder: The encoder.
        heads: The heads. One that reads its targets and has none in the batch is left out if it is known already.
        specs: The specs of a batch.
        known: The heads that are built.

    Raises:
        ValueError: A head's module cannot be built since the batch has no targets for it, cannot take what it reads or
            returns no tensor; or the encoder or a module reads trainable variables that it does not contain.
    """
    reasons: list[ValueError] = []
    found: dict[str, tuple[tf.TensorSpec, Predictions]] = {}
    num_leaves = 0
    created: list[tf.Variable] = []

    def keep(create: Callable[..., tf.Variable], **options: Any) -> tf.Variable:
        """Keeps the variables of layers that live no longer than a call, so that they can be found."""
        created.append(create(**options))
        return created[-1]

    def run(inputs: Any, targets: dict[str, Any]) -> None:
        nonlocal num_leaves
        reading = _Reading()
        given = _encode(encoder, inputs)
        _check_held("`encoder`", encoder, reading.variables())
        representation = DetachedRepresentation(given)
        num_leaves = len(representation.leaves)
        for head in heads:
            if head.teacher_forcing and head.name not in targets:
                _check_known(head, known, targets)
            else:
                found[head.name] = _trace_head(head, representation, targets.get(head.name), find_leaves=len(heads) > 1)

    def forward(inputs: Any, targets: dict[str, Any]) -> None:
        try:
            with tf.variable_creator_scope(keep):
                run(inputs, targets)
        except ValueError as reason:
            reasons.append(reason)  # raised once the trace is done: variables made in one that fails would have no value

    traceable = tf.function(forward, autograph=AUTOGRAPH)
    created_outside_of_graphs(lambda: traceable.get_concrete_function(specs.inputs, specs.targets))
    reasons.clear()
    tf.function(forward, autograph=AUTOGRAPH).get_concrete_function(specs.inputs, specs.targets)
    if reasons:
        raise reasons[0] from reasons[0].__cause__
    return Traced(found, num_leaves)


class _Reading:
    """Finds the trainable variables that are read from here on, in a graph.

    It looks at the graph since tapes are paused where variables are created (`tf.init_scope`).
    """

    def __init__(self) -> None:
        self._graph = tf.compat.v1.get_default_graph()
        self._start = len(self._graph.get_operations())

    def variables(self) -> list[tf.Variable]:
        """The variables read so far."""
        handles = {inside.name: outside for outside, inside in self._graph.captures}
        operations = self._graph.get_operations()[self._start :]
        names = {tensor.name for operation in operations for tensor in operation.inputs} & handles.keys()
        read = {id(handles[name]) for name in names}
        watched = self._graph._watched_variables  # `variables` is known only when the trace is done
        return [variable for variable in watched if variable.trainable and id(variable.handle) in read]


def _check_known(head: Head, known: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    if head.name not in known:
        raise ValueError(
            f"The head {head.name!r} reads its targets, so the first batch must have targets for it. "
            f"Received: targets for {quoted(targets)}. Show the trainer a batch with all heads first."
        )


def _trace_head(
    head: Head, representation: DetachedRepresentation, targets: Any, *, find_leaves: bool
) -> tuple[tf.TensorSpec, Predictions]:
    """Runs a head; finds the spec of its predictions and, if asked for, which leaves they depend on."""
    leaves = representation.leaves
    reading = _Reading()
    predictions = _predictions(head, representation.nest, targets)
    _check_held(f"The module of head {head.name!r}", head.module, reading.variables())
    if not isinstance(predictions, tf.Tensor):
        raise ValueError(
            f"The module of head {head.name!r} must give one tensor, which its loss compares with the targets. "
            f"Received: {described(predictions)}. Give one of them, or add one head for each."
        )
    depends = [True] * len(leaves)
    if find_leaves and len(leaves) > 1:
        depends = [gradient is not None for gradient in tf.gradients(predictions, leaves)]
    spec = tf.TensorSpec(predictions.shape, predictions.dtype)
    return spec, Predictions(spec, keras_mask(predictions) is not None, tuple(depends))


def _encode(encoder: Any, inputs: Any) -> Any:
    try:
        return call_module(encoder, inputs, training=False)
    except Exception as error:
        remedy = "Correct the inputs, or the encoder."
        if any(leaf.shape.rank is None for leaf in tf.nest.flatten(inputs)):
            remedy = "Set the shape in the data set: `dataset.map(...)` with `tf.ensure_shape`, or `output_signature`."
        raise ValueError(
            f"`encoder` must take the inputs of the data. Received: {type(encoder).__name__}, and inputs "
            f"{described(inputs)}. {remedy} The encoder says: {in_short(error)}"
        ) from error


def _predictions(head: Head, representation: Any, targets: Any) -> Any:
    head.read(representation)  # an unknown key is an error of its own
    if head.reads is not None or tf.is_tensor(representation):
        return head.predict(representation, targets, training=False)
    try:
        return head.predict(representation, targets, training=False)
    except Exception as error:
        raise ValueError(
            f"The module of head {head.name!r} must take the whole representation, or `reads` must say which part of it. "
            f"Received: {type(head.module).__name__}, and the encoder gives {described(representation)}. "
            f"Pass, say, `reads={_first_key(representation)!r}` to `add_head`. The module says: {in_short(error)}"
        ) from error


def _first_key(representation: Any) -> Any:
    return next(iter(representation)) if isinstance(representation, Mapping) else 0


def _check_held(whose: str, module: Any, read: Iterable[Any]) -> None:
    """Checks that all trainable variables which a call has read belong to the called module.

    Raises:
        ValueError: Some do not.
    """
    own = [*getattr(module, "variables", []), *recurrent_states(module)]
    held = {key for variable in own for key in _handles(tensor_variable(variable))}
    hidden = [variable for variable in read if not held.issuperset(_handles(variable))]
    if hidden:
        kind = getattr(module, "__name__", type(module).__name__)
        names = sorted({variable_name(variable) for variable in hidden})
        raise ValueError(
            f"{whose} must hold the variables that it trains. Received: {kind}, which reads {quoted(names)} without "
            "having them as variables of its own: its loss would not train them, and they would not be saved with it. "
            "Pass the layer itself, or a `keras.Model` or a `keras.layers.Layer` that has all its layers as attributes."
        )


def _handles(variable: Any) -> set[int]:
    """What identifies a variable, on each device that has a copy of it."""
    copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else (variable,)
    return {id(copy.handle) for copy in copies if hasattr(copy, "handle")}
