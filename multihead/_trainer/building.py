"""The one way in which a trainer is built: its variables, how updates are computed, and the metrics behind the logs."""

from __future__ import annotations

import warnings
from dataclasses import replace

import tensorflow as tf

from multihead._data.batch import Batch, as_tensors, check_rows, open_batch_size, unpack, widened
from multihead._data.data import Data
from multihead._ground import replicas
from multihead._ground.keras import first_replica_variable, metric_variables, tensor_variable, variable_name
from multihead._ground.layers import all_layers, unlock
from multihead._ground.optimizers import build_optimizer
from multihead._ground.tensors import inner_products, outside_of_graphs
from multihead._ground.types import Dataset, Nested, Trainer
from multihead._ground.validation import quoted
from multihead._trainer.modules import Shapes, build_modules
from multihead._trainer.options import CompileOptions
from multihead._trainer.state import Built, TrainerState
from multihead._update.faults import Faults
from multihead._update.network import Network, read_different_tensors
from multihead._update.representation import Measure, squared_norms
from multihead._update.spec import Methods, Running, UpdateSpec
from multihead._update.strategies import BackwardStrategy, CombinedFirst, PassPerHead
from multihead._update.two_passes import Repeatable, TwoPasses
from multihead._update.update import RollBack
from multihead._update.weights import depends_on_losses
from multihead.balancing import Balancer
from multihead.rates import periods_of
from multihead.telemetry._logs import LogMetrics


def runs_eagerly(trainer: Trainer) -> bool:
    """Whether modules are never traced, so that their Python may depend on values."""
    return bool(trainer.run_eagerly) or tf.config.functions_run_eagerly()


def unpacked(trainer: Trainer, state: TrainerState, data: Dataset) -> Batch:
    """Unpacks a batch, checks its keys, and builds for it whatever is not built yet."""
    # Keras 3 passes the arrays of `train_on_batch` on if it runs eagerly.
    batch: Batch = as_tensors(unpack(data, state.setup.all_names))
    check_rows(batch)
    sample = batch if runs_eagerly(trainer) and tf.executing_eagerly() else None
    replicas.once(lambda: build(trainer, state, open_batch_size(batch), sample))
    return batch


def build(trainer: Trainer, state: TrainerState, specs: Batch | None = None, examples: Data | Batch | None = None) -> None:
    """Creates the variables that batches need and that do not exist yet: of modules, metrics, methods, the optimizer.

    Sizes that differ from those of earlier batches become unknown, if the modules accept that. `specs` are those of a batch,
    with unknown batch size; None: those of the batches so far. Modules that are not traced run on `examples`; None
    makes some of ones and zeros.
    """
    shapes = state.shapes
    specs = shapes.specs if specs is None else specs
    if specs is None:
        return
    is_new = state.built is None or not shapes.have(state.setup.heads, specs)
    wider = specs if is_new or shapes.specs is None else widened(shapes.specs, specs)
    if not is_new and wider == shapes.specs:
        return
    _create(trainer, state, specs, examples)
    if wider != specs:
        before = state.shapes, state.built
        try:
            _create(trainer, state, wider, examples)
        except ValueError:  # modules that need known sizes; batches are checked, and built for, one by one
            state.shapes, state.built = before


def _create(trainer: Trainer, state: TrainerState, specs: Batch, examples: Data | Batch | None) -> None:
    unlock(trainer)
    heads, options, eagerly = state.setup.heads, state.setup.options, runs_eagerly(trainer)
    if isinstance(examples, Data):
        sample = examples.sample() if eagerly else None
        examples = None if sample is None else as_tensors(unpack(sample, state.setup.all_names))
    with outside_of_graphs(), trainer.distribute_strategy.scope():
        state.shapes = build_modules(trainer.encoder, heads, specs, state.shapes, examples, eagerly=eagerly)
        if options is not None:
            state.built = _built(trainer, state, options)
            if options.jit_compile is not True and not all(head.runs_in_xla for head in heads):
                trainer.jit_compile = False  # Keras's default is to use XLA if the model can be compiled
    trainer.built = True


