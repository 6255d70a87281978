"""`MultiHeadTrainer`: several heads on one encoder, with one total loss, one optimizer and Keras's own training loop."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from multihead import schedules
from multihead._data.arguments import Call, read_batches, read_evaluate, read_fit, read_inputs
from multihead._data.arrays import as_arrays, read_arrays
from multihead._data.data import Data
from multihead._data.windows import Windows, batches_of_update
from multihead._display.trainer import print_summary
from multihead._ground import replicas
from multihead._ground.errors import errors_in_words
from multihead._ground.graphs import functions_run_eagerly
from multihead._ground.keras import (
    HEAD,
    SCALING,
    InMode,
    KerasHooks,
    Untracked,
    add_state,
    callbacks_of,
    check_one_step,
    load_as_arrays,
    over_replicas,
    remove_layer,
    replace_layers,
    steps_at_once,
    tensor_variable,
    unlock,
)
from multihead._ground.optimizers import loss_scale
from multihead._ground.validation import check_choice, check_head_names, check_positive_whole, quoted
from multihead._runs.opening import Opening, opened
from multihead._runs.resuming import checkpoint_of, interruptible, make_run
from multihead._runs.variables import draw_from_variables
from multihead._trainer import saving
from multihead._trainer.built import Built
from multihead._trainer.custom_loop import ComputedGradients, pairs_of, to_apply
from multihead._trainer.data import check_every_head, with_checked_labels
from multihead._trainer.directions import tell_directions
from multihead._trainer.export import export_heads, heads_to_export
from multihead._trainer.from_model import compiled_of, optimizer_of, parts_of
from multihead._trainer.head_weights import kept_weights
from multihead._trainer.idle import IdleHeads
from multihead._trainer.options import BALANCE_AT, CompileOptions, Setup, check_compile, check_methods, refuse_unknown
from multihead._trainer.progress import with_progress
from multihead._trainer.scaling import (
    check_known,
    fit_scalings,
    fit_scalings_to,
    scale_targets,
    scaling_variables,
    unknown,
)
from multihead._trainer.session import FitSession
from multihead._trainer.shapes import Shapes, build_modules, build_wider
from multihead._trainer.spec import build_spec
from multihead._trainer.train_function import Assumptions, StepFunction, TrainFunction
from multihead._update.apply import apply_update, clip
from multihead._update.batch import Batch, as_tensors, check_rows, open_batch_size, unpack
from multihead._update.by_head import HeadGradients, gradients_by_head
from multihead._update.encode import call_encoder
from multihead._update.evaluate import evaluate_batch
from multihead._update.labels import read_labels
from multihead._update.observe import observe
from multihead._update.pipeline import compute_update
from multihead._update.roll_back import RollBack
from multihead._update.spec import UpdateSpec
from multihead._update.weights import head_weights_at
from multihead.clipping import Clipping
from multihead.diagnosis import Diagnosis
from multihead.diagnosis._measure import diagnose
from multihead.heads import Head
from multihead.heads._metrics import check_apart
from multihead.heads._named import NamedHead, new_head, weigh_classes
from multihead.heads._value import Weight, check_heads, check_weight, is_zero
from multihead.telemetry._epoch_end import with_epoch_end
from multihead.telemetry._logs import LogMetrics

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(KerasHooks, keras.Model):
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
        heads: The heads by name; more can be added by `add_head`.
        name: Name of the model.

    A batch is `(inputs, targets)` or `(inputs, targets, sample_weights)`; `targets` and `sample_weights` are dicts by head
    name. A head that is not named there has no labels in the batch; a label is also missing if it is `ignore_label` or
    NaN, or if its sample weight is 0. A head without labels in an update is idle and does not change.

    Raises:
        TypeError: `encoder` is not callable, or `heads` is not a dict of `Head` by name.

    Example:
        >>> price = keras.layers.Dense(3, activation="softmax")
        >>> heads = {"price": Head(price, "sparse_categorical_crossentropy")}
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(8), heads)
        >>> trainer.add_head("size", keras.layers.Dense(1), "mse", weight=0.5)
        >>> trainer.compile("adam")
    """

    train_function: Any
    test_function: Any

    def __init__(
        self, encoder: Callable[[Any], Any], heads: Mapping[str, Head] | None = None, *, name: str | None = None
    ) -> None:
        if not callable(encoder):
            raise TypeError(
                f"`encoder` must be a Keras layer or model. Received: encoder={encoder!r}. "
                "Pass a layer or model that converts the inputs to the representation."
            )
        super().__init__(name=name, autocast=False)  # the modules cast their inputs, each by its own dtype policy
        # What Keras saves: the encoder, the methods, the weights of heads, and each head's module by the head's name.
        self.encoder = encoder
        self.weighting: Any = None
        self.balancer: Any = None
        self.head_schedule: Any = None
        self.head_weights: Any = None
        # The optimizer counts the updates itself; a second count of all of them would differ from its own where Keras
        # restores the weights of an earlier epoch.
        self.updates_before = add_state(self, "updates_before", (), dtype="int64")
        # What the user has decided, what data have shown, what is built from both, and what exists only during `fit`.
        self._setup = Setup()
        self._shapes = Shapes()
        self._built: Built | None = None
        self._session: FitSession | None = None
        self._idle = IdleHeads()
        self._optimizer_of_model = Untracked(None)
        added = [NamedHead(each, head) for each, head in check_heads(heads).items()]
        if added:
            self._add_heads(added)

    @classmethod
    def from_model(cls, model: keras.Model, *, representation: str | Sequence[str] | None = None) -> MultiHeadTrainer:
        """Makes a trainer of a functional Keras model with several outputs, from the same layers.

        The encoder is what at least two outputs depend on, the representation every tensor that leaves this part (one, or a
        dict by layer name), and a head is the rest of the way to one output. The model can still be used, and sees what the
        trainer trains. The heads have the keys of a dict of outputs as names, otherwise Keras's output names.

        The losses, `loss_weights`, metrics and weighted metrics of a compiled model become those of the heads, and
        `compile` without an optimizer creates one with the options of the model's. An output without a loss, as all are if
        the model is not compiled, is predicted and measured, but not trained.

        Args:
            model: The model.
            representation: The names of the layers whose outputs are the representation, if the heads should begin
                elsewhere; a tensor that passes these layers by is also part of it.

        Raises:
            TypeError: `model` is not a Keras model.
            ValueError: `model` is not functional, has one output, or outputs that share no layer with weights;
                or `representation` names no layer of it.

        Example:
            >>> inputs = keras.Input((6,))
            >>> hidden = keras.layers.Dense(8, activation="tanh")(inputs)
            >>> price, size = keras.layers.Dense(1), keras.layers.Dense(1)
            >>> outputs = {"price": price(hidden), "size": size(hidden)}
            >>> model = keras.Model(inputs, outputs)
            >>> model.compile("adam", loss={"price": "mse", "size": "mae"})
            >>> trainer = MultiHeadTrainer.from_model(model)
            >>> trainer.compile(balancer="UPGrad")
        """
        parts = parts_of(model, representation)
        compiled = compiled_of(model, list(parts.heads))
        heads = {name: Head(module, reads=reads, **compiled[name]) for name, (module, reads) in parts.heads.items()}
        trainer = cls(parts.encoder, heads, name=model.name)
        trainer._optimizer_of_model = Untracked(optimizer_of(model))
        return trainer

    # ------------------------------------------------------------------------------------------- heads and options

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads by name, in the order in which they were added: values, with the present weights and scalings."""
        return MappingProxyType({head.name: head.value for head in self._setup.heads})

    @property
    def update_count(self) -> Any:
        """The number of updates applied so far, with this optimizer and those before it, an int64 scalar."""
        earlier = tf.identity(tensor_variable(self.updates_before).read_value())
        if self._setup.options is None:
            return earlier
        return earlier + tf.cast(tensor_variable(self.optimizer.iterations), tf.int64)

    @property
    def num_updates(self) -> int:
        """The number of updates applied so far, as a Python number; reading waits for the device."""
        with tf.init_scope():
            return int(self.distribute_strategy.experimental_local_results(self.update_count)[0].numpy())

    @property
    def options(self) -> CompileOptions | None:
        """The checked arguments of `compile`; None before it, and after heads have changed."""
        return self._setup.options

    @property
    def update_spec(self) -> UpdateSpec | None:
        """How updates are computed; None before the first data."""
        return None if self._built is None else self._built.spec

    @property
    def log_metrics(self) -> LogMetrics | None:
        """The metrics behind the logs; None before the first data."""
        return None if self._built is None else self._built.logs

    @property
    def stage(self) -> int:
        """The number of the present period of training, from 0, if learning rates have `Stages`; otherwise 0.

        A `tf.function` of a custom training loop is traced for one period. Pass this number to it as a Python argument, so
        that it is traced again for the next.
        """
        if self._built is None or len(self._built.spec.periods) == 1:
            return 0
        return self._built.spec.period_at(self.num_updates)

    @property
    def metrics(self) -> list[Any]:
        """All metrics: losses, values of updates, and those of the heads; Keras resets them in every epoch."""
        return [] if self._built is None else self._built.logs.all

    @property
    def metrics_names(self) -> list[str]:
        """The names of the values that `evaluate` returns as a list, for data with targets for all heads."""
        return [] if self._built is None else self._built.logs.names_in_order()

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
        reads: Any = None,
        class_weight: Mapping[int, float] | None = None,
        target_scaling: Any = None,
        trains_encoder: bool = True,
        couples_rows: bool = False,
        learning_rate_multiplier: Any = 1.0,
        weight_decay_multiplier: Any = 1.0,
    ) -> None:
        """Adds a head: the same as `heads` with one more `Head`. Afterwards, `compile` must be called (again).

        Most heads need the first group of arguments at most; the second is for special cases.

        Args:
            name: The key of the head's targets, sample weights and logs.
            module: As in `Head`, as are all others.
            loss: A Keras loss, or None for an output that is predicted and measured, but not trained.
            weight: How much the head's loss counts.
            metrics: Keras metrics or their names.
            teacher_forcing: Whether the module reads its targets.
            ignore_label: The label of elements whose label is missing; NaN always means missing.
            reads: The part of the representation that is passed to the module.
            class_weight: Weights of the labels by class number.
            target_scaling: How the targets are scaled for the loss.

            trains_encoder: Whether the encoder is trained by the head.
            couples_rows: Whether the loss, or the module, compares the rows of a batch with each other.
            learning_rate_multiplier: The factor of every step that is applied to the module's variables.
            weight_decay_multiplier: The factor of the optimizer's `weight_decay` for them.

        Raises:
            ValueError: There is already a head with this name, an argument is out of range, two values of the heads
                would have the same name in the logs, or `target_scaling` does not suit the loss.
            TypeError: An argument has the wrong type.
        """
        self._refuse_in_fit("add_head")
        head = new_head(
            name,
            module,
            loss,
            weight=weight,
            metrics=metrics,
            teacher_forcing=teacher_forcing,
            ignore_label=ignore_label,
            reads=reads,
            class_weight=class_weight,
            target_scaling=target_scaling,
            trains_encoder=trains_encoder,
            couples_rows=couples_rows,
            learning_rate_multiplier=learning_rate_multiplier,
            weight_decay_multiplier=weight_decay_multiplier,
        )
        if name in self._setup.all_names:
            names = quoted(self._setup.all_names)
            raise ValueError(f"`name` must be new. Received: name={name!r}; the heads are {names}. Choose another name.")
        self._add_heads([head])

    def _add_heads(self, added: Sequence[NamedHead]) -> None:
        heads = (*self._setup.heads, *added)
        check_apart([(each.name, each.metric_specs) for each in heads])
        unlock(self)
        for head in added:
            if isinstance(head.module, (keras.layers.Layer, tf.Module)):
                setattr(self, HEAD + head.name, head.module)
            if head.scaling is not None:
                setattr(self, SCALING + head.name, head.scaling)
        self._change_heads(heads)

    def remove_head(self, name: str) -> None:
        """Removes a head. Afterwards, `compile` must be called again, unless no head is left.

        The encoder, the other heads and the removed module keep their weights.

        Args:
            name: The head's name; it can be used again afterwards.

        Raises:
            ValueError: There is no head with this name.
        """
        self._refuse_in_fit("remove_head")
        check_choice("name", name, self._setup.all_names)
        unlock(self)
        self._shapes = self._shapes.without(name)
        self._change_heads(tuple(head for head in self._setup.heads if head.name != name))
        remove_layer(self, HEAD + name)
        remove_layer(self, SCALING + name)
        self.predict_function = None  # the compiled function still includes the removed head

    def set_weight(self, name: str, value: float) -> None:
        """Sets how much a head's loss counts from the next update on, for example from a callback.

        Nothing is compiled again; the first weight of 0 may retrace the step of `fit`. The weight is saved and loaded with
        the trainer.

        Args:
            name: The head's name.
            value: A number of at least 0; with 0 the head is idle.

        Raises:
            ValueError: There is no such head, its weight is a function of the step, or `value` is negative or not finite.
        """
        check_choice("name", name, self._setup.names)
        if self._setup.head(name).has_weight_function:
            raise ValueError(
                f"`name` must be a head whose weight is a number. Received: name={name!r}, whose weight is a function of "
                "the step. Add the head with `weight=1.0`, and set its weight from then on."
            )
        if callable(value):
            raise ValueError(f"`value` must be a number. Received: value={value!r}. Pass a function to `add_head(weight=)`.")
        checked = check_weight(value)
        if is_zero(checked):
            self._allow_idle_heads()
        self.head_weights.variable(name).assign(checked)

    def set_idle(self, heads: Sequence[str]) -> None:
        """Makes heads idle, for a callback of `fit`: from the next update on they are not trained and do not change.

        The encoder and the other heads are trained further. Only the first call may retrace the step. A schedule's turn that
        has only idle heads goes to all others. Each `fit` begins without idle heads.

        Args:
            heads: The names of all heads that are to be idle; an empty list for none.

        Raises:
            ValueError: There is no head with such a name.
        """
        check_head_names("heads", heads, self._setup.names)
        self._idle.may_change = True
        self._allow_idle_heads()
        self._built = None if self._built is None else self._built.with_idle_heads()
        self._idle.set(heads, self._setup.names)

    def compile(
        self,
        optimizer: Any = None,
        *others: Any,
        weighting: Any = None,
        balancer: Any = None,
        head_schedule: schedules.Schedule | None = None,
        clip: Clipping | None = None,
        encoder_learning_rate_multiplier: Any = 1.0,
        gradient_accumulation_steps: int = 1,
        micro_batches: int = 1,
        run_eagerly: bool | None = None,
        steps_per_execution: int | str | None = 1,
        jit_compile: bool | str | None = None,
        balance_at: str = "representation",
        balance_every: int = 1,
        encoder_weight_decay_multiplier: Any = 1.0,
        target_scaling: Mapping[str, Any] | None = None,
        telemetry: str | None = "norms",
        layers_every: int = 100,
        on_nonfinite: str = "skip",
        max_skipped_updates: int | None = 25,
        check_labels: bool = True,
        **options_of_heads: Any,
    ) -> None:
        """Configures training. Losses and metrics belong to the heads: see `add_head`.

        Most trainings need the first group of arguments at most; the second is for special cases.

        Args:
            optimizer: A Keras optimizer or its name. It must not clip or accumulate gradients itself. None: that of the
                model of `from_model`, otherwise `"rmsprop"`, as in Keras.
            weighting: Combines the heads' losses into one total loss: a `multihead.weighting.Weighting` or its name; None is
                the sum of the losses, each times its head's `weight`. The weighting's variables are trained by the same
                optimizer, without clipping. With several micro-batches, a weighting that depends on the losses of the same
                update costs what a balancer costs: see `micro_batches`.
            balancer: Combines the heads' encoder gradients into one gradient: a `multihead.balancing.Balancer` or its
                name; None is the plain sum.
            head_schedule: Decides which heads train at a step (`multihead.schedules`); None trains all heads.
            clip: Limits the final gradients, once per update (`multihead.clipping`); None does not.
            encoder_learning_rate_multiplier: The factor of every step that is applied to the encoder's variables, weight
                decay included. A number, of which 0 freezes the encoder; a function of the step; `LayerwiseDecay`, `ByPath`
                or `Stages`.
            gradient_accumulation_steps: Computes one update, and one step of Keras, from this many consecutive batches of
                any shapes; a shorter last window of an epoch is also an update. The update is that of all their examples in
                one batch. `compute_gradients` then takes a list of batches, and a `train_step` of your own passes its `data`
                on to `super().train_step` or to `compute_gradients`; `train_on_batch` is an error.
            micro_batches: Splits each batch into this many micro-batches, processed one after another to save memory; the
                update is that of the whole batch. With a balancer, each micro-batch costs a second forward pass through the
                encoder, or one encoder backward pass per head: see "How an update is computed".
            run_eagerly: As in Keras.
            steps_per_execution: As in Keras; `"auto"` on Keras 2 only.
            jit_compile: As in Keras; None is Keras's default.

            balance_at: `"representation"` balances representation gradients, with one backward pass through the encoder;
                `"parameters"` balances the gradients of the encoder's parameters, with one backward pass per head.
            balance_every: The balancer's coefficients are recomputed at every `balance_every`-th update and reused in
                between. At the parameters, the updates in between make one backward pass through the encoder for all heads.
            encoder_weight_decay_multiplier: The factor of the optimizer's `weight_decay` for the encoder's variables, in the
                same forms.
            target_scaling: By head name, a `target_scaling` that replaces the one of `add_head`, as `diagnose` suggests it.
                A head that has the same one already keeps what it has learned.
            telemetry: `"norms"` logs gradient norm, share and coefficient per head; `"full"` also cosines between heads and
                with the update, norms of the update before and after clipping, and running averages; None logs losses.
            layers_every: With `telemetry="full"`, the same values are measured in each layer of the encoder once in this
                many updates, for `callbacks.UpdateLogger`; such an update costs one encoder backward pass per head.
            on_nonfinite: What happens to an update with an infinite or NaN loss or gradient. `"skip"`: it is not applied,
                and counts as a skipped update; `"raise"`: it is not applied, and training ends with an error. An epoch's
                warning, and the errors, name the head, the variable, the update and the batch. An update that loss scaling
                skips to lower its scale does not count.
            max_skipped_updates: The number of updates skipped in a row for this reason at which training ends with an
                error; None: it never does.
            check_labels: Whether to look for invalid labels and sample weights, such as class numbers out of range: once in
                arrays, otherwise in every batch. False saves this time (`docs/labels.md`); shapes and dtypes are checked in
                any case.

        Raises:
            ValueError: There is no head yet, an option is out of range, names an unknown method or head or does not work on
                several replicas, or the optimizer clips or accumulates gradients.
            TypeError: An option has the wrong type, is unknown, or belongs to a head.
        """
        self._refuse_in_fit("compile")
        check_methods(type(self), MultiHeadTrainer)
        refuse_unknown(others, options_of_heads)
        options = CompileOptions(
            weighting=weighting,
            balancer=balancer,
            balance_at=balance_at,
            balance_every=balance_every,
            head_schedule=head_schedule,
            clip=clip,
            micro_batches=micro_batches,
            gradient_accumulation_steps=gradient_accumulation_steps,
            encoder_learning_rate_multiplier=encoder_learning_rate_multiplier,
            encoder_weight_decay_multiplier=encoder_weight_decay_multiplier,
            telemetry=telemetry,
            layers_every=layers_every,
            on_nonfinite=on_nonfinite,
            max_skipped_updates=max_skipped_updates,
            check_labels=check_labels,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )
        if optimizer is None:
            optimizer = self._optimizer_of_model.value or "rmsprop"
        heads = scale_targets(self._setup.heads, target_scaling)
        optimizer, checked = check_compile(optimizer, options, Setup(heads).trained, self.distribute_strategy)
        if heads != self._setup.heads:
            self._rescale_heads(heads)
        self._forget()
        super().compile(optimizer=optimizer, **checked.of_keras())
        self._adopt(checked)

    # ------------------------------------------------------------------------------------------- the Keras interface

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The predictions of `call`, from inputs in the form of those of `predict`."""
        return super().__call__(as_arrays("inputs", inputs), *args, **kwargs)

    def call(self, inputs: Any, training: bool | None = None) -> dict[str, Any]:
        """Every head's predictions by head name; a head with teacher forcing generates.

        Args:
            inputs: The encoder's inputs.
            training: Whether the encoder runs in training mode; heads always run in inference mode.
        """
        check_known(self._setup.heads, "predict")

        def predictions() -> dict[str, Any]:
            representation = call_encoder(self.encoder, inputs, training=bool(training))
            return {head.name: head.generate(representation) for head in self._setup.heads}

        # As in an update, which runs outside of the trainer's own layer call.
        return InMode(predictions)((), training=training)

    @errors_in_words()
    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[str, Mapping[int, float]] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        **kwargs: Any,
    ) -> Any:
        """Trains the heads and the encoder, as `keras.Model.fit` does.

        Args:
            x: The inputs of all examples: an array, or a list, a dict or another structure of arrays, data frames, lists of
                numbers, ragged or sparse tensors. Or an iterable of batches `(inputs, targets)` or
                `(inputs, targets, sample_weights)`: a `tf.data.Dataset`, a generator, a `PyDataset` (Keras 2: `Sequence`),
                or another one. A batch of a generator or a `PyDataset` may lack the targets of some heads, which then have
                no labels in it; each head must have targets in one of the first 64 batches.
            y: The targets by head name, if `x` are arrays: a dict of arrays or series, or a data frame whose columns are
                the heads.
            batch_size: As in Keras, as are all that are not described here.
            epochs: The number of the last epoch.
            verbose: 0, 1, 2 or `"auto"`.
            callbacks: Keras callbacks.
            validation_split: The fraction of the last examples that is held out for validation.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or an iterable of batches.
            shuffle: Whether arrays are shuffled before each epoch.
            class_weight: By head name, the weights of labels by class number. In this `fit` they replace those of
                `add_head`; they count in training only, not in validation.
            sample_weight: A dict like `y`, if `x` are arrays; the examples of a head that it does not name weigh 1.
            initial_epoch: The number of epochs that are over already.
            steps_per_epoch: The number of updates in an epoch.
            validation_steps: The number of batches in a validation.
            validation_batch_size: The batch size of validation data.
            validation_freq: Every how many epochs, or after which, the validation data are evaluated.
            **kwargs: What else this version of Keras takes.

        Returns:
            Keras's `History`.

        Raises:
            ValueError: A head has no targets in the data, the data or `validation_data` have targets for an unknown head,
                or arguments are incompatible.
            TypeError: Some of the data cannot be converted to an array.
        """
        options = self._assert_ready("fit")
        checkpoint, callbacks = checkpoint_of(callbacks)
        given = {
            "x": x,
            "y": y,
            "batch_size": batch_size,
            "epochs": epochs,
            "verbose": verbose,
            "callbacks": callbacks,
            "validation_split": validation_split,
            "validation_data": validation_data,
            "shuffle": shuffle,
            "class_weight": class_weight,
            "sample_weight": sample_weight,
            "initial_epoch": initial_epoch,
            "steps_per_epoch": steps_per_epoch,
            "validation_steps": validation_steps,
            "validation_batch_size": validation_batch_size,
            "validation_freq": validation_freq,
            **kwargs,
        }
        with opened(self, checkpoint) as opening:
            return self._fit(given, options, opening)

    @errors_in_words()
    def evaluate(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        callbacks: Any = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Evaluates the heads that have targets in the data, as `keras.Model.evaluate` does.

        Args:
            x: The data, as for `fit`.
            y: The targets by head name, if `x` are arrays.
            batch_size: The batch size, if `x` are arrays; 32 by default.
            verbose: 0, 1, 2 or `"auto"`.
            sample_weight: The sample weights by head name, if `x` are arrays.
            steps: The number of batches; None: all.
            callbacks: Keras callbacks.
            return_dict: Whether to return a dict by name instead of a list in the order of `metrics_names`.
            **kwargs: What else this version of Keras takes.
        """
        self._assert_ready("evaluate")
        session = self._session
        check_known(self._setup.heads, "evaluate")
        given = {
            "x": x,
            "y": y,
            "batch_size": batch_size,
            "verbose": verbose,
            "sample_weight": sample_weight,
            "steps": steps,
            "callbacks": callbacks,
            "return_dict": return_dict,
            **kwargs,
        }
        call = read_evaluate(given, self._setup.all_names)
        if session is not None and session.replay is not None and call.data.is_arrays:
            return {}  # the validation of an epoch before the place of the checkpoint
        self._build_for(call.data)
        self.make_test_function().trace_for(call.data.specs)
        call = with_progress(call._replace(data=self._with_checked_labels(call.data)), lambda: self.log_metrics)
        with self._in_session(None if session is None else replace(session, is_evaluating=True)):
            return super().evaluate(**call.for_keras())

    @errors_in_words()
    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        steps: int | None = None,
        callbacks: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Every head's predictions by name, as `keras.Model.predict` returns them.

        Args:
            x: Inputs, as for `fit`, or an iterable of batches.
            batch_size: The batch size, if `x` are arrays; 32 by default.
            verbose: 0, 1, 2 or `"auto"`.
            steps: The number of batches; None: all.
            callbacks: Keras callbacks.
            **kwargs: What else this version of Keras takes.
        """
        check_known(self._setup.heads, "predict")
        return super().predict(read_inputs(x), batch_size, verbose, steps, callbacks, **kwargs)

    @errors_in_words()
    def predict_on_batch(self, x: Any) -> Any:
        """Every head's predictions by name, for one batch."""
        return super().predict_on_batch(as_arrays("x", x))

    def summary(
        self,
        line_length: int | None = None,
        positions: Sequence[float] | None = None,
        print_fn: Callable[[str], Any] | None = None,
        expand_nested: bool = False,
        show_trainable: bool = False,
        layer_range: Sequence[str] | None = None,
    ) -> None:
        """Prints tables of what was configured: modules with their sizes, losses, weights, and the parts of an update.

        If any argument but `print_fn` is given, Keras's own summary follows.

        Args:
            line_length: As in Keras, as are all others.
            positions: As in Keras.
            print_fn: Called with each line; None: `print`.
            expand_nested: As in Keras.
            show_trainable: As in Keras.
            layer_range: As in Keras.
        """
        others = {
            "line_length": line_length,
            "positions": positions,
            "expand_nested": expand_nested,
            "show_trainable": show_trainable,
            "layer_range": layer_range,
        }
        given = {name: value for name, value in (*others.items(), ("print_fn", print_fn)) if value not in (None, False)}
        print_summary(self, given, super().summary)

    @errors_in_words()
    def train_on_batch(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        class_weight: Mapping[str, Mapping[int, float]] | None = None,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """One update, from one batch, as `keras.Model.train_on_batch` makes it.

        Args:
            x: The inputs of the batch.
            y: The targets by head name.
            sample_weight: The sample weights by head name.
            class_weight: The weights of classes by head name, as for `fit`.
            return_dict: Whether to return a dict by name instead of a list.
            **kwargs: What else this version of Keras takes.

        Raises:
            ValueError: `gradient_accumulation_steps` is above 1, so that an update needs several batches.
        """
        steps = self._assert_ready("train_on_batch").gradient_accumulation_steps
        if steps > 1:
            raise ValueError(
                f"`train_on_batch` requires gradient_accumulation_steps=1, since it makes one update of one batch. "
                f"Received: a trainer compiled with gradient_accumulation_steps={steps}. Call `fit`, or pass the batches of "
                "one update as a list: "
                "`trainer.apply_gradients(trainer.compute_gradients([(x, y), ...]))`."
            )
        check_one_step(self, "train_on_batch")
        check_known(self._setup.heads, "train_on_batch")
        data = self._checked_for_xla(read_arrays(x, y, sample_weight, self._setup.all_names))
        session = self._session
        if class_weight is not None:
            self._build_for(data)
            session = FitSession(requires_every_head=False, spec=self._spec_with(class_weight))
        self.make_train_function().trace_without_assumptions()
        with self._in_session(session):
            return super().train_on_batch(
                data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs
            )

    @errors_in_words()
    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Any = None, return_dict: bool = False, **kwargs: Any
    ) -> Any:
        """Evaluates one batch, as `keras.Model.test_on_batch` does.

        Args:
            x: The inputs of the batch.
            y: The targets by head name.
            sample_weight: The sample weights by head name.
            return_dict: Whether to return a dict by name instead of a list.
            **kwargs: What else this version of Keras takes.
        """
        self._assert_ready("test_on_batch")
        check_one_step(self, "test_on_batch")
        check_known(self._setup.heads, "test_on_batch")
        data = self._checked_for_xla(read_arrays(x, y, sample_weight, self._setup.all_names))
        return super().test_on_batch(data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs)

    def train_step(self, data: Any) -> dict[str, Any]:
        """One update, from one batch or from a window of batches; called by Keras."""
        session = self._session
        every_head = session is not None and session.requires_every_head
        found = batches_of_update(data, self._assert_ready("fit").gradient_accumulation_steps)
        batches = [self._unpack(batch, every_head=every_head) for batch in found]
        built = self._require_built()
        built.check_trainable()
        spec = built.spec
        if session is not None and session.spec is not None:
            spec = replace(session.spec, may_be_idle=spec.may_be_idle)
        spec, logs = spec.in_period(self.stage), built.logs
        if isinstance(self.train_function, StepFunction):
            assumed = self.train_function.assumed
            checks = spec.check_labels and not assumed.labels_are_checked
            stay = assumed.heads_stay and self._heads_stay()  # which a checkpoint may have changed
            spec = replace(spec, check_labels=checks, complete=assumed.complete, heads_stay=stay)
        update = clip(spec, compute_update(spec, batches, self.update_count, loss_scale(self.optimizer)))
        applied = apply_update(spec, self.optimizer, update, logs.count_batches(len(batches)))
        observe(spec, update, applied)
        logs.update(update, applied)
        return over_replicas(logs.training_logs)

    def test_step(self, data: Any) -> dict[str, Any]:
        """Adds one batch to the evaluation; called by Keras."""
        batch = self._unpack(data)
        built = self._require_built()
        spec, logs = built.spec, built.logs
        labels = read_labels(spec.network, spec.predictions, batch, check=spec.check_labels)
        step = self.update_count
        weights = head_weights_at(self._setup.trained, step)
        logs.add_evaluated(evaluate_batch(spec.network, batch.inputs, labels, weights, spec.labels_measured(batch)))
        return over_replicas(lambda: logs.evaluation_logs(weights, list(batch.targets), step))

    def make_train_function(self, force: bool = False) -> Any:
        """Makes the function that Keras calls for each step."""
        if self.train_function is None or force:
            options = self._assert_ready("fit")
            self.train_function = TrainFunction(
                partial(self._made_by_keras, "train_function"),
                spec=lambda: self.update_spec,
                num_updates=lambda: self.num_updates,
                at_once=partial(steps_at_once, self),
                is_constant=options.steps_per_execution != "auto",
                asks_for_faults=lambda: bool(self.jit_compile) and not self.run_eagerly,
                replay=lambda: None if self._session is None else self._session.replay,
                in_session=lambda: self._session is not None,
            )
        return self.train_function

    def make_test_function(self, force: bool = False) -> Any:
        """Makes the function that Keras calls for each step of an evaluation."""
        if self.test_function is None or force:
            self.test_function = StepFunction(
                partial(self._made_by_keras, "test_function"),
                at_once=partial(steps_at_once, self),
                replay=lambda: None if self._session is None else self._session.replay,
            )
        return self.test_function

    # ------------------------------------------------------------------------------------------- custom training loops

    @errors_in_words()
    def compute_gradients(self, batch: Any) -> ComputedGradients:
        """Computes the balanced, unclipped gradients of the total loss on a batch, for a custom training loop.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors. With
                `gradient_accumulation_steps`, a
                list of at most so many of these tuples, whose examples make one update.

        Returns:
            Pairs of gradient and variable for all trainable variables. Gradients are dense tensors or `tf.IndexedSlices`,
            without loss scaling; None for a variable that no loss depends on, and for the variables of an idle head (zeros
            in a graph, where it is not known yet which heads are idle). Each pair records which heads are active and what
            `apply_gradients` restores if it skips the update, in this list, a copy or another list. A new pair, as in
            `[(clip(g), v) for g, v in pairs]`, does not; to keep the record, replace only some of the pairs. The list also
            has `loss`, the total loss, and `losses`, each head's mean loss by name (NaN while it is idle): float32 scalars,
            over all replicas.

        Raises:
            ValueError: The batch has targets for an unknown head, or there are more or fewer batches than
                `gradient_accumulation_steps` allows.
        """
        options = self._assert_ready("compute_gradients")
        check_known(self._setup.heads, "compute_gradients")
        batches = [self._prepared(each) for each in batches_of_update(batch, options.gradient_accumulation_steps)]
        spec, checks = self._spec_at_step()
        with tf.control_dependencies(checks):
            update = compute_update(spec, batches, self.update_count, loss_scale(self.optimizer))
        return pairs_of(spec.network, update)

    @errors_in_words()
    def head_gradients(self, batch: Any, at: str = "representation") -> HeadGradients:
        """Computes each head's gradients on a batch, without training: no variable changes.

        All heads with labels in the batch take part, whatever the schedule. A row is the gradient of the head's weighted
        mean loss; a balancer of the trainer is not applied.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors.
            at: `"representation"`: the gradients with respect to each floating-point leaf of the representation, with the
                leaf's shape, `[batch, ...]`; on several replicas, of the replica's own examples. `"parameters"`: those with
                respect to each trainable variable of the encoder, over all replicas.

        Returns:
            A dict from head name to a list of gradients: dense tensors, `tf.IndexedSlices`, or None where the head does not
            depend on the leaf or the variable. It also has `gramian` (`[num_heads, num_heads]` float64, over all replicas),
            `norms` (`[num_heads]`), `cosines` (`[num_heads, num_heads]`, NaN for a head without a gradient), and `own`:
            pairs of gradient and variable for the variables of the heads' own modules. Read these in the `tf.function` in
            which the gradients are computed. `balancing.balance` takes it as it is.

        Raises:
            ValueError: The batch has targets for an unknown head, or `at` is another string.

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> targets = {"price": tf.ones([8, 1]), "size": tf.zeros([8, 1])}
            >>> batch = tf.ones([8, 3]), targets
            >>> found = trainer.head_gradients(batch, at="parameters")
            >>> [tuple(gradient.shape) for gradient in found["price"]]
            [(3, 4), (4,)]
            >>> tuple(found.cosines.shape)
            (2, 2)
        """
        self._assert_ready("head_gradients")
        check_known(self._setup.heads, "head_gradients")
        check_choice("at", at, BALANCE_AT)
        prepared = self._prepared(batch)
        spec, checks = self._spec_at_step()
        with tf.control_dependencies(checks):
            return gradients_by_head(spec, at, prepared, self.update_count, loss_scale(self.optimizer))

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
        if self._built is None:
            raise ValueError(
                "`apply_gradients` requires a built trainer. Received: a trainer that has seen no data. "
                "Call `compute_gradients(batch)` or `fit` first."
            )
        spec, checks = self._spec_at_step()
        with tf.control_dependencies(checks):
            update = to_apply(spec.network, grads_and_vars, self.update_count)
            return apply_update(spec, self.optimizer, clip(spec, update))

    @errors_in_words()
    def diagnose(
        self, x: Any, y: Any = None, *, sample_weight: Any = None, batch_size: int | None = None, batches: int = 32
    ) -> Diagnosis:
        """Measures the heads' gradients without training, and suggests what to change.

        Computes norms, shares and cosines of the heads' gradients at the representation and at the parameters, for each
        batch, in training mode, for all heads regardless of the schedule, and before balancing. Variables and metrics do
        not change. A `target_scaling` that no `fit` has learned yet is that of the labels in these batches.

        Args:
            x: The data, as for `fit`; or a list of batches.
            y: The targets by head name, if `x` are arrays.
            sample_weight: The sample weights by head name, if `x` are arrays.
            batch_size: The batch size, if `x` are arrays; 32 by default.
            batches: The maximum number of batches to measure.

        Returns:
            The measurements, the findings and `suggestion`, keyword arguments for `compile`: `NormFloor()` if it would act,
            and a `target_scaling` for heads in raw units. `print` shows all of it.

        Raises:
            ValueError: There is no batch, `batches` is below 1, or arguments are incompatible.
            TypeError: `x` is neither arrays with `y` nor an iterable of batches.
        """
        self._assert_ready("diagnose")
        limit = check_positive_whole("batches", batches)
        data = read_batches(x, y, sample_weight, self._setup.all_names, batch_size)
        prepared = [self._prepared(batch) for batch in itertools.islice(data, limit)]
        if not prepared:
            raise ValueError("`x` must contain at least one batch. Received: none. Pass batches as for `fit`.")
        spec = self._require_built().spec
        of_metrics = [tensor_variable(variable) for metric in self.metrics for variable in metric.variables]
        before = RollBack([*spec.network.state, *of_metrics, *scaling_variables(self._setup.heads)])
        try:
            fit_scalings_to(prepared, spec, eagerly=self._runs_eagerly)
            with functions_run_eagerly(self._runs_eagerly):
                return diagnose(spec, prepared, self.update_count, loss_scale(self.optimizer))
        finally:
            before.restore()

    # ------------------------------------------------------------------------------------------- saving

    def save(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the trainer, with the optimizer's state, as a `.keras` file.

        `keras.models.load_model(filepath)` loads the whole trainer: its heads, the options of `compile`, weights, and
        the state of the optimizer, of methods and of dropout, so that `fit` goes on where it stopped. Import `multihead`
        before, and pass classes of your own that are not registered as `custom_objects`.

        Args:
            filepath: A path that ends in `.keras`.
            overwrite: Whether an existing file is replaced; otherwise Keras asks.
            **kwargs: What else this version of Keras takes.

        Raises:
            ValueError: `filepath` does not end in `.keras`.
        """
        saving.check_path(filepath, kwargs)
        super().save(filepath, overwrite, **kwargs)

    def save_weights(self, filepath: str | os.PathLike[str], overwrite: bool = True, **kwargs: Any) -> None:
        """Saves the weights, and what else changes in training, as `keras.Model.save_weights` does."""
        self._build_again()
        super().save_weights(filepath, overwrite, **kwargs)

    def load_weights(self, filepath: str | os.PathLike[str], skip_mismatch: bool = False, **kwargs: Any) -> Any:
        """Loads what `save_weights` saved, as `keras.Model.load_weights` does."""
        self._build_again()
        return super().load_weights(filepath, skip_mismatch, **kwargs)

    def export(
        self,
        filepath: str | os.PathLike[str],
        heads: str | Sequence[str] | None = None,
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
            filepath: A folder; an existing export in it is replaced.
            heads: The name of a head, or a list of names; None: all heads.
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
            ValueError: There is no such head, it is not built yet, `filepath` is a file, or the result of `preprocess` or
                `postprocess` is invalid.
            TypeError: An argument has the wrong type.
        """
        names = heads_to_export(heads, self._setup.all_names, self._shapes.predictions)
        check_known([self._setup.head(name) for name in names], "export")
        encoder_specs = None if self._shapes.specs is None else self._shapes.specs.inputs
        export_heads(
            filepath,
            self.encoder,
            [self._setup.head(name) for name in names],
            encoder_specs,
            by_head=heads is None or len(names) > 1,
            preprocess=preprocess,
            inputs=inputs,
            generate=generate,
            postprocess=postprocess,
        )

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments and the heads."""
        return saving.encode_trainer(self.name, self.encoder, self._setup.heads)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        """Creates a trainer with its heads from the result of `get_config`."""
        return saving.decode_trainer(cls, config, custom_objects)

    def save_own_variables(self, store: Any) -> None:
        """Saves the trainer's own state, and the parts of its modules that Keras would not save."""
        super().save_own_variables(store)
        if self._session is None:
            draw_from_variables(self)
        saving.save_variables(self.encoder, self._setup.heads, store)

    def load_own_variables(self, store: Any) -> None:
        """Loads what `save_own_variables` saved."""
        super().load_own_variables({name: store[name] for name in store.keys() if name.isdigit()})  # noqa: SIM118
        if self._session is None and any(name.startswith("seed_") for name in store.keys()):  # noqa: SIM118
            draw_from_variables(self)
        saving.load_variables(self.encoder, self._setup.heads, store)
        load_as_arrays(self.metrics)  # Keras loads these next

    def get_build_config(self) -> dict[str, Any]:
        """The specs of the batches that the trainer was built for; what they show to be missing is built first."""
        self._build_again()
        return saving.encode_shapes(self._shapes, run_eagerly=self._runs_eagerly)

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Creates all variables, from the result of `get_build_config`."""
        found = saving.decode_shapes(config)
        if found is not None:
            specs, self.run_eagerly = found
            self._build(specs)

    def get_compile_config(self) -> dict[str, Any] | None:
        """The arguments of `compile`; None if the trainer is not compiled."""
        return None if self._setup.options is None else saving.encode_options(self.optimizer, self._setup.options)

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compiles with the result of `get_compile_config`; a built trainer also creates the optimizer's variables."""
        self.compile(**saving.decode_options(config))
        self._build_again()

    # ------------------------------------------------------------------------------------------- what changes, and when

    def _change_heads(self, heads: tuple[NamedHead, ...]) -> None:
        """Replaces the heads, keeps their weights in saved variables, and drops what depends on the heads."""
        with self.distribute_strategy.scope():
            replace_layers(self, head_weights=kept_weights([head for head in heads if head.is_trained]))
        self._forget()
        self._setup = Setup(heads)

    def _rescale_heads(self, heads: tuple[NamedHead, ...]) -> None:
        """Replaces heads by the same ones with other scalings of their targets."""
        unlock(self)
        for head in heads:
            if head.scaling is not self._setup.head(head.name).scaling:
                remove_layer(self, SCALING + head.name)
                if head.scaling is not None:
                    setattr(self, SCALING + head.name, head.scaling)
        self._change_heads(heads)
        self.predict_function = None  # the compiled function has the scalings of before

    def _adopt(self, options: CompileOptions) -> None:
        """Takes over the checked options of `compile`, with an optimizer that may have made updates."""
        self.updates_before.assign_sub(tf.cast(tensor_variable(self.optimizer.iterations), tf.int64))
        methods = {"weighting": options.weighting, "balancer": options.balancer_to_use()}
        replace_layers(self, **methods, head_schedule=options.head_schedule)
        self._setup = Setup(self._setup.heads, options)

    def _forget(self) -> None:
        """Drops everything that depends on the heads and on `compile`, except the heads' variables."""
        unlock(self)
        self.updates_before.assign(self.update_count)
        self._setup, self._built = Setup(self._setup.heads), None
        self._idle.forget()

    def _refuse_in_fit(self, method: str) -> None:
        if self._session is not None:
            raise ValueError(
                f"`{method}` must not be called during `fit`, for example by a callback. Received: a call during `fit`. "
                "Call it before or after `fit`; `set_weight`, `set_idle`, schedules and rates can change training meanwhile."
            )

    def _assert_ready(self, method: str) -> CompileOptions:
        if self._setup.options is None:
            raise ValueError(
                f"`{method}` requires a compiled trainer. Received: a trainer that was not compiled since the last "
                "`add_head` or `remove_head`. Call `compile(optimizer, ...)` first."
            )
        return self._setup.options

    # ------------------------------------------------------------------------------------------- building

    def _require_built(self) -> Built:
        if self._built is None:
            raise ValueError("The trainer is not built. Received: no data yet. Call `compute_gradients(batch)` first.")
        return self._built

    @property
    def _runs_eagerly(self) -> bool:
        """Whether modules are never traced, so that their Python may depend on values."""
        return bool(self.run_eagerly) or tf.config.functions_run_eagerly()

    def _build(self, specs: Batch, sample: Batch | None = None) -> None:
        """Creates all variables for a batch's specs: of modules, metrics and, if compiled, methods and the optimizer.

        Args:
            specs: The specs of a batch, with open batch size.
            sample: Some examples, for modules that are not traced; None makes some of ones and zeros.
        """
        unlock(self)
        heads, options, eagerly = self._setup.heads, self._setup.options, self._runs_eagerly
        with self.distribute_strategy.scope():
            self._shapes = build_modules(self.encoder, heads, specs, self._shapes, sample, eagerly=eagerly)
            if options is not None:
                spec = self._spec_of(heads, options)
                logs = None if self._built is None else self._built.logs
                self._built = Built(spec, logs or LogMetrics(spec, options.telemetry, options.updates_at_once))
                if options.jit_compile is not True and not all(head.runs_in_xla for head in heads):
                    self.jit_compile = False  # Keras's default is to use XLA if the model can be compiled
        self.built = True

    def _build_again(self) -> None:
        """Builds a trainer that has seen data, but was changed or compiled since."""
        if self._shapes.specs is not None and self._built is None:
            self._build(self._shapes.specs)

    def _spec_of(self, heads: Sequence[NamedHead], options: CompileOptions) -> UpdateSpec:
        """How updates of built heads are computed."""
        return build_spec(
            encoder=self.encoder,
            heads=heads,
            shapes=self._shapes,
            options=options,
            balancer=self.balancer,
            optimizer=self.optimizer,
            awake=self._idle.create(self._setup.names),
            may_be_idle=self._idle.may_change,
            earlier=None if self._built is None else self._built.spec,
        )

    def _build_unless_built(self, specs: Batch, sample: Callable[[], Batch | None] = lambda: None) -> None:
        """Builds what batches of some specs require, or looks at the modules again if sizes differ from those so far."""
        known = self._shapes.specs
        if self._built is None or known is None or self._shapes.lack(self._setup.heads, specs.targets):
            self._build(specs, sample())
        else:
            build_wider(lambda wider: self._build(wider, sample()), known, specs)

    def _build_for(self, data: Data, *, every_head: bool = False) -> None:
        """Builds what data require, if it is known before the first batch."""
        if data.specs is None:
            return
        names = self._setup.all_names
        batch = unpack(data.specs, names)
        if every_head:
            check_every_head(batch.targets, self._setup.trained)

        def sample() -> Batch | None:
            found = data.sample() if self._runs_eagerly else None
            return None if found is None else as_tensors(unpack(found, names))

        self._build_unless_built(open_batch_size(batch), sample)

    def _unpack(self, data: Any, *, every_head: bool = False) -> Batch:
        """Unpacks a batch, checks its keys, and builds for it whatever is not built yet."""
        names = self._setup.all_names
        # Keras 3 passes the arrays of `train_on_batch` on if it runs eagerly.
        batch: Batch = as_tensors(unpack(data, names))
        if every_head:
            check_every_head(batch.targets, self._setup.trained)
        check_rows(batch)
        specs = open_batch_size(batch)
        sample = batch if self._runs_eagerly and tf.executing_eagerly() else None

        def build() -> None:
            # A sample is run through the modules, which `init_scope` would hide from tapes.
            with tf.init_scope() if sample is None else nullcontext():
                self._build_unless_built(specs, lambda: sample)

        replicas.once(build)
        return batch

    def _prepared(self, batch: Any) -> Batch:
        """A batch of a custom training loop, as tensors."""
        return self._unpack(as_arrays("batch", tuple(batch)))

    # ------------------------------------------------------------------------------------------- a call of `fit`

    def _fit(self, given: dict[str, Any], options: CompileOptions, opening: Opening | None) -> Any:
        """A call of `fit` whose folder, if it has a checkpoint, is open."""
        class_weight = given.pop("class_weight", None)
        call = read_fit(given, self._setup.all_names)
        ahead = 0 if opening is not None and call.is_made_by_python else 1
        call = self._prepare(call if opening is None else call.drawing_from(opening.stream))
        are_checked = call.data.labels_are_checked and class_weight is None
        unscaled, as_given = unknown(self._setup.heads), call
        start = None if opening is None else opening.begin(self, call)
        call = call if start is None else call.in_fixed_order(start.seed, options.gradient_accumulation_steps)
        spec = None if self._built is None else self._built.spec
        names, strategy = self._setup.all_names, self.distribute_strategy
        fit_scalings(unscaled, as_given, names, spec, strategy, eagerly=self._runs_eagerly)
        tell_directions(callbacks_of(call.others["callbacks"]), self._setup.heads)
        validates = call.validation is not None
        is_ours = type(self).train_step is MultiHeadTrainer.train_step  # another one may change labels, or log by itself
        given = call.others["callbacks"]
        for callback in callbacks_of(given):
            if hasattr(callback, "check_fit"):
                callback.check_fit(callbacks_of(given), validates=validates)
        call = call.with_others(callbacks=with_epoch_end(self, given, counts=is_ours))
        call = with_progress(call, lambda: self.log_metrics)
        if options.gradient_accumulation_steps > 1:
            call = call.in_windows(Windows(options.gradient_accumulation_steps, self.distribute_strategy, ahead))
        self._idle.set([], self._setup.names)
        run, call = (None, call) if start is None else make_run(self, start, call)
        assumptions = Assumptions(are_checked)
        if is_ours:
            heads_stay = not self.jit_compile and self._heads_stay()
            assumptions = Assumptions(are_checked, call.data.complete, heads_stay)
        session = FitSession(run=run, spec=self._spec_with(class_weight))
        with self._in_session(session), interruptible(run):
            self.make_train_function().trace_for(call.data.specs, assumptions)
            return super().fit(**call.for_fit())

    def _heads_stay(self) -> bool:
        """Whether all heads are awake, with weights above 0, and remain so unless `set_weight` or `set_idle` is called."""
        weights = [head.weight for head in self._setup.trained]
        return self._idle.never and not any(map(is_zero, weights))

    def _allow_idle_heads(self) -> None:
        """Lets the step of `fit` be traced again if it relies on heads that never are idle."""
        if isinstance(self.train_function, StepFunction):
            self.train_function.trace_for_idle_heads()

    @contextmanager
    def _in_session(self, session: FitSession | None) -> Iterator[None]:
        """A context of a session; what is traced for weights of classes is used in it only."""
        before, self._session = self._session, session
        is_new = session is not None and session is not before and not session.is_evaluating
        retraces = is_new and session is not None and session.spec is not None
        if retraces:
            self.train_function = None
        try:
            yield
        finally:
            self._session = before
            if retraces:
                self.train_function = None

    def _spec_with(self, class_weight: Any) -> UpdateSpec | None:
        """How updates are computed with weights of classes by head name; None without weights."""
        if class_weight is None:
            return None
        self._require_built()
        with self.distribute_strategy.scope():
            heads = weigh_classes(self._setup.trained, class_weight)
            return self._spec_of([*heads, *self._setup.measured], self._assert_ready("fit"))

    def _spec_at_step(self) -> tuple[UpdateSpec, list[Any]]:
        """How the next update of a custom training loop is computed, and what must hold before it in a graph."""
        built = self._require_built()
        built.check_trainable()
        return built.in_custom_loop(self.stage, self.update_count)

    def _prepare(self, call: Call) -> Call:
        """A call of `fit` for which everything is built, and whose labels are checked as far as they are known."""
        call.data.check_any()
        self._build_for(call.data, every_head=True)
        data = self._with_checked_labels(call.data, shuffle=call.others.get("shuffle", True))
        validation = call.validation
        if validation is not None:
            validation = self._with_checked_labels(validation, argument="validation_data")
        return call._replace(data=data, validation=validation)

    def _with_checked_labels(self, data: Data, **options: Any) -> Data:
        """The data, with labels checked that training steps cannot check, or not as early."""
        if not self._assert_ready("fit").check_labels:
            return data
        return with_checked_labels(
            data, {head.name: head for head in self._setup.heads}, self._shapes, in_xla=bool(self.jit_compile), **options
        )

    def _checked_for_xla(self, data: Data) -> Data:
        """A batch as arrays, with labels checked if it goes to a step that XLA compiles, which has no errors."""
        if self.jit_compile:
            self._build_for(data)
            return self._with_checked_labels(data)
        return data

    # ------------------------------------------------------------------------------------------- what Keras calls

    def _made_by_keras(self, name: str) -> Callable[[Any], Any]:
        """Makes the train or test function of Keras, and leaves the attribute as it was."""
        before = getattr(self, name)
        getattr(super(), f"make_{name}")(force=True)
        made = getattr(self, name)
        setattr(self, name, before)
        return made

    def _latest_logs(self, logs: Any) -> Any:
        """The logs of a step, read again from the metrics, because Keras would add up those of several workers."""
        if self._built is None or not isinstance(logs, dict):
            return logs
        if self._session is None or self._session.is_evaluating:
            return self._built.evaluation_logs(logs, self.update_count)
        return self._built.training_logs(logs)
