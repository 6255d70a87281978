"""`MultiHeadTrainer`: several heads on one encoder, with one total loss, one optimizer and Keras's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import keras
import tensorflow as tf

from multihead import balancing, schedules
from multihead import weighting as weightings
from multihead._data.call import FitCall, as_data, gives_batches
from multihead._data.reading import as_arrays
from multihead._display.trainer import modules_by_role, print_summary
from multihead._formats.from_model import compiled_arguments, split_model
from multihead._formats.saving import SavedTrainer
from multihead._ground.calls import InMode
from multihead._ground.keras import Untracked, check_one_step, tensor_variable, validates_during_fit
from multihead._ground.layers import check_initialized, replace_layers
from multihead._ground.optimizers import copied_optimizer
from multihead._ground.types import (
    Callback,
    Callbacks,
    ClassWeight,
    Config,
    Dataset,
    Function,
    Layer,
    LossIdentifier,
    MetricIdentifier,
    Nested,
    Optimizer,
    Results,
    Tensor,
)
from multihead._ground.validation import check_choice, check_head_names, quoted, readable_errors
from multihead._runs.run import checkpoint_of, open_run
from multihead._trainer.building import Setup
from multihead._trainer.custom_loop import CustomLoops
from multihead._trainer.fitting import FittedTrainer
from multihead._trainer.options import CompileOptions, check_compile, check_trainer, only_own_options
from multihead._trainer.steps import StepFunction
from multihead._update.representation import call_encoder
from multihead._update.scaling import check_known, scale_targets, warn_of_model
from multihead._update.spec import Idle, Plan
from multihead.balancing import Balancer
from multihead.balancing._kinds import every
from multihead.clipping import Clipping
from multihead.heads import Head
from multihead.heads._named import NamedHead, new_head
from multihead.heads._reads import Reads
from multihead.heads._value import Weight, check_heads, check_weight, is_zero
from multihead.rates import Rate
from multihead.scaling import Standardize
from multihead.weighting import Weighting

__all__ = ["MultiHeadTrainer"]


@keras.saving.register_keras_serializable(package="multihead")
class MultiHeadTrainer(FittedTrainer, CustomLoops, SavedTrainer):
    """Trains several heads on one shared encoder with one total loss and one optimizer.

    A head is a Keras layer or model that reads the encoder's representation and is trained on its own loss. The update is
    the gradient of `sum_k weight_k * (sum_i s_ki * loss_ki) / (sum_i s_ki)`, over heads `k` and elements `i` (examples,
    tokens), where `weight_k` is the `weight` of the head and `s_ki` the sample weight times the class weight, 0 for masked
    elements and missing labels. A weighting changes how much each loss counts, and a balancer how the heads' encoder
    gradients are combined; the heads' own variables are trained by the plain gradient.

    `fit`, `evaluate`, `predict`, callbacks and saving are Keras's own.

    Args:
        encoder: A Keras layer or model, `inputs -> representation`. The representation is a tensor or any nest of tensors.
            Heads receive its floating-point leaves detached, and integer and boolean leaves (masks, lengths) unchanged.
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
        self._set_heads(tuple(NamedHead(head_name, head) for head_name, head in check_heads(heads).items()))

    @classmethod
    def from_model(cls, model: keras.Model, *, representation: str | Sequence[str] | None = None) -> MultiHeadTrainer:
        """Makes a trainer of a functional Keras model with several outputs, from the same layers.

        The encoder is the part of the model that at least two outputs depend on. The representation is every tensor that
        leaves the encoder: one tensor, or a dict by layer name. A head is the rest of the path to one output, and has its
        key in a dict of outputs as name, otherwise Keras's output name. The model can still be used; it is trained as
        well. With a `target_scaling`, it predicts scaled values; `to_keras` makes one that predicts in the targets' units.

        The losses, `loss_weights`, metrics and weighted metrics of a compiled model become those of the heads, and `compile`
        without an optimizer creates one with the options of the model's, its `exclude_from_weight_decay` included. Other
        options of the model's `compile` are not taken over. An output without a loss, which is every output of
        a model that is not compiled, is predicted and measured, but not trained.

        Args:
            model: The model.
            representation: The names of the layers whose outputs are the representation, if the heads should begin
                elsewhere; a tensor that bypasses these layers is also part of the representation.

        Raises:
            TypeError: `model` is not a Keras model.
            ValueError: `model` is not functional, has only one output, or has outputs that share no layer with weights; or a
                name in `representation` is not the name of a layer of the model.

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
        trainer._name_of_model = Untracked(str(model.name))
        trainer._optimizer_of_model = Untracked(getattr(model, "optimizer", None))
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
        """
        self._refuse_in_fit("add_head")
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
        if name in self._setup.all_names:
            names = quoted(self._setup.all_names)
            raise ValueError(f"`name` must be new. Received: name={name!r}; the heads are {names}. Choose another name.")
        self._set_heads((*self._setup.heads, head))

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
        self._set_heads(tuple(head for head in self._setup.heads if head.name != name))

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
            self._replan(idle=Idle.EXPECTED)
        elif self._phase is not None and name in self.make_train_function().plan.absent:
            raise ValueError(
                f"`value` must be 0 for a head without targets in the data of the running `fit`, which cannot train it. "
                f"Received: name={name!r}, value={value!r}. Add its targets to the data, missing labels as NaN or "
                "`ignore_label` where there are none yet."
            )
        self.head_weights.by_head[name].assign(checked)

    def set_idle(self, heads: Sequence[str]) -> None:
        """Makes heads idle from the next update on: they are not trained and do not change. For callbacks of `fit`.

        Training of the encoder and the other heads continues. Only the first call may retrace the step. The turn of an idle
        head passes on to others, as `multihead.schedules` says. Each `fit` begins without idle heads.

        Args:
            heads: The names of all heads that are to be idle; an empty list for none.

        Raises:
            ValueError: There is no head with such a name.
        """
        check_head_names("heads", heads, self._setup.names)
        self._replan(idle=Idle.EXPECTED)
        self._set_idle(heads)

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

        Most users need only the first group of arguments; the second is for special cases.

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
            micro_batches: Splits each batch into this many micro-batches, processed one after another to save memory; the
                update is that of the whole batch. With a balancer other than `NormFloor`, each micro-batch runs forward
                through the encoder once more, if it can be repeated: see "How an update is computed".
            run_eagerly: As in Keras.
            steps_per_execution: As in Keras; `"auto"` on Keras 2 only.
            jit_compile: As in Keras; None is Keras's default.

            balance_at: `"representation"` balances representation gradients, with one backward pass through the encoder;
                `"parameters"` balances the gradients of the encoder's parameters, with one backward pass per head.
            balance_every: The balancer's coefficients are recomputed at every `balance_every`-th update and reused in
                between. `NormFloor` takes those of the updates before, and measures at every `balance_every`-th update. The
                updates in between make one pass through the encoder.
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
                `LossScaleOptimizer` skips to lower its loss scale does not count as a skipped update.
            max_skipped_updates: Training ends with an error once this many updates in a row have been skipped because of an
                infinite or NaN loss or gradient; None: never.
            check_labels: Whether to look for invalid labels and sample weights, such as class numbers out of range: once in
                arrays, otherwise in every batch. False saves the time of these checks (`docs/labels.md`); shapes and dtypes
                are checked in any case.

        Raises:
            ValueError: There is no head yet; an option is out of range, names an unknown method or head, or does not work on
                several replicas; or the optimizer clips or accumulates gradients.
            TypeError: An option has the wrong type, or `compile` does not have it: losses and metrics belong to the heads.
        """
        self._refuse_in_fit("compile")
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
        heads = scale_targets(self._setup.heads, target_scaling)
        if optimizer is None:
            optimizer_of_model = self._optimizer_of_model.value
            optimizer = "rmsprop" if optimizer_of_model is None else copied_optimizer(optimizer_of_model)
        optimizer, options = check_compile(
            optimizer, requested, [head for head in heads if head.is_trained], self.distribute_strategy
        )
        if heads != self._setup.heads:
            self._set_heads(heads)
            warn_of_model(self._name_of_model.value, heads)
        self._forget()
        super().compile(optimizer=optimizer, **options.for_keras())
        # The optimizer may have made updates before.
        self.updates_before.assign_sub(tf.cast(tensor_variable(self.optimizer.iterations), tf.int64))
        replace_layers(
            self,
            weighting=options.weighting,
            balancer=None if options.balancer is None else every(options.balancer, options.balance_every),
            head_schedule=options.head_schedule,
        )
        self._setup = Setup(heads, options)

    # ------------------------------------------------------------------------------------------- the Keras interface

    def __call__(self, inputs: Nested, *args: object, **kwargs: object) -> Nested:
        """The predictions of `call`, for inputs in any form that `predict` accepts as arrays."""
        return super().__call__(as_arrays("inputs", inputs), *args, **kwargs)

    def call(self, inputs: Nested, training: bool | None = None) -> Nested:
        """Every head's predictions by head name; a head with teacher forcing generates.

        Args:
            inputs: The encoder's inputs.
            training: Whether the encoder runs in training mode; heads always run in inference mode.
        """
        check_known(self._setup.heads, "predict")

        def predictions() -> dict[str, Tensor]:
            representation = call_encoder(self.encoder, inputs, training=bool(training))
            return {head.name: head.generate(representation) for head in self._setup.heads}

        # As in an update, which runs outside of the trainer's own layer call.
        return InMode(predictions)((), training=training)

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
        """
        self._assert_ready("fit")
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
        with open_run(self, checkpoint) as run:
            return self._fit(call, run)

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
        the weights are those of the beginning of `fit`: losses that are weighed differently in each epoch cannot be
        compared, and `EarlyStopping("val_loss")` would stop on the weights.
        """
        self._assert_ready("evaluate")
        check_known(self._setup.heads, "evaluate")
        # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
        validates = validates_during_fit(kwargs)
        own_batch_size = None if validates else batch_size
        read_data = as_data(x, y, sample_weight, self._setup.all_names, own_batch_size)
        self._build(read_data.specs, read_data)
        data, plan = self._checked_for_evaluation(read_data)
        function = self.make_test_function()
        if isinstance(function, StepFunction):  # none is traced in a run before its checkpoint
            function.plan = Plan(plan.ranks, plan.labels_are_checked)
        with self._evaluating(validates=validates):
            results: Results = super().evaluate(
                data.x,
                data.y,
                batch_size=batch_size,
                verbose=verbose,
                sample_weight=data.sample_weight,
                steps=steps,
                callbacks=self._shown(callbacks, verbose),
                return_dict=return_dict,
                **kwargs,
            )
            return results

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
        check_known(self._setup.heads, "predict")
        return super().predict(x if gives_batches(x) else as_arrays("x", x), batch_size, verbose, steps, callbacks, **kwargs)

    @readable_errors()
    def predict_on_batch(self, x: Dataset) -> Nested:
        """Every head's predictions by name, for one batch."""
        return super().predict_on_batch(as_arrays("x", x))

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

        `print_fn` is called with each line. If any other argument is given, Keras's own summary follows.
        """
        is_plain = (
            positions is None and layer_range is None and line_length is None and not (expand_nested or show_trainable)
        )
        print_summary(self, print if print_fn is None else print_fn)
        if not is_plain:
            with modules_by_role(self):
                super().summary(
                    line_length=line_length,
                    positions=None if positions is None else list(positions),
                    print_fn=print_fn,
                    expand_nested=expand_nested,
                    show_trainable=show_trainable,
                    layer_range=layer_range,
                )

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
        data = self._checked_batch(x, y, sample_weight)
        with self._in_phase(self._phase, self._planned(class_weight)):
            results: Results = super().train_on_batch(
                data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs
            )
            return results

    @readable_errors()
    def test_on_batch(
        self, x: Dataset, y: Nested = None, sample_weight: Nested = None, return_dict: bool = False, **kwargs: object
    ) -> Results:
        """Evaluates one batch, as `keras.Model.test_on_batch` does."""
        self._assert_ready("test_on_batch")
        check_one_step(self, "test_on_batch")
        check_known(self._setup.heads, "test_on_batch")
        data = self._checked_batch(x, y, sample_weight)
        with self._evaluating():
            results: Results = super().test_on_batch(
                data.x, data.y, sample_weight=data.sample_weight, return_dict=return_dict, **kwargs
            )
            return results