def _built(trainer: Trainer, state: TrainerState, options: CompileOptions) -> Built:
    """Creates the variables of the methods, the optimizer and the logs, and the specification of updates.

    Where the trainer was built before, its optimizer and its logs stay.
    """
    heads, shapes, earlier = state.setup.heads, state.shapes, state.built
    if options.weighting is not None:
        options.weighting.build((sum(head.is_trained for head in heads),))
    network = Network.of(trainer.encoder, heads, shapes.predictions, trainer)
    if earlier is not None:  # what is trained is decided once, as are the slots; `check_trained` says what changed since
        trained = earlier.spec.network
        network = replace(network, variables=trained.variables, own=trained.own, shared=trained.shared)
    methods = _built_methods(network, options, shapes, trainer.balancer)
    if earlier is not None:
        return replace(earlier, spec=UpdateSpec(network, methods, earlier.spec.running))
    _warn_of_reads(network, are_balanced=methods.balancer is not None and not methods.backward.at_parameters)
    built = build_optimizer(state.setup.optimizer, network.variables.all)
    slots = [[tensor_variable(slot) for slot in slots_of_one] for slots_of_one in built]
    enabled = first_replica_variable(tf.constant([float(head.name not in state.idle) for head in network.heads]))
    faults = Faults(network, options.on_nonfinite, options.max_skipped_updates, options.gradient_accumulation_steps)
    periods = periods_of(network, options.encoder_learning_rate_multiplier, options.encoder_weight_decay_multiplier)
    spec = UpdateSpec(network, methods, Running(slots, enabled, faults, options.check_labels, periods))
    modules = [*network.modules, *([] if options.weighting is None else [options.weighting])]
    parts = [part for module in modules for part in (*all_layers(module), *getattr(module, "variables", ()))]
    switches = tuple((part, part.trainable) for part in parts if hasattr(part, "trainable"))
    return Built(spec, LogMetrics(spec, options.telemetry, options.updates_at_once), switches)


def check_switches(trainer: Trainer, state: TrainerState) -> None:
    """As `check_trained`, in a fraction of its time, before every update of a custom loop."""
    built = state.built
    same_optimizer = trainer.optimizer is state.setup.optimizer
    if not same_optimizer or (built is not None and any(part.trainable != was for part, was in built.switches)):
        check_trained(trainer, state)


def check_trained(trainer: Trainer, state: TrainerState) -> None:
    """Raises a `ValueError` if the optimizer, or what is frozen, has changed since `compile`: it would have no effect."""
    if trainer.optimizer is not state.setup.optimizer:
        raise ValueError(
            "`optimizer` must be given to `compile`, which decides how variables are updated. Received: "
            f"{type(trainer.optimizer).__name__} in place of the {type(state.setup.optimizer).__name__} of `compile`. Call "
            "`compile` again with it; to change the learning rate, assign `trainer.optimizer.learning_rate`."
        )
    if state.built is None:
        return
    network = state.built.spec.network
    modules = [*network.modules, *([] if trainer.weighting is None else [trainer.weighting])]
    now = [variable for module in modules for variable in getattr(module, "trainable_variables", ())]
    before, after = ({id(tensor_variable(var)): var for var in variables} for variables in (network.variables.all, now))
    frozen, new = (
        [variable_name(var) for key, var in one.items() if key not in other]
        for one, other in ((before, after), (after, before))
    )
    if frozen or new:
        parts = [(frozen, "no longer trainable, but would be trained"), (new, "trainable now, but would not be trained")]
        received = "; ".join(f"{quoted(names, 3)}, {what}" for names, what in parts if names)
        raise ValueError(
            "`trainable` of layers must be set before `compile`, which decides what is trained. Received: variables that "
            f"have changed since: {received}. Call `compile` again; to freeze while training, take learning rates of 0, "
            "or `Stages`."
        )


