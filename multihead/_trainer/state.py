"""What a trainer holds, and the one way in which it is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from types import MappingProxyType

import keras
import tensorflow as tf

from multihead._data.data import Data
from multihead._ground import replicas
from multihead._ground.keras import HEAD, SCALING, KerasHooks, Untracked, add_state, first_replica_variable, tensor_variable
from multihead._ground.layers import remove_layer, replace_layers, unlock
from multihead._ground.types import Config, Dataset, Given, Metric, Nested, Tensor, Variable
from multihead._ground.validation import quoted
from multihead._trainer.building import Built, Shapes, build_modules, build_spec
from multihead._trainer.options import CompileOptions, Setup
from multihead._update.batch import Batch, as_tensors, check_rows, open_batch_size, unpack, widened
from multihead._update.spec import Plan, UpdateSpec
from multihead.balancing import Balancer
from multihead.heads import Head
from multihead.heads._named import NamedHead
from multihead.heads._value import is_zero
from multihead.schedules import Schedule
from multihead.telemetry._logs import LogMetrics
from multihead.weighting import Weighting


class TrainerState(KerasHooks, keras.Model):
    """The heads and options of a trainer, and what is derived from them and from data."""

    train_function: Given
    test_function: Given

    def __init__(self, encoder: Callable[[Nested], Nested], name: str | None) -> None:
        super().__init__(name=name, autocast=False)  # the modules cast their inputs, each by its own dtype policy
        # What Keras saves: the encoder, the methods, the weights of heads, and each head's module by the head's name.
        self.encoder = encoder
        self.weighting: Weighting | None = None
        self.balancer: Balancer | None = None
        self.head_schedule: Schedule | None = None
        self.head_weights: Given = None
        # The optimizer counts the updates itself; a second count of all of them would differ from its own where Keras
        # restores the weights of an earlier epoch.
        self.updates_before = add_state(self, "updates_before", (), dtype="int64")
        # What the user has decided, what data have shown, what is built from both, and what exists only during `fit`.
        self._setup = Setup()
        self._shapes = Shapes()
        self._built: Built | None = None
        self._phase: str | None = None  # "fit", or "validation" in the midst of it
        self._idle = IdleHeads()
        # What the step that runs now was made with: nothing where a step is called by hand.
        self._plan = Untracked(Plan())
        self._optimizer_of_model = Untracked(None)

    @property
    def heads(self) -> Mapping[str, Head]:
        """The heads by name, in the order in which they were added: values, with the present weights and scalings."""
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
        if self._built is None or len(self._built.spec.periods) == 1:
            return 0
        return self._built.spec.period_at(self.num_updates)

    @property
    def metrics(self) -> list[Metric]:
        """All metrics: losses, values of updates, and those of the heads; Keras resets them in every epoch."""
        return [] if self._built is None else self._built.logs.all

    @property
    def metrics_names(self) -> list[str]:
        """The names of the values that `evaluate` returns as a list, for data with targets for all heads."""
        return [] if self._built is None else self._built.logs.names_in_order()

    # ------------------------------------------------------------------------------------------- what changes, and when

    def _set_heads(self, heads: tuple[NamedHead, ...]) -> None:
        """Replaces the heads; Keras then saves their modules, scalings and weights, and no longer those of earlier ones."""
        unlock(self)
        before, after = _parts(self._setup.heads), _parts(heads)
        for attribute, part in before.items():
            if after.get(attribute) is not part:
                remove_layer(self, attribute)
        for attribute, part in after.items():
            if before.get(attribute) is not part:
                setattr(self, attribute, part)
        with self.distribute_strategy.scope():
            replace_layers(self, head_weights=kept_weights([head for head in heads if head.is_trained]))
        self._shapes = self._shapes.of_heads([head.name for head in heads])
        self._forget()
        self._setup = Setup(heads)
        self.predict_function = None  # the compiled function has the heads of before

    def _forget(self) -> None:
        """Drops everything that depends on the heads and on `compile`, except the heads' variables."""
        unlock(self)
        self.updates_before.assign(self.update_count)
        self._setup, self._built = Setup(self._setup.heads), None
        self._idle.forget()

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

    # ------------------------------------------------------------------------------------------- building

    def _require_built(self) -> Built:
        if self._built is None:
            raise ValueError("The trainer is not built. Received: no data yet. Call `compute_gradients(batch)` first.")
        return self._built

    @property
    def _runs_eagerly(self) -> bool:
        """Whether modules are never traced, so that their Python may depend on values."""
        return bool(self.run_eagerly) or tf.config.functions_run_eagerly()

    def _build(self, specs: Batch | None = None, examples: Data | Batch | None = None) -> None:
        """Creates the variables that batches need and that do not exist yet: of modules, metrics, methods, the optimizer.

        Where sizes differ from those so far, they are open afterwards, if the modules can take them.

        Args:
            specs: The specs of a batch, with open batch size; None: those of the batches so far.
            examples: What has such examples, for modules that are not traced; None makes some of ones and zeros.
        """
        known = self._shapes.specs
        specs = known if specs is None else specs
        if specs is None:
            return
        is_new = self._built is None or known is None or self._shapes.lack(self._setup.heads, specs.targets)
        wider = specs if is_new or known is None else widened(known, specs)
        if not is_new and wider == known:
            return
        self._create(specs, examples)
        if wider != specs:
            with suppress(ValueError):  # modules that need known sizes
                self._create(wider, examples)

    def _create(self, specs: Batch, examples: Data | Batch | None) -> None:
        unlock(self)
        heads, options, eagerly = self._setup.heads, self._setup.options, self._runs_eagerly
        if isinstance(examples, Data):
            found = examples.sample() if eagerly else None
            examples = None if found is None else as_tensors(unpack(found, self._setup.all_names))
        # What runs as plain Python is seen by tapes, from which `init_scope` would hide it.
        runs = eagerly and tf.executing_eagerly()
        with nullcontext() if runs else tf.init_scope(), self.distribute_strategy.scope():
            self._shapes = build_modules(self.encoder, heads, specs, self._shapes, examples, eagerly=eagerly)
            if options is not None:
                spec = build_spec(
                    encoder=self.encoder,
                    heads=heads,
                    shapes=self._shapes,
                    options=options,
                    balancer=self.balancer,
                    optimizer=self.optimizer,
                    awake=self._idle.create(self._setup.names),
                    earlier=self.update_spec,
                )
                logs = None if self._built is None else self._built.logs
                self._built = Built(spec, logs or LogMetrics(spec, options.telemetry, options.updates_at_once))
                if options.jit_compile is not True and not all(head.runs_in_xla for head in heads):
                    self.jit_compile = False  # Keras's default is to use XLA if the model can be compiled
        self.built = True

    def _unpack(self, data: Dataset, *, every_head: bool = False) -> Batch:
        """Unpacks a batch, checks its keys, and builds for it whatever is not built yet."""
        # Keras 3 passes the arrays of `train_on_batch` on if it runs eagerly.
        batch: Batch = as_tensors(unpack(data, self._setup.all_names))
        if every_head:
            check_every_head(batch.targets, self._setup.trained)
        check_rows(batch)
        sample = batch if self._runs_eagerly and tf.executing_eagerly() else None
        replicas.once(lambda: self._build(open_batch_size(batch), sample))
        return batch


