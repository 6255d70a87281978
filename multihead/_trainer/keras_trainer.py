"""The Keras model that a trainer is: what it holds, and what Keras calls to train, to log and to save it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from multihead._data.batch import Batch, decode_specs, encode_specs
from multihead._data.call import gives_batches
from multihead._data.data import batches_of_update
from multihead._data.reading import as_arrays
from multihead._display.trainer import modules_by_role, print_summary
from multihead._formats import saving
from multihead._ground.calls import InMode, omit_retracing_warning
from multihead._ground.keras import KerasHooks, add_state, load_as_arrays, tensor_variable
from multihead._ground.optimizers import loss_scale
from multihead._ground.replicas import over_replicas
from multihead._ground.types import Callbacks, Config, Dataset, Function, Logs, Metric, Nested, Tensor, Trainer, Variable
from multihead._ground.validation import as_python, readable_errors
from multihead._method import has_state
from multihead._runs.variables import draw_from_variables
from multihead._trainer.building import build, metrics_of_epoch, runs_eagerly, unpacked
from multihead._trainer.changes import HeadWeights
from multihead._trainer.options import CompileOptions, initialized
from multihead._trainer.state import TrainerState
from multihead._trainer.step_functions import StepFunction, TrainFunction
from multihead._update.apply import apply_update, clip
from multihead._update.evaluate import evaluate_batch
from multihead._update.pipeline import compute_update
from multihead._update.representation import call_encoder
from multihead._update.scaling import check_known
from multihead._update.spec import UpdateSpec
from multihead.balancing import Balancer
from multihead.heads import Head
from multihead.schedules import Schedule
from multihead.telemetry._logs import LogMetrics
from multihead.weighting import Weighting


class KerasTrainer(KerasHooks):
    """What a trainer overrides of `keras.Model`, whose loops, callbacks, `tf.distribute` and saving stay Keras's own.

    - Attributes: Keras saves what is an attribute, so the encoder, the methods and the heads' modules are. Everything else
      is in `_state`, into which Keras does not look.
    - Steps: a step of training is one update, of one batch or several, and is traced once per plan.
    - Predictions: those of every head by name, from one pass through the encoder.
    - Metrics and logs: they are those of the heads and of the update, which `compile` of Keras does not know.
    - Saving: Keras finds neither the heads' options, nor variables of a `tf.Module`, nor the options of `compile`; and it
      must know for which batches a trainer was built.
    """

    train_function: Any
    test_function: Any
    predict_function: Any
    head_weights: HeadWeights

    # ------------------------------------------------------------------------------------------- what it holds

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = initialized(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, encoder: Callable[[Nested], Nested], name: str | None) -> None:
        super().__init__(name=name, autocast=False)  # the modules cast their inputs, each by its own dtype policy
        # What Keras saves: the encoder, the methods, the weights of heads, and the heads' modules by the heads' names.
        self.encoder = encoder
        self.weighting: Weighting | None = None
        self.balancer: Balancer | None = None
        self.head_schedule: Schedule | None = None
        # The optimizer counts the updates itself; a second count of all of them would differ from its own where Keras
        # restores the weights of an earlier epoch.
        self.updates_before = add_state(self, "updates_before", (), dtype="int64")
        self._state = TrainerState()

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads by name, in the order in which they were added: values, with the current weights and scalings."""
        return MappingProxyType({head.name: head.value for head in self._state.setup.heads})

    @property
    def update_count(self) -> Tensor:
        """The number of updates applied so far, with this optimizer and those before it, an int64 scalar."""
        earlier = tf.identity(tensor_variable(self.updates_before).read_value())
        if self._state.setup.options is None:
            return earlier
        return earlier + tf.cast(tensor_variable(self.optimizer.iterations), tf.int64)

    @property
    def num_updates(self) -> int:
        """The number of updates applied so far, as a Python number; reading waits for the device."""
        with tf.init_scope():
            return int(self.distribute_strategy.experimental_local_results(self.update_count)[0].numpy())

    @property
    def weights(self) -> list[Variable]:
        """All weights, as in Keras: those of the encoder, the heads and the methods, but not the heads' loss weights.

        `get_weights` and `set_weights` have these. Loss weights, and the number of earlier updates, are saved beside them.
        """
        apart = {id(self.updates_before), *map(id, self.head_weights.by_head.values())}
        weights: list[Variable] = super().weights
        return [weight for weight in weights if id(weight) not in apart]

    @property
    def options(self) -> CompileOptions | None:
        """The checked arguments of `compile`; None before it, and after heads have changed."""
        return self._state.setup.options

    @property
    def update_spec(self) -> UpdateSpec | None:
        """How updates are computed; None before the first data."""
        return None if self._state.built is None else self._state.built.spec

    @property
    def log_metrics(self) -> LogMetrics | None:
        """The metrics behind the logs; None before the first data."""
        return None if self._state.built is None else self._state.built.logs

    @property
    def stage(self) -> int:
        """The number of the present period of training, from 0, if learning rates have `Stages`; otherwise 0.

        A `tf.function` of a custom training loop is traced for one period. Pass this number to it as a Python argument, so
        that it is traced again for the next.
        """
        if self.update_spec is None or len(self.update_spec.running.periods) == 1:
            return 0
        return self.update_spec.running.period_at(self.num_updates)

    # ------------------------------------------------------------------------------------------- steps

    def train_step(self, data: Dataset) -> dict[str, Tensor]:
        """One update, from one batch or from a window of batches; called by Keras."""
        state, plan = self._state, self._state.plan
        state.evaluates = False
        parts = batches_of_update(data, state.require_options("fit").gradient_accumulation_steps)
        batches = [unpacked(self, state, batch) for batch in parts]
        if state.phase == "fit" and plan.absent is None:  # nothing was known before the first batch
            for batch in batches:
                state.setup.without_targets(batch)
        built = state.require_built(trains=True)
        spec, logs = built.spec.under(plan, self.stage if plan.period is None else plan.period), built.logs
        update = clip(spec, compute_update(spec, batches, self.update_count, loss_scale(self.optimizer)))
        applied = apply_update(spec, self.optimizer, update, logs.count_batches(len(batches)))
        logs.update(update, applied)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Dataset) -> dict[str, Tensor]:
        """Adds one batch to the evaluation; called by Keras."""
        batch = unpacked(self, self._state, data)
        built = self._state.require_built()
        self._state.evaluates = True
        running, logs = built.spec.running, built.logs
        checks = running.check_labels and not self._state.plan.labels_are_checked
        spec = replace(built.spec, running=replace(running, check_labels=checks))
        logs.add_evaluated(**evaluate_batch(spec, batch, logs.weights.read_value()))
        return over_replicas(lambda: logs.evaluation_logs(list(batch.targets)))

    def make_train_function(self, force: bool = False) -> TrainFunction:
        """Makes the function that Keras calls per step."""
        if self.train_function is None or force:
            self._state.require_options("fit")
            self.train_function = TrainFunction(self, self._state, "train_function", super().make_train_function)
        function: TrainFunction = self.train_function
        return function

    def make_test_function(self, force: bool = False) -> StepFunction:
        """Makes the function that Keras calls per step of an evaluation."""
        if self.test_function is None or force:
            self.test_function = StepFunction(self, self._state, "test_function", super().make_test_function)
        function: StepFunction = self.test_function
        return function

    def make_predict_function(self, force: bool = False) -> Function:
        """Makes the function that Keras calls per step of `predict`."""
        if self.predict_function is None or force:
            super().make_predict_function(force)
            omit_retracing_warning(self.predict_function)
        function: Function = self.predict_function
        return function

    # ------------------------------------------------------------------------------------------- predictions

    def __call__(self, inputs: Nested, *args: object, **kwargs: object) -> Nested:
        """The predictions of `call`, for inputs in any form that `predict` accepts as arrays."""
        return super().__call__(as_arrays("inputs", inputs), *args, **kwargs)

    def call(self, inputs: Nested, training: bool | None = None) -> Nested:
        """Every head's predictions by head name; a head with teacher forcing generates.

        Args:
            inputs: The encoder's inputs.
            training: Whether the encoder runs in training mode; heads always run in inference mode.
        """
        heads = self._state.setup.heads
        check_known(heads, "predict")

        def predictions() -> dict[str, Tensor]:
            representation = call_encoder(self.encoder, inputs, training=bool(training))
            return {head.name: head.generate(representation) for head in heads}

        # As in an update, which runs outside of the trainer's own layer call.
        return InMode(predictions)((), training=training)

    @readable_errors()
    def predict(
        self,
        x: Dataset,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Callbacks = None,
        **kwargs: object,
    ) -> Nested:
        """Every head's predictions by name, as `keras.Model.predict` returns them; `x` are inputs, or batches of inputs."""
        check_known(self._state.setup.heads, "predict")
        return super().predict(x if gives_batches(x) else as_arrays("x", x), batch_size, verbose, steps, callbacks, **kwargs)

    @readable_errors()
    def predict_on_batch(self, x: Dataset) -> Nested:
        """Every head's predictions by name, for one batch."""
        return super().predict_on_batch(as_arrays("x", x))

    # ------------------------------------------------------------------------------------------- metrics and logs

    @property
    def metrics(self) -> list[Metric]:
        """All metrics: losses, values of updates, and those of the heads; Keras resets them in every epoch."""
        return [] if self.log_metrics is None else self.log_metrics.all

    @property
    def metrics_names(self) -> list[str]:
        """The names of the values that `evaluate` returns as a list, for data with targets for all heads."""
        return [] if self.log_metrics is None else self.log_metrics.names_in_order()

    def get_metrics_result(self) -> Logs:
        """The metrics so far, by their names in the logs: those of training, or, after an evaluation, of all heads in it."""
        logs = self.log_metrics
        if logs is None:
            return {}
        evaluates = not int(logs.batches) if tf.executing_eagerly() else self._state.evaluates
        if evaluates:
            return over_replicas(lambda: logs.evaluation_logs(self._state.setup.all_names))
        return over_replicas(logs.training_logs)

    def _latest_logs(self, logs: Logs) -> Logs:
        """The logs of a step, read again from the metrics, because Keras would add up those of several workers."""
        built = self._state.built
        if built is None or not isinstance(logs, dict):
            return logs
        metrics, network = built.logs, built.spec.network
        if self._state.phase == "fit":  # where no update was counted, a `train_step` of the user's own logs by itself
            read = metrics.training_logs(at_end=True) if int(tf.convert_to_tensor(metrics.batches)) else {}
        else:
            present = [head for head in network.heads if f"{head.name}_loss" in logs]
            present += [head for head in network.measured if any(f"{head.name}_{name}" in logs for name in head.results())]
            names = [head.name for head in present]
            read = metrics.evaluation_logs(names)
        latest: Config = {name: read.get(name, value) for name, value in logs.items()}
        # Numbers are Python's, as in the logs of Keras.
        return {name: as_python(value.numpy() if hasattr(value, "numpy") else value) for name, value in latest.items()}

    @contextmanager
    def _adding_losses(self) -> Iterator[None]:
        """A context in which losses are added to the trainer itself, after which steps are traced again."""
        self._state.refuse_in_fit("add_loss")
        yield
        self.train_function = self.test_function = None
        if self.log_metrics is not None:
            self.log_metrics.show_added()

    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Callable[[str], object] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Prints tables of what was configured: modules with their sizes, losses, weights, and the parts of an update.

        `print_fn` is called line by line. If any other argument is given, Keras's own summary follows.
        """
        print_summary(self, print if print_fn is None else print_fn)
        if expand_nested or show_trainable or any(option is not None for option in (positions, layer_range, line_length)):
            with modules_by_role(self):
                super().summary(
                    line_length=line_length,
                    positions=None if positions is None else list(positions),
                    print_fn=print_fn,
                    expand_nested=expand_nested,
                    show_trainable=show_trainable,
                    layer_range=layer_range,
                )

    # ------------------------------------------------------------------------------------------- saving

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: object) -> None:
        """Saves the trainer, with the optimizer's state, as a `.keras` file.

        `keras.models.load_model(filepath)` loads the whole trainer: its heads, the options of `compile`, weights, and
        the state of the optimizer, of methods and of dropout, so that `fit` goes on where it stopped. Import `multihead`
        before, and pass classes of your own that are not registered as `custom_objects`.

        Raises:
            ValueError: `filepath` does not end in `.keras`.
        """
        saving.check_filepath(filepath, kwargs)
        super().save(filepath, overwrite, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: object) -> None:
        """Saves the weights, and what else changes in training, as `keras.Model.save_weights` does."""
        build(self, self._state)
        super().save_weights(filepath, overwrite, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], skip_mismatch: bool = False, **kwargs: object) -> None:
        """Loads what `save_weights` saved, as `keras.Model.load_weights` does.

        While `fit` runs, the metrics of the epoch, which Keras saves and loads with the weights, go on as they are.

        Raises:
            ValueError: The trainer has seen no data, and a module, or the state of a balancer, does not exist yet; or the
                file is not of a trainer, or of one with other modules. Then nothing has changed.
        """
        build(self, self._state)
        built = self._state.built
        methods = [part for part in (self.weighting, self.balancer, self.head_schedule) if part is not None]
        for method in methods:
            method.build_for_heads()
        parts = [self.encoder, *(head.module for head in self._state.setup.heads), *filter(has_state, methods)]
        before = None if built is None or self._state.phase is None else metrics_of_epoch(self, built)
        with saving.whole_or_unchanged(filepath, parts, (self, getattr(self, "optimizer", None))) as is_built:
            if is_built:
                self.built = True
            super().load_weights(filepath, skip_mismatch, **kwargs)
        if before is not None:
            before.restore()

    def get_config(self) -> Config:
        """The constructor's arguments and the heads."""
        return saving.config_of(self.name, self.encoder, self._state.setup.heads)

    @classmethod
    def from_config(cls, config: Config, custom_objects: Config | None = None) -> Trainer:
        """Creates a trainer with its heads from the result of `get_config`."""
        return saving.from_saved_config(cls, config, custom_objects)

    def save_own_variables(self, store: dict[str, Tensor]) -> None:
        """Saves the trainer's own state, and the parts of its modules that Keras would not save."""
        super().save_own_variables(store)
        if self._state.phase is None:
            draw_from_variables(self)
        for name, variable in saving.not_saved_by_keras(self.encoder, self._state.setup.heads):
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: dict[str, Tensor]) -> None:
        """Loads what `save_own_variables` saved; a `ValueError` if the file is not of a trainer."""
        saving.check_of_trainer(store)
        super().load_own_variables({name: store[name] for name in store.keys() if name.isdigit()})  # noqa: SIM118
        if self._state.phase is None and saving.has_seeds(store):
            draw_from_variables(self)
        saving.load_beside_keras(store, self.encoder, self._state.setup.heads)
        load_as_arrays(self.metrics)  # Keras loads these next

    def get_build_config(self) -> Config:
        """The specs of the batches that the trainer was built for; heads that were added since are built first."""
        build(self, self._state)
        specs = self._state.shapes.specs
        return {"specs": encode_specs(None if specs is None else tuple(specs)), "run_eagerly": runs_eagerly(self)}

    def build_from_config(self, config: Config) -> None:
        """Creates all variables, from the result of `get_build_config`."""
        if config and config.get("specs") is not None:
            self.run_eagerly = config.get("run_eagerly", False)
            build(self, self._state, Batch(*decode_specs(config["specs"])))

    def get_compile_config(self) -> Config | None:
        """The arguments of `compile`; None if the trainer is not compiled."""
        options, serialize = self.options, keras.saving.serialize_keras_object
        if options is None:
            return None
        arguments = {key: serialize(value) for key, value in vars(options).items()}
        return {"optimizer": serialize(self.optimizer), **arguments, **options.for_keras()}

    def compile_from_config(self, config: Config) -> None:
        """Compiles with the result of `get_compile_config`; a built trainer also creates the optimizer's variables."""
        self.compile(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})
        build(self, self._state)
