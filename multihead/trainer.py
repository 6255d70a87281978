"""`MultiHeadTrainer`: several heads on one encoder, one weighted total loss, one optimizer, Keras's own loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead import _data, schedules
from multihead._exporting import export_head
from multihead._keras import add_state, call_module, loss_scale, over_replicas, replace_layers, tensor_variable, unlock
from multihead._meeting import KeptCoefficients
from multihead._plan import Plan, Settings, check_optimizer
from multihead._step import compute_update, count, head_weights, label
from multihead._update import apply_once
from multihead._validation import check_choice, check_positive_whole, quoted
from multihead._windows import Windows, batches_of, named_arguments
from multihead.clipping import AbstractClipping
from multihead.diagnosis import Diagnosis, measure
from multihead.heads import Head, Weight
from multihead.telemetry import with_report

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(keras.Model):
    """Trains several heads on one shared encoder with one weighted total loss and one optimizer.

    The update is the gradient of `sum_k weight_k * (sum_i s_ki * loss_ki) / (sum_i s_ki)`, `k` over heads, `i` over
    elements (examples, tokens), `s` being sample weights and masks, 0 where there is no label. A balancer rescales what
    the heads send back into the encoder; the heads' own variables are trained by the plain gradient.

    `fit`, `evaluate`, `predict`, callbacks and saving are Keras's own.

    Args:
        encoder: A Keras layer or model, `inputs -> representation`: a tensor or any nest of tensors. Heads receive it
            with its floating leaves detached; integer and boolean leaves (masks, lengths) pass through.
        name: Name of the model.

    A batch is `(inputs, targets)` or `(inputs, targets, sample_weights)`; `targets` and `sample_weights` are dicts by
    head name. A head whose key is absent has no labels in that batch; an example labelled `ignore_label`, or NaN, or
    with a sample weight of 0, has none. A head without any label in an update stays bit for bit as it is.

    Raises:
        TypeError: `encoder` is not callable.

    Example:
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(8, activation="tanh"))
        >>> trainer.add_head("price", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
        >>> trainer.add_head("size", keras.layers.Dense(1), "mse", weight=0.5)
        >>> trainer.compile("adam")
    """

    def __init__(self, encoder: Callable[[Any], Any], *, name: str | None = None) -> None:
        super().__init__(name=name)
        if not callable(encoder):
            raise TypeError(
                f"`encoder` must be a Keras layer or model. Received: encoder={encoder!r}. "
                "Pass what turns the inputs into the representation that the heads read."
            )
        self.encoder = encoder
        self.update_count = add_state(self, "update_count", (), dtype="int64")
        self._head_modules: dict[str, Any] = {}
        self._plan = Plan()

    # ------------------------------------------------------------------------------------------------ configuration

    @property
    def heads(self) -> dict[str, Head]:
        """The registered heads by name, in the order in which they were added."""
        return {head.name: head for head in self._plan.heads}

    def add_head(
        self,
        name: str,
        module: Callable[..., Any],
        loss: Any,
        *,
        weight: Weight = 1.0,
        metrics: Sequence[Any] = (),
        teacher_forcing: bool = False,
        ignore_label: int | None = None,
    ) -> None:
        """Registers a head. After it, `compile` must be called (again).

        Args:
            name: The key of the head's targets, sample weights and logs.
            module: Called `module(representation)`, or, with `teacher_forcing`, `module(representation, targets)` in
                training and evaluation and `module.generate(representation)` in prediction.
            loss: A Keras loss (name, `Loss` or function of one value per element); see `multihead.losses`.
            weight: How much the head's loss counts: a number of at least 0, or a function of the count of updates (an
                int64 scalar) that gives one. At 0 the head is idle.
            metrics: Keras metrics or their names; logged as `{name}_{metric}`, over labelled elements.
            teacher_forcing: Whether the module reads its targets.
            ignore_label: The label of an element that has none; NaN always is one.

        Raises:
            ValueError: There is a head of that name, or an argument is out of its range.
            TypeError: An argument is of the wrong kind.
        """
        head = Head(
            name,
            module,
            loss,
            weight=weight,
            metrics=metrics,
            teacher_forcing=teacher_forcing,
            ignore_label=ignore_label,
        )
        if name in self.heads:
            raise ValueError(
                f"`name` must be new. Received: name={name!r}; the heads are {quoted(self.heads)}. Choose another name."
            )
        unlock(self)
        if isinstance(module, (keras.layers.Layer, tf.Module)):
            self._head_modules[name] = module
        self._plan.add(head)

    def drop_head(self, name: str) -> None:
        """Takes a head away. After it, `compile` must be called again, unless no head is left.

        The encoder and the other heads keep every weight; the dropped module keeps its own.

        Args:
            name: A head's name; it is free again afterwards.

        Raises:
            ValueError: There is no head of that name.
        """
        check_choice("name", name, list(self.heads))
        unlock(self)
        self._plan.drop(name)
        self._head_modules.pop(name, None)
        self._head_modules = dict(self._head_modules)  # Keras follows what an attribute is set to, not what it loses
        self.predict_function = None  # it answers for the dropped head, too

    def compile(
        self,
        optimizer: Any = "rmsprop",
        *,
        weighting: Any = None,
        balancer: Any = None,
        balance_at: str = "representation",
        balance_every: int = 1,
        schedule: schedules.AbstractSchedule | None = None,
        clip: AbstractClipping | None = None,
        micro_batches: int = 1,
        accumulate_steps: int = 1,
        telemetry: str = "norms",
        run_eagerly: bool | None = None,
        steps_per_execution: int = 1,
        jit_compile: bool | str | None = None,
    ) -> None:
        """Says how updates are made.

        Args:
            optimizer: A Keras optimizer or its name. It must not clip or accumulate itself.
            weighting: Makes one total of the heads' losses: a `multihead.weighting.Weighting` or its name; None is their
                sum, each times its head's own `weight`. What it learns is trained by the same optimizer, not clipped. One
                that reads the losses of the update itself costs one encoder backward pass per head with several slices.
            balancer: Rescales the heads' gradients where they meet: a `multihead.balancing.Balancer` or its name; None
                is the plain sum.
            balance_at: `"representation"`: by the gradients at the cut, with one backward pass through the encoder;
                `"parameters"`: by the gradients of the encoder's parameters, with one pass per head.
            balance_every: The balancer is asked at every `balance_every`-th update; between, its coefficients are used
                again.
            schedule: Which heads train at which update (`multihead.schedules`); None is all of them.
            clip: Limits the final gradient, once per update (`multihead.clipping`); None leaves it.
            micro_batches: Cuts each batch into that many slices, processed one after the other, to bound memory; the
                update is the whole batch's. With a balancer, each slice costs one encoder backward pass per head.
            accumulate_steps: Makes one update, and one step of Keras, of that many successive batches of whatever shapes;
                a shorter last window is an update, too. The update is that of all their examples in one batch.
            telemetry: `"norms"` logs per-head gradient norm, share and coefficient; `"losses"` leaves them out.
            run_eagerly: As in Keras.
            steps_per_execution: As in Keras.
            jit_compile: As in Keras; None is Keras's own default.

        Raises:
            ValueError: There is no head yet, an option is out of its range or names an unknown method or head, or the
                optimizer is set to clip or to accumulate.
            TypeError: An option is of the wrong kind.
        """
        if not self._plan.heads:
            raise ValueError("`compile` needs at least one head. Received: none. Call `add_head(name, module, loss)` first.")
        names = list(self.heads)
        optimizer = check_optimizer(optimizer)
        settings = Settings.checked(
            names,
            weighting,
            balancer,
            balance_at,
            balance_every,
            schedule,
            clip,
            micro_batches,
            accumulate_steps,
            telemetry,
        )
        unlock(self)
        options = {} if jit_compile is None else {"jit_compile": jit_compile}
        super().compile(
            optimizer=optimizer, run_eagerly=bool(run_eagerly), steps_per_execution=steps_per_execution, **options
        )
        with self.distribute_strategy.scope():
            reuses = settings.balancer is not None and settings.balance_every > 1
            kept = KeptCoefficients(len(names), settings.balance_every) if reuses else None
        parts = {"weighting": settings.weighting, "balancer": settings.balancer, "schedule": settings.schedule}
        replace_layers(self, **parts, kept_coefficients=kept)
        self._plan.configure(settings)

    # ------------------------------------------------------------------------------------------- the Keras interface

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Every head's predictions by name; a head with teacher forcing generates.

        Args:
            inputs: What the encoder takes.
            training: Whether the encoder runs in training mode; heads that generate never do.
        """
        representation = call_module(self.encoder, inputs, training=bool(training))
        return {head.name: head.generate(representation) for head in self._plan.heads}

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; takes what `keras.Model.fit` takes.

        Raises:
            ValueError: A head has no targets in the data, or the data have targets for something that is no head.
        """
        self._assert_ready("fit")
        arguments = named_arguments(args, kwargs)
        self._build_for(x, y, arguments.get("sample_weight"), every_head=True)
        arguments = {"x": x, "y": y, **arguments}
        arguments["callbacks"] = with_report(self._plan, arguments.get("callbacks"))
        if self._plan.settings.accumulate_steps > 1:
            windows = Windows(self._plan.settings.accumulate_steps, self.distribute_strategy)
            arguments = windows.arguments_of_fit(arguments)
        with self._plan.requiring_every_head():
            return super().fit(**arguments)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the heads that have targets in the data; takes what `keras.Model.evaluate` takes."""
        self._assert_ready("evaluate")
        self._build_for(x, y, kwargs.get("sample_weight"), every_head=False)
        return super().evaluate(x, y, *args, **kwargs)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One update, from one batch or from a window of them; Keras calls it."""
        batches = [self._unpack(batch) for batch in batches_of(data)]
        for batch in batches:
            self._plan.check_every_head(batch.targets)
        recipe, trackers = self._plan.recipe, self._plan.trackers
        state = [tensor_variable(variable) for variable in getattr(self.balancer, "variables", [])]
        state += [tensor_variable(variable) for variable in getattr(self.weighting, "non_trainable_variables", [])]
        state += [] if recipe.kept is None else recipe.kept.state
        saved = [(variable, tf.identity(variable.read_value())) for variable in state]
        computed = compute_update(recipe, batches, tensor_variable(self.update_count), loss_scale(self.optimizer))
        made = self._apply(computed.update.gradients, computed.update.active, saved)
        if computed.after is not None:
            computed.after(made)
        if self.schedule.reads_gramian:
            self.schedule.observe(computed.update.at_cut, made)
        trackers.update(computed, made, self.distribute_strategy.num_replicas_in_sync)
        return over_replicas(trackers.training_logs)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Adds one batch to the evaluation; Keras calls it."""
        batch = self._unpack(data)
        recipe, trackers = self._plan.recipe, self._plan.trackers
        labels = label(recipe, batch)
        representation = call_module(self.encoder, batch.inputs, training=False)
        sums = []
        for head, head_labels in zip(self._plan.heads, labels):
            if head_labels is None:
                sums.append(tf.constant(0.0))
                continue
            predictions = head.predict(representation, head_labels.targets, training=False)
            sums.append(head.loss_sum(head_labels.targets, predictions, head_labels.weights))
            head.update_metrics(head_labels.targets, predictions, head_labels.weights)
        trackers.update_losses(tf.stack(sums), count(labels))
        weights = head_weights(recipe, tensor_variable(self.update_count))
        updates = tensor_variable(self.update_count)
        return over_replicas(lambda: trackers.evaluation_logs(weights, list(batch.targets), updates))

    @property
    def metrics(self) -> list[Any]:
        """All trackers of losses, norms and the heads' metrics; Keras resets them at every epoch."""
        return [] if self._plan.trackers is None else self._plan.trackers.all

    # ------------------------------------------------------------------------------------------- a step, by hand

    def compute_gradients(self, batch: Any) -> list[tuple[Any, Any]]:
        """The first half of a step: the balanced, unclipped gradient of the total loss on a batch.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors.

        Returns:
            Pairs of gradient and variable, for every trainable variable: dense tensors or `tf.IndexedSlices`, without
            loss scaling; None where nothing reaches the variable, in particular for the variables of an idle head (in
            a graph, where it is not known yet which heads are idle, zeros).

        Raises:
            ValueError: The batch has targets for something that is no head.
        """
        self._assert_ready("compute_gradients")
        prepared = self._prepared(batch)
        recipe = self._plan.recipe
        update = compute_update(recipe, [prepared], tensor_variable(self.update_count), loss_scale(self.optimizer)).update
        gradients = list(update.gradients)
        if tf.executing_eagerly():
            for i in range(len(gradients)):
                if not any(bool(update.active[k]) for k in recipe.network.owners(i)):
                    gradients[i] = None
        return list(zip(gradients, recipe.network.variables))

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> tf.Tensor:
        """The second half of a step: clips and applies gradients, as one update.

        Args:
            grads_and_vars: Pairs of gradient and variable, as `compute_gradients` gives them; a variable with None, or
                left out, stays as it is, and so do its optimizer slots.

        Returns:
            Whether the update was made: False if a gradient is not finite, or there is none.

        Raises:
            ValueError: Nothing was built yet, or a variable is not one of the trainer's.
        """
        self._assert_ready("apply_gradients")
        if self._plan.recipe is None:
            raise ValueError(
                "`apply_gradients` needs a trainer whose variables exist. Received: a trainer that has seen no data. "
                "Call `compute_gradients(batch)` or `fit` first."
            )
        given = {id(tensor_variable(variable)): gradient for gradient, variable in grads_and_vars}
        known = [id(tensor_variable(variable)) for variable in self._plan.recipe.network.variables]
        if not set(given) <= set(known):
            raise ValueError(
                "`grads_and_vars` must hold the trainer's own trainable variables. Received: "
                f"{len(set(given) - set(known))} others. Pass the variables that `compute_gradients` gave."
            )
        everything = tf.ones([len(self._plan.heads)], tf.bool)
        return self._apply([given.get(key) for key in known], everything, [])

    def diagnose(self, dataset: Any, batches: int = 32) -> Diagnosis:
        """Measures, without training, what each head does to the encoder, and says what to do.

        Norms, shares and cosines of the heads' gradients are taken at the representation and at the parameters, in training
        mode, batch by batch, of all heads whatever the schedule, before balancing; variables and metrics are left as they
        were.

        Args:
            dataset: A `tf.data.Dataset`, or any iterable, of batches as for `fit`.
            batches: How many of them to measure, from the first on.

        Returns:
            The figures and findings; `print` it.

        Raises:
            ValueError: There is no batch, or `batches` is below 1.
            TypeError: `dataset` holds no batches.
        """
        self._assert_ready("diagnose")
        limit = check_positive_whole("batches", batches)
        if not isinstance(dataset, Iterable) or isinstance(dataset, tuple):
            raise TypeError(
                f"`dataset` must be a data set, or a list, of batches. Received: {type(dataset).__name__}. "
                "Pass what `fit` takes as a data set, or a list with one (inputs, targets) in it."
            )
        prepared = [self._prepared(batch) for batch in itertools.islice(iter(dataset), limit)]
        if not prepared:
            raise ValueError("`dataset` must hold at least one batch. Received: none. Pass the batches that `fit` takes.")
        recipe, updates, scale = self._plan.recipe, tensor_variable(self.update_count), loss_scale(self.optimizer)
        state = [*recipe.network.state, *(tensor_variable(v) for metric in self.metrics for v in metric.variables)]
        before = [(variable, tf.identity(variable.read_value())) for variable in state]
        try:
            return measure(recipe, self._plan.settings.clip, prepared, updates, scale)
        finally:
            for variable, value in before:
                variable.assign(value)

    # ------------------------------------------------------------------------------------------- saving

    def export(
        self,
        head: str,
        path: str | os.PathLike[str],
        *,
        preprocess: Callable[[Any], Any] | None = None,
        inputs: Any = None,
        generate: Callable[[Any], Any] | None = None,
        postprocess: Callable[[Any], Any] | None = None,
    ) -> None:
        """Writes the encoder and one head as a TensorFlow SavedModel that needs neither this library nor Keras to run.

        It answers in inference mode, by the signature `serving_default`: `tf.saved_model.load(path)
        .signatures["serving_default"](inputs=...)` gives a dict of tensors. Variables and lookup tables go with it; it
        runs on a CPU wherever it was written. The trainer stays as it is.

        Args:
            head: The head's name.
            path: A folder; an older export in it is replaced.
            preprocess: From what the exported model takes to the encoder's inputs, in TensorFlow operations: a function or
                a layer, say, one that turns texts into ids. None: the encoder's inputs are taken themselves.
            inputs: The `tf.TensorSpec` of what the exported model takes, or a nest of them; a spec's name becomes the
                argument's. None: the encoder's inputs, or with `preprocess` strings, `tf.TensorSpec([None], tf.string)`.
                The argument is then named `inputs`, or by its key if they are a dict.
            generate: From the representation to the head's output, to set how it is generated. None: as in `predict`,
                `module.generate(representation)` with teacher forcing, else `module(representation)`.
            postprocess: From the head's output to the exported model's: a tensor, which is named as the head, or a dict of
                tensors by name. None: the head's output itself.

        Raises:
            ValueError: There is no such head, it was not built yet, the path is a file, or what `preprocess` or
                `postprocess` gives cannot be used.
            TypeError: An argument is of the wrong kind.
        """
        check_choice("head", head, list(self.heads))
        if not self._plan.is_built_for(head):
            raise ValueError(
                f"`head` must have variables to export. Received: head={head!r}, and no data since it was added. "
                "Call `compute_gradients(batch)` or `fit`, or load a saved trainer, first."
            )
        steps = {"preprocess": preprocess, "generate": generate, "postprocess": postprocess}
        export_head(path, self.encoder, self.heads[head], self._plan.specs[0], inputs=inputs, **steps)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments and the heads."""
        return {
            "name": self.name,
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "heads": [head.get_config() for head in self._plan.heads],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> MultiHeadTrainer:
        """Makes a trainer with its heads out of what `get_config` gave."""
        restore = keras.saving.deserialize_keras_object
        trainer = cls(restore(config["encoder"], custom_objects=custom_objects), name=config["name"])
        for head in config["heads"]:
            trainer.add_head(**{key: restore(value, custom_objects=custom_objects) for key, value in head.items()})
        return trainer

    def get_build_config(self) -> dict[str, Any]:
        """The specs of the batches that the trainer was built on."""
        return {"specs": _data.encode_specs(self._plan.specs)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates all variables for batches of the specs that `get_build_config` gave."""
        if config and config.get("specs") is not None:
            self._build(_data.decode_specs(config["specs"]))

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`."""
        serialize = keras.saving.serialize_keras_object
        config = self._plan.get_config()
        return {"optimizer": serialize(self.optimizer), **{key: serialize(value) for key, value in config.items()}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` gave, and creates the optimizer's variables if the trainer is built."""
        self.compile(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})
        if self._plan.specs is not None:
            self._build(self._plan.specs)

    # ------------------------------------------------------------------------------------------- inner workings

    def _assert_ready(self, method: str) -> None:
        if not self._plan.is_configured:
            raise ValueError(
                f"`{method}` needs a compiled trainer. Received: a trainer that was not compiled since its last "
                "`add_head` or `drop_head`. Call `compile(optimizer, ...)` first."
            )

    def _prepared(self, batch: Any) -> _data.Batch:
        """A batch given by hand, as tensors."""
        return self._unpack(_data.as_tensors(tuple(part for part in batch if part is not None)))

    def _unpack(self, data: Any) -> _data.Batch:
        """A batch with its keys checked; whatever is not built yet is built for it."""
        batch = _data.unpack(data, list(self.heads))
        if self._plan.lacks(batch.targets):
            specs = _data.open_batch_size(tuple(batch))
            with tf.init_scope():
                self._build(specs)
        return batch

    def _build_for(self, x: Any, y: Any, sample_weight: Any, *, every_head: bool) -> None:
        specs = _data.specs_of(x, y, sample_weight)
        if specs is None:
            return  # only the first batch can tell
        batch = _data.unpack(specs, list(self.heads))
        if every_head:
            with self._plan.requiring_every_head():
                self._plan.check_every_head(batch.targets)
        if self._plan.lacks(batch.targets):
            self._build(_data.open_batch_size(tuple(batch)))

    def _build(self, specs: Any) -> None:
        unlock(self)
        with self.distribute_strategy.scope():
            configured = self._plan.is_configured
            self._plan.build(
                self.encoder,
                self.optimizer if configured else None,
                specs,
                self.kept_coefficients if configured else None,
            )
        self.built = True

    def _latest(self, logs: Any) -> Any:
        """The figures that a step logged, read anew from the metrics: several workers would otherwise be added up."""
        trackers = self._plan.trackers
        if trackers is None or not isinstance(logs, dict):
            return logs
        results = trackers.training_logs()
        if set(results) != set(logs):
            present = [name for name in self.heads if f"{name}_loss" in logs]
            updates = tensor_variable(self.update_count)
            results = trackers.evaluation_logs(head_weights(self._plan.recipe, updates), present, updates)
        if set(results) != set(logs):
            return logs
        return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in results.items()}

    def _validate_and_get_metrics_result(self, logs: Any) -> Any:
        """Keras 2's hook at the end of an epoch."""
        return self._latest(logs)

    def _get_metrics_result_or_logs(self, logs: Any) -> Any:
        """Keras 3's hook at the end of an epoch."""
        return self._latest(logs)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Keeps Keras 3 from building under a strategy: it would add up batches of unequal size; `fit` has built."""

    def _apply(self, gradients: Sequence[Any], active: tf.Tensor, saved: Sequence[Any]) -> tf.Tensor:
        plan = self._plan
        variables, num_clipped = plan.recipe.network.variables, plan.recipe.network.num_trained_by_losses
        if plan.settings.clip is not None:
            gradients = [*plan.settings.clip(gradients[:num_clipped]), *gradients[num_clipped:]]
        return apply_once(self.optimizer, variables, gradients, active, plan.ownership, self.update_count, saved)
