"""What is built of a trainer: modules for the data that were seen, how updates are computed, and the metrics of the logs."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from multihead._ground.keras import tensor_variable
from multihead._ground.layers import run_in_graphs
from multihead._ground.optimizers import build_optimizer
from multihead._ground.tensors import inner_products
from multihead._ground.types import Config, Given, Layer, Nested, Optimizer, Tensor
from multihead._ground.validation import as_python, quoted
from multihead._trainer.options import CompileOptions
from multihead._trainer.trace import read_by_loss, trace_predictions
from multihead._update.batch import Batch, sample_of
from multihead._update.faults import Faults
from multihead._update.labels import Predictions, read_different_tensors, share_nothing
from multihead._update.network import Network
from multihead._update.representation import Measure, products, squared_norms
from multihead._update.spec import UpdateSpec
from multihead._update.ways import CombinedFirst, PassPerHead, Summed, Way
from multihead._update.weights import depends_on_losses, head_weights_at
from multihead.balancing import Balancer
from multihead.heads._named import NamedHead
from multihead.heads._rows_apart import check_rows_apart
from multihead.rates import periods_of
from multihead.telemetry._logs import LogMetrics


@dataclass(frozen=True)
class Shapes:
    """What data have shown; it survives `compile`.

    Attributes:
        specs: The specs of a batch, with open batch size; None before any data.
        predictions: What each built head predicts, by name.
        num_leaves: The number of floating-point leaves of the representation.
    """

    specs: Batch | None = None
    predictions: Mapping[str, Predictions] = field(default_factory=dict)
    num_leaves: int = 0

    def lack(self, heads: Sequence[NamedHead], targets: Mapping[str, Tensor]) -> bool:
        """Whether targets belong to a head that is not built."""
        built = [head.name for head in heads if head.name in self.predictions and head.metrics is not None]
        return any(name not in built for name in targets)

    def of_heads(self, names: Sequence[str]) -> Shapes:
        """The shapes of some heads only."""

        def kept(by_head: Mapping[str, Given]) -> dict[str, Given]:
            return {name: value for name, value in by_head.items() if name in names}

        specs = self.specs
        specs = specs if specs is None else Batch(specs.inputs, kept(specs.targets), kept(specs.sample_weights))
        return Shapes(specs, kept(self.predictions), self.num_leaves)


def build_modules(
    encoder: Layer, heads: Sequence[NamedHead], specs: Batch, known: Shapes, sample: Batch | None, *, eagerly: bool
) -> Shapes:
    """Creates the variables of the encoder, the heads' modules and their metrics.

    Args:
        encoder: The encoder.
        heads: The heads. Those without targets in the specs are not built if their modules need targets.
        specs: The specs of a batch.
        known: What was known before.
        sample: Some examples, for modules that are not traced; None makes some of ones and zeros.
        eagerly: Whether modules run as plain Python.

    Returns:
        The shapes for batches of these specs.
    """
    sample = sample_of(specs) if eagerly and sample is None else sample
    traced = trace_predictions(encoder, heads, specs, known.predictions, sample)
    for module in (encoder, *(head.module for head in heads)):
        run_in_graphs(module)
    for head in heads:
        head.loss.runs_eagerly = eagerly
        if head.name in traced.predictions and head.name in specs.targets:
            is_new, targets, found = head.metrics is None, specs.targets[head.name], traced.predictions[head.name]
            head.build(targets, found.spec)
            if head.is_trained and not isinstance(head.loss.original, str):  # a loss of Keras by its name reads no variables
                read = read_by_loss(encoder, heads, head, targets, found.spec, eagerly=eagerly)
                traced.predictions[head.name] = found._replace(read_by_loss=read)
            if is_new:
                check_rows_apart(head, traced.representation, targets, found.spec)
    return Shapes(specs, {**known.predictions, **traced.predictions}, traced.num_leaves)


@dataclass(frozen=True)
class Built:
    """A trainer that is built and compiled.

    Attributes:
        spec: How updates are computed.
        logs: The metrics behind the logs.
    """

    spec: UpdateSpec
    logs: LogMetrics

    def trainable(self) -> UpdateSpec:
        """How updates are computed."""
        if not self.spec.network.variables.all:
            raise ValueError(
                "`encoder` or a head's `module` must have trainable variables. Received: none, so no update would change "
                "anything. Set `trainable = True` and call `compile` again; to measure only, use `evaluate`."
            )
        return self.spec

    def training_logs(self, logs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The logs of a training step, with statistics that are read again; statistics of others stay as they are."""
        # Where no update was counted, a `train_step` of the user's own logs by itself.
        has_counted = int(tf.convert_to_tensor(self.logs.sums.batches.value)) > 0
        return _read_again(logs, self.logs.training_logs() if has_counted else {})

    def evaluation_logs(self, logs: dict[str, Tensor], step: Tensor) -> dict[str, Tensor]:
        """The same for the logs of an evaluation after `step` updates."""
        heads = self.spec.network.heads
        present = [head.name for head in heads if f"{head.name}_loss" in logs]
        present += [
            each.name for each in self.spec.network.measured if any(f"{each.name}_{name}" in logs for name in each.results())
        ]
        return _read_again(logs, self.logs.evaluation_logs(head_weights_at(heads, step), present, step))


def _read_again(logs: dict[str, Tensor], results: dict[str, Tensor]) -> dict[str, Tensor]:
    found: Config = {name: results.get(name, value) for name, value in logs.items()}
    # Numbers are Python's, as in the logs of Keras.
    return {name: as_python(value.numpy() if hasattr(value, "numpy") else value) for name, value in found.items()}


