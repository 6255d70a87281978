"""What a trainer holds, and the one way in which it is built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from multihead._data.batch import Batch, as_tensors, check_rows, open_batch_size, unpack, widened
from multihead._data.data import Data
from multihead._ground import replicas
from multihead._ground.keras import HEAD, SCALING, KerasHooks, Untracked, add_state, tensor_variable
from multihead._ground.layers import replace_layers, unlock
from multihead._ground.types import Config, Dataset, Function, Metric, Nested, Tensor
from multihead._trainer.building import Built, Setup, build
from multihead._trainer.modules import Shapes, build_modules
from multihead._trainer.options import CompileOptions
from multihead._update.spec import Plan, UpdateSpec
from multihead.balancing import Balancer
from multihead.heads import Head
from multihead.heads._metrics import check_distinct
from multihead.heads._named import NamedHead
from multihead.schedules import Schedule
from multihead.telemetry._logs import LogMetrics
from multihead.weighting import Weighting


class HeadWeights(keras.layers.Layer):
    """One float64 variable per head, which holds the user's number as it is, saved and loaded by the head's name."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(name="head_weights", dtype="float64", trainable=False)
        initial = {name: keras.initializers.Constant(np.asarray(value, "float64")) for name, value in values.items()}
        self.by_head = {name: add_state(self, f"of_{name}", (), value, "float64") for name, value in initial.items()}
        self.built = True

    def save_own_variables(self, store: dict[str, Tensor]) -> None:
        """Called by Keras to save the weights."""
        for name, variable in self.by_head.items():
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: dict[str, Tensor]) -> None:
        """Called by Keras to load the weights of the heads that were saved."""
        for name, variable in self.by_head.items():
            if name in store:
                variable.assign(store[name][()])


class Checked(NamedTuple):
    """Data whose labels were checked as far as is possible before a step, and what steps can rely on."""

    data: Data
    plan: Plan

    def for_loop(self, run: object | None) -> Data:
        """The data as Keras's loop reads them for validation: during a run, what Python makes is a dataset."""
        if run is None or self.data.batches is None:
            return self.data
        return Data(self.data.as_dataset(None, None, False, "`Checkpoint`"), specs=self.data.specs)


