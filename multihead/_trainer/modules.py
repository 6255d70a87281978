"""What data show of a trainer's modules: a forward pass builds them, and shows what the heads predict.

Nothing is computed: the pass is a trace. Where Keras runs eagerly, a module's Python may depend on values, which a trace
does not have; there the pass is a real one, on a sample of the data, and what it changes of the modules' state is undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import keras
import tensorflow as tf

from multihead._data.batch import Batch, batch_size
from multihead._ground import calls
from multihead._ground.graphs import kinds_with_state, operations_behind, written_resources
from multihead._ground.keras import variable_name
from multihead._ground.layers import all_layers, module_variables, recurrent_states, run_in_graphs, state_variables
from multihead._ground.references import referenced
from multihead._ground.tape import PersistentTape
from multihead._ground.tensors import has_gradients, where
from multihead._ground.trials import made_up_rows
from multihead._ground.types import Function, Layer, Nested, Tensor, Variable
from multihead._ground.validation import described, in_short, quoted
from multihead._update.network import MaskForm, Predictions
from multihead._update.representation import DetachedRepresentation, call_encoder
from multihead.heads._labels import missing
from multihead.heads._named import NamedHead
from multihead.losses._elements import terms_of


@dataclass(frozen=True)
class Shapes:
    """What is known from the data so far; `compile` keeps it."""

    specs: Batch | None = None  # of a batch, with open batch size; None before any data
    predictions: Mapping[str, Predictions] = field(default_factory=dict)  # what the built heads predict, by name
    num_leaves: int = 0  # of the representation, with floating-point numbers

    def have(self, heads: Sequence[NamedHead], specs: Batch) -> bool:
        """Whether every head with targets in a batch is built, so that only sizes can be new."""
        built = {head.name for head in heads if head.metrics is not None and head.name in self.predictions}
        return self.specs is not None and specs.targets.keys() <= built

    def restricted_to(self, names: Sequence[str]) -> Shapes:
        inputs, *labels = self.specs or Batch(None, {}, {})
        kept = [{name: part[name] for name in part if name in names} for part in (self.predictions, *labels)]
        return Shapes(self.specs and Batch(inputs, kept[1], kept[2]), kept[0], self.num_leaves)


def build_modules(
    encoder: Layer, heads: Sequence[NamedHead], specs: Batch, known: Shapes, sample: Batch | None, *, eagerly: bool
) -> Shapes:
    """Creates the variables of the encoder, the heads' modules and their metrics; the shapes for batches of these specs.

    Modules that are not traced run on `sample`, some examples; None makes some of ones and zeros.
    """
    shapes = trace_predictions(encoder, heads, specs, known, sample, eagerly=eagerly)
    predictions, masked = dict(shapes.predictions), list[NamedHead]()
    coupled = [head for head in heads if head.loss.couples_rows]
    if coupled:
        have_rows = leaves_with_rows(encoder, specs.inputs)
        for head in coupled:
            head.leaves_with_rows = have_rows
    for module in (encoder, *(head.module for head in heads)):
        run_in_graphs(module)
    for head in heads:
        head.loss.runs_eagerly = eagerly
        if head.name in predictions and head.name in specs.targets:
            is_new, targets, shown = head.metrics is None, specs.targets[head.name], predictions[head.name]
            head.build(targets, shown.spec)
            if head.is_trained and head.loss.known is None:  # Keras's own functions read no variables
                read = read_by_loss(encoder, heads, head, targets, shown.spec)
                predictions[head.name] = shown._replace(read_by_loss=read)
            if is_new and shown.masked and head.is_trained:
                masked.append(head)
    if masked:
        _check_masks(encoder, masked, specs, {head.name: predictions[head.name].mask_form for head in masked})
    return replace(shapes, predictions={**known.predictions, **predictions})


def trace_predictions(
    encoder: Layer, heads: Sequence[NamedHead], specs: Batch, known: Shapes, sample: Batch | None, *, eagerly: bool
) -> Shapes:
    """Builds the encoder and the heads for a batch; returns what that shows of their shapes.

    A head that reads its targets and has none in the batch is left out if it is `known` already.
    """
    # Variables and their values before the call, and new ones in a graph; those of layers that live no longer than it, too.
    before, created = list[tuple[tf.Variable, tf.Tensor]](), list[tf.Variable]()

    def keep(create: Function, **options: object) -> tf.Variable:
        variable = create(**options)
        if tf.executing_eagerly():
            before.append((variable, tf.identity(variable)))
        else:
            created.append(variable)
        return variable

    def forward(inputs: Nested, targets: dict[str, Tensor]) -> Shapes:
        with tf.variable_creator_scope(keep):
            with _reading() as read:
                output = call_encoder(encoder, inputs, training=False)
            _check_held("`encoder`", encoder, read)
            representation, predictions = DetachedRepresentation(output), {}
            for head in heads:
                if not head.teacher_forcing or head.name in targets:
                    own = head.like_scaled(targets.get(head.name))
                    predictions[head.name] = _trace_head(head, representation, own, created, find_leaves=len(heads) > 1)
                elif head.name not in known.predictions:
                    raise ValueError(
                        f"The head {head.name!r} reads its targets, so the first batch must have targets for it. "
                        f"Received: targets for {quoted(targets)}. Show the trainer a batch with all heads first."
                    )
        return Shapes(specs, predictions, len(representation.leaves))

    def trace() -> Shapes:
        results: list[Shapes | ValueError] = []

        def once(inputs: Nested, targets: dict[str, Tensor]) -> None:
            if not results:  # TensorFlow traces a function that has created variables again
                try:
                    results.append(forward(inputs, targets))
                except ValueError as reason:
                    results.append(reason)  # raised after the trace: variables made in one that fails would have no value

        calls.graph_function(once).get_concrete_function(specs.inputs, specs.targets)
        (result,) = results
        if isinstance(result, ValueError):
            raise result from result.__cause__
        return result

    if not eagerly:
        # Under a strategy, the variables are created first: Keras 3 cannot create them while it traces.
        calls.created_outside_of_graphs(trace)
        return trace()
    for module in (encoder, *(head.module for head in heads)):
        for part in all_layers(module) or [module]:
            with suppress(ValueError):  # Keras 2: a `Sequential` that is not built
                before += [(variable, tf.identity(variable)) for variable in state_variables(part)]
    sample, failed = made_up_rows(specs) if sample is None else sample, False
    targets = dict(sample.targets)
    for head in heads:  # a module that reads its targets need not be able to read those that mark a missing label
        labels = targets.get(head.name)
        lacking = missing(head.label_spec, labels) if head.teacher_forcing and isinstance(labels, tf.Tensor) else None
        if lacking is not None:
            targets[head.name] = where(lacking, tf.zeros_like(labels), labels)
    try:
        shapes = forward(sample.inputs, targets)
    except tf.errors.FailedPreconditionError:  # a lookup table of a trainer that is being loaded is still empty
        failed = True
    finally:
        for variable, value in before:
            variable.assign(value)
    if failed:
        return trace()
    sizes, num_rows = set[int](), {int(batch_size(sample.inputs))}  # what the specs leave open, besides the first axis
    for spec, value in zip(tf.nest.flatten(tuple(specs)), tf.nest.flatten(tuple(sample))):
        if spec is not None and spec.shape.rank:
            own = value.bounding_shape() if isinstance(value, tf.RaggedTensor) else tf.shape(value)
            sizes |= {int(size) for size, known_size in zip(own[1:], spec.shape[1:]) if known_size is None}
    predictions = {}
    for head in (head for head in heads if head.name in shapes.predictions):
        shown = shapes.predictions[head.name]
        is_open = sizes | num_rows if head.loss.couples_rows else sizes  # there may be a prediction per pair of rows
        shape = [None if i == 0 or size in is_open else size for i, size in enumerate(shown.spec.shape)]
        predictions[head.name] = shown._replace(spec=tf.TensorSpec(shape, shown.spec.dtype))
    return replace(shapes, predictions=predictions)


def _check_masks(encoder: Layer, heads: Sequence[NamedHead], specs: Batch, known: Mapping[str, MaskForm | None]) -> None:
    """Raises a `ValueError` if the mask of a head's predictions, which says what counts, may be another one in training.

    An update counts its labels before its forward pass, in inference mode, whose forms are `known` unless it ran eagerly.
    """
    by_mode: list[Mapping[str, MaskForm | None]] = [known]
    for training in (False, True) if None in known.values() else (True,):
        masks = dict[str, Tensor]()

        def forward(inputs: Nested, targets: Nested, training: bool = training, masks: dict[str, Tensor] = masks) -> None:
            step = tf.zeros([], tf.int64) if training else None
            representation = DetachedRepresentation(call_encoder(encoder, inputs, training=training, step=step)).nest
            for head in heads:
                own = head.like_scaled(targets[head.name])
                masks[head.name] = calls.keras_mask(head.predict(representation, own, training=training, step=step))

        # Python that depends on values; others have been traced. What is wrong in training mode alone, the step says.
        with suppress(Exception):
            calls.graph_function(forward).get_concrete_function(specs.inputs, specs.targets)
        by_mode.append({name: _form_of(mask) for name, mask in masks.items()})
    for head in heads:
        forms = [form for form in (forms.get(head.name) for forms in by_mode) if form is not None]
        if any(has_state for has_state, _ in forms) or any(form != forms[0] for form in forms):
            raise ValueError(
                f"The module of head {head.name!r} must give a Keras mask that is the same in training and inference, since "
                "labels are counted before an update's forward pass. Received: a mask that is computed in another way in "
                "training, or depends on random numbers or a state. Mask before layers such as dropout, or pass the mask as "
                "`sample_weight`."
            )


def _form_of(mask: tf.Tensor | None, created: Sequence[tf.Variable] = ()) -> MaskForm | None:
    """Whether a mask depends on a state that the pass changes, and what it comes from; None for one that ran eagerly.

    A variable that the pass has `created` is written to in any case.
    """
    if mask is None:
        return False, []
    if not hasattr(mask, "graph"):
        return None
    behind, written = operations_behind(mask), written_resources(mask.graph.get_operations())
    written -= {mask.graph.capture(variable.handle).name for variable in created}
    has_state = any(tensor.name in written for operation in behind for tensor in operation.inputs)
    parts = [
        (operation.type, operation.get_attr("value").SerializeToString() if operation.type == "Const" else b"")
        for operation in behind
        if operation.type != "Identity"
    ]
    return has_state or bool(kinds_with_state(mask.graph, behind)), sorted(parts)


def leaves_with_rows(encoder: Layer, inputs: Nested) -> tuple[bool, ...] | None:
    """By leaf of the representation, whether it has one row per example; None if a trace does not tell.

    Prototypes, for one, belong to no example, and may be as many as the examples of a batch. Only the first axis of what
    does belong to examples is open where the batch size is.
    """
    have_rows = list[bool]()

    def forward(inputs: Nested) -> None:
        leaves = tf.nest.flatten(call_encoder(encoder, inputs, training=False))
        have_rows[:] = [tf.is_tensor(leaf) and bool(leaf.shape.rank) and leaf.shape[0] is None for leaf in leaves]

    with suppress(Exception):  # an encoder whose Python depends on values; it has been called without an error before
        calls.graph_function(forward).get_concrete_function(inputs)
    return tuple(have_rows) if any(have_rows) else None


@contextmanager
def _reading() -> Iterator[list[tf.Variable]]:
    """A context; afterwards, the list that it gives has the trainable variables that were read in it.

    In a graph it looks at the operations, since tapes are paused where variables are created (`tf.init_scope`).
    """
    read = list[tf.Variable]()
    if tf.executing_eagerly():
        with tf.GradientTape() as tape:
            yield read
        read += tape.watched_variables()
        return
    graph = tf.compat.v1.get_default_graph()
    start = len(graph.get_operations())
    yield read
    handles = {inside.name: outside for outside, inside in graph.captures}
    inputs = {tensor.name for operation in graph.get_operations()[start:] for tensor in operation.inputs}
    read_handles = {id(handles[name]) for name in inputs & handles.keys()}
    watched = graph._watched_variables  # `variables` is known only when the trace is done
    read += [variable for variable in watched if variable.trainable and id(variable.handle) in read_handles]


def _trace_head(
    head: NamedHead,
    representation: DetachedRepresentation,
    targets: Nested,
    created: Sequence[tf.Variable],
    *,
    find_leaves: bool,
) -> Predictions:
    """Runs a head; finds the spec of its predictions and, if asked for, which leaves they depend on.

    The variables that a trace has `created` get their first values in its graph.
    """
    leaves, nest = representation.leaves, representation.nest
    head.read(nest)  # an unknown key is an error of its own
    with PersistentTape(leaves) as tape, _reading() as read:
        try:
            predictions = head.predict(nest, targets, training=False)
        except Exception as error:
            if head.reads is not None or tf.is_tensor(nest):
                raise
            if isinstance(error, ValueError) and "Received: " in str(error):  # which says what is wrong
                raise ValueError(f"In head {head.name!r}: {in_short(error)}") from error
            first = next(iter(nest)) if isinstance(nest, Mapping) else 0
            raise ValueError(
                f"The module of head {head.name!r} must take the whole representation, or `reads` must say which part of "
                f"it. Received: {type(head.module).__name__}, and the encoder gives {described(nest)}. Pass, say, "
                f"`reads={first!r}` to `add_head`, or `teacher_forcing=True` if it also reads targets. The module says: "
                f"{in_short(error)}"
            ) from error
    _check_held(f"The module of head {head.name!r}", head.module, read)
    if not isinstance(predictions, tf.Tensor):
        raise ValueError(
            f"The module of head {head.name!r} must give one tensor, which its loss compares with the targets. "
            f"Received: {described(predictions)}. Give one of them, or add one head per tensor."
        )
    if find_leaves and len(leaves) > 1 and head.trains_encoder:
        ones = [tf.ones_like(predictions)]
        gradients = tape.gradient([predictions], ones) if has_gradients(predictions) else [None] * len(leaves)
        depends = [gradient is not None for gradient in gradients]
    else:
        depends = [head.reads_floats(nest)] * len(leaves)
    # An encoder may have a fixed batch size; all labels of arrays, which are checked at once, have another number of rows.
    shape = predictions.shape if not predictions.shape.rank else [None, *predictions.shape[1:]]
    spec = tf.TensorSpec(shape, predictions.dtype)
    mask: Nested = calls.keras_mask(predictions)
    return Predictions(spec, mask is not None, tuple(depends), mask_form=_form_of(mask, created))


def _check_held(whose: str, module: Layer, read: Iterable[Variable]) -> None:
    """Checks that all trainable variables which a call has read belong to the called module, and its layers to Keras."""
    if isinstance(module, tf.Module) and not isinstance(module, keras.layers.Layer):
        inner = [part.name for part in module.submodules if isinstance(part, keras.layers.Layer)]
        if inner:
            raise ValueError(
                f"{whose} must be a Keras layer if it has Keras layers. Received: a {type(module).__name__}, a `tf.Module` "
                f"with {quoted(inner)}, whose losses, metrics and mode Keras does not know. Make it a `keras.layers.Layer` "
                "with these layers as attributes."
            )
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
    encoder: Layer, heads: Sequence[NamedHead], head: NamedHead, targets: tf.TensorSpec, predictions: tf.TensorSpec
) -> tuple[Variable, ...]:
    """The trainable variables of the encoder and the heads that the loss of a head reads by itself."""
    read: list[tf.Variable] = []

    def terms(targets: tf.Tensor, predictions: tf.Tensor) -> Nested:
        with _reading() as found:
            result = head.loss.terms(targets, predictions)
        read[:] = found
        return result

    terms_of(head.loss, targets, predictions, terms)
    modules = (encoder, *(other.module for other in heads))
    owned = {key: variable for module in modules for variable in module_variables(module) for key in handles(variable)}
    hidden = [variable for variable in read if not owned.keys() >= handles(variable)]
    if hidden:  # variables of a frozen layer are not to be trained, and may be read
        layers = [part for part in referenced([head.loss.original]) if isinstance(part, keras.layers.Layer)]
        frozen = [layer for layer in layers if layer.built and not layer.trainable]
        known = {key for layer in frozen for variable in module_variables(layer) for key in handles(variable)}
        hidden = [variable for variable in hidden if not handles(variable) <= known]
    if hidden:
        names = quoted(sorted({variable_name(variable) for variable in hidden}))
        name = head.loss.name or type(head.loss.original).__name__
        raise ValueError(
            f"The loss of head {head.name!r} must read no trainable variables, except those of the encoder and the modules. "
            f"Received: {name!r}, which reads {names}: no update would train them. Make them weights of the "
            "module, which can return them as another column of its predictions. If they are not to be trained, create "
            "them with `trainable=False`, or set `trainable = False` on their layer, to which the loss must refer."
        )
    return tuple({id(owned[key]): owned[key] for variable in read for key in handles(variable) if key in owned}.values())


def handles(variable: Variable) -> set[int]:
    """What identifies a variable, on all devices that have a copy of it."""
    copies = variable.values if isinstance(variable, tf.distribute.DistributedValues) else (variable,)
    return {id(copy.handle) for copy in copies if hasattr(copy, "handle")}
