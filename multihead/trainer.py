"""`MultiHeadTrainer`: several heads on one encoder, with one total loss, one optimizer and Keras's own training loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import keras
import tensorflow as tf

from multihead import balancing, schedules
from multihead import weighting as weightings
from multihead._data.call import FitCall, as_data, read_batches
from multihead._data.data import Data, batches_of_update
from multihead._formats.export import chosen_heads, export_heads
from multihead._formats.from_model import compiled_arguments, split_model
from multihead._formats.to_keras import keras_model
from multihead._ground.keras import check_one_step, validates_during_fit
from multihead._ground.layers import check_initialized, compiled_with
from multihead._ground.optimizers import loss_scale
from multihead._ground.types import (
    Callback,
    Callbacks,
    ClassWeight,
    Config,
    Dataset,
    Function,
    Gradient,
    Layer,
    LossIdentifier,
    MetricIdentifier,
    Nested,
    Optimizer,
    Results,
    Variable,
)
from multihead._ground.validation import check_choice, check_positive_whole, quoted, readable_errors
from multihead._runs.run import checkpoint_of, open_run
from multihead._trainer import custom_loop, fitting
from multihead._trainer.building import check_switches
from multihead._trainer.changes import begin_compile, end_compile, set_heads, set_idle, set_weight
from multihead._trainer.custom_loop import ComputedGradients
from multihead._trainer.keras_trainer import KerasTrainer
from multihead._trainer.options import BALANCE_AT, CompileOptions, check_trainer, only_own_options
from multihead._trainer.state import Origin
from multihead._update.apply import apply_update, clip
from multihead._update.evaluate import HeadGradients, gradients_by_head
from multihead._update.scaling import check_known
from multihead.balancing import Balancer
from multihead.clipping import Clipping
from multihead.diagnosis import Diagnosis
from multihead.heads import Head
from multihead.heads._named import NamedHead, new_head
from multihead.heads._reads import Reads
from multihead.heads._value import Weight, check_heads
from multihead.rates import Rate
from multihead.scaling import Standardize
from multihead.weighting import Weighting

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(KerasTrainer):
    """Trains several heads on one shared encoder with one total loss and one optimizer.

    A head is a Keras layer or model that reads the encoder's representation and is trained on its own loss. The update is
    the gradient of `sum_k weight_k * (sum_i s_ki * loss_ki) / (sum_i s_ki)`, over heads `k` and elements `i` (examples,
    tokens), where `weight_k` is the `weight` of the head and `s_ki` the sample weight times the class weight, 0 for masked
    elements and missing labels. A weighting changes how much the losses count, and a balancer how the heads' encoder
    gradients are combined; the heads' own variables are trained by the plain gradient.

    `fit`, `evaluate`, `predict`, callbacks and saving are Keras's own.

    Args:
        encoder: A Keras layer or model, `inputs -> representation`. The representation is a tensor or any nest of tensors.
            Heads receive its floating-point leaves detached, and integer and boolean leaves (masks, lengths) unchanged. Its
            `call` may have an argument `step`, as that of a head's `module`.
        heads: The heads by name; more can be added by `add_head`.
        name: Name of the model.

    A batch is `(inputs, targets)` or `(inputs, targets, sample_weights)`; `targets` and `sample_weights` are dicts by head
    name. A head without an entry in `targets` has no labels in the batch; a label is also missing if it is `ignore_label` or
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

    def __init__(
        self, encoder: Callable[[Nested], Nested], heads: Mapping[str, Head] | None = None, *, name: str | None = None
    ) -> None:
        if not callable(encoder):
            raise TypeError(
                f"`encoder` must be a Keras layer or model. Received: encoder={encoder!r}. "
                "Pass a layer or model that converts the inputs to the representation."
            )
        check_initialized("encoder", encoder)
        super().__init__(encoder, name)
        named = tuple(NamedHead(head_name, head) for head_name, head in check_heads(heads).items())
        set_heads(self, self._state, named)

    @classmethod
    def from_model(cls, model: keras.Model, *, representation: str | Sequence[str] | None = None) -> MultiHeadTrainer:
        """Makes a trainer of a functional Keras model with several outputs, from the same layers.

        The encoder is the part of the model that at least two outputs depend on; where that has no weights, the layers that
        several outputs call, each on inputs of its own. The representation is every tensor that leaves the encoder: one
        tensor, or a dict by layer name. A head is the rest of the path to one output, and has its key in a dict of outputs
        as name, otherwise Keras's output name. The model can still be used; it is trained as well. With a
        `target_scaling`, it predicts scaled values; `to_keras` makes one that predicts in the targets' units.

        The losses, `loss_weights`, metrics and weighted metrics of a compiled model become those of the heads, and `compile`
        without an optimizer creates one with the options of the model's, its `exclude_from_weight_decay` included. A
        model that runs eagerly is trained eagerly. Other options of the model's `compile` are not taken over. An output
        without a loss, which is every output of a model that is not compiled, is predicted and measured, but not trained.

        Args:
            model: The model.
            representation: The names of the layers whose outputs are the representation, if the heads should begin
                elsewhere; a tensor that bypasses these layers is also part of the representation.

        Raises:
            TypeError: `model` is not a Keras model.
            ValueError: `model` is not functional, has only one output, or has outputs that share no layer with weights; or a
                name in `representation` is not the name of a layer of the model, or of one before a layer that several
                heads would call, and that adds a loss, has a state or draws random numbers.

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
        encoder, parts = split_model(model, representation)
        compiled = compiled_arguments(model, list(parts))
        heads = {name: Head(module, reads=reads, **compiled[name]) for name, (module, reads) in parts.items()}
        trainer = cls(encoder, heads, name=model.name)
        trainer._state.origin = Origin(
            str(model.name), getattr(model, "optimizer", None), bool(compiled_with(model).get("run_eagerly"))
        )
        return trainer

    # ------------------------------------------------------------------------------------------- heads and options

    def add_head(
        self,
        name: str,
        module: Function,
        loss: LossIdentifier,
        *,
        weight: Weight = 1.0,
        metrics: Sequence[MetricIdentifier] = (),
        teacher_forcing: bool = False,
        ignore_label: float | None = None,
        reads: Reads = None,
        weighted_metrics: Sequence[MetricIdentifier] = (),
        class_weight: Mapping[int, float] | None = None,
        target_scaling: Standardize | Layer | str | None = None,
        trains_encoder: bool = True,
        couples_rows: bool | None = None,
        learning_rate_multiplier: Rate = 1.0,
        weight_decay_multiplier: Rate = 1.0,
    ) -> None:
        """Adds a head: the same as `heads` with one more `Head`. Afterwards, `compile` must be called (again).

        `name` is the key of the head's targets, sample weights and logs. The other arguments are those of `Head`, where they
        are described; most heads need only the first ones, up to `metrics`.

        Raises:
            ValueError: There is already a head with this name, an argument is out of range, two values of the heads
                would have the same name in the logs, or `target_scaling` does not suit the loss.
            TypeError: An argument has the wrong type.

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> price = keras.layers.Dense(1)
            >>> trainer.add_head("price", price, "mse", target_scaling="standardize")
            >>> list(trainer.heads)
            ['price']
        """
        state = self._state
        state.refuse_in_fit("add_head")
        head = new_head(
            name,
            module=module,
            loss=loss,
            weight=weight,
            metrics=metrics,
            teacher_forcing=teacher_forcing,
            ignore_label=ignore_label,
            reads=reads,
            weighted_metrics=weighted_metrics,
            class_weight=class_weight,
            target_scaling=target_scaling,
            trains_encoder=trains_encoder,
            couples_rows=couples_rows,
            learning_rate_multiplier=learning_rate_multiplier,
            weight_decay_multiplier=weight_decay_multiplier,
        )
        if name in state.setup.all_names:
            names = quoted(state.setup.all_names)
            raise ValueError(f"`name` must be new. Received: name={name!r}; the heads are {names}. Choose another name.")
        set_heads(self, state, (*state.setup.heads, head))

    def remove_head(self, name: str) -> None:
        """Removes a head. Afterwards, `compile` must be called again, unless no head is left.

        The encoder, the other heads and the removed module keep their weights.

        Args:
            name: The head's name; it can be used again afterwards.

        Raises:
            ValueError: There is no head with this name.
        """
        state = self._state
        state.refuse_in_fit("remove_head")
        check_choice("name", name, state.setup.all_names)
        set_heads(self, state, tuple(head for head in state.setup.heads if head.name != name))

    def set_weight(self, name: str, value: float) -> None:
        """Sets how much a head's loss counts from the next update on, for example from a callback.

        Nothing is compiled again; the first weight of 0 may retrace the step of `fit`. The weight is saved and loaded with
        the trainer.

        Args:
            name: The head's name.
            value: A number of at least 0; with 0 the head is idle: in the logs of training, its loss and metrics are NaN,
                which only an evaluation measures then. To measure a head in training, too, give it `loss=None`.

        Raises:
            ValueError: There is no such head, its weight is a function of the step, `value` is negative or not finite, or is
                not 0 for a head without targets in the data of the running `fit`.
        """
        set_weight(self, self._state, name, value)

    def set_idle(self, heads: Sequence[str]) -> None:
        """Makes heads idle from the next update on: they are not trained and do not change. For callbacks of `fit`.

        Training of the encoder and the other heads continues. Only the first call may retrace the step. The turn of an idle
        head passes on to others, as `multihead.schedules` says. A `fit` begins without idle heads.

        Args:
            heads: The names of all heads that are to be idle; an empty list for none.

        Raises:
            ValueError: There is no head with such a name.
        """
        set_idle(self, self._state, heads)

    @only_own_options
    def compile(
        self,
        optimizer: Optimizer | Config | str | None = None,
        *,
        weighting: Weighting | str | Config | None = None,
        balancer: Balancer | str | Config | None = None,
        head_schedule: schedules.Schedule | None = None,
        clip: Clipping | None = None,
        encoder_learning_rate_multiplier: Rate = 1.0,
        gradient_accumulation_steps: int = 1,
        micro_batches: int = 1,
        run_eagerly: bool | None = None,
        steps_per_execution: int | str | None = 1,
        jit_compile: bool | str | None = None,
        balance_at: str = "representation",
        balance_every: int = 1,
        encoder_weight_decay_multiplier: Rate = 1.0,
        target_scaling: Config | None = None,
        telemetry: str | None = "norms",
        on_nonfinite: str = "skip",
        max_skipped_updates: int | None = 25,
        check_labels: bool = True,
    ) -> None:
        """Configures training. Losses and metrics belong to the heads: see `add_head`.

        Most users need only the arguments up to `micro_batches`; the others are for special cases.

        A second `compile` begins from its own arguments: an option that it does not name has its default again, so that a
        balancer must be passed again. What belongs to the encoder and the heads stays: their weights, `set_weight`, the
        scaling of targets, and the number of updates so far. The optimizer's state stays only if the same optimizer object
        is passed, that of a method only if the same instance is.

        Args:
            optimizer: A Keras optimizer or its name. It must not clip or accumulate gradients itself. None: for a trainer
                made by `from_model`, a new one with the options of the model's optimizer; otherwise `"rmsprop"`, as in
                Keras.
            weighting: Combines the heads' losses into one total loss: a `multihead.weighting.Weighting`, its name or its
                configuration; None is the sum of the losses, each times its head's `weight`. The weighting's variables are
                trained by the same optimizer, without clipping. With several micro-batches, a weighting that depends on the
                losses of the same update costs what a balancer costs: see `micro_batches`.
            balancer: Combines the heads' encoder gradients into one gradient: a `multihead.balancing.Balancer`, its name or
                its configuration; None is the plain sum.
            head_schedule: Decides which heads train at a step (`multihead.schedules`); None trains all heads.
            clip: Limits the final gradients, once per update (`multihead.clipping`); None: no limit.
            encoder_learning_rate_multiplier: The factor of every step that is applied to the encoder's variables, weight
                decay included. A number (0 freezes the encoder), a function of the step, `LayerwiseDecay`, `ByPath` or
                `Stages`.
            gradient_accumulation_steps: Computes one update, and one step of Keras, from this many consecutive batches of
                any shapes; a shorter last window of an epoch is also an update. The update is that of all their examples in
                one batch. `compute_gradients` then takes a list of batches, and a `train_step` of your own passes its `data`
                on to `super().train_step` or to `compute_gradients`; `train_on_batch` is an error.
            micro_batches: Splits a batch into this many micro-batches, processed one after another to save memory; the
                update is that of the whole batch. All inputs must have one row per example. With a balancer other than
                `NormFloor`, micro-batches run forward through the encoder once more, if it can be repeated: see "How an
                update is computed".

            run_eagerly: As in Keras; by default as the model of `from_model`.
            steps_per_execution: As in Keras; `"auto"` on Keras 2 only.
            jit_compile: As in Keras; None is Keras's default.
            balance_at: `"representation"` balances representation gradients, with one backward pass through the encoder;
                `"parameters"` balances the gradients of the encoder's parameters, with one backward pass per head.
            balance_every: The balancer's coefficients are recomputed at every `balance_every`-th update, beginning with the
                first (step 0), and reused in between. `NormFloor` takes those of the updates before, and measures at the
                same steps. The updates in between make one pass through the encoder.
            encoder_weight_decay_multiplier: The factor of the optimizer's `weight_decay` for the encoder's variables, in the
                same forms.
            target_scaling: By head name, a `target_scaling` that replaces the one of `add_head`, as `diagnose` suggests it.
                A head that already has the same scaling keeps the learned parameters of the scaling.
            telemetry: `"norms"` logs gradient norm, share and coefficient per head; `"full"` also cosines between heads and
                with the update, norms of the update before and after clipping, and running averages; None logs none of
                these, only losses and metrics.
            on_nonfinite: What happens to an update with an infinite or NaN loss or gradient. `"skip"`: it is not applied,
                and counts as a skipped update; `"raise"`: it is not applied, and training ends with an error. The warning at
                the end of an epoch, and the errors, name the head, the variable, the update and the batch. An update that a
                `LossScaleOptimizer` skips to lower its loss scale counts in `skipped_updates`, but causes neither.
            max_skipped_updates: Training ends with an error once this many updates in a row have been skipped because of an
                infinite or NaN loss or gradient; None: never.
            check_labels: Whether to look for invalid labels and sample weights, such as class numbers out of range: once in
                arrays, otherwise in every batch. False saves the time of these checks (`docs/labels.md`); shapes and dtypes
                are checked in any case.

        Raises:
            ValueError: There is no head yet; an option is out of range, names an unknown method or head, or does not work on
                several replicas; or the optimizer clips or accumulates gradients.
            TypeError: An option has the wrong type, or `compile` does not have it: losses and metrics belong to the heads.

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam", balancer="NormFloor", gradient_accumulation_steps=4)
        """
        self._state.refuse_in_fit("compile")
        check_trainer(type(self), MultiHeadTrainer)
        requested = CompileOptions(
            weighting=weightings.get(weighting),
            balancer=balancing.get(balancer),
            balance_at=balance_at,
            balance_every=balance_every,
            head_schedule=schedules.Together() if head_schedule is None else head_schedule,
            clip=clip,
            micro_batches=micro_batches,
            gradient_accumulation_steps=gradient_accumulation_steps,
            encoder_learning_rate_multiplier=encoder_learning_rate_multiplier,
            encoder_weight_decay_multiplier=encoder_weight_decay_multiplier,
            telemetry=telemetry,
            on_nonfinite=on_nonfinite,
            max_skipped_updates=max_skipped_updates,
            check_labels=check_labels,
            run_eagerly=run_eagerly,
            steps_per_execution=steps_per_execution,
            jit_compile=jit_compile,
        )
        optimizer, options = begin_compile(self, self._state, optimizer, requested, target_scaling)
        super().compile(optimizer=optimizer, **options.for_keras())
        end_compile(self, self._state, options)

    # ------------------------------------------------------------------------------------------- training and evaluation

    @readable_errors()
    def fit(
        self,
        x: Dataset = None,
        y: Nested = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: Callbacks = None,
        validation_split: float = 0.0,
        validation_data: Dataset = None,
        shuffle: bool = True,
        class_weight: ClassWeight | None = None,
        sample_weight: Nested = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Sequence[int] = 1,
        **kwargs: object,
    ) -> Callback:
        """Trains the heads and the encoder, as `keras.Model.fit` does.

        Args:
            x: The inputs of all examples: an array, or a list, a dict or another structure of arrays, data frames, lists of
                numbers, ragged or sparse tensors. Or an iterable of batches `(inputs, targets)` or
                `(inputs, targets, sample_weights)`: a `tf.data.Dataset`, a generator, a `PyDataset` (Keras 2: `Sequence`) or
                any other iterable. A batch of a generator or a `PyDataset` may lack the targets of some heads, which then
                have no labels in it; each head must have targets in one of the first 64 batches.
            y: The targets by head name, if `x` are arrays: a dict of arrays or series, or a data frame whose columns are
                the heads.
            batch_size: As in Keras.
            epochs: As in Keras: the number of the last epoch.
            verbose: As in Keras.
            callbacks: Keras callbacks.
            validation_split: The fraction of the last examples that is held out for validation.
            validation_data: `(x, y)`, `(x, y, sample_weight)` or an iterable of batches.
            shuffle: As in Keras.
            class_weight: By head name, the weights of labels by class number. In this `fit` they replace those of
                `add_head`; they count in training only, not in validation.
            sample_weight: A dict like `y`, if `x` are arrays; the examples of a head that it does not name weigh 1.
            initial_epoch: As in Keras.
            steps_per_epoch: The number of updates in an epoch.
            validation_steps: As in Keras.
            validation_batch_size: As in Keras.
            validation_freq: As in Keras.
            **kwargs: Further arguments of this version of Keras.

        Returns:
            Keras's `History`.

        Raises:
            ValueError: A head has no targets in the data, the data or `validation_data` have targets for an unknown head,
                or arguments are incompatible.
            TypeError: Some of the data cannot be converted to an array.

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> x = tf.random.stateless_normal([8, 3], seed=[0, 0])
            >>> y = {"price": 1000 + x[:, :1], "size": x[:, 1:2]}
            >>> trainer.fit(x, y, epochs=2, verbose=0).history["price_updates"]
            [1.0, 1.0]
        """
        self._state.require_options("fit")
        checkpoint, other_callbacks = checkpoint_of(callbacks)
        call = FitCall(
            x=x,
            y=y,
            batch_size=batch_size,
            epochs=epochs,
            verbose=verbose,
            callbacks=other_callbacks,
            validation_split=validation_split,
            validation_data=validation_data,
            shuffle=shuffle,
            class_weight=class_weight,
            sample_weight=sample_weight,
            initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
            others=kwargs,
        )
        with open_run(self, checkpoint) as run, fitting.running_fit(self, self._state, call, run) as arguments:
            return super().fit(**arguments)

    @readable_errors()
    def evaluate(
        self,
        x: Dataset = None,
        y: Nested = None,
        batch_size: int | None = None,
        verbose: int | str = "auto",
        sample_weight: Nested = None,
        steps: int | None = None,
        callbacks: Callbacks = None,
        return_dict: bool = False,
        **kwargs: object,
    ) -> Results:
        """Evaluates the heads that have targets in the data, as `keras.Model.evaluate` does; data are given as to `fit`.

        The total `loss`, in `fit` `val_loss`, is the sum of the heads' losses, each times its weight where that is a number,
        and of what layers add. Weightings, and weights that are functions of the step, do not count in it, and in `val_loss`
        the weights are those of the beginning of `fit`: losses whose weights differ between epochs cannot be
        compared, and `EarlyStopping("val_loss")` would stop on the weights.

        Returns:
            With `return_dict`, floats by name: `loss`, and per head `<head>_loss` and its metrics; otherwise a list in
            the order of `metrics_names`.

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Identity())
            >>> trainer.add_head("price", keras.layers.Dense(1, kernel_initializer="ones"), "mse")
            >>> trainer.add_head("size", keras.layers.Identity(), "mae", weight=0.5)
            >>> trainer.compile("sgd")
            >>> y = {"price": tf.constant([[2.0], [1.0]]), "size": tf.constant([[0.0], [3.0]])}
            >>> logs = trainer.evaluate(tf.constant([[1.0], [2.0]]), y, verbose=0, return_dict=True)
            >>> logs["price_loss"], logs["size_loss"], logs["loss"]
            (1.0, 1.0, 1.5)
        """
        state = self._state
        state.require_options("evaluate")
        check_known(state.setup.heads, "evaluate")
        # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
        validates = validates_during_fit(kwargs)
        if validates and state.validation is not None:  # of which Keras has an iterator, and a generator no second pass
            fitting.prepared_evaluation(self, state, state.validation.data)
            data = Data(x, y, sample_weight)
        else:
            read = as_data(x, y, sample_weight, state.setup.all_names, None if validates else batch_size)
            data = fitting.prepared_evaluation(self, state, read)
        with fitting.evaluating(self, state, validates=validates):
            results: Results = super().evaluate(
                data.x,
                data.y,
                batch_size=batch_size,
                verbose=verbose,
                sample_weight=data.sample_weight,
                steps=steps,
                callbacks=fitting.with_progress_line(self, callbacks, verbose),
                return_dict=return_dict,
                **kwargs,
            )
            return results

    @readable_errors()
    def train_on_batch(
        self,
        x: Dataset,
        y: Nested = None,
        sample_weight: Nested = None,
        class_weight: ClassWeight | None = None,
        return_dict: bool = False,
        **kwargs: object,
    ) -> Results:
        """Makes one update from one batch, as `keras.Model.train_on_batch` does; `class_weight` is as for `fit`.

        Raises:
            ValueError: `gradient_accumulation_steps` is above 1: an update then needs several batches.
        """
        state = self._state
        steps = state.require_options("train_on_batch").gradient_accumulation_steps
        if steps > 1:
            raise ValueError(
                f"`train_on_batch` requires gradient_accumulation_steps=1, since it makes one update of one batch. "
                f"Received: a trainer compiled with gradient_accumulation_steps={steps}. Call `fit`, or pass the batches of "
                "one update as a list: "
                "`trainer.apply_gradients(trainer.compute_gradients([(x, y), ...]))`."
            )
        check_one_step(self, "train_on_batch")
        check_known(state.setup.heads, "train_on_batch")
        data = fitting.prepared_batch(self, state, x, y, sample_weight)
        if state.phase is None:
            check_switches(self, state)
        with fitting.in_phase(self, state, state.phase, fitting.planned(self, state, class_weight)):
            results: Results = super().train_on_batch(
                data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs
            )
            return results

    @readable_errors()
    def test_on_batch(
        self, x: Dataset, y: Nested = None, sample_weight: Nested = None, return_dict: bool = False, **kwargs: object
    ) -> Results:
        """Evaluates one batch, as `keras.Model.test_on_batch` does."""
        state = self._state
        state.require_options("test_on_batch")
        check_one_step(self, "test_on_batch")
        check_known(state.setup.heads, "test_on_batch")
        data = fitting.prepared_batch(self, state, x, y, sample_weight)
        with fitting.evaluating(self, state):
            results: Results = super().test_on_batch(
                data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs
            )
            return results

    # ------------------------------------------------------------------------------------------- custom training loops

    @readable_errors()
    def compute_gradients(self, batch: Nested) -> ComputedGradients:
        """Computes the balanced, unclipped gradients of the total loss on a batch, for a custom training loop.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors. With
                `gradient_accumulation_steps`, a list of up to that many of these tuples, whose examples make one update.

        Returns:
            Pairs of gradient and variable for all trainable variables. Gradients are dense tensors or `tf.IndexedSlices`,
            without loss scaling; None for a variable that no loss depends on, and for the variables of an idle head (zeros
            in a graph, where it is not known yet which heads are idle). Each pair records which heads are active and what
            `apply_gradients` restores if it skips the update, in this list, a copy or another list. A new pair, as in
            `[(clip(g), v) for g, v in pairs]`, does not; to keep the record, replace only some of the pairs. The list also
            has `loss`, the total loss, and `losses`, the heads' mean losses by name (NaN while idle): float32 scalars,
            over all replicas.

        Raises:
            ValueError: The batch has targets for an unknown head, or there are more or fewer batches than
                `gradient_accumulation_steps` allows.
        """
        options = self._state.require_options("compute_gradients")
        check_known(self._state.setup.heads, "compute_gradients")
        batches = batches_of_update(batch, options.gradient_accumulation_steps)
        return custom_loop.computed_gradients(self, self._state, batches)

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Gradient, Variable]]) -> tf.Tensor:
        """Clips and applies gradients as one update, for a custom training loop.

        Args:
            grads_and_vars: Pairs of gradient and variable: the list that `compute_gradients` returned, or your own. A
                variable with None, or without a pair, does not change, and neither do its optimizer slots. A list that
                keeps one of the pairs of `compute_gradients` as it is belongs to the same update, which methods such as
                `GradNorm` observe. In any other list, a head whose gradients are all None or zero is idle: its variables
                and slots do not change.

        Returns:
            Whether the update was applied: False if a gradient is not finite, if no head is active, or if a list of your own
            has no gradient.

        Raises:
            ValueError: The trainer is not built yet, or a variable does not belong to it.
        """
        self._state.require_options("apply_gradients")
        with custom_loop.at_step(self, self._state) as spec:
            update = custom_loop.to_apply(spec, grads_and_vars, self.update_count)
            return apply_update(spec, self.optimizer, clip(spec, update))

    @readable_errors()
    def head_gradients(self, batch: Nested, at: str = "representation") -> HeadGradients:
        """Computes the heads' gradients on a batch, without training: no variable changes.

        All heads with labels in the batch take part, whatever the schedule. A row is the gradient of the head's weighted
        mean loss; a balancer of the trainer is not applied.

        Args:
            batch: `(inputs, targets)` or `(inputs, targets, sample_weights)`, arrays or tensors.
            at: `"representation"`: the gradients with respect to the floating-point leaves of the representation, with the
                leaves' shapes, `[batch, ...]`, and for complex numbers another axis of real and imaginary parts; on several
                replicas, of the replica's own examples. `"parameters"`: those with respect to the trainable variables of
                the encoder, over all replicas.

        Returns:
            A dict from head name to a list of gradients: dense tensors, `tf.IndexedSlices`, or None where the head does not
            depend on the leaf or the variable. It also has `gramian` (`[num_heads, num_heads]` float64, over all replicas),
            `norms` (`[num_heads]`), `cosines` (`[num_heads, num_heads]`, NaN for a head without a gradient), and `own`:
            pairs of gradient and variable for the variables of the heads' own modules. Read these in the `tf.function` in
            which the gradients are computed. `balancing.balance` takes it as it is.

        Raises:
            ValueError: The batch has targets for an unknown head, or `at` is another string.

        Example:
            >>> import keras
            >>> from multihead import MultiHeadTrainer
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> targets = {"price": tf.ones([8, 1]), "size": tf.zeros([8, 1])}
            >>> batch = tf.ones([8, 3]), targets
            >>> gradients = trainer.head_gradients(batch, at="parameters")
            >>> [tuple(gradient.shape) for gradient in gradients["price"]]
            [(3, 4), (4,)]
            >>> tuple(gradients.cosines.shape)
            (2, 2)
        """
        self._state.require_options("head_gradients")
        check_known(self._state.setup.heads, "head_gradients")
        check_choice("at", at, BALANCE_AT)
        batch = custom_loop.prepared_tensors(self, self._state, batch)
        with custom_loop.at_step(self, self._state) as spec:
            return gradients_by_head(spec, at, batch, self.update_count, loss_scale(self.optimizer))

    @readable_errors()
    def diagnose(
        self, x: Dataset, y: Nested = None, *, sample_weight: Nested = None, batch_size: int | None = None, batches: int = 32
    ) -> Diagnosis:
        """Measures the heads' gradients without training, and suggests what to change.

        Computes norms, shares and cosines of the heads' gradients at the representation and at the parameters, batch by
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

        Example:
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> x = tf.random.stateless_normal([8, 3], seed=[0, 0])
            >>> y = {"price": 1000 + x[:, :1], "size": x[:, 1:2]}
            >>> diagnosis = trainer.diagnose(x, y)
            >>> diagnosis.findings[0].kind, diagnosis.suggestion["target_scaling"]
            ('units', {'price': 'standardize'})
        """
        self._state.require_options("diagnose")
        limit = check_positive_whole("batches", batches)
        data = read_batches(x, y, sample_weight, self._state.setup.all_names, batch_size)
        return custom_loop.measured(self, self._state, data, limit)

    # ------------------------------------------------------------------------------------------- exporting

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

        Example:
            >>> from tempfile import TemporaryDirectory
            >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
            >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
            >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
            >>> trainer.compile("adam")
            >>> batch = tf.ones([2, 3]), {"price": tf.ones([2, 1]), "size": tf.ones([2, 1])}
            >>> _ = trainer.compute_gradients(batch)  # creates the variables, as `fit` does
            >>> with TemporaryDirectory() as folder:
            ...     trainer.export(folder, "price")
            ...     serve = tf.saved_model.load(folder).signatures["serving_default"]
            >>> tuple(serve(tf.ones([2, 3]))["price"].shape)
            (2, 1)
        """
        state = self._state
        exported = chosen_heads(state.setup.heads, heads, state.shapes.predictions, "export")
        export_heads(
            filepath,
            self.encoder,
            exported,
            None if state.shapes.specs is None else state.shapes.specs.inputs,
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
        state = self._state
        chosen = chosen_heads(state.setup.heads, heads, state.shapes.predictions, "to_keras")
        specs = None if state.shapes.specs is None else state.shapes.specs.inputs
        with self.distribute_strategy.scope():
            return keras_model(self.encoder, chosen, specs, self.name, alone=isinstance(heads, str))
