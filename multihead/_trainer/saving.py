"""How Keras saves and loads a trainer: its configuration, what it was built for, and the options of `compile`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from multihead._ground.keras import classes_of_shared_layers, seed_variables, use_seed_variables
from multihead._trainer.configuration import Configured
from multihead._update.batch import decode_specs, encode_specs
from multihead.heads._reads import decode_reads


class SavedByKeras(Configured):
    """A trainer that `keras.models.save_model` and `keras.models.load_model` save and load, optimizer included."""

    def save(self, filepath: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Saves the trainer, with the optimizer's state, as a `.keras` file; accepts the arguments of `keras.Model.save`.

        Raises:
            ValueError: `filepath` does not end in `.keras`.
        """
        if not os.fspath(filepath).endswith(".keras") or kwargs.get("save_format") not in (None, "keras"):
            options = f", save_format={kwargs['save_format']!r}" if "save_format" in kwargs else ""
            raise ValueError(
                "`filepath` must end in '.keras', the one format that holds a trainer whole. Received: "
                f"filepath={os.fspath(filepath)!r}{options}. Use `save_weights` for weights, `export` for a SavedModel."
            )
        super().save(filepath, *args, **kwargs)

    def save_weights(self, *args: Any, **kwargs: Any) -> None:
        """Saves the weights, and what else changes in training; accepts the arguments of `keras.Model.save_weights`."""
        self._build_again()
        super().save_weights(*args, **kwargs)

    def load_weights(self, *args: Any, **kwargs: Any) -> Any:
        """Loads what `save_weights` saved; accepts the arguments of `keras.Model.load_weights`."""
        self._build_again()
        return super().load_weights(*args, **kwargs)

    def _build_again(self) -> None:
        """Builds a trainer that has seen data, but was changed or compiled since."""
        if self._specs.value is not None and self._spec is None:
            self._build(self._specs.value)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments and the heads."""
        # Keras marks an object as shared only where it finds it for the second time, so it is shown everything once before.
        for _ in range(2):
            encoder = keras.saving.serialize_keras_object(self.encoder)
            heads = [head.get_config() for head in self._heads.value]
        return {"name": self.name, "encoder": encoder, "heads": heads}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Creates a trainer with its heads from the result of `get_config`."""
        restore = keras.saving.deserialize_keras_object
        custom_objects = {**classes_of_shared_layers(config), **(custom_objects or {})}
        trainer: Any = cls(restore(config["encoder"], custom_objects=custom_objects), name=config["name"])
        for head in config["heads"]:
            arguments = {key: restore(value, custom_objects=custom_objects) for key, value in head.items()}
            trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
        return trainer

    def _modules_by_name(self) -> dict[str, Any]:
        return {"encoder": self.encoder, **{f"head_{name}": head.module for name, head in self.heads.items()}}

    def _of_tf_modules(self) -> Iterator[tuple[str, tf.Variable]]:
        """The variables of modules that are no Keras layers, which Keras does not save, by a name of their own."""
        for name, module in self._modules_by_name().items():
            if isinstance(module, tf.Module) and not isinstance(module, keras.layers.Layer):
                yield from ((f"{name}_{place}", variable) for place, variable in enumerate(module.variables))

    def _seeds(self) -> Iterator[tuple[str, tf.Variable]]:
        """The seeds of layers by a name of their own, so that a loaded trainer draws what the saved one does."""
        for name, module in self._modules_by_name().items():
            if not self._is_in_fit and use_seed_variables(module):
                self.train_function = None
            yield from ((f"seed_{name}_{place}", variable) for place, variable in enumerate(seed_variables(module)))

    def save_own_variables(self, store: Any) -> None:
        """Saves the trainer's own state, and what of its modules Keras would not save."""
        super().save_own_variables(store)
        for name, variable in (*self._of_tf_modules(), *self._seeds()):
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: Any) -> None:
        """Loads what `save_own_variables` saved."""
        super().load_own_variables({name: store[name] for name in store.keys() if name.isdigit()})  # noqa: SIM118
        for name, variable in self._of_tf_modules():
            variable.assign(store[name])
        saved = set(store.keys())
        if any(name.startswith("seed_") for name in saved):
            for name, variable in self._seeds():
                if name in saved:
                    variable.assign(store[name])

    def get_build_config(self) -> dict[str, Any]:
        """The specs of the batches that the trainer was built for; what they show to be missing is built first."""
        self._build_again()
        return {"specs": encode_specs(self._specs.value), "run_eagerly": self._runs_eagerly}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates all variables, from the result of `get_build_config`."""
        if config and config.get("specs") is not None:
            self.run_eagerly = config.get("run_eagerly", False)
            self._build(decode_specs(config["specs"]))

    def get_compile_config(self) -> dict[str, Any] | None:
        """The arguments of `compile`; None if the trainer is not compiled."""
        if self._options is None:
            return None
        serialize = keras.saving.serialize_keras_object
        return {
            "optimizer": serialize(self.optimizer),
            **self._options_of_keras.value,
            **{key: serialize(value) for key, value in self._options.by_name().items()},
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with the result of `get_compile_config`; a built trainer also creates the optimizer's variables."""
        self.compile(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})
        if self._specs.value is not None:
            self._build(self._specs.value)
