"""What Keras cannot save of a trainer by itself: the configuration of its heads, and variables that it does not look for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import keras
import tensorflow as tf

from multihead._ground.calls import with_masks_of_layers
from multihead._ground.keras import classes_of_shared_layers, input_shapes_kept, restorable, tensor_variable
from multihead._ground.layers import is_functional, restored_apart, seed_variables
from multihead._ground.types import Config, Layer, Optimizer, Tensor, Trainer
from multihead._ground.validation import in_short
from multihead._update.update import RollBack
from multihead.heads._named import NamedHead
from multihead.heads._reads import decode_reads

_NO_TRAINER = "The weights must be those of a trainer"


def check_filepath(filepath: str | os.PathLike[str], options: Mapping[str, object]) -> None:
    """Checks that a path, and options of `save`, say that a trainer is to be saved whole."""
    if not os.fspath(filepath).endswith(".keras") or options.get("save_format") not in (None, "keras"):
        format_text = f", save_format={options['save_format']!r}" if "save_format" in options else ""
        raise ValueError(
            "`filepath` must end in '.keras', the one format that holds a trainer whole. Received: "
            f"filepath={os.fspath(filepath)!r}{format_text}. Use `save_weights` for weights, `export` for a SavedModel."
        )


def check_of_trainer(store: Mapping[str, Tensor]) -> None:
    """Checks that saved values are those of a trainer, which have numbers as names."""
    if not any(name.isdigit() for name in store.keys()):  # noqa: SIM118
        raise ValueError(
            f"{_NO_TRAINER}, saved by its `save_weights` or `save`. Received: a file of another model. Call "
            "`load_weights` of that model, and make the trainer of it or of its layers."
        )


@contextmanager
def whole_or_unchanged(
    filepath: str | os.PathLike[str], built_parts: Sequence[Layer], others: Sequence[Layer | Optimizer | None]
) -> Iterator[bool]:
    """A context in which Keras loads weights: where that fails, everything is as before, and the error says what to do.

    Its value is whether all parts that should be built are; only TensorFlow's checkpoints may be loaded before.
    """
    is_built = all(getattr(part, "built", True) for part in built_parts)
    if not is_built and os.fspath(filepath).endswith((".h5", ".keras")):  # TensorFlow's checkpoints wait for variables
        raise ValueError(
            "The shapes of the data must be known before `load_weights`. Received: a trainer that has seen no data. "
            "Call `fit` with a batch first, all of which the weights replace, or load the whole trainer from what `save` "
            "wrote, by `keras.models.load_model`."
        )
    parts = (*others, *built_parts)
    before = RollBack(tensor_variable(variable) for part in parts for variable in getattr(part, "variables", ()))
    try:
        yield is_built
    except Exception as error:
        before.restore()
        if not isinstance(error, ValueError) or _NO_TRAINER in str(error):
            raise
        raise ValueError(
            "`filepath` must hold what the encoder and the heads of this trainer have, in their shapes. Received: "
            f"{os.fspath(filepath)!r}, of which Keras says: {in_short(error)} Nothing was changed. Build the modules "
            "that were saved, or pass `skip_mismatch=True` to load what fits."
        ) from error


def config_of(name: str, encoder: Layer, heads: Sequence[NamedHead]) -> Config:
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
            arguments = restored_apart(partial(restore, head_config), known)
            if is_functional(arguments["module"]):  # as `from_model` makes them
                with_masks_of_layers(arguments["module"])
            trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
    return trainer


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
