"""How Keras saves and loads a trainer: its configuration, what it was built for, and the options of `compile`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import classes_of_shared_layers, restorable
from multihead._ground.layers import seed_variables
from multihead._trainer.options import CompileOptions
from multihead._trainer.shapes import Shapes
from multihead._update.batch import Batch, decode_specs, encode_specs
from multihead.heads._named import NamedHead
from multihead.heads._reads import decode_reads


def check_path(filepath: str | os.PathLike[str], options: Mapping[str, Any]) -> None:
    """Checks that `save` is asked for the format that holds a whole trainer.

    Raises:
        ValueError: It is not.
    """
    if not os.fspath(filepath).endswith(".keras") or options.get("save_format") not in (None, "keras"):
        given = f", save_format={options['save_format']!r}" if "save_format" in options else ""
        raise ValueError(
            "`filepath` must end in '.keras', the one format that holds a trainer whole. Received: "
            f"filepath={os.fspath(filepath)!r}{given}. Use `save_weights` for weights, `export` for a SavedModel."
        )


def encode_trainer(name: str, encoder: Any, heads: Sequence[NamedHead]) -> dict[str, Any]:
    """The constructor's arguments and the heads."""
    # Keras marks an object as shared only where it finds it for the second time, so it is shown everything once before.
    for _ in range(2):
        saved = keras.saving.serialize_keras_object(encoder)
        saved_heads = [head.get_config() for head in heads]
    return {"name": name, "encoder": saved, "heads": saved_heads}


def decode_trainer(cls: Any, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None) -> Any:
    """Creates a trainer of a class with its heads from the result of `encode_trainer`."""
    restore = keras.saving.deserialize_keras_object
    config = restorable(config)
    custom_objects = {**classes_of_shared_layers(config), **(custom_objects or {})}
    trainer = cls(restore(config["encoder"], custom_objects=custom_objects), name=config["name"])
    for head in config["heads"]:
        arguments = {key: restore(value, custom_objects=custom_objects) for key, value in head.items()}
        trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
    return trainer


def encode_shapes(shapes: Shapes, *, run_eagerly: bool) -> dict[str, Any]:
    """The specs of the batches that a trainer was built for, as JSON."""
    return {"specs": encode_specs(None if shapes.specs is None else tuple(shapes.specs)), "run_eagerly": run_eagerly}


def decode_shapes(config: Mapping[str, Any] | None) -> tuple[Batch, bool] | None:
    """The specs, and whether modules run eagerly, from the result of `encode_shapes`; None if there are no specs."""
    if not config or config.get("specs") is None:
        return None
    return Batch(*decode_specs(config["specs"])), config.get("run_eagerly", False)


def encode_options(optimizer: Any, options: CompileOptions) -> dict[str, Any]:
    """The arguments of `compile`."""
    serialize = keras.saving.serialize_keras_object
    return {
        "optimizer": serialize(optimizer),
        **{key: serialize(value) for key, value in options.by_name().items()},
        **options.of_keras(),
    }


def decode_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `compile` from the result of `encode_options`."""
    return {key: keras.saving.deserialize_keras_object(value) for key, value in config.items()}


def save_variables(encoder: Any, heads: Sequence[NamedHead], store: Any) -> None:
    """Saves what Keras would not save of the encoder and the heads' modules."""
    for name, variable in (*_of_tf_modules(encoder, heads), *_seeds(encoder, heads)):
        store[name] = tf.convert_to_tensor(variable).numpy()


def load_variables(encoder: Any, heads: Sequence[NamedHead], store: Any) -> None:
    """Loads what `save_variables` saved."""
    saved = set(store.keys())
    for name, variable in _of_tf_modules(encoder, heads):
        variable.assign(store[name])
    for name, variable in _seeds(encoder, heads):
        if name in saved:
            variable.assign(store[name])


def _of_tf_modules(encoder: Any, heads: Sequence[NamedHead]) -> Iterator[tuple[str, tf.Variable]]:
    """The variables of modules that are no Keras layers, which Keras does not save, by a name of their own."""
    for name, module in _modules(encoder, heads):
        if isinstance(module, tf.Module) and not isinstance(module, keras.layers.Layer):
            yield from ((f"{name}_{place}", variable) for place, variable in enumerate(module.variables))


def _seeds(encoder: Any, heads: Sequence[NamedHead]) -> Iterator[tuple[str, tf.Variable]]:
    """The seeds of layers by a name of their own, so that a loaded trainer draws what the saved one does."""
    for name, module in _modules(encoder, heads):
        yield from ((f"seed_{name}_{place}", variable) for place, variable in enumerate(seed_variables(module)))


def _modules(encoder: Any, heads: Sequence[NamedHead]) -> list[tuple[str, Any]]:
    return [("encoder", encoder), *((f"head_{head.name}", head.module) for head in heads)]
