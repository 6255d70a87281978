"""The heads' gradients apart: what `head_gradients` returns and `diagnose` measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from multihead import schedules
from multihead._ground import replicas
from multihead._ground.tensors import inner_products, scaled
from multihead._ground.types import Gradient
from multihead._update.backward import CombinedPass, GradientsPerHead, PassPerHead
from multihead._update.batch import Batch
from multihead._update.combine import Combiner, SumHeads
from multihead._update.combined import Combined
from multihead._update.network import Network
from multihead._update.pipeline import compute_update
from multihead._update.products import cosines_of, products_of
from multihead._update.representation import RepresentationGradients
from multihead._update.roll_back import RollBack
from multihead._update.spec import UpdateSpec
from multihead._update.update import Update
from multihead._update.weights import Losses, LossWeights


class HeadGradients(dict[str, list[Any]]):
    """Each head's gradients by its name, one for each variable of the encoder or each leaf of the representation.

    Attributes:
        own: Pairs of gradient and variable for the heads' own variables, and for those of the weighting.
    """

    own: tuple[tuple[Any, Any], ...] = ()
    _is_of_replica = False

    @property
    def gramian(self) -> tf.Tensor:
        """`[num_heads, num_heads]` float64 inner products of the heads' gradients, summed over replicas."""
        products = inner_products(list(self.values()))
        return replicas.all_reduce_sum(products) if self._is_of_replica else products

    @property
    def norms(self) -> tf.Tensor:
        """`[num_heads]` float64 norms of the heads' gradients."""
        return tf.sqrt(tf.linalg.diag_part(self.gramian))

    @property
    def cosines(self) -> tf.Tensor:
        """`[num_heads, num_heads]` float32 cosines between the heads' gradients; NaN for a head without a gradient."""
        return cosines_of(self.gramian)


class HeadsApart(Combiner):
    """The plain sum, which keeps each head's gradients.

    Args:
        at: `"representation"` or `"parameters"`.

    Attributes:
        rows: For each head, the gradients of its weighted loss in the latest update: on this replica at the representation,
            over all replicas at the parameters.
    """

    measure = staticmethod(RepresentationGradients.gramian)

    def __init__(self, at: str) -> None:
        self._at = at
        self.rows: Sequence[list[Gradient]] = []

    def encoder_pass(
        self, weights: LossWeights, num_micro_batches: int, by_layer: tf.Tensor | None
    ) -> CombinedPass | PassPerHead:
        if self._at == "parameters":
            return PassPerHead(self.measure)
        return CombinedPass(self.at_representation, weights, is_measured=True)

    def at_representation(self, gradients: RepresentationGradients, losses: Losses) -> Combined:
        """Keeps the heads' representation gradients, and adds them up."""
        self.rows = gradients.times(losses.factors).by_head
        return SumHeads(self.measure).at_representation(gradients, losses)

    def combine_heads(self, network: Network, gathered: GradientsPerHead, losses: Losses) -> Combined:
        factors, rows = losses.factors, enumerate(gathered.per_head)
        found = [[g if factors is None else scaled(g, factors[k]) for g in row] for k, row in rows]
        self.rows = [replicas.all_reduce_sum(row) for row in found]
        combined = SumHeads(self.measure).combine_heads(network, gathered, losses)
        return combined._replace(gramian=products_of(self.rows))


def update_of_heads_apart(
    spec: UpdateSpec, at: str, batch: Batch, step: tf.Tensor, loss_scale: tf.Tensor | None
) -> tuple[Update, Sequence[list[Gradient]]]:
    """The update of a batch, of all heads whatever the schedule and without balancing, and each head's gradients in it.

    Args:
        spec: How updates are computed.
        at: As in `HeadsApart`.
        batch: The batch.
        step: The number of updates applied so far.
        loss_scale: The factor of loss scaling, or None.
    """
    together = schedules.Together()
    together.bind([head.name for head in spec.network.heads])
    combiner = HeadsApart(at)
    alone = replace(spec, schedule=together, num_micro_batches=1, combiner=combiner, layers_every=0)
    update = compute_update(alone, [batch], step, loss_scale)
    return update, combiner.rows


def gradients_by_head(
    spec: UpdateSpec, at: str, batch: Batch, step: tf.Tensor, loss_scale: tf.Tensor | None
) -> HeadGradients:
    """Each head's gradients of its weighted mean loss; afterwards all variables are what they were.

    The arguments are those of `update_of_heads_apart`.
    """
    before = RollBack(spec.state)
    update, rows = update_of_heads_apart(spec, at, batch, step, loss_scale)
    before.restore()
    of_encoder = len(spec.network.variables.encoder)
    found = HeadGradients({head.name: list(row) for head, row in zip(spec.network.heads, rows)})
    found.own = tuple(zip(update.gradients.all[of_encoder:], spec.network.variables.all[of_encoder:]))
    found._is_of_replica = at == "representation"
    return found
