"""What a user decides about a trainer: its heads, their weights, and the options of `compile`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from multihead import schedules
from multihead._ground.keras import HEAD, remove_layer, replace_layers, tensor_variable, unlock
from multihead._ground.validation import check_choice, check_head_names, quoted
from multihead._trainer.building import BuiltFromData
from multihead._trainer.head_weights import HeadWeights
from multihead._trainer.options import (
    CompileOptions,
    check_optimizer,
    check_weight_decay,
    refuse_options_of_heads,
    warn_of_idle_weights,
)
from multihead.clipping import AbstractClipping
from multihead.heads._head import Head, Weight, check_weight
from multihead.heads._metrics import check_apart


class Configured(BuiltFromData):
    """The heads and options of a trainer; whatever changes them drops what was built from them."""

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
        """Sets how much a head's loss counts from the next update on, for example from a callback.

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

    def set_idle(self, heads: Sequence[str]) -> None:
        """Makes heads idle, for a callback of `fit`: from the next update on they are not trained and do not change.

        The encoder and the other heads are trained further, without retracing; a schedule's turn that has only idle heads
        goes to all others. Each `fit` begins without idle heads.

        Args:
            heads: The names of all heads that are to be idle; an empty list for none.

        Raises:
            ValueError: There is no head with such a name.
        """
        check_head_names("heads", heads, list(self.heads))
        if self._spec is not None and not self._may_be_idle:
            self._spec = replace(self._spec, may_be_idle=True)
        self._may_be_idle = True
        self._wake_all_but(heads)

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
            weighting: Combines the heads' losses into one total loss: a `multihead.weighting.Weighting` or its name; None is
                the sum of the losses, each times its head's `weight`. The weighting's variables are trained by the same
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
            layers_every: With `telemetry="full"`, the same figures are measured in each layer of the encoder once in this
                many updates, for `callbacks.Ledger`; such an update costs one encoder backward pass per head.
            on_nonfinite: What happens to an update with an infinite or NaN loss or gradient. `"skip"`: it is not applied,
                and counts as a skipped update; `"raise"`: it is not applied, and training ends with an error; `"drop_head"`:
                the heads that it comes from take no part in this update, as if they had no labels in it (it is skipped if
                none is left). An epoch's warning, and the errors, name the head, the variable, the update and the batch. An
                update that loss scaling skips to lower its scale does not count.
            max_skipped_updates: The number of updates skipped in a row for this reason at which training ends with an
                error; None: it never does.
            check_labels: Whether to look for invalid labels and sample weights, such as class numbers out of range, in every
                batch. False saves this time (`docs/labels.md`); shapes and dtypes are checked in any case.
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

    def _keep_weights(self) -> None:
        """Keeps the weights of the current heads in saved variables."""
        heads = self._heads.value
        with self.distribute_strategy.scope():
            weights = HeadWeights({head.name: head.weight for head in heads if not head.has_weight_function})
        replace_layers(self, head_weights=weights)
        for head in heads:
            if not head.has_weight_function:
                head.keep_weight_in(weights.variable(head.name))

    def _refuse_in_fit(self, method: str) -> None:
        if self._is_in_fit:
            raise ValueError(
                f"`{method}` must not be called during `fit`, for example by a callback. Received: a call during `fit`. "
                "Call it before or after `fit`; `set_weight`, `set_idle`, schedules and rates can change training meanwhile."
            )
