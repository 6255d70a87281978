"""What the first batch settles: variables of modules, metrics, methods and the optimizer, and how updates are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._keras import AUTOGRAPH, build_optimizer, call_module, created_outside_of_graphs, keras_mask
from multihead._options import CompileOptions
from multihead._update.backward import Measure
from multihead._update.batch import Batch
from multihead._update.combine import BalanceAtParameters, BalanceAtRepresentation, Combiner, HeadsAtStep, SumHeads
from multihead._update.labels import Predictions
from multihead._update.network import Network, Ownership
from multihead._update.representation import DetachedRepresentation, RepresentationGradients
from multihead._update.spec import UpdateSpec
from multihead._validation import quoted
from multihead.heads import Head


class Traced(NamedTuple):
    """What a forward pass without computation has shown.

    Attributes:
        predictions: The spec of each head's predictions, by head name, and whether Keras masks them.
        num_leaves: The number of floating leaves of the representation.
    """

    predictions: dict[str, tuple[tf.TensorSpec, bool]]
    num_leaves: int


def trace_predictions(encoder: Any, heads: Sequence[Head], specs: Batch, known: Mapping[str, Any]) -> Traced:
    """Builds the encoder and the heads for a batch, and finds out what the heads predict; nothing is computed.

    Args:
        encoder: The encoder.
        heads: The heads. One that reads its targets and has none in the batch is left out if it is known already.
        specs: The specs of a batch.
        known: The heads that are built.

    Raises:
        ValueError: A head's module cannot be built since the batch has no targets for it.
    """
    masked: dict[str, bool] = {}
    num_leaves = 0

    def forward(inputs: Any, targets: dict[str, Any]) -> dict[str, Any]:
        nonlocal num_leaves
        representation = DetachedRepresentation(call_module(encoder, inputs, training=False))
        num_leaves = len(representation.leaves)
        outputs = {}
        for head in heads:
            if head.teacher_forcing and head.name not in targets:
                if head.name not in known:
                    raise ValueError(
                        f"The head {head.name!r} reads its targets, so the first batch must have targets for it. "
                        f"Received: targets for {quoted(targets)}. Show the trainer a batch with all heads first."
                    )
                continue
            outputs[head.name] = head.predict(representation.nest, targets.get(head.name), training=False)
            masked[head.name] = keras_mask(outputs[head.name]) is not None
        return outputs

    traceable = tf.function(forward, autograph=AUTOGRAPH)
    created_outside_of_graphs(lambda: traceable.get_concrete_function(specs.inputs, specs.targets))
    traced = tf.function(forward, autograph=AUTOGRAPH).get_concrete_function(specs.inputs, specs.targets)
    found = traced.structured_outputs.items()
    return Traced({k: (tf.TensorSpec(each.shape, each.dtype), masked[k]) for k, each in found}, num_leaves)


def build_spec(
    *,
    encoder: Any,
    heads: Sequence[Head],
    predictions: Mapping[str, Predictions],
    num_leaves: int,
    options: CompileOptions,
    balancer: Any,
    optimizer: Any,
    ownership: Ownership | None,
) -> UpdateSpec:
    """Creates the variables of the methods and the optimizer, and settles how updates are computed.

    Args:
        encoder: The built encoder.
        heads: The built heads.
        predictions: What is known of their predictions, by head name.
        num_leaves: The number of floating leaves of the representation.
        options: The options of `compile`.
        balancer: The balancer of the options, or one around it.
        optimizer: The optimizer.
        ownership: That of an earlier spec of the same heads and optimizer, which is built already; else None.
    """
    if options.weighting is not None:
        options.weighting.build((len(heads),))
    network = Network.of(encoder, heads, options.weighting)
    if balancer is not None:
        balancer.build(_shapes_of_rows(network, balancer, options.balance_at, num_leaves))
    if ownership is None:
        ownership = Ownership.of(network, build_optimizer(optimizer, network.variables.all))
    return UpdateSpec(
        network=network,
        predictions=tuple(predictions[head.name] for head in heads),
        weighting=options.weighting,
        balancer=balancer,
        schedule=options.schedule,
        combiner=_combiner(network, balancer, options),
        num_micro_batches=options.micro_batches,
        clip=options.clip,
        ownership=ownership,
    )


def _combiner(network: Network, balancer: Any, options: CompileOptions) -> Callable[[HeadsAtStep], Combiner]:
    """From what is known of the heads at a step to the combiner of one update."""
    measures_gramian = "gramian" in options.schedule.uses
    gramian: Measure | None = RepresentationGradients.gramian if measures_gramian else None
    if balancer is None:
        needs_norms = options.telemetry == "norms" or (options.weighting is not None and "norms" in options.weighting.uses)
        return partial(SumHeads, network, gramian or (RepresentationGradients.squared_norms if needs_norms else None))
    if options.balance_at == "representation":
        return partial(BalanceAtRepresentation, network, balancer)
    return partial(BalanceAtParameters, network, balancer, gramian)


def _shapes_of_rows(network: Network, balancer: Any, balance_at: str, num_leaves: int) -> Any:
    """What a balancer is built for: the shape of one matrix, or those of the gradients themselves if it needs them."""
    num_heads = len(network.heads)
    if "gradients" not in balancer.uses:
        return (num_heads, None)
    if balance_at == "representation":
        return [(num_heads, None)] * num_leaves
    return [(num_heads, variable.shape.num_elements()) for variable in network.encoder_tensors]