def _built_methods(network: Network, options: CompileOptions, shapes: Shapes, balancer: Balancer | None) -> Methods:
    number = len(network.heads)
    options.head_schedule.build((number,))
    if balancer is not None:
        rows: Nested = (number, None)  # of one matrix, or of all gradient tensors if it needs the gradients
        if "gradients" in balancer.uses:
            sizes = [None] * shapes.num_leaves
            if options.balance_at == "parameters":
                sizes = [variable.shape.num_elements() for variable in network.encoder_tensors]
            rows = [(number, size) for size in sizes]
        balancer.build(rows)
    return Methods(
        weighting=options.weighting,
        balancer=balancer,
        schedule=options.head_schedule,
        backward=_backward(balancer, options, network, shapes),
        num_micro_batches=options.micro_batches,
        clip=options.clip,
    )


def _warn_of_reads(network: Network, *, are_balanced: bool) -> None:
    """Warns if the encoder cannot learn from a head, and if balanced heads do not read a common tensor."""
    names = [head.name for head in network.heads]
    alone = [head.name for head, leaves in zip(network.heads, network.reads) if head.trains_encoder and not any(leaves)]
    if alone:
        warnings.warn(
            f"The encoder learns nothing from head {quoted(alone)}, which reads none of its floating-point outputs: only "
            "the head's own variables are trained. If it should train the encoder, let it read one of these (`reads=`); "
            "otherwise pass `trains_encoder=False` to `add_head`.",
            UserWarning,
            stacklevel=2,
        )
    apart = read_different_tensors(network) if are_balanced else []
    if apart:
        pairs = "; ".join(f"{names[i]!r} and {names[j]!r}" for i, j in apart)
        warnings.warn(
            f"Some heads read no common tensor of the representation: {pairs}. Their representation gradients are "
            "orthogonal by construction, and their norms are of different tensors, so a balancer cannot compare them. Pass "
            '`balance_at="parameters"` to `compile`.',
            UserWarning,
            stacklevel=2,
        )


def _backward(balancer: Balancer | None, options: CompileOptions, network: Network, shapes: Shapes) -> BackwardStrategy:
    """How the heads' gradients go through the encoder, and what is measured at the representation."""
    others = [method for method in (options.weighting, options.head_schedule) if method is not None]
    depends = depends_on_losses(options.weighting)
    needs_norms, may_reuse = any("norms" in method.uses for method in others), options.balance_every > 1 and not depends
    measure: Measure | None = inner_products if "gramian" in options.head_schedule.uses else None
    if balancer is not None and options.balance_at == "parameters":
        return PassPerHead(balancer, measure, at_parameters=True, may_reuse=may_reuse and not needs_norms)
    if options.telemetry == "full" or not (balancer is None or balancer.norms_only):
        measure = inner_products
    elif measure is None and (needs_norms or balancer is not None or options.telemetry == "norms"):
        measure = squared_norms
    is_single = options.micro_batches * options.gradient_accumulation_steps == 1
    is_known = not depends and (balancer is None or balancer.lags)
    if is_single or is_known:
        return CombinedFirst(balancer, measure)
    is_one = sum(head.trains_encoder for head in network.heads) == 1  # for which one backward pass is enough
    keeps = not is_one and options.jit_compile is not True
    repeatable = Repeatable.of(network, shapes.specs.inputs) if keeps and shapes.specs is not None else None
    if repeatable is None:
        return PassPerHead(balancer, measure, may_reuse=may_reuse)
    return TwoPasses(balancer, measure, may_reuse=may_reuse, repeatable=repeatable)


def metrics_of_epoch(trainer: Trainer, built: Built) -> RollBack:
    """The current state of the metrics and counts of an epoch, to be restored later."""
    variables = [*metric_variables(trainer.metrics), *built.logs.counters, *built.spec.running.faults.state]
    copies = trainer.distribute_strategy.experimental_local_results
    return RollBack([copy for variable in variables for copy in copies(variable)])
