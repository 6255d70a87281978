"""`MultiHeadTrainer`: several heads on one encoder, with one total loss, one optimizer and Keras's own training loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

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
from multihead._display.summary import print_summary
from multihead._ground.errors import errors_in_words
from multihead._ground.keras import (
    functions_run_eagerly,
    over_replicas,
    tensor_variable,
)
from multihead._ground.optimizers import loss_scale
from multihead._ground.validation import check_positive_whole
from multihead._runs.resuming import as_seeded_dataset, begin, checkpoint_of, interruptible
from multihead._trainer.custom_loop import ComputedGradients, to_apply
from multihead._trainer.export import export_heads, heads_to_export
from multihead._trainer.progress import with_progress
from multihead._trainer.saving import SavedByKeras
from multihead._update.apply import snapshot
from multihead._update.drop import compute_or_drop
from multihead._update.encode import call_encoder
from multihead._update.labels import count_labels, read_labels
from multihead._update.pipeline import apply_update, clip, observe
from multihead._update.weights import head_weights_at
from multihead.diagnosis import Diagnosis, diagnose
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

    A batch is `(inputs, targets)` or `(inputs, targets, sample_weights)`; `targets` and `sample_weights` are dicts by head
    name. A head that is not named there has no labels in the batch; a label is also missing if it is `ignore_label` or
    NaN, or if its sample weight is 0. A head without labels in an update is idle and does not change.

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

    # ------------------------------------------------------------------------------------------- the Keras interface

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Every head's predictions by head name; a head with teacher forcing generates.

        Args:
            inputs: The encoder's inputs.
            training: Whether the encoder runs in training mode; heads always run in inference mode.
        """
        representation = call_encoder(self.encoder, inputs, training=bool(training))
        return {head.name: head.generate(representation) for head in self._heads.value}

    @errors_in_words()
    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains the heads and the encoder; accepts the arguments of `keras.Model.fit`, with `accumulate_steps` too.

        Args:
            x: The inputs of all examples: an array, or a list, a dict or another structure of arrays, data frames, lists of
                numbers, ragged or sparse tensors. Or something that yields batches `(inputs, targets)` or
                `(inputs, targets, sample_weights)`: a `tf.data.Dataset`, a generator, a `PyDataset` (Keras 2: `Sequence`),
                or another iterable. A batch of a generator or a `PyDataset` may lack the targets of some heads, which then
                have no labels in it; each head must have targets in one of the first 64 batches.
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

    @errors_in_words()
    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Every head's predictions by name; accepts the arguments of `keras.Model.predict`."""
        return super().predict(read_inputs(x), *args, **kwargs)

    def summary(self, *args: Any, **kwargs: Any) -> None:
        """Prints tables of what was configured: modules with their sizes, losses, weights, and the parts of an update.

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
        representation = call_encoder(self.encoder, batch.inputs, training=False)
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
            in a graph, where it is not known yet which heads are idle). The list itself records which heads are active and
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
            The measurements, the findings and `suggestion`, keyword arguments for `compile`; `print` shows all of it.

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
            path: A folder; an existing export in it is replaced.
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
        names = heads_to_export(head, list(self.heads), self._predictions.value)
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
