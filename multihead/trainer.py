"""`MultiHeadTrainer`: several heads on one encoder, one weighted total loss, one optimizer, Keras's own loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from multihead import schedules
from multihead._build import build_spec
from multihead._export import export_head
from multihead._keras import (
    KerasHooks,
    Untracked,
    add_state,
    call_module,
    loss_scale,
    over_replicas,
    replace_layers,
    tensor_variable,
    unlock,
)
from multihead._options import CompileOptions, check_optimizer
from multihead._reads import decode_reads
from multihead._trace import trace_predictions
from multihead._update.apply import snapshot
from multihead._update.batch import Batch, as_tensors, decode_specs, encode_specs, open_batch_size, specs_of, unpack
from multihead._update.labels import count_labels, read_labels
from multihead._update.network import Gradients
from multihead._update.pipeline import apply_update, compute_update, observe
from multihead._update.spec import UpdateSpec
from multihead._update.weights import head_weights_at
from multihead._validation import check_choice, check_positive_whole, quoted
from multihead._windows import Windows, batches_of, named_arguments
from multihead.clipping import AbstractClipping
from multihead.diagnosis import Diagnosis, measure
from multihead.heads import Head, Weight
from multihead.telemetry import LogMetrics, with_report

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(KerasHooks, keras.Model):
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
        self.weighting: Any = None
        self.balancer: Any = None
        self.schedule: Any = None
        self._head_modules: dict[str, Any] = {}
        self._heads = Untracked([])
        self._options: CompileOptions | None = None
        # What data have shown: specs of a batch, what each built head predicts, the leaves of the representation.
        self._specs = Untracked(None)
        self._predictions = Untracked({})
        self._num_leaves = 0
        # Built from both; None before, and again after `add_head`, `drop_head` and `compile`.
        self._spec: UpdateSpec | None = None
        self._logs: LogMetrics | None = None
        self._wants_every_head = False

    # ------------------------------------------------------------------------------------------------ configuration

    @property
    def heads(self) -> dict[str, Head]:
        """The registered heads by name, in the order in which they were added."""
        return {head.name: head for head in self._heads.value}

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
        reads: Any = None,
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
            reads: Which part of the representation the module is given: None for all of it; a key or an index of a dict,
                tuple or list; a tuple of keys, a path into a nest: `reads=("states", 0)` is
                `representation["states"][0]`; a list of such, for a list of their parts.

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
            reads=reads,
        )
        if name in self.heads:
            raise ValueError(
                f"`name` must be new. Received: name={name!r}; the heads are {quoted(self.heads)}. Choose another name."
            )
        unlock(self)
        if isinstance(module, (keras.layers.Layer, tf.Module)):
            self._head_modules[name] = module
        self._heads.value.append(head)
        self._forget()

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
        self._heads.value = [head for head in self._heads.value if head.name != name]
        self._predictions.value.pop(name, None)
        if self._specs.value is not None:
            inputs, *by_head = self._specs.value
            self._specs.value = (inputs, *({key: each[key] for key in each if key != name} for each in by_head))
        self._forget()
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
        if not self._heads.value:
            raise ValueError("`compile` needs at least one head. Received: none. Call `add_head(name, module, loss)` first.")
        optimizer = check_optimizer(optimizer)
        checked = CompileOptions(
            weighting=weighting,
            balancer=balancer,
            balance_at=balance_at,
            balance_every=balance_every,
            schedule=schedule,
            clip=clip,
            micro_batches=micro_batches,
            accumulate_steps=accumulate_steps,
            telemetry=telemetry,
        ).checked(list(self.heads))
        unlock(self)
        options = {} if jit_compile is None else {"jit_compile": jit_compile}
        super().compile(
            optimizer=optimizer, run_eagerly=bool(run_eagerly), steps_per_execution=steps_per_execution, **options
        )
        replace_layers(
            self, weighting=checked.weighting, balancer=checked.balancer_to_use(), schedule=checked.schedule
        )
        self._forget()
        self._options = checked

    # ------------------------------------------------------------------------------------------- the Keras interface

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Every head's predictions by name; a head with teacher forcing generates.

        Args:
            inputs: What the encoder takes.
            training: Whether the encoder runs in training mode; heads that generate never do.
        """
        representation = call_module(self.encoder, inputs, training=bool(training))
        return {head.name: head.generate(representation) for head in self._heads.value}

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains; takes what `keras.Model.fit` takes.

        Raises:
            ValueError: A head has no targets in the data, or the data have targets for something that is no head.
        """
        options = self._assert_ready("fit")
        arguments = named_arguments(args, kwargs)
        self._build_for(x, y, arguments.get("sample_weight"), every_head=True)
        arguments = {"x": x, "y": y, **arguments}
        arguments["callbacks"] = with_report(lambda: self._logs, arguments.get("callbacks"))
        if options.accumulate_steps > 1:
            arguments = Windows(options.accumulate_steps, self.distribute_strategy).arguments_of_fit(arguments)
        with self._requiring_every_head():
            return super().fit(**arguments)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the heads that have targets in the data; takes what `keras.Model.evaluate` takes."""
        self._assert_ready("evaluate")
        self._build_for(x, y, kwargs.get("sample_weight"), every_head=False)
        return super().evaluate(x, y, *args, **kwargs)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One update, from one batch or from a window of them; Keras calls it."""
        batches = [self._unpack(batch) for batch in batches_of(data)]
        spec, logs = self._built()
        saved = snapshot(spec.state)
        update = compute_update(spec, batches, self._step(), loss_scale(self.optimizer))
        applied = apply_update(spec, self.optimizer, update.gradients, update.active, self.update_count, saved)
        observe(spec, update, applied)
        logs.update(update, applied, self.distribute_strategy.num_replicas_in_sync)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Adds one batch to the evaluation; Keras calls it."""
        batch = self._unpack(data)
        spec, logs = self._built()
        labels = read_labels(spec.network, spec.predictions, batch)
        representation = call_module(self.encoder, batch.inputs, training=False)
        sums = []
        for head, head_labels in zip(self._heads.value, labels):
            if head_labels is None:
                sums.append(tf.constant(0.0))
                continue
            predictions = head.predict(representation, head_labels.targets, training=False)
            sums.append(head.loss_sum(head_labels.targets, predictions, head_labels.weights))
            head.update_metrics(head_labels.targets, predictions, head_labels.weights)
        logs.update_losses(tf.stack(sums), count_labels(labels))
        step = self._step()
        weights = head_weights_at(self._heads.value, step)
        return over_replicas(lambda: logs.evaluation_logs(weights, list(batch.targets), step))

    @property
    def metrics(self) -> list[Any]:
        """All metrics of losses, norms and the heads' own; Keras resets them at every epoch."""
        return [] if self._logs is None else self._logs.all

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
        spec, _ = self._built()
        update = compute_update(spec, [prepared], self._step(), loss_scale(self.optimizer))
        gradients = update.gradients.all
        if tf.executing_eagerly():
            is_active = update.active.numpy()
            owners = spec.network.owners
            gradients = [gradient if is_active[of].any() else None for gradient, of in zip(gradients, owners)]
        return list(zip(gradients, spec.network.variables.all))

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
        if self._spec is None:
            raise ValueError(
                "`apply_gradients` needs a trainer whose variables exist. Received: a trainer that has seen no data. "
                "Call `compute_gradients(batch)` or `fit` first."
            )
        given = {id(tensor_variable(variable)): gradient for gradient, variable in grads_and_vars}
        known = [id(tensor_variable(variable)) for variable in self._spec.network.variables.all]
        if not set(given) <= set(known):
            raise ValueError(
                "`grads_and_vars` must hold the trainer's own trainable variables. Received: "
                f"{len(set(given) - set(known))} others. Pass the variables that `compute_gradients` gave."
            )
        gradients = Gradients.of([given.get(key) for key in known], self._spec.network.variables)
        everyone = tf.ones([len(self.heads)], tf.bool)
        return apply_update(self._spec, self.optimizer, gradients, everyone, self.update_count, [])

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
        spec, _ = self._built()
        of_metrics = [tensor_variable(variable) for metric in self.metrics for variable in metric.variables]
        before = snapshot([*spec.network.state, *of_metrics])
        try:
            return measure(spec, prepared, self._step(), loss_scale(self.optimizer))
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
            generate: From what the head reads of the representation to its output, to set how it is generated. None: as in
                `predict`, `module.generate(representation)` with teacher forcing, else `module(representation)`.
            postprocess: From the head's output to the exported model's: a tensor, which is named as the head, or a dict of
                tensors by name. None: the head's output itself.

        Raises:
            ValueError: There is no such head, it was not built yet, the path is a file, or what `preprocess` or
                `postprocess` gives cannot be used.
            TypeError: An argument is of the wrong kind.
        """
        check_choice("head", head, list(self.heads))
        if head not in self._predictions.value:
            raise ValueError(
                f"`head` must have variables to export. Received: head={head!r}, and no data since it was added. "
                "Call `compute_gradients(batch)` or `fit`, or load a saved trainer, first."
            )
        steps = {"preprocess": preprocess, "generate": generate, "postprocess": postprocess}
        export_head(path, self.encoder, self.heads[head], self._specs.value[0], inputs=inputs, **steps)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments and the heads."""
        return {
            "name": self.name,
            "encoder": keras.saving.serialize_keras_object(self.encoder),
            "heads": [head.get_config() for head in self._heads.value],
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> MultiHeadTrainer:
        """Makes a trainer with its heads out of what `get_config` gave."""
        restore = keras.saving.deserialize_keras_object
        trainer = cls(restore(config["encoder"], custom_objects=custom_objects), name=config["name"])
        for head in config["heads"]:
            arguments = {key: restore(value, custom_objects=custom_objects) for key, value in head.items()}
            trainer.add_head(**{**arguments, "reads": decode_reads(arguments.get("reads"))})
        return trainer

    def get_build_config(self) -> dict[str, Any]:
        """The specs of the batches that the trainer was built on."""
        return {"specs": encode_specs(self._specs.value)}

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates all variables for batches of the specs that `get_build_config` gave."""
        if config and config.get("specs") is not None:
            self._build(decode_specs(config["specs"]))

    def get_compile_config(self) -> dict[str, Any]:
        """The arguments of `compile`."""
        serialize = keras.saving.serialize_keras_object
        config = {} if self._options is None else self._options.by_name()
        return {"optimizer": serialize(self.optimizer), **{key: serialize(value) for key, value in config.items()}}

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with what `get_compile_config` gave, and creates the optimizer's variables if the trainer is built."""
        self.compile(**{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()})
        if self._specs.value is not None:
            self._build(self._specs.value)

    # ------------------------------------------------------------------------------------------- inner workings

    def _assert_ready(self, method: str) -> CompileOptions:
        if self._options is None:
            raise ValueError(
                f"`{method}` needs a compiled trainer. Received: a trainer that was not compiled since its last "
                "`add_head` or `drop_head`. Call `compile(optimizer, ...)` first."
            )
        return self._options

    def _built(self) -> tuple[UpdateSpec, LogMetrics]:
        if self._spec is None or self._logs is None:
            raise ValueError("The trainer has no variables. Received: no data yet. Show it a batch first.")
        return self._spec, self._logs

    def _forget(self) -> None:
        """Drops what depends on the heads and on `compile`; the heads' variables stay."""
        self._options, self._spec, self._logs = None, None, None

    def _step(self) -> tf.Tensor:
        """The number of updates applied so far, as it is now."""
        return tf.identity(tensor_variable(self.update_count).read_value())

    @contextmanager
    def _requiring_every_head(self) -> Iterator[None]:
        """Within, a batch must have targets for every head."""
        self._wants_every_head = True
        try:
            yield
        finally:
            self._wants_every_head = False

    def _check_every_head(self, targets: Mapping[str, Any]) -> None:
        absent = [name for name in self.heads if name not in targets]
        if self._wants_every_head and absent:
            raise ValueError(
                f"The targets must have a key for every head, but the head {quoted(absent)} has none in the data, so it "
                f"would never be trained. Received: targets for {quoted(targets)}; the heads are {quoted(self.heads)}. "
                "Correct the key, or add targets that are `ignore_label` or NaN where there is no label."
            )

    def _prepared(self, batch: Any) -> Batch:
        """A batch of a custom training loop, as tensors."""
        return self._unpack(as_tensors(tuple(part for part in batch if part is not None)))

    def _unpack(self, data: Any) -> Batch:
        """A batch with its keys checked; whatever is not built yet is built for it."""
        batch = unpack(data, list(self.heads))
        self._check_every_head(batch.targets)
        if self._lacks(batch.targets):
            specs = open_batch_size(tuple(batch))
            with tf.init_scope():
                self._build(specs)
        return batch

    def _lacks(self, targets: Mapping[str, Any]) -> bool:
        """Whether something that a batch with these targets needs is not built yet."""
        return self._spec is None or any(name not in self._predictions.value for name in targets)

    def _build_for(self, x: Any, y: Any, sample_weight: Any, *, every_head: bool) -> None:
        specs = specs_of(x, y, sample_weight)
        if specs is None:
            return  # only the first batch can tell
        with self._requiring_every_head() if every_head else nullcontext():
            batch = unpack(specs, list(self.heads))
            self._check_every_head(batch.targets)
        if self._lacks(batch.targets):
            self._build(open_batch_size(tuple(batch)))

    def _build(self, specs: Any) -> None:
        """Creates all variables of modules, metrics and, once compiled, methods and the optimizer, for a batch's specs."""
        unlock(self)
        batch, heads = Batch(*specs), self._heads.value
        with self.distribute_strategy.scope():
            traced = trace_predictions(self.encoder, heads, batch, self._predictions.value)
            self._specs.value, self._num_leaves = tuple(batch), traced.num_leaves
            for head in heads:
                if head.name in traced.predictions:
                    predictions, self._predictions.value[head.name] = traced.predictions[head.name]
                    if head.name in batch.targets:
                        head.build_metrics(batch.targets[head.name], predictions)
            if self._options is not None:
                self._spec = build_spec(
                    encoder=self.encoder,
                    heads=heads,
                    predictions=self._predictions.value,
                    num_leaves=self._num_leaves,
                    options=self._options,
                    balancer=self.balancer,
                    optimizer=self.optimizer,
                    ownership=None if self._spec is None else self._spec.ownership,
                )
                if self._logs is None:
                    self._logs = LogMetrics(self._spec, self._options.telemetry)
        self.built = True

    def _latest_logs(self, logs: Any) -> Any:
        """The figures that a step logged, read again from the metrics: several workers would otherwise be added up."""
        if self._logs is None or not isinstance(logs, dict):
            return logs
        results = self._logs.training_logs()
        if set(results) != set(logs):
            present, step = [name for name in self.heads if f"{name}_loss" in logs], self._step()
            results = self._logs.evaluation_logs(head_weights_at(self._heads.value, step), present, step)
        if set(results) != set(logs):
            return logs
        return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in results.items()}
