"""`MultiHeadTrainer`: several heads on one encoder, with one total loss, one optimizer and Keras's own training loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead import schedules
from multihead._custom_loop import ComputedGradients, to_apply
from multihead._data.arguments import (
    as_validation_data,
    named_arguments,
    prepare_evaluate,
    prepare_fit,
    prepare_windows,
    read_batches,
    read_inputs,
)
from multihead._data.arrays import read_arrays
from multihead._data.windows import Windows, batches_of
from multihead._export import export_heads, heads_to_export
from multihead._keras import (
    HEAD,
    call_module,
    functions_run_eagerly,
    over_replicas,
    remove_layer,
    replace_layers,
    tensor_variable,
    unlock,
)
from multihead._keras_optimizers import loss_scale
from multihead._metrics import check_apart
from multihead._options import (
    CompileOptions,
    check_optimizer,
    check_weight_decay,
    refuse_options_of_heads,
    warn_of_idle_weights,
)
from multihead._progress import with_progress
from multihead._resuming import as_seeded_dataset, begin, checkpoint_of, interruptible
from multihead._saving import SavedByKeras
from multihead._stopping import errors_in_words
from multihead._summary import print_summary
from multihead._update.apply import snapshot
from multihead._update.drop import compute_or_drop
from multihead._update.labels import count_labels, read_labels
from multihead._update.pipeline import apply_update, clip, observe
from multihead._update.weights import head_weights_at
from multihead._validation import check_choice, check_positive_whole, quoted
from multihead.clipping import AbstractClipping
from multihead.diagnosis import Diagnosis, diagnose
from multihead.heads import Head, Weight, check_weight
from multihead.telemetry import with_report

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(SavedByKeras):
    """Trains several heads on one shared encoder with one total loss and one optimizer.

    A head is a Keras layer or model that reads the encoder's representation and is trained on a loss of its own. The update
    is the gradient of `sum_k weight_k * (sum_i s_ki * loss_ki) / (sum_i s_ki)`, over heads `k` and elements `i` (examples,
    tokens), where `s` are sample weights and masks, 0 for missing labels. A weighting changes how much each loss counts, and
    a balancer how the heads' encoder gradients are combined; the heads' own variables are trained by the plain gradient.

    `fit`, `evaluate`, `predict`, callbacks and saving are Keras's own.

    Args:
        encoder: A Keras layer or model, `inputs -> representation`. The representation is a tensor or any nest of tensors.
            Heads receive it with its floating-point leaves detached; integer and boolean leaves (masks, lengths) pass
            through.
        name: Name of the model.

    A batch is `(inputs, targets)` or `(inputs, targets, sample_weights)`; `targets` and `sample_weights` are dicts by
    head name. A head without a key has no labels in the batch; a label is also missing if it is `ignore_label` or NaN, or
    if its sample weight is 0. A head without labels in an update is idle and does not change.

    Raises:
        TypeError: `encoder` is not callable.

    Example:
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(8, activation="tanh"))
        >>> trainer.add_head("price", keras.layers.Dense(3, activation="softmax"), "sparse_categorical_crossentropy")
        >>> trainer.add_head("size", keras.layers.Dense(1), "mse", weight=0.5)
        >>> trainer.compile("adam")
    """

    def __init__(self, encoder: Callable[[Any], Any], *, name: str | None = None) -> None:
        if not callable(encoder):
            raise TypeError(
                f"`encoder` must be a Keras layer or model. Received: encoder={encoder!r}. "
                "Pass a layer or model that converts the inputs to the representation."
            )
        super().__init__(encoder, name=name)

    # ------------------------------------------------------------------------------------------------ configuration

    def add_head(
        self,
        name: str,
        module: Callable[..., Any],
        loss: Any,
        *,
        weight: Weight = 1.0,
        metrics: Sequence[Any] = (),
        teacher_forcing: bool = False,
        ignore_label: float | None = None,
        class_weight: Mapping[int, float] | None = None,
        reads: Any = None,
        learning_rate: Any = 1.0,
        weight_decay: Any = 1.0,
    ) -> None:
        """Adds a head. Afterwards, `compile` must be called (again).

        Args:
            name: The key of the head's targets, sample weights and logs.
            module: Called as `module(representation)` or, with `teacher_forcing`, as `module(representation, targets)` in
                training and evaluation and `module.generate(representation)` in prediction.
            loss: A Keras loss: a name, a `Loss`, or a function that returns one value per element; see `multihead.losses`.
            weight: How much the head's loss counts: a number of at least 0, or a function of the step (an int64 scalar)
                that returns one. With a weight of 0 the head is idle.
            metrics: Keras metrics or their names; computed over labelled elements and logged as `{name}_{metric}`.
            teacher_forcing: Whether the module reads its targets.
            ignore_label: The label of elements whose label is missing; NaN always means missing.
            class_weight: Weights of the labels by class number, in training and evaluation; 1 for a class without one.
                `multihead.class_weights(labels)` balances the classes. Metrics are not weighted by class.
            reads: The part of the representation that is passed to the module. None: all of it; a key or index of a dict,
                tuple or list: that entry; a tuple of keys: a path into a nest, so that `reads=("states", 0)` passes
                `representation["states"][0]`; a list of these: a list of the parts.
            learning_rate: The factor of every step that is applied to the module's variables, weight decay included. A
                number, of which 0 freezes the module; a function of the step; `LayerwiseDecay`, `ByPath` or `Stages`. The
                encoder's variables have the factor of `compile(encoder_learning_rate=)` even if the module contains them;
                variables that several heads share have the largest of their factors.
            weight_decay: The factor of the optimizer's `weight_decay` for the module's variables, in the same forms.

        Raises:
            ValueError: There is already a head with this name, an argument is out of range, or two figures of the heads
                would have the same name in the logs.
            TypeError: An argument has the wrong type.
        """
        self._refuse_in_fit("add_head")
        head = Head(
            name,
            module,
            loss,
            weight=weight,
            metrics=metrics,
            teacher_forcing=teacher_forcing,
            ignore_label=ignore_label,
            class_weight=class_weight,
            reads=reads,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
        )
        if name in self.heads:
            raise ValueError(
                f"`name` must be new. Received: name={name!r}; the heads are {quoted(self.heads)}. Choose another name."
            )
        check_apart([(each.name, each.metric_specs) for each in (*self._heads.value, head)])
        unlock(self)
        if isinstance(module, (keras.layers.Layer, tf.Module)):
            setattr(self, HEAD + name, module)
        self._heads.value.append(head)
        self._keep_weights()
        self._forget()

    def drop_head(self, name: str) -> None:
        """Removes a head. Afterwards, `compile` must be called again, unless no head is left.

        The encoder, the other heads and the removed module keep their weights.

        Args:
            name: The head's name; it can be used again afterwards.

        Raises:
            ValueError: There is no head with this name.
        """
        self._refuse_in_fit("drop_head")
        check_choice("name", name, list(self.heads))
        unlock(self)
        self._heads.value = [head for head in self._heads.value if head.name != name]
        self._predictions.value.pop(name, None)
        if self._specs.value is not None:
            inputs, *by_head = self._specs.value
            self._specs.value = (inputs, *({key: each[key] for key in each if key != name} for each in by_head))
        self._keep_weights()
        self._forget()
        remove_layer(self, HEAD + name)
        self.predict_function = None  # the compiled function still includes the removed head

    def set_weight(self, name: str, value: float) -> None:
        """Sets how much a head's loss counts from the next update on, for example in a callback.

        Nothing is compiled or traced again. The weight is saved and loaded with the trainer.

        Args:
            name: The head's name.
            value: A number of at least 0; with 0 the head is idle.

        Raises:
            ValueError: There is no such head, its weight is a function of the step, or `value` is negative or not finite.
        """
        check_choice("name", name, list(self.heads))
        if self.heads[name].has_weight_function:
            raise ValueError(
                f"`name` must be a head whose weight is a number. Received: name={name!r}, whose weight is a function of "
                "the step. Add the head with `weight=1.0`, and set its weight from then on."
            )
        if callable(value):
            raise ValueError(f"`value` must be a number. Received: value={value!r}. Pass a function to `add_head(weight=)`.")
        self.head_weights.variable(name).assign(check_weight(value))

    def compile(
        self,
        optimizer: Any = "rmsprop",
        *others: Any,
        weighting: Any = None,
        balancer: Any = None,
        balance_at: str = "representation",
        balance_every: int = 1,
        schedule: schedules.AbstractSchedule | None = None,
        clip: AbstractClipping | None = None,
        micro_batches: int = 1,
        accumulate_steps: int = 1,
        encoder_learning_rate: Any = 1.0,
        encoder_weight_decay: Any = 1.0,
        telemetry: str | None = "norms",
        layers_every: int = 100,
        on_nonfinite: str = "skip",
        max_skipped_updates: int | None = 25,
        check_labels: bool = True,
        run_eagerly: bool | None = None,
        steps_per_execution: int = 1,
        jit_compile: bool | str | None = None,
        **options_of_heads: Any,
    ) -> None:
        """Configures training. Losses and metrics belong to the heads: see `add_head`.

        Args:
            optimizer: A Keras optimizer or its name. It must not clip or accumulate gradients itself.
            *others: Not accepted: the other arguments are passed by name.
            weighting: Combines the heads' losses into one total loss: a `multihead.weighting.Weighting` or its name; None
                is the sum of the losses times the `weight` of each head. The weighting's variables are trained by the same
                optimizer, without clipping. With several micro-batches, a weighting that depends on the losses of the same
                update costs one encoder backward pass per head.
            balancer: Combines the heads' encoder gradients into one gradient: a `multihead.balancing.Balancer` or its
                name; None is the plain sum.
            balance_at: `"representation"` balances representation gradients, with one backward pass through the encoder;
                `"parameters"` balances the gradients of the encoder's parameters, with one backward pass per head.
            balance_every: The balancer's coefficients are recomputed at every `balance_every`-th update and reused in
                between.
            schedule: Decides which heads train at a step (`multihead.schedules`); None trains all heads.
            clip: Limits the final gradients, once per update (`multihead.clipping`); None does not.
            micro_batches: Splits each batch into this many micro-batches, processed one after another to save memory; the
                update is that of the whole batch. With a balancer, each micro-batch costs one encoder backward pass per
                head.
            accumulate_steps: Computes one update, and one step of Keras, from this many consecutive batches of any shapes;
                a shorter last window of an epoch is also an update. The update is that of all their examples in one batch.
            encoder_learning_rate: The factor of every step that is applied to the encoder's variables, weight decay
                included. A number, of which 0 freezes the encoder; a function of the step; `LayerwiseDecay`, `ByPath` or
                `Stages`.
            encoder_weight_decay: The factor of the optimizer's `weight_decay` for the encoder's variables, in the same
                forms.
            telemetry: `"norms"` logs gradient norm, share and coefficient per head; `"full"` also cosines between heads and
                with the update, norms of the update before and after clipping, and running averages; None logs losses.
            layers_every: With `telemetry="full"`, the same figures are measured in each layer of the encoder in every so
                many updates, for `callbacks.Ledger`; such an update costs one encoder backward pass per head.
            on_nonfinite: What happens to an update with an infinite or NaN loss or gradient. `"skip"`: it is not applied,
                and counts as a skipped update; `"raise"`: it is not applied, and training ends with an error; `"drop_head"`:
                the heads that it comes from sit out this update, as if they had no labels in it (skipped if none is left).
                An epoch's warning, and the errors, name the head, the variable, the update and the batch. An update that
                loss scaling skips to lower its scale is none of these.
            max_skipped_updates: The number of updates skipped in a row for this reason at which training ends with an
                error; None: it never does.
            check_labels: Whether to look for labels and sample weights that cannot be, such as class numbers out of range,
                in every batch. False saves the time (`docs/labels.md`); shapes and dtypes are checked in any case.
            run_eagerly: As in Keras.
            steps_per_execution: As in Keras.
            jit_compile: As in Keras; None is Keras's default.
            **options_of_heads: Not accepted: `loss`, `metrics`, `loss_weights` and `weighted_metrics` are arguments of
                `add_head` (`weight` and `metrics` there).

        Raises:
            ValueError: There is no head yet, an option is out of range or names an unknown method or head, or the optimizer
                clips or accumulates gradients.
            TypeError: An option has the wrong type, is unknown, or belongs to a head.
        """
        self._refuse_in_fit("compile")
        refuse_options_of_heads(others, options_of_heads)
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
            encoder_learning_rate=encoder_learning_rate,
            encoder_weight_decay=encoder_weight_decay,
            telemetry=telemetry,
            layers_every=layers_every,
            on_nonfinite=on_nonfinite,
            max_skipped_updates=max_skipped_updates,
            check_labels=check_labels,
        ).checked(list(self.heads))
        warn_of_idle_weights(checked, self._heads.value)
        check_weight_decay(optimizer, {"encoder_weight_decay": checked.encoder_weight_decay}, self._heads.value)
        unlock(self)
        options: dict[str, Any] = {"run_eagerly": bool(run_eagerly), "steps_per_execution": steps_per_execution}
        if jit_compile is not None:
            options["jit_compile"] = jit_compile
        self._forget()
        super().compile(optimizer=optimizer, **options)
        self._options_of_keras.value = options
        self.updates_before.assign_sub(tf.cast(tensor_variable(self.optimizer.iterations), tf.int64))
        replace_layers(self, weighting=checked.weighting, balancer=checked.balancer_to_use(), schedule=checked.schedule)
        self._options, self._steps_at_once = checked, steps_per_execution

    # ------------------------------------------------------------------------------------------- the Keras interface

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Every head's predictions by head name; a head with teacher forcing generates.

        Args:
            inputs: The encoder's inputs.
            training: Whether the encoder runs in training mode; heads always run in inference mode.
        """
        representation = call_module(self.encoder, inputs, training=bool(training))
        return {head.name: head.generate(representation) for head in self._heads.value}

    @errors_in_words()
    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains the heads and the encoder; accepts the arguments of `keras.Model.fit`, with `accumulate_steps` too.

        Args:
            x: The inputs of all examples: an array, or a list, a dict or another structure of arrays, data frames, lists
                of numbers, ragged or sparse tensors. Or what yields batches `(inputs, targets)` or `(inputs, targets,
                sample_weights)`: a `tf.data.Dataset`, a generator, a `PyDataset` (Keras 2: `Sequence`), or another
                iterable. A batch of a generator or a `PyDataset` may lack the targets of some heads, which then have no
                labels in it; each head must have targets in one of the first 64 batches.
            y: The targets by head name, if `x` are arrays: a dict of arrays or series, or a data frame whose columns are
                the heads.
            *args: The other arguments of `keras.Model.fit`, in its order.
            **kwargs: The other arguments of `keras.Model.fit` by name. `sample_weight` is a dict like `y`; the examples
                of a head that it does not name weigh 1. `class_weight` is a dict by head name of weights by class, which
                in this `fit` replace those of `add_head`; they count in training only, not in validation. With
                `accumulate_steps`, `steps_per_epoch` counts updates.

        Returns:
            Keras's `History`.

        Raises:
            ValueError: A head has no targets in the data, the data or `validation_data` have targets for an unknown head,
                or arguments are incompatible.
            TypeError: Some of the data cannot be converted to an array.
        """
        options = self._assert_ready("fit")
        arguments = {"x": x, "y": y, **named_arguments(keras.Model.fit, args, kwargs)}
        class_weight = arguments.pop("class_weight", None)
        with self._requiring_every_head(True):
            arguments, data, held_out = prepare_fit(arguments, list(self.heads))
            data.check_any()
            self._build_for(data)
            self._renew("train_function", data.specs)
            data = self._with_checked_labels(data, arguments.get("shuffle", True))
            arguments["x"] = data.x
            if held_out is not None:
                arguments["validation_data"] = as_validation_data(self._with_checked_labels(held_out, of="validation_data"))
            checkpoint, others = checkpoint_of(arguments.get("callbacks"))
            snapshot, start = (None, {}) if checkpoint is None else begin(self, checkpoint, data)
            if checkpoint is not None:
                arguments, data = as_seeded_dataset({**arguments, "callbacks": others}, data, start["seed"])
            arguments["callbacks"] = with_report(lambda: self._logs, arguments.get("callbacks"))
            arguments = with_progress(arguments, lambda: self._logs)
            if options.accumulate_steps > 1:
                windows = Windows(options.accumulate_steps, self.distribute_strategy)
                arguments = prepare_windows(arguments, data, windows)
            self._wake_all_but([])
            if checkpoint is not None:
                arguments = self._with_run(checkpoint, snapshot, start, arguments)
            with self._weighing_classes(class_weight, options), interruptible(self._run.value):
                self._is_in_fit = True
                try:
                    return super().fit(**arguments)
                finally:
                    self._is_in_fit, self._run.value = False, None

    @errors_in_words()
    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates the heads that have targets in the data; accepts the arguments of `keras.Model.evaluate`."""
        self._assert_ready("evaluate")
        arguments = {"x": x, "y": y, **named_arguments(keras.Model.evaluate, args, kwargs)}
        if self._run.value is not None and self._run.value.is_replaying:
            return {}  # the validation of an epoch that a run which goes on has behind it
        with self._requiring_every_head(False):
            arguments, data = prepare_evaluate(arguments, list(self.heads))
            self._build_for(data)
            self._renew("test_function", data.specs)
            arguments["x"] = self._with_checked_labels(data).x
            return super().evaluate(**with_progress(arguments, lambda: self._logs))

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Every head's predictions by name; accepts the arguments of `keras.Model.predict`."""
        return super().predict(read_inputs(x), *args, **kwargs)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints tables of what was configured: modules with their sizes, losses and weights, and what an update is made of.

        Takes the arguments of `keras.Model.summary`; if any but `print_fn` is given, Keras's own summary follows.
        """
        print_summary(self, named_arguments(keras.Model.summary, args, kwargs), super().summary)

    @errors_in_words()
    def train_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """One update, from one batch; accepts the arguments of `keras.Model.train_on_batch`."""
        options = self._assert_ready("train_on_batch")
        arguments = named_arguments(keras.Model.train_on_batch, args, kwargs)
        class_weight = arguments.pop("class_weight", None)
        data = read_arrays(x, y, arguments.pop("sample_weight", None), list(self.heads))
        data = self._checked_for_xla(data)
        if class_weight is not None:
            self._build_for(data)
        with self._weighing_classes(class_weight, options):
            return super().train_on_batch(data.x, data.y, sample_weight=data.sample_weight, **arguments)

    @errors_in_words()
    def test_on_batch(self, x: Any, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluates one batch; accepts the arguments of `keras.Model.test_on_batch`."""
        self._assert_ready("test_on_batch")
        arguments = named_arguments(keras.Model.test_on_batch, args, kwargs)
        data = self._checked_for_xla(read_arrays(x, y, arguments.pop("sample_weight", None), list(self.heads)))
        return super().test_on_batch(data.x, data.y, sample_weight=data.sample_weight, **arguments)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One update, from one batch or from a window of batches; called by Keras."""
        batches = [self._unpack(batch) for batch in batches_of(data)]
        spec, logs = self._built()
        spec = (self._fit_spec or spec).in_stage(self._stage)
        saved = snapshot(spec.state)
        update = compute_or_drop(spec, batches, self.update_count, loss_scale(self.optimizer), saved)
        clipped = clip(spec, update.gradients)
        applied = apply_update(
            spec,
            self.optimizer,
            clipped,
            update.active,
            update.step,
            saved,
            broken=update.broken,
            dropped=update.dropped,
            batch=logs.next_batch(len(batches)),
        )
        observe(spec, update, applied)
        logs.update(update._replace(clipped=clipped), applied, self.distribute_strategy.num_replicas_in_sync)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Adds one batch to the evaluation; called by Keras."""
        batch = self._unpack(data)
        spec, logs = self._built()
        labels = read_labels(spec.network, spec.predictions, batch, check=spec.check_labels)
        representation = call_module(self.encoder, batch.inputs, training=False)
        sums = []
        for head, head_labels in zip(self._heads.value, labels):
            if head_labels is None:
                sums.append(tf.constant(0.0))
                continue
            predictions = head.predict(representation, head_labels.targets, training=False)
            sums.append(head.loss_sum(head_labels.targets, predictions, head_labels.weights))
            head.update_metrics(head_labels.targets, predictions, head_labels.weights)
        logs.add_losses(tf.stack(sums), count_labels(labels))
        step = self.update_count
        weights = head_weights_at(self._heads.value, step)
        return over_replicas(lambda: logs.evaluation_logs(weights, list(batch.targets), step))

    # ------------------------------------------------------------------------------------------- custom training loops

    @errors_in_words()
    def compute_gradients(self, batch: Any) -> list[tuple[Any, Any]]:
        """Computes the balanced, unclipped gradients of the total loss on a batch, for a custom training loop.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors.

        Returns:
            Pairs of gradient and variable for all trainable variables. Gradients are dense tensors or `tf.IndexedSlices`,
            without loss scaling; None for a variable that no loss depends on, and for the variables of an idle head (zeros
            in a graph, where it is not known yet which heads are idle). The list itself holds which heads are active and
            what `apply_gradients` restores if it skips the update; a new list of its pairs does not.

        Raises:
            ValueError: The batch has targets for an unknown head.
        """
        self._assert_ready("compute_gradients")
        prepared = self._prepared(batch)
        spec, checks = self._spec_at_step()
        with tf.control_dependencies(checks):
            saved = snapshot(spec.state)
            update = compute_or_drop(spec, [prepared], self.update_count, loss_scale(self.optimizer), saved)
        return ComputedGradients.of(spec.network, update, saved)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> tf.Tensor:
        """Clips and applies gradients as one update, for a custom training loop.

        Args:
            grads_and_vars: Pairs of gradient and variable: the list that `compute_gradients` returned, or your own. A
                variable with None, or without a pair, does not change, and neither do its optimizer slots. In a list of
                your own, a head whose gradients are all None or zero is idle: its variables and slots do not change.

        Returns:
            Whether the update was applied: False if a gradient is not finite, or if there is none.

        Raises:
            ValueError: The trainer is not built yet, or a variable does not belong to it.
        """
        self._assert_ready("apply_gradients")
        if self._spec is None:
            raise ValueError(
                "`apply_gradients` requires a built trainer. Received: a trainer that has seen no data. "
                "Call `compute_gradients(batch)` or `fit` first."
            )
        spec, checks = self._spec_at_step()
        with tf.control_dependencies(checks):
            update = to_apply(spec.network, grads_and_vars)
            given = (clip(spec, update.gradients), update.active, self.update_count, update.saved)
            return apply_update(spec, self.optimizer, *given, broken=update.broken, dropped=update.dropped)

    @errors_in_words()
    def diagnose(
        self, x: Any, y: Any = None, *, sample_weight: Any = None, batch_size: int | None = None, batches: int = 32
    ) -> Diagnosis:
        """Measures the heads' gradients without training, and suggests what to change.

        Computes norms, shares and cosines of the heads' gradients at the representation and at the parameters, for each
        batch, in training mode, for all heads regardless of the schedule, and before balancing. Variables and metrics do
        not change.

        Args:
            x: The data, as for `fit`; or a list of batches.
            y: The targets by head name, if `x` are arrays.
            sample_weight: The sample weights by head name, if `x` are arrays.
            batch_size: The batch size, if `x` are arrays; 32 by default.
            batches: The maximum number of batches to measure.

        Returns:
            The measurements, findings and `suggestion`, keyword arguments for `compile`; `print` it.

        Raises:
            ValueError: There is no batch, `batches` is below 1, or arguments are incompatible.
            TypeError: `x` is neither arrays with `y` nor an iterable of batches.
        """
        self._assert_ready("diagnose")
        limit = check_positive_whole("batches", batches)
        data = read_batches(x, y, sample_weight, list(self.heads), batch_size)
        prepared = [self._prepared(batch) for batch in itertools.islice(data, limit)]
        if not prepared:
            raise ValueError("`x` must contain at least one batch. Received: none. Pass batches as for `fit`.")
        spec, _ = self._built()
        of_metrics = [tensor_variable(variable) for metric in self.metrics for variable in metric.variables]
        before = snapshot([*spec.network.state, *of_metrics])
        try:
            with functions_run_eagerly(self._runs_eagerly):
                return diagnose(spec, prepared, self.update_count, loss_scale(self.optimizer))
        finally:
            for variable, value in before:
                variable.assign(value)

    # ------------------------------------------------------------------------------------------- saving

    def export(
        self,
        path: str | os.PathLike[str],
        head: str | Sequence[str] | None = None,
        *,
        preprocess: Callable[[Any], Any] | None = None,
        inputs: Any = None,
        generate: Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]] | None = None,
        postprocess: Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]] | None = None,
    ) -> None:
        """Exports the encoder and heads as a TensorFlow SavedModel that runs without this library and without Keras.

        The model runs in inference mode, with the signature `serving_default`: `tf.saved_model.load(path)
        .signatures["serving_default"](inputs=...)` returns a dict of tensors, and computes the encoder once. It includes
        variables and lookup tables, and runs on a CPU regardless of where it was exported. The trainer does not change.

        Args:
            path: A folder; an existing export in it is replaced. (The earlier order, `export(head, path)`, works for one
                release.)
            head: The head's name, or a list of names; None: all heads.
            preprocess: A function or layer, in TensorFlow operations, that converts the exported model's inputs to the
                encoder's inputs, for example texts to ids. None: the exported model takes the encoder's inputs.
            inputs: The `tf.TensorSpec` of the exported model's inputs, or a nest of them; the name of a spec becomes the
                name of the argument. None: the encoder's inputs or, with `preprocess`, strings,
                `tf.TensorSpec([None], tf.string)`; the argument is then named `inputs`, or by its key in a dict.
            generate: A function from what the head reads of the representation to its output, to control generation; for
                several heads, a dict of these by head name. None: as in `predict`, `module.generate(representation)` with
                teacher forcing, otherwise `module(representation)`.
            postprocess: A function from the head's output to the exported model's output: a tensor, which gets the head's
                name, or a dict of tensors; for several heads, a dict of these by head name. None: the head's output. If
                several or all heads are exported, a key of a head's dict becomes `{head}_{key}`.

        Raises:
            ValueError: There is no such head, it is not built yet, the path is a file, or the result of `preprocess` or
                `postprocess` is invalid.
            TypeError: An argument has the wrong type.
        """
        path, names = heads_to_export(path, head, list(self.heads), self._predictions.value)
        export_heads(
            path,
            self.encoder,
            [self.heads[name] for name in names],
            self._specs.value[0],
            by_head=head is None or len(names) > 1,
            preprocess=preprocess,
            inputs=inputs,
            generate=generate,
            postprocess=postprocess,
        )
