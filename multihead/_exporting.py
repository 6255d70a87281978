"""One head as a program of its own: which variables and tables does it need, and what goes in and out by which name?"""

from __future__ import annotations

import functools
import inspect
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from multihead._keras import AUTOGRAPH, call_module
from multihead._validation import quoted
from multihead.heads import Head

Step = Callable[[Any], Any] | None


def export_head(
    path: str | os.PathLike[str],
    encoder: Any,
    head: Head,
    encoder_specs: Any,
    *,
    preprocess: Step,
    inputs: Any,
    generate: Step,
    postprocess: Step,
) -> None:
    """Writes the encoder and one head as a SavedModel; see `MultiHeadTrainer.export`.

    Args:
        path: The folder.
        encoder: The built encoder.
        head: The head, its module built.
        encoder_specs: The specs of what the encoder takes.
        preprocess: From what the exported model takes to what the encoder takes, or None.
        inputs: The specs of what the exported model takes, or None.
        generate: From the representation to the head's output, or None for the head's own way.
        postprocess: From the head's output to what the exported model gives, or None.
    """
    if os.path.isfile(path):
        raise ValueError(
            f"`path` must be a folder, or new. Received: path={os.fspath(path)!r}, which is a file. Choose another path."
        )
    steps = {"preprocess": preprocess, "generate": generate, "postprocess": postprocess}
    for argument, step in steps.items():
        if step is not None and not callable(step):
            raise TypeError(f"`{argument}` must be callable. Received: {argument}={step!r}. Pass a function or a layer.")
    specs = _input_specs(inputs, encoder_specs, preprocess)
    named = _named(specs)

    def answer(**tensors: tf.Tensor) -> dict[str, tf.Tensor]:
        given = tf.nest.pack_sequence_as(specs, [tensors[name] for name in named])
        if preprocess is not None:
            given = _checked(call_module(preprocess, given, training=False), encoder_specs)
        representation = call_module(encoder, given, training=False)
        output = head.generate(representation) if generate is None else generate(representation)
        return _as_outputs(output if postprocess is None else call_module(postprocess, output, training=False), head.name)

    parts = [encoder, head.module, *(step for step in steps.values() if step is not None)]
    with _without_cudnn(parts):
        traced = tf.function(answer, autograph=AUTOGRAPH).get_concrete_function(**named)
    # A bare module: with layers in it, Keras 2 would trace each of them once more and write what only Keras can read.
    exported = tf.Module()
    exported.holds = [*traced.variables, *_tables(traced, parts)]
    tf.saved_model.save(exported, os.fspath(path), signatures=traced)


def _input_specs(inputs: Any, encoder_specs: Any, preprocess: Step) -> Any:
    """The specs of what the exported model takes."""
    if inputs is None:
        return encoder_specs if preprocess is None else tf.TensorSpec([None], tf.string)
    if not all(isinstance(spec, tf.TensorSpec) for spec in tf.nest.flatten(inputs)):
        raise TypeError(
            f"`inputs` must be a tf.TensorSpec or a nest of them. Received: inputs={inputs!r}. "
            "Pass, say, tf.TensorSpec([None], tf.string)."
        )
    return inputs


def _named(specs: Any) -> dict[str, tf.TensorSpec]:
    """Flat specs by the names of the signature's arguments: their own, or keys and positions; `inputs` if there is one."""
    paths = tf.nest.flatten(_paths(specs, ""))
    flat = tf.nest.flatten(specs)
    names = [spec.name or path or "inputs" for spec, path in zip(flat, paths)]
    if len(set(names)) < len(names):
        raise ValueError(f"`inputs` must have different names. Received: {quoted(names)}. Name each `tf.TensorSpec`.")
    return {name: tf.TensorSpec(spec.shape, spec.dtype, name) for name, spec in zip(names, flat)}


