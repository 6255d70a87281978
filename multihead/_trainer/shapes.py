"""What the trainer knows from data: the specs of a batch, and what the modules return for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from multihead._ground.layers import run_in_graphs
from multihead._trainer.trace import read_by_loss, trace_predictions
from multihead._update.batch import Batch, sample_of, widened
from multihead._update.labels import Predictions
from multihead.heads._named import NamedHead
from multihead.heads._rows_apart import check_rows_apart


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

    def lack(self, heads: Sequence[NamedHead], targets: Mapping[str, Any]) -> bool:
        """Whether targets belong to a head that is not built."""
        built = [head.name for head in heads if head.name in self.predictions and head.metrics is not None]
        return any(name not in built for name in targets)

    def without(self, name: str) -> Shapes:
        """The shapes without a head."""

        def others(by_head: Mapping[str, Any]) -> dict[str, Any]:
            return {key: value for key, value in by_head.items() if key != name}

        specs = self.specs
        specs = specs if specs is None else Batch(specs.inputs, others(specs.targets), others(specs.sample_weights))
        return Shapes(specs, others(self.predictions), self.num_leaves)


def build_modules(
    encoder: Any, heads: Sequence[NamedHead], specs: Batch, known: Shapes, sample: Batch | None, *, eagerly: bool
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


def build_wider(build: Callable[[Batch], None], known: Batch, specs: Batch) -> None:
    """Builds again for batches whose sizes differ from those so far, with open sizes if the modules can take them.

    Args:
        build: Builds for some specs, and raises a `ValueError` if the modules cannot take them.
        known: The specs of the batches so far.
        specs: Those of a new batch.
    """
    wider = widened(known, specs)
    if wider != known:
        build(specs)
        if wider != specs:
            with suppress(ValueError):  # modules that need known sizes
                build(wider)