def build_spec(
    *,
    encoder: Layer,
    heads: Sequence[NamedHead],
    shapes: Shapes,
    options: CompileOptions,
    balancer: Balancer | None,
    optimizer: Optimizer,
    awake: tf.Variable,
    earlier: UpdateSpec | None,
) -> UpdateSpec:
    """Creates the variables of the methods and the optimizer, and the specification of updates."""
    measured = [head for head in heads if not head.is_trained and head.metric_specs]
    heads = [head for head in heads if head.is_trained]
    if options.weighting is not None:
        options.weighting.build((len(heads),))
    options.head_schedule.build((len(heads),))
    known = [shapes.predictions[head.name] for head in heads]
    network = Network.of(encoder, heads, options.weighting, [each.read_by_loss for each in known], measured)
    if balancer is not None:
        balancer.build(_shapes_of_rows(network, balancer, options.balance_at, shapes.num_leaves))
    if earlier is None:
        _warn_of_heads_apart(heads, known)
        if balancer is not None and options.balance_at == "representation":
            _warn_of_nothing_shared([head.name for head in heads], known)
        built = build_optimizer(optimizer, network.variables.all)
        slots: Sequence[Sequence[tf.Variable]] = [[tensor_variable(slot) for slot in of_variable] for of_variable in built]
    else:
        slots = earlier.slots
    training = [k for k, head in enumerate(heads) if head.trains_encoder]
    apart = share_nothing(known) if options.balance_at == "representation" or balancer is None else []
    faults = None if earlier is None or not earlier.faults.fits(network) else earlier.faults
    if faults is None:
        faults = Faults(network, options.on_nonfinite, options.max_skipped_updates, options.gradient_accumulation_steps)
    return UpdateSpec(
        network=network,
        predictions=tuple(known),
        weighting=options.weighting,
        balancer=balancer,
        schedule=options.head_schedule,
        way=_way(balancer, options),
        num_micro_batches=options.micro_batches,
        clip=options.clip,
        slots=slots,
        awake=awake,
        faults=faults,
        check_labels=options.check_labels,
        periods=periods_of(network, options.encoder_learning_rate_multiplier, options.encoder_weight_decay_multiplier),
        of_measured=tuple(shapes.predictions[head.name] for head in measured),
        pairs=tuple(pair for pair in itertools.combinations(training, 2) if pair not in apart),
        layers_every=options.layers_every if options.telemetry == "full" else 0,
    )


def _warn_of_heads_apart(heads: Sequence[NamedHead], predictions: Sequence[Predictions]) -> None:
    """Warns if the encoder cannot learn from a head."""
    apart = [head.name for head, of_head in zip(heads, predictions) if head.trains_encoder and not any(of_head.leaves)]
    if apart:
        warnings.warn(
            f"The encoder learns nothing from head {quoted(apart)}, which reads none of its floating-point outputs: only "
            "the head's own variables are trained. If it should train the encoder, let it read one of these (`reads=`); "
            "otherwise pass `trains_encoder=False` to `add_head`.",
            UserWarning,
            stacklevel=2,
        )


def _warn_of_nothing_shared(names: Sequence[str], predictions: Sequence[Predictions]) -> None:
    """Warns if a pair of heads does not read a common tensor of the representation."""
    apart = read_different_tensors(predictions)
    if apart:
        pairs = "; ".join(f"{names[i]!r} and {names[j]!r}" for i, j in apart)
        warnings.warn(
            f"Some heads read no common tensor of the representation: {pairs}. Their representation gradients are "
            "orthogonal by construction, and their norms are of different tensors, so a balancer cannot compare them. Pass "
            '`balance_at="parameters"` to `compile`.',
            UserWarning,
            stacklevel=2,
        )


def _way(balancer: Balancer | None, options: CompileOptions) -> Way:
    """The way of the heads' gradients through the encoder, and what is measured at the representation."""
    others = [method for method in (options.weighting, options.head_schedule) if method is not None]
    depends = depends_on_losses(options.weighting)
    needs_norms = any("norms" in method.uses for method in others)
    measure: Measure | None = inner_products if "gramian" in options.head_schedule.uses else None
    if balancer is not None and options.balance_at == "parameters":
        may_reuse = options.balance_every > 1 and not needs_norms and not depends
        return PassPerHead(balancer, measure, at_parameters=True, may_reuse=may_reuse)
    if balancer is not None:
        measure = inner_products
    elif measure is None and options.telemetry == "full":
        measure = products
    elif measure is None and (needs_norms or options.telemetry == "norms"):
        measure = squared_norms
    if balancer is None and not depends:
        return Summed(None, measure)
    is_single = options.micro_batches * options.gradient_accumulation_steps == 1
    return CombinedFirst(balancer, measure) if is_single else PassPerHead(balancer, measure)


def _shapes_of_rows(network: Network, balancer: Balancer, balance_at: str, num_leaves: int) -> Nested:
    """The shapes to build a balancer for: of one matrix, or of all gradient tensors if it needs the gradients."""
    num_heads = len(network.heads)
    if "gradients" not in balancer.uses:
        return (num_heads, None)
    if balance_at == "representation":
        return [(num_heads, None)] * num_leaves
    return [(num_heads, variable.shape.num_elements()) for variable in network.encoder_tensors]