def _parts(heads: tuple[NamedHead, ...]) -> Config:
    """The modules and scalings of heads by the attributes under which Keras saves them."""
    modules = {HEAD + head.name: head.module for head in heads if isinstance(head.module, (keras.layers.Layer, tf.Module))}
    return {**modules, **{SCALING + head.name: head.scaling for head in heads if head.scaling is not None}}


def check_every_head(targets: Mapping[str, Tensor], heads: Sequence[NamedHead]) -> None:
    """Checks that there are targets for every head that is trained."""
    absent = [head.name for head in heads if head.name not in targets and not is_zero(head.weight)]
    if absent:
        head_names = [head.name for head in heads]
        raise ValueError(
            f"The targets must have a key for every head, but the head {quoted(absent)} has none in the data and would "
            f"never be trained. Received: targets for {quoted(targets)}; the heads are {quoted(head_names)}. "
            "Correct the key, or add targets that are `ignore_label` or NaN where the label is missing; with a weight of "
            "0, a head needs none."
        )


class HeadWeights(keras.layers.Layer):
    """One variable per head, saved and loaded by the head's name."""

    def __init__(self, values: Mapping[str, float]) -> None:
        super().__init__(name="head_weights", dtype="float32", trainable=False)
        initial = {name: keras.initializers.Constant(value) for name, value in values.items()}
        self._by_name = {name: add_state(self, f"of_{name}", (), value) for name, value in initial.items()}
        self.built = True

    def variable(self, name: str) -> Variable:
        """The variable of a head."""
        return self._by_name[name]

    def save_own_variables(self, store: dict[str, Tensor]) -> None:
        """Called by Keras to save the weights."""
        for name, variable in self._by_name.items():
            store[name] = tf.convert_to_tensor(variable).numpy()

    def load_own_variables(self, store: dict[str, Tensor]) -> None:
        """Called by Keras to load the weights of the heads that were saved."""
        for name, variable in self._by_name.items():
            if name in store:
                variable.assign(store[name][()])

    def get_config(self) -> Config:
        """Not used: the trainer creates this layer from the heads."""
        return {"values": {}}


def kept_weights(heads: Sequence[NamedHead]) -> HeadWeights:
    """The weights of heads as variables, from which the heads read them; functions of the step stay what they are."""
    found = HeadWeights({head.name: head.weight for head in heads if not callable(head.weight)})
    for head in heads:
        if not head.has_weight_function:
            head.keep_weight_in(found.variable(head.name))
    return found


class IdleHeads:
    """Who is awake, as a variable that training steps read, so that nothing is traced again.

    Attributes:
        names: The heads that are idle.
        may_change: Whether heads were ever made idle, so that idle heads should cost nothing.
        awake: `[num_heads]`: 1 for each head that may be trained, 0 for idle ones; None before it is created.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.may_change = False
        self.awake: tf.Variable | None = None

    def set(self, idle: Sequence[str], heads: Sequence[str]) -> None:
        """Makes some of the heads idle, and all others awake."""
        self.names = list(idle)
        if self.awake is not None:
            self.awake.assign(self._awake(heads))

    def create(self, heads: Sequence[str]) -> tf.Variable:
        """The variable for these heads, created at the first call."""
        if self.awake is None:
            self.awake = first_replica_variable(tf.constant(self._awake(heads)))
        return self.awake

    @property
    def never(self) -> bool:
        """Whether no head was ever made idle, here or in the run that this one continues."""
        if self.may_change or self.awake is None:
            return not self.may_change
        with tf.init_scope():
            return bool(tf.reduce_all(tf.convert_to_tensor(self.awake) > 0))

    def forget(self) -> None:
        """Drops the variable, whose length is the number of heads; all heads are awake again."""
        self.names, self.awake = [], None

    def _awake(self, heads: Sequence[str]) -> list[float]:
        return [float(name not in self.names) for name in heads]
