"""How Keras saves and loads a trainer: its configuration, what it was built for, and the options of `compile`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import keras
import tensorflow as tf

from multihead._data.batch import Batch, decode_specs, encode_specs
from multihead._formats.export import export_heads
from multihead._formats.to_keras import keras_model
from multihead._ground.calls import with_masks_of_layers
from multihead._ground.keras import classes_of_shared_layers, input_shapes_kept, load_as_arrays, restorable
from multihead._ground.layers import is_functional, restored_apart, seed_variables
from multihead._ground.types import Config, Function, Nested, Tensor, Trainer
from multihead._ground.validation import check_choice
from multihead._runs.variables import draw_from_variables
from multihead._update.scaling import check_known
from multihead.heads._named import NamedHead
from multihead.heads._reads import decode_reads


class SavedTrainer(keras.Model):
    """How Keras saves and loads a trainer, and how it is exported: a part of `MultiHeadTrainer`."""

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: object) -> None:
        """Saves the trainer, with the optimizer's state, as a `.keras` file.

        `keras.models.load_model(filepath)` loads the whole trainer: its heads, the options of `compile`, weights, and
        the state of the optimizer, of methods and of dropout, so that `fit` goes on where it stopped. Import `multihead`
        before, and pass classes of your own that are not registered as `custom_objects`.

        Raises:
            ValueError: `filepath` does not end in `.keras`.
        """
        if not os.fspath(filepath).endswith(".keras") or kwargs.get("save_format") not in (None, "keras"):
            format_text = f", save_format={kwargs['save_format']!r}" if "save_format" in kwargs else ""
            raise ValueError(
                "`filepath` must end in '.keras', the one format that holds a trainer whole. Received: "
                f"filepath={os.fspath(filepath)!r}{format_text}. Use `save_weights` for weights, `export` for a SavedModel."
            )
        super().save(filepath, overwrite, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: object) -> None:
        """Saves the weights, and what else changes in training, as `keras.Model.save_weights` does."""
        self._build()
        super().save_weights(filepath, overwrite, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], skip_mismatch: bool = False, **kwargs: object) -> None:
        """Loads what `save_weights` saved, as `keras.Model.load_weights` does."""
        self._build()
        super().load_weights(filepath, skip_mismatch, **kwargs)

    def get_config(self) -> Config:
        """The constructor's arguments and the heads."""
        # Keras marks an object as shared only when it meets it again, so everything is serialized twice.
        for _ in range(2):
            encoder = keras.saving.serialize_keras_object(self.encoder)
            heads = [head.get_config() for head in self._setup.heads]
        return {"name": self.name, "encoder": encoder, "heads": heads}

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Trainer:
        """Creates a trainer with its heads from the result of `get_config`."""
        config = restorable(config)
        objects = {**classes_of_shared_layers(config), **(custom_objects or {})}
        restore = partial(keras.saving.deserialize_keras_object, custom_objects=objects)
        with input_shapes_kept():
            trainer: Trainer = cls(restore(config["encoder"]), name=config["name"])
            for head_config in config["heads"]:
                known = [trainer.encoder, *(head.module for head in trainer.heads.values())]
                arguments = restored_apart(partial(_restored_values, head_config, restore), known)
                if is_functional(arguments["module"]):  # as `from_model` makes them
                    with_masks_of_layers(arguments["module"])
                trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
        return trainer

    def save_own_variables(self, store: dict[str, Tensor]) -> None:
        """Saves the trainer's own state, and the parts of its modules that Keras would not save."""
        super().save_own_variables(store)
        if self._phase is None:
            draw_from_variables(self)
        for name, variable in self._not_saved_by_keras():
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: dict[str, Tensor]) -> None:
        """Loads what `save_own_variables` saved."""
        super().load_own_variables({name: store[name] for name in store.keys() if name.isdigit()})  # noqa: SIM118
        if self._phase is None and any(name.startswith("seed_") for name in store.keys()):  # noqa: SIM118
            draw_from_variables(self)
        saved = set(store.keys())
        for name, variable in self._not_saved_by_keras():
            if name in saved or not name.startswith("seed_"):
                variable.assign(store[name])
        load_as_arrays(self.metrics)  # Keras loads these next

    def _not_saved_by_keras(self) -> Iterator[tuple[str, tf.Variable]]:
        """By unique names, the variables of modules that are not Keras layers, and the seeds of layers."""
        for name, module in (("encoder", self.encoder), *((f"head_{head.name}", head.module) for head in self._setup.heads)):
            if isinstance(module, tf.Module) and not isinstance(module, keras.layers.Layer):
                yield from ((f"{name}_{place}", variable) for place, variable in enumerate(module.variables))
            yield from ((f"seed_{name}_{place}", variable) for place, variable in enumerate(seed_variables(module)))

    def get_build_config(self) -> Config:
        """The specs of the batches that the trainer was built for; heads that were added since are built first."""
        self._build()
        specs = None if self._shapes.specs is None else tuple(self._shapes.specs)
        return {"specs": encode_specs(specs), "run_eagerly": self._runs_eagerly}

    def build_from_config(self, config: Config) -> None:
        """Creates all variables, from the result of `get_build_config`."""
        if config and config.get("specs") is not None:
            self.run_eagerly = config.get("run_eagerly", False)
            self._build(Batch(*decode_specs(config["specs"])))

    def get_compile_config(self) -> Config | None:
        """The arguments of `compile`; None if the trainer is not compiled."""
        options, serialize = self._setup.options, keras.saving.serialize_keras_object
        if options is None:
            return None
        arguments = {key: serialize(value) for key, value in vars(options).items()}
        return {"optimizer": serialize(self.optimizer), **arguments, **options.for_keras()}

    def compile_from_config(self, config: Config) -> None:
        """Compiles with the result of `get_compile_config`; a built trainer also creates the optimizer's variables."""
        self.compile(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})
        self._build()

    def export(
        self,
        filepath: str | os.PathLike[str],
        heads: str | Sequence[str] | None = None,
        *,
        preprocess: Function | None = None,
        inputs: Nested = None,
        generate: Function | Mapping[str, Function] | None = None,
        postprocess: Function | Mapping[str, Function] | None = None,
    ) -> None:
        """Exports the encoder and heads as a TensorFlow SavedModel that runs without this library and without Keras.

        The model runs in inference mode, with the signature `serving_default`: `tf.saved_model.load(path)
        .signatures["serving_default"](inputs=...)` returns a dict of tensors, and computes the encoder once. It includes
        variables and lookup tables, and runs on a CPU regardless of where it was exported. The trainer does not change.

        Args:
            filepath: A folder; an existing export in it is replaced.
            heads: The name of a head, or a list of names; None: all heads.
            preprocess: A function or layer, in TensorFlow operations, that converts the exported model's inputs to the
                encoder's inputs, for example texts to ids. None: the exported model takes the encoder's inputs.
            inputs: The `tf.TensorSpec` of the exported model's inputs, or a nest of them; the name of a spec becomes the
                name of the argument. None: the encoder's inputs, of a functional encoder with the dtypes of its
                `keras.Input`, or, with `preprocess`, strings, `tf.TensorSpec([None], tf.string)`; the argument is then named
                `inputs`, or by its key in a dict.
            generate: A function from what the head reads of the representation to its output, to control generation; for
                several heads, a dict of these by head name. None: as in `predict`, `module.generate(representation)` with
                teacher forcing, otherwise `module(representation)`.
            postprocess: A function from the head's output to the exported model's output: a tensor, which gets the head's
                name, or a dict of tensors; for several heads, a dict of these by head name. A function of two arguments
                gets the exported model's inputs as the second, for example the texts. None: the head's output. If several
                or all heads are exported, a key of a head's dict becomes `{head}_{key}`.

        Raises:
            ValueError: There is no such head, it is not built yet, `filepath` is a file, or the result of `preprocess` or
                `postprocess` is invalid.
            TypeError: An argument has the wrong type.
        """
        exported = self._chosen(heads, "export")
        export_heads(
            filepath,
            self.encoder,
            exported,
            None if self._shapes.specs is None else self._shapes.specs.inputs,
            by_head=heads is None or len(exported) > 1,
            preprocess=preprocess,
            inputs=inputs,
            generate=generate,
            postprocess=postprocess,
        )

    def to_keras(self, heads: str | Sequence[str] | None = None) -> keras.Model:
        """Makes a plain functional Keras model of the encoder and heads, which needs nothing of this library.

        It shares all layers and weights with the trainer: what either learns, the other has learned. It predicts in the
        targets' own units, since layers of Keras that undo a `target_scaling`, with the numbers that it has now, follow a
        head's module. It is not compiled. Saved, it is loaded by `keras.models.load_model` without `multihead`, if the
        layers of the encoder and the modules are Keras's or your own.

        Args:
            heads: The name of a head, or a list of names; None: all heads.

        Returns:
            A model with the encoder's inputs and, as outputs, a dict by head name; if `heads` is a single name, only this
            head's output, as tools for models with one output need it.

        Raises:
            ValueError: There is no such head, it is not built yet, its scaling is not learned yet or is a layer of your own,
                it generates its output (`teacher_forcing`), or a module cannot be part of a functional model.
        """
        chosen = self._chosen(heads, "to_keras")
        specs = None if self._shapes.specs is None else self._shapes.specs.inputs
        with self.distribute_strategy.scope():
            return keras_model(self.encoder, chosen, specs, self.name, alone=isinstance(heads, str))

    def _chosen(self, heads: str | Sequence[str] | None, method: str) -> list[NamedHead]:
        """The heads for a method, which must be built and have learned scalings."""
        known = self._setup.all_names
        names = known if heads is None else [heads] if isinstance(heads, str) else list(heads)
        for name in names or (heads,):
            check_choice("heads", name, known)
            if name not in self._shapes.predictions:
                raise ValueError(
                    f"`heads` must be built before `{method}`. Received: heads={name!r}, without data since it was added. "
                    "Call `compute_gradients(batch)` or `fit`, or load a saved trainer, first."
                )
        chosen = [self._setup.head(name) for name in names]
        check_known(chosen, method)
        return chosen


def _restored_values(config: Config, restore: Function) -> Config:
    """A configuration with its values restored."""
    return {key: restore(value) for key, value in config.items()}
