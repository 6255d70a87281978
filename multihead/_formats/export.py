"""Exports heads as one standalone SavedModel, with their variables and lookup tables, and with named inputs and outputs."""

from __future__ import annotations

import inspect
import keyword
import os
import re
from collections.abc import Collection, Mapping, Sequence

import keras
import tensorflow as tf

from multihead._ground.calls import call_module, call_users, graph_function
from multihead._ground.keras import temporarily
from multihead._ground.layers import all_layers, is_functional
from multihead._ground.references import referenced
from multihead._ground.types import Config, Function, Layer, Nested
from multihead._ground.validation import check_choice, check_head_names, quoted
from multihead._update.scaling import check_known
from multihead.heads._named import NamedHead

Step = Function | None

# Names of arguments that TensorFlow leaves unchanged.
_NAME = re.compile(r"(?!self$)[A-Za-z](\w*[A-Za-z0-9])?_?", re.ASCII)


def chosen_heads(
    heads: Sequence[NamedHead], chosen: str | Sequence[str] | None, built: Collection[str], method: str
) -> list[NamedHead]:
    """The heads for a method, one by its name, several or all, which must be built and have learned scalings."""
    by_name = {head.name: head for head in heads}
    names = list(by_name) if chosen is None else [chosen] if isinstance(chosen, str) else list(chosen)
    for name in names or (chosen,):
        check_choice("heads", name, list(by_name))
        if name not in built:
            raise ValueError(
                f"`heads` must be built before `{method}`, for inputs and targets. Received: heads={name!r}, without "
                "targets since it was added. Call `fit` or `compute_gradients(batch)`, or load a saved trainer, first."
            )
    known = [by_name[name] for name in names]
    check_known(known, method)
    return known