def _paths(specs: Any, prefix: str) -> Any:
    """The same nest with each spec's path in its place: a dict's keys, and `inputs_0` and so on in a sequence."""
    if isinstance(specs, Mapping):
        return {key: _paths(value, f"{prefix}_{key}" if prefix else str(key)) for key, value in specs.items()}
    if isinstance(specs, (tuple, list)):
        return [_paths(value, f"{prefix or 'inputs'}_{place}") for place, value in enumerate(specs)]
    return prefix


def _checked(given: Any, specs: Any) -> Any:
    """What `preprocess` gave, if it is what the encoder was built for, up to the sizes."""
    try:
        tf.nest.assert_same_structure(given, specs, check_types=False)
        pairs = list(zip(tf.nest.flatten(given), tf.nest.flatten(specs)))
    except (TypeError, ValueError):
        pairs = [(None, None)]
    if not all(isinstance(value, tf.Tensor) and value.shape.rank in (None, spec.shape.rank) for value, spec in pairs):
        raise ValueError(
            f"`preprocess` must give what the encoder takes: {specs}. Received: {given}. "
            "Change its result; a ragged tensor becomes a plain one by `to_tensor()`."
        )
    return given


def _as_outputs(output: Any, name: str) -> dict[str, tf.Tensor]:
    """The signature's outputs: a dict of tensors as it is, a tensor by the head's name."""
    outputs = output if isinstance(output, Mapping) else {name: output}
    if not outputs or not all(isinstance(key, str) and isinstance(value, tf.Tensor) for key, value in outputs.items()):
        raise ValueError(
            f"`postprocess` must give a tensor or a dict of tensors by name. Received: {output}. Pass a `postprocess` "
            "that makes one of the head's output."
        )
    return dict(outputs)


@contextmanager
def _without_cudnn(parts: Sequence[Any]) -> Iterator[None]:
    """Within, recurrent layers choose no kernel that runs on a GPU only, so that the export runs anywhere."""
    layers = [layer for part in parts if isinstance(part, keras.layers.Layer) for layer in part._flatten_layers()]
    choices = [(layer, layer.use_cudnn) for layer in layers if hasattr(layer, "use_cudnn")]
    try:
        for layer, _ in choices:
            layer.use_cudnn = False
        yield
    finally:
        for layer, choice in choices:
            layer.use_cudnn = choice


def _tables(traced: Any, parts: Sequence[Any]) -> list[Any]:
    """The lookup tables that a traced function uses, found in what it was made of.

    Raises:
        ValueError: One of them, or another resource, cannot be found.
    """
    variables = {id(variable.handle) for variable in traced.variables}
    needed = {id(tensor) for tensor in traced.captured_inputs if tensor.dtype == tf.resource} - variables
    tables, seen, waiting = [], set(), deque(parts)
    while needed and waiting:
        part = waiting.popleft()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tf.saved_model.experimental.TrackableResource) and id(part.resource_handle) in needed:
            needed.remove(id(part.resource_handle))
            tables.append(part)
        waiting.extend(_held_by(part))
    if needed:
        raise ValueError(
            f"`preprocess` and `postprocess` must use only lookup tables that can be found in them. Received: {len(needed)} "
            "that cannot. Make each a function that refers to its tables, or a Keras layer with them as attributes."
        )
    return tables


def _held_by(part: Any) -> list[Any]:
    """What an object refers to: a function's free variables and defaults, an object's attributes, a container's values."""
    if isinstance(part, Mapping):
        return list(part.values())
    if isinstance(part, (list, tuple, set)):
        return list(part)
    if isinstance(part, functools.partial):
        return [part.func, *part.args, *part.keywords.values()]
    if inspect.ismethod(part):
        return [part.__self__, part.__func__]
    if inspect.isfunction(part):
        used = inspect.getclosurevars(part)
        return [*used.nonlocals.values(), *used.globals.values(), *(part.__defaults__ or ())]
    if inspect.ismodule(part) or isinstance(part, type):
        return []
    return list(getattr(part, "__dict__", {}).values())
