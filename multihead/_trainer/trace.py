"""What a forward pass shows of the encoder and the heads; it also creates their variables.

Nothing is computed: the pass is a trace. Where Keras runs eagerly, a module's Python may depend on values, which a trace
does not have; there the pass is a real one, on a sample of the data, and what it changes of the modules' state is undone.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead._ground.calls import created_outside_of_graphs, graph_function, keras_mask
from multihead._ground.keras import variable_name
from multihead._ground.layers import all_layers, module_variables, recurrent_states, state_variables
from multihead._ground.types import Given, Layer, Nested, Tensor, Variable
from multihead._ground.validation import in_short, quoted
from multihead._update.batch import Batch, batch_size, sample_of
from multihead._update.labels import Predictions
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead.heads._named import NamedHead
from multihead.heads._reads import described


class Traced(NamedTuple):
    """What a forward pass has shown.

    Attributes:
        predictions: By head name what an update must know of its predictions.
        num_leaves: The number of floating leaves of the representation.
        representation: The specs of the representation; what is no dense tensor stays what it is.
    """

    predictions: dict[str, Predictions]
    num_leaves: int
    representation: Nested


def trace_predictions(
    encoder: Layer, heads: Sequence[NamedHead], specs: Batch, known: Mapping[str, Predictions], sample: Batch | None = None
) -> Traced:
    """Builds the encoder and the heads for a batch, and finds out what the heads predict.

    Args:
        encoder: The encoder.
        heads: The heads. One that reads its targets and has none in the batch is left out if it is known already.
        specs: The specs of a batch.
        known: The heads that are built.
        sample: Some examples that fit the specs, to run the modules on; None: nothing is computed.
    """
    tracer = _Tracer(encoder, heads, known)
    if sample is None:
        # Under a strategy, the variables are created first: Keras 3 cannot create them while it traces.
        created_outside_of_graphs(lambda: tracer.trace(specs))
        return tracer.trace(specs)
    try:
        with _state_kept([encoder, *(head.module for head in heads)]):
            traced = tracer.run(sample.inputs, sample.targets)
    except tf.errors.FailedPreconditionError:  # a lookup table of a trainer that is being loaded is still empty
        return tracer.trace(specs)
    sizes = _open_sizes(specs, sample)
    of_pairs = {int(batch_size(sample.inputs))}  # a head that couples rows may have a prediction for each pair of them
    open_sizes = {head.name: sizes | of_pairs if head.loss.couples_rows else sizes for head in heads}
    found = {name: _with_open_sizes(each, open_sizes[name]) for name, each in traced.predictions.items()}
    return traced._replace(predictions=found)


class _Tracer:
    """Forward passes of an encoder and heads."""

    def __init__(self, encoder: Layer, heads: Sequence[NamedHead], known: Mapping[str, Predictions]) -> None:
        self._encoder = encoder
        self._heads = heads
        self._known = known
        self._created: list[tf.Variable] = []

    def trace(self, specs: Batch) -> Traced:
        """Traces a forward pass for batches of some specs."""
        results: list[Traced | ValueError] = []

        def forward(inputs: Nested, targets: dict[str, Tensor]) -> None:
            if results:
                return  # TensorFlow traces a function that has created variables again
            try:
                results.append(self.run(inputs, targets))
            except ValueError as reason:
                results.append(reason)  # raised after the trace: variables made in one that fails would have no value

        graph_function(forward).get_concrete_function(specs.inputs, specs.targets)
        (result,) = results
        if isinstance(result, ValueError):
            raise result from result.__cause__
        return result

    def run(self, inputs: Nested, targets: dict[str, Tensor]) -> Traced:
        """Runs a forward pass."""
        with tf.variable_creator_scope(self._keep):
            with _Reading() as reading:
                given = call_encoder(self._encoder, inputs, training=False)
            _check_held("`encoder`", self._encoder, reading.variables())
            representation = DetachedRepresentation(given)
            found = {}
            for head in self._heads:
                if head.teacher_forcing and head.name not in targets:
                    _check_known(head, self._known, targets)
                else:
                    find_leaves, own = len(self._heads) > 1, head.like_scaled(targets.get(head.name))
                    found[head.name] = _trace_head(head, representation, own, find_leaves=find_leaves)
        specs = tf.nest.map_structure(_spec_of_rows, representation.nest)
        return Traced(found, len(representation.leaves), specs)

    def _keep(self, create: Callable[..., tf.Variable], **options: Given) -> tf.Variable:
        """Keeps the variables of layers that live no longer than a call, so that they can be found."""
        self._created.append(create(**options))
        return self._created[-1]


@contextmanager
def _state_kept(modules: Sequence[Layer]) -> Iterator[None]:
    """A context after which the state of modules is what it was, or what it was created as."""
    before: list[tuple[tf.Variable, tf.Tensor]] = []

    def keep(create: Callable[..., tf.Variable], **options: Given) -> tf.Variable:
        variable = create(**options)
        before.append((variable, tf.identity(variable)))
        return variable

    for module in modules:
        for part in all_layers(module) or [module]:
            with suppress(ValueError):  # Keras 2: a `Sequential` that is not built
                before += [(variable, tf.identity(variable)) for variable in state_variables(part)]
    try:
        with tf.variable_creator_scope(keep):
            yield
    finally:
        for variable, value in before:
            variable.assign(value)


class _Reading:
    """Finds the trainable variables that are read within this context.

    In a graph it looks at the operations, since tapes are paused where variables are created (`tf.init_scope`).

    Args:
        watched: The tensors for which `depend` can be asked.
    """

    def __init__(self, watched: Sequence[tf.Tensor] = ()) -> None:
        self._watched = list(watched)
        self._tape: Any = tf.GradientTape(persistent=True) if tf.executing_eagerly() else None
        self._graph: Any = tf.compat.v1.get_default_graph()
        self._start = 0 if self._tape else len(self._graph.get_operations())

    def __enter__(self) -> _Reading:
        if self._tape:
            self._tape.__enter__()
            self._tape.watch(self._watched)
        return self

    def __exit__(self, *error: object) -> None:
        if self._tape:
            self._tape.__exit__(*error)

    def variables(self) -> list[tf.Variable]:
        """The variables read so far."""
        if self._tape:
            return list(self._tape.watched_variables())
        handles = {inside.name: outside for outside, inside in self._graph.captures}
        operations = self._graph.get_operations()[self._start :]
        names = {tensor.name for operation in operations for tensor in operation.inputs} & handles.keys()
        read = {id(handles[name]) for name in names}
        watched = self._graph._watched_variables  # `variables` is known only when the trace is done
        return [variable for variable in watched if variable.trainable and id(variable.handle) in read]

    def depend(self, result: tf.Tensor) -> list[bool]:
        """For each watched tensor, whether a result depends on it."""
        if not result.dtype.is_floating:
            return [False] * len(self._watched)
        gradient = self._tape.gradient if self._tape else tf.gradients
        return [each is not None for each in gradient(result, self._watched)]


def _open_sizes(specs: Batch, sample: Batch) -> set[int]:
    """The sizes that a sample has along axes, except the first, which the specs leave open."""
    found: set[int] = set()
    for spec, value in zip(tf.nest.flatten(tuple(specs)), tf.nest.flatten(tuple(sample))):
        if spec is not None and spec.shape.rank:
            sizes = value.bounding_shape() if isinstance(value, tf.RaggedTensor) else tf.shape(value)
            found |= {int(size) for size, given in zip(sizes[1:], spec.shape[1:]) if given is None}
    return found


def _with_open_sizes(predictions: Predictions, sizes: set[int]) -> Predictions:
    """Predictions for a sample, as those for any batch: the sizes along the first axis, and these, are open."""
    shape = [None if i == 0 or size in sizes else size for i, size in enumerate(predictions.spec.shape)]
    return predictions._replace(spec=tf.TensorSpec(shape, predictions.spec.dtype))


def _spec_of_rows(leaf: Tensor) -> Nested:
    is_dense = isinstance(leaf, tf.Tensor) and leaf.shape.rank
    return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) if is_dense else leaf


def _check_known(head: NamedHead, known: Mapping[str, Predictions], targets: Mapping[str, Tensor]) -> None:
    if head.name not in known:
        raise ValueError(
            f"The head {head.name!r} reads its targets, so the first batch must have targets for it. "
            f"Received: targets for {quoted(targets)}. Show the trainer a batch with all heads first."
        )


def _trace_head(
    head: NamedHead, representation: DetachedRepresentation, targets: Nested, *, find_leaves: bool
) -> Predictions:
    """Runs a head; finds the spec of its predictions and, if asked for, which leaves they depend on."""
    leaves = representation.leaves
    with _Reading(leaves) as reading:
        predictions = _predictions(head, representation.nest, targets)
    _check_held(f"The module of head {head.name!r}", head.module, reading.variables())
    if not isinstance(predictions, tf.Tensor):
        raise ValueError(
            f"The module of head {head.name!r} must give one tensor, which its loss compares with the targets. "
            f"Received: {described(predictions)}. Give one of them, or add one head for each."
        )
    if find_leaves and len(leaves) > 1 and head.trains_encoder:
        depends = reading.depend(predictions)
    else:
        depends = [head.reads_floats(representation.nest)] * len(leaves)
    spec = tf.TensorSpec(predictions.shape, predictions.dtype)
    return Predictions(spec, keras_mask(predictions) is not None, tuple(depends))


def _predictions(head: NamedHead, representation: Nested, targets: Nested) -> Tensor:
    head.read(representation)  # an unknown key is an error of its own
    if head.reads is not None or tf.is_tensor(representation):
        return head.predict(representation, targets, training=False)
    try:
        return head.predict(representation, targets, training=False)
    except Exception as error:
        lacks_targets = not head.teacher_forcing and callable(getattr(head.module, "generate", None))
        option = "teacher_forcing=True" if lacks_targets else f"reads={_first_key(representation)!r}"
        raise ValueError(
            f"The module of head {head.name!r} must take the whole representation, or `reads` must say which part of it. "
            f"Received: {type(head.module).__name__}, and the encoder gives {described(representation)}. "
            f"Pass, say, `{option}` to `add_head`. The module says: {in_short(error)}"
        ) from error


def _first_key(representation: Nested) -> Given:
    return next(iter(representation)) if isinstance(representation, Mapping) else 0


def _check_held(whose: str, module: Layer, read: Iterable[Variable]) -> None:
    """Checks that all trainable variables which a call has read belong to the called module."""
    own = [*module_variables(module), *recurrent_states(module)]
    held = {key for variable in own for key in handles(variable)}
    hidden = [variable for variable in read if not held.issuperset(handles(variable))]
    if hidden:
        kind = getattr(module, "__name__", type(module).__name__)
        names = sorted({variable_name(variable) for variable in hidden})
        raise ValueError(
            f"{whose} must hold the variables that it trains. Received: {kind}, which reads {quoted(names)} without "
            "having them as variables of its own: its loss would not train them, and they would not be saved with it. "
            "Pass the layer itself, or a `keras.Model` or a `keras.layers.Layer` that has all its layers as attributes."
        )


def read_by_loss(
    encoder: Layer,
    heads: Sequence[NamedHead],
    head: NamedHead,
    targets: Nested,
    predictions: tf.TensorSpec,
    *,
    eagerly: bool,
) -> tuple[Variable, ...]:
    """The trainable variables of the encoder and the heads that the loss of a head reads by itself."""
    read: list[tf.Variable] = []

    def call(targets: Nested, predictions: tf.Tensor) -> None:
        clean, weights = head.mask_missing(targets, None, predictions, None, check=False)
        with _Reading() as reading:
            head.losses(head.like_scaled(clean), predictions, weights)
        read[:] = reading.variables()

    try:
        graph_function(call).get_concrete_function(targets, predictions)
    except Exception:  # noqa: BLE001 - the step itself says what is wrong with the loss
        if eagerly:
            with suppress(Exception):
                call(*sample_of((targets, predictions)))
    modules = [encoder, *(each.module for each in heads)]
    owned = {key: each for module in modules for each in module_variables(module) for key in handles(each)}
    hidden = [variable for variable in read if not owned.keys() >= handles(variable)]
    hidden = [variable for variable in hidden if not _frozen() >= handles(variable)]
    if hidden:
        names = quoted(sorted({variable_name(variable) for variable in hidden}))
        name = head.loss.name or type(head.loss.original).__name__
        raise ValueError(
            f"The loss of head {head.name!r} must read no trainable variables, except those of the encoder and the modules. "
            f"Received: {name!r}, which reads {names}: no update would train them. Make them weights of the "
            "module, which can return them as another column of its predictions. If they are not to be trained, create "
            "them with `trainable=False`, or set `trainable = False` on their layer."
        )
    return tuple({id(owned[key]): owned[key] for each in read for key in handles(each) if key in owned}.values())


def _frozen() -> set[int]:
    """The variables of all frozen layers that exist, by `handles`: those themselves do not tell."""
    layers = [each for each in gc.get_objects() if issubclass(type(each), keras.layers.Layer)]
    frozen = [layer for layer in layers if layer.built and not layer.trainable]
    return {key for layer in frozen for variable in module_variables(layer) for key in handles(variable)}


def handles(variable: Variable) -> set[int]:
    """What identifies a variable, on each device that has a copy of it."""
    copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else (variable,)
    return {id(copy.handle) for copy in copies if hasattr(copy, "handle")}