def export_heads(
    path: str | os.PathLike[str],
    encoder: Layer,
    heads: Sequence[NamedHead],
    encoder_specs: Nested,
    *,
    by_head: bool,
    preprocess: Step,
    inputs: Nested,
    generate: Step | Mapping[str, Step],
    postprocess: Step | Mapping[str, Step],
) -> None:
    """Writes a built encoder and heads as a SavedModel: see `MultiHeadTrainer.export`.

    With `by_head`, a head's dict of outputs gets its name as a prefix.
    """
    if os.path.isfile(path):
        raise ValueError(
            f"`filepath` must be a folder or a new path. Received: filepath={os.fspath(path)!r}, which is a file. "
            "Choose another."
        )
    names = [head.name for head in heads]
    generators = _steps("generate", generate, names)
    postprocessors = _steps("postprocess", postprocess, names)
    for argument, steps in (("preprocess", {"": preprocess}), ("generate", generators), ("postprocess", postprocessors)):
        for step in steps.values():
            if step is not None and not callable(step):
                raise TypeError(f"`{argument}` must be callable. Received: {argument}={step!r}. Pass a function or a layer.")
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten([] if inputs is None else inputs)):
        raise TypeError(
            f"`inputs` must be a tf.TensorSpec or a nest of them. Received: inputs={inputs!r}. "
            "Pass, for example, tf.TensorSpec([None], tf.string)."
        )
    specs = _with_dtypes_of(encoder, encoder_specs) if preprocess is None else tf.TensorSpec([None], tf.string)
    specs = specs if inputs is None else inputs
    named = {spec.name or path: spec for path, spec in _by_path(specs).items()}
    if len(named) < len(tf.nest.flatten(specs)):
        raise ValueError(
            f"`inputs` must have distinct names. Received: {quoted(named)}. Give each `tf.TensorSpec` a name of its own."
        )
    for name in named:
        if not _NAME.fullmatch(name) or keyword.iskeyword(name):
            suggested_name = "input_" + re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")
            raise ValueError(
                "`inputs` must have names of letters, digits and underscores, which begin with a letter and are no words of "
                f"Python, since TensorFlow takes no others. Received: {name!r}. Pass `inputs=` with the specs of all "
                f"inputs, and another name for this one: `tf.TensorSpec(shape, dtype, name={suggested_name!r})`."
            )
    ranks = {path: spec.shape.rank for path, spec in _by_path(encoder_specs).items()}

    def answer(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        encoder_inputs = model_inputs = tf.nest.pack_sequence_as(specs, [tensors[name] for name in named])
        if preprocess is not None:
            encoder_inputs = call_module(preprocess, encoder_inputs, training=False)
            leaves = {path: value for path, value in _by_path(encoder_inputs).items() if isinstance(value, tf.Tensor)}
            if leaves.keys() != ranks.keys() or any(leaf.shape.rank not in (None, ranks[k]) for k, leaf in leaves.items()):
                raise ValueError(
                    f"`preprocess` must return the encoder's inputs: {encoder_specs}. Received: {encoder_inputs}. "
                    "Change its result; `to_tensor()` converts a ragged tensor to a dense one."
                )
        representation = call_module(encoder, encoder_inputs, training=False)
        outputs: dict[str, tf.Tensor] = {}
        for head in heads:
            step = generators[head.name]
            if step is None:
                output = head.generate(representation)
            else:
                output = head.in_units(call_users(step, head.read(representation)))
            step = postprocessors[head.name]
            if step is not None:
                output = call_module(step, output, *([model_inputs] if _reads_inputs(step) else []), training=False)
            own = output if isinstance(output, Mapping) else {head.name: output}  # a dict keeps its keys
            if not own or not all(isinstance(key, str) and isinstance(value, tf.Tensor) for key, value in own.items()):
                raise ValueError(
                    f"`postprocess` must return a tensor or a dict of tensors by name. Received: {output}. Pass a "
                    "`postprocess` that converts the head's output to one."
                )
            prefix = f"{head.name}_" if by_head and isinstance(output, Mapping) else ""
            duplicates = [f"{prefix}{key}" for key in own if f"{prefix}{key}" in outputs]
            if duplicates:
                raise ValueError(
                    f"`postprocess` must lead to distinct names. Received: {duplicates[0]!r} twice, the second time of head "
                    f"{head.name!r}. Rename a key."
                )
            outputs.update({f"{prefix}{key}": value for key, value in own.items()})
        return outputs

    used = [preprocess, *generators.values(), *postprocessors.values()]
    used += [part for head in heads for part in (head.module, head.scaling)]
    parts = [encoder, *(part for part in used if part is not None)]
    layers = [layer for part in parts for layer in all_layers(part) if hasattr(layer, "use_cudnn")]
    with temporarily("use_cudnn", [(layer, False) for layer in layers]):  # GPU kernels would not run on a CPU
        signature = graph_function(answer).get_concrete_function(**named)
    # A plain module: if it contained layers, Keras 2 would trace them again and write data that only Keras reads.
    exported = tf.Module()
    exported.holds = [*signature.variables, *_tables(signature, parts)]
    tf.saved_model.save(exported, os.fspath(path), signatures=signature)


def _with_dtypes_of(encoder: Layer, specs: Nested) -> Nested:
    """Specs of data with the dtypes that a functional encoder declares: it takes int64 ids, even if the first were int32."""
    flat = tf.nest.flatten(specs)
    # A `Sequential` that is built by its first data has a dtype that nobody declared.
    is_declared = is_functional(encoder) and not isinstance(encoder, keras.Sequential)
    declared = tf.nest.flatten(encoder.input) if is_declared else []
    if len(declared) != len(flat):
        return specs
    known = [
        tf.TensorSpec(spec.shape, symbolic.dtype, spec.name) if type(spec) is tf.TensorSpec else spec
        for symbolic, spec in zip(declared, flat)
    ]
    return tf.nest.pack_sequence_as(specs, known)


def _steps(argument: str, steps: Step | Mapping[str, Step], heads: Sequence[str]) -> dict[str, Step]:
    """By head, a function or None, from a function for a single head or a dict by head name."""
    if isinstance(steps, Mapping):
        check_head_names(argument, steps, heads)
    elif steps is not None and len(heads) > 1:
        raise TypeError(
            f"`{argument}` must be a dict by head name if several heads are exported. Received: {argument}={steps!r} for "
            f"the heads {quoted(heads)}. Pass, for example, {{{heads[0]!r}: ...}}."
        )
    by_head = steps if isinstance(steps, Mapping) else dict.fromkeys(heads, steps)
    return {name: by_head.get(name) for name in heads}


def _reads_inputs(postprocess: Function) -> bool:
    """Whether a function needs two arguments, the second for the exported model's inputs."""
    if isinstance(postprocess, keras.layers.Layer):
        return False
    parameters = inspect.signature(postprocess).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    return len(needed) == 2


def _by_path(nest: Nested, path: str = "") -> Config:
    """The leaves of a nest by their keys and indices (`inputs` for a single tensor), in the order of `tf.nest.flatten`."""
    if isinstance(nest, Mapping):
        parts = [(f"{path}_{key}" if path else str(key), nest[key]) for key in sorted(nest)]
    elif isinstance(nest, (tuple, list)):
        parts = [(f"{path or 'inputs'}_{index}", value) for index, value in enumerate(nest)]
    else:
        return {path or "inputs": nest}
    return {name: leaf for inner, value in parts for name, leaf in _by_path(value, inner).items()}


def _tables(
    traced: tf.types.experimental.ConcreteFunction, parts: Sequence[Layer]
) -> list[tf.saved_model.experimental.TrackableResource]:
    """The lookup tables that a traced function uses, found among the objects that its parts refer to."""
    variables = {id(variable.handle) for variable in traced.variables}
    needed = {id(tensor) for tensor in traced.captured_inputs if tensor.dtype == tf.resource} - variables
    tables = []
    for part in referenced(parts):
        if isinstance(part, tf.saved_model.experimental.TrackableResource) and id(part.resource_handle) in needed:
            needed.remove(id(part.resource_handle))
            tables.append(part)
        if not needed:
            break
    if needed:
        raise ValueError(
            f"`preprocess` and `postprocess` may use only lookup tables that they refer to. Received: {len(needed)} "
            "that cannot be found. Use functions that refer to their tables, or Keras layers with tables as attributes."
        )
    return tables