class TrainerState(KerasHooks, keras.Model):
    """The heads and options of a trainer, and what is derived from them and from data."""

    train_function: Any
    test_function: Any
    predict_function: Any
    head_weights: HeadWeights

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _initialized(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, encoder: Callable[[Nested], Nested], name: str | None) -> None:
        super().__init__(name=name, autocast=False)  # the modules cast their inputs, each by its own dtype policy
        # What Keras saves: the encoder, the methods, the weights of heads, and each head's module by the head's name.
        self.encoder = encoder
        self.weighting: Weighting | None = None
        self.balancer: Balancer | None = None
        self.head_schedule: Schedule | None = None
        # The optimizer counts the updates itself; a second count of all of them would differ from its own where Keras
        # restores the weights of an earlier epoch.
        self.updates_before = add_state(self, "updates_before", (), dtype="int64")
        # What the user has decided, what data have shown, what is built from both, and what exists only during `fit`.
        self._setup = Setup()
        self._shapes = Shapes()
        self._built: Built | None = None
        self._phase: str | None = None  # "fit", or "validation" while `fit` runs
        self._idle: tuple[str, ...] = ()  # the heads that are idle
        # What the step that runs now was made with: nothing where a step is called by hand.
        self._plan = Untracked(Plan())
        # The validation data of a `fit` that is running.
        self._validation: Untracked[Checked | None] = Untracked(None)
        self._optimizer_of_model = Untracked(None)
        self._name_of_model = Untracked("")  # of the model that `from_model` has made this trainer of

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads by name, in the order in which they were added: values, with the current weights and scalings."""
        return MappingProxyType({head.name: head.value for head in self._setup.heads})

    @property
    def update_count(self) -> Tensor:
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
        if self._built is None or len(self._built.spec.running.periods) == 1:
            return 0
        return self._built.spec.running.period_at(self.num_updates)

    @property
    def metrics(self) -> list[Metric]:
        """All metrics: losses, values of updates, and those of the heads; Keras resets them in every epoch."""
        return [] if self._built is None else self._built.logs.all

    def _add_own_losses(self) -> None:
        """Called when losses were added to the trainer itself: steps are traced again."""
        self.train_function = self.test_function = None
        if self._built is not None:
            self._built.logs.show_added()

    @property
    def metrics_names(self) -> list[str]:
        """The names of the values that `evaluate` returns as a list, for data with targets for all heads."""
        return [] if self._built is None else self._built.logs.names_in_order()

    # ------------------------------------------------------------------------------------------- what changes, and when

    def _set_heads(self, heads: tuple[NamedHead, ...]) -> None:
        """Replaces the heads; Keras then saves their modules, scalings and weights, and no longer those of earlier ones."""
        check_distinct([(head.name, head.metric_specs) for head in heads])
        before, after = _parts(self._setup.heads), _parts(heads)
        changed = [name for name in {**before, **after} if after.get(name) is not before.get(name)]
        replace_layers(self, **{name: after.get(name) for name in changed})
        with_number = [head for head in heads if head.is_trained and not head.has_weight_function]
        numbers = {head.name: head.weight for head in with_number if not callable(head.weight)}
        with self.distribute_strategy.scope():
            replace_layers(self, head_weights=HeadWeights(numbers))
        for head in with_number:
            head.weight_variable = self.head_weights.by_head[head.name]
        self._shapes = self._shapes.restricted_to([head.name for head in heads])
        self._forget()
        self._setup = Setup(heads)
        self.predict_function = None  # the compiled function has the heads of before

    def _forget(self) -> None:
        """Drops everything that depends on the heads and on `compile`, except the heads' variables."""
        unlock(self)
        self.updates_before.assign(self.update_count)
        self._setup, self._built = Setup(self._setup.heads), None
        self._idle = ()

    def _refuse_in_fit(self, method: str) -> None:
        if self._phase is not None:
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

    def _set_idle(self, heads: Sequence[str]) -> None:
        """Makes some of the heads idle, and no others, by a variable that is read by steps."""
        self._idle = tuple(heads)
        if self._built is not None:
            self._built.spec.running.enabled.assign([float(name not in heads) for name in self._setup.names])

    # ------------------------------------------------------------------------------------------- building

    def _require_built(self, *, trains: bool = False) -> Built:
        if self._built is None:
            raise ValueError("The trainer is not built. Received: no data yet. Call `compute_gradients(batch)` first.")
        if trains and not self._built.spec.network.variables.all:
            raise ValueError(
                "`encoder` or a head's `module` must have trainable variables. Received: none, so no update would change "
                "anything. Set `trainable = True` and call `compile` again; to measure only, use `evaluate`."
            )
        return self._built

    @property
    def _runs_eagerly(self) -> bool:
        """Whether modules are never traced, so that their Python may depend on values."""
        return bool(self.run_eagerly) or tf.config.functions_run_eagerly()

    def _build(self, specs: Batch | None = None, examples: Data | Batch | None = None) -> None:
        """Creates the variables that batches need and that do not exist yet: of modules, metrics, methods, the optimizer.

        Where sizes differ from those so far, they are open afterwards, if the modules can take them. `specs` are those of a
        batch, with open batch size; None: those of the batches so far. Modules that are not traced run on `examples`; None
        makes some of ones and zeros.
        """
        shapes = self._shapes
        specs = shapes.specs if specs is None else specs
        if specs is None:
            return
        is_new = self._built is None or not shapes.have(self._setup.heads, specs)
        wider = specs if is_new or shapes.specs is None else widened(shapes.specs, specs)
        if not is_new and wider == shapes.specs:
            return
        self._create(specs, examples)
        if wider != specs:
            before = self._shapes, self._built
            try:
                self._create(wider, examples)
            except ValueError:  # modules that need known sizes; each batch is checked, and built for, by itself
                self._shapes, self._built = before

    def _create(self, specs: Batch, examples: Data | Batch | None) -> None:
        unlock(self)
        heads, options, eagerly = self._setup.heads, self._setup.options, self._runs_eagerly
        if isinstance(examples, Data):
            sample = examples.sample() if eagerly else None
            examples = None if sample is None else as_tensors(unpack(sample, self._setup.all_names))
        # What runs as plain Python is seen by tapes, from which `init_scope` would hide it.
        runs = eagerly and tf.executing_eagerly()
        with nullcontext() if runs else tf.init_scope(), self.distribute_strategy.scope():
            self._shapes = build_modules(self.encoder, heads, specs, self._shapes, examples, eagerly=eagerly)
            if options is not None:
                self._built = build(self, heads, options, self._shapes, idle=self._idle, earlier=self._built)
                if options.jit_compile is not True and not all(head.runs_in_xla for head in heads):
                    self.jit_compile = False  # Keras's default is to use XLA if the model can be compiled
        self.built = True

    def _unpack(self, data: Dataset) -> Batch:
        """Unpacks a batch, checks its keys, and builds for it whatever is not built yet."""
        # Keras 3 passes the arrays of `train_on_batch` on if it runs eagerly.
        batch: Batch = as_tensors(unpack(data, self._setup.all_names))
        check_rows(batch)
        sample = batch if self._runs_eagerly and tf.executing_eagerly() else None
        replicas.once(lambda: self._build(open_batch_size(batch), sample))
        return batch


def _initialized(init: Function) -> Function:
    """The `__init__` of a trainer's class, with an error if it does not call that of its base class."""

    @functools.wraps(init)
    def checked(self: TrainerState, *args: object, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        if "_setup" not in vars(self):
            raise TypeError(
                f"`{type(self).__name__}` must be initialized as a trainer. Received: an `__init__` that does not call that "
                "of its base class. Begin it with `super().__init__(encoder, heads)`."
            )

    vars(checked)["__signature__"] = inspect.signature(init)  # Keras 3 does not look at what is wrapped
    return checked


def _parts(heads: tuple[NamedHead, ...]) -> Config:
    """The modules and scalings of heads by the attributes under which Keras saves them."""
    modules = {HEAD + head.name: head.module for head in heads if isinstance(head.module, (keras.layers.Layer, tf.Module))}
    return {**modules, **{SCALING + head.name: head.scaling for head in heads if head.scaling is not None}}
