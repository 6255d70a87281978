"""Building on the first batch: creates the variables of methods and the optimizer, and the specification of updates."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from multihead._ground.gradients import inner_products
from multihead._ground.keras import tensor_variable
from multihead._ground.optimizers import build_optimizer
from multihead._ground.validation import quoted
from multihead._trainer.options import CompileOptions
from multihead._trainer.shapes import Shapes
from multihead._update.faults import Faults
from multihead._update.labels import Predictions, read_different_tensors, share_nothing
from multihead._update.network import Network
from multihead._update.rates import periods_of
from multihead._update.representation import Measure, products, squared_norms
from multihead._update.spec import UpdateSpec
from multihead._update.ways import CombinedFirst, PassPerHead, Summed, Way
from multihead._update.weights import depends_on_losses
from multihead.heads._named import NamedHead


def build_spec(
    *,
    encoder: Any,
    heads: Sequence[NamedHead],
    shapes: Shapes,
    options: CompileOptions,
    balancer: Any,
    optimizer: Any,
    awake: tf.Variable,
    earlier: UpdateSpec | None,
) -> UpdateSpec:
    """Creates the variables of the methods and the optimizer, and the specification of updates.

    Args:
        encoder: The built encoder.
        heads: The built heads.
        shapes: What they return.
        options: The options of `compile`.
        balancer: The balancer of the options, or a wrapper around it.
        optimizer: The optimizer.
        awake: `[num_heads]`: 1 for each head that may be trained, 0 for the others.
        earlier: The specification for the same heads and optimizer before they were built again; None at first.
    """
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
        slots: Sequence[Any] = [[tensor_variable(slot) for slot in of_variable] for of_variable in built]
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


def _way(balancer: Any, options: CompileOptions) -> Way:
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


def _shapes_of_rows(network: Network, balancer: Any, balance_at: str, num_leaves: int) -> Any:
    """The shapes to build a balancer for: of one matrix, or of all gradient tensors if it needs the gradients."""
    num_heads = len(network.heads)
    if "gradients" not in balancer.uses:
        return (num_heads, None)
    if balance_at == "representation":
        return [(num_heads, None)] * num_leaves
    return [(num_heads, variable.shape.num_elements()) for variable in network.encoder_tensors]
