"""What Keras cannot save of a trainer by itself: the configuration of its heads, and variables that it does not look for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import keras
import tensorflow as tf

from multihead._ground.calls import with_masks_of_layers
from multihead._ground.keras import classes_of_shared_layers, input_shapes_kept, restorable
from multihead._ground.layers import is_functional, restored_apart, seed_variables
from multihead._ground.types import Config, Function, Layer, Tensor, Trainer
from multihead.heads._named import NamedHead
from multihead.heads._reads import decode_reads


def check_filepath(filepath: str | os.PathLike[str], options: Mapping[str, object]) -> None:
    """Checks that a path, and options of `save`, say that a trainer is to be saved whole."""
    if not os.fspath(filepath).endswith(".keras") or options.get("save_format") not in (None, "keras"):
        format_text = f", save_format={options['save_format']!r}" if "save_format" in options else ""
        raise ValueError(
            "`filepath` must end in '.keras', the one format that holds a trainer whole. Received: "
            f"filepath={os.fspath(filepath)!r}{format_text}. Use `save_weights` for weights, `export` for a SavedModel."
        )


def config_of(name: str, encoder: Layer, heads: Sequence[NamedHead]) -> Config:
    """The configuration of a trainer."""
    # Keras marks an object as shared only when it meets it again, so everything is serialized twice.
    for _ in range(2):
        encoder_config = keras.saving.serialize_keras_object(encoder)
        head_configs = [head.get_config() for head in heads]
    return {"name": name, "encoder": encoder_config, "heads": head_configs}


def from_saved_config(kind: type[Trainer], config: Config, custom_objects: Config | None) -> Trainer:
    """A trainer of a class with the encoder and the heads of a configuration."""
    config = restorable(config)
    objects = {**classes_of_shared_layers(config), **(custom_objects or {})}
    restore = partial(keras.saving.deserialize_keras_object, custom_objects=objects)
    with input_shapes_kept():
        trainer = kind(restore(config["encoder"]), name=config["name"])
        for head_config in config["heads"]:
            known = [trainer.encoder, *(head.module for head in trainer.heads.values())]
            arguments = restored_apart(partial(_restored_values, head_config, restore), known)
            if is_functional(arguments["module"]):  # as `from_model` makes them
                with_masks_of_layers(arguments["module"])
            trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
    return trainer


def _restored_values(config: Config, restore: Function) -> Config:
    """A configuration with its values restored."""
    return {key: restore(value) for key, value in config.items()}


def not_saved_by_keras(encoder: Layer, heads: Sequence[NamedHead]) -> Iterator[tuple[str, tf.Variable]]:
    """By unique names, the variables of modules that are not Keras layers, and the seeds of layers."""
    for name, module in (("encoder", encoder), *((f"head_{head.name}", head.module) for head in heads)):
        if isinstance(module, tf.Module) and not isinstance(module, keras.layers.Layer):
            yield from ((f"{name}_{place}", variable) for place, variable in enumerate(module.variables))
        yield from ((f"seed_{name}_{place}", variable) for place, variable in enumerate(seed_variables(module)))


def has_seeds(store: Mapping[str, Tensor]) -> bool:
    """Whether saved values have those of seeds of layers."""
    return any(name.startswith("seed_") for name in store.keys())  # noqa: SIM118


def load_beside_keras(store: Mapping[str, Tensor], encoder: Layer, heads: Sequence[NamedHead]) -> None:
    """Loads the variables of `not_saved_by_keras`."""
    saved = set(store.keys())
    for name, variable in not_saved_by_keras(encoder, heads):
        if name in saved or not name.startswith("seed_"):
            variable.assign(store[name])
