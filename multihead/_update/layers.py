"""The heads' gradients in each layer of the encoder: inner products, computed only in updates that measure them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead._ground import replicas
from multihead._ground.layers import owner_names
from multihead._ground.tensors import computed_if
from multihead._ground.types import Gradient
from multihead._update.network import Network
from multihead._update.products import products_of, weighted


class Layers(NamedTuple):
    """The encoder's layers that have trainable variables.

    Attributes:
        names: Their names.
        positions: For each, the positions of its variables among those of the encoder.
    """

    names: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, network: Network) -> Layers:
        """Finds the layers of a network's encoder."""
        owners = owner_names(network.encoder, network.variables.encoder)
        names = tuple(dict.fromkeys(owners))
        return cls(names, tuple(tuple(i for i, owner in enumerate(owners) if owner == name) for name in names))

    def products(
        self,
        condition: tf.Tensor | None,
        rows: Sequence[list[Gradient]],
        factors: tf.Tensor | None,
        combined: Sequence[Gradient],
    ) -> tf.Tensor | None:
        """`[layers, num_heads + 1, num_heads + 1]` float64 inner products; zeros if the condition does not hold.

        Args:
            condition: A boolean scalar; None if no update measures them, and then the result is None.
            rows: For each head, this replica's gradients of its loss, one per encoder variable.
            factors: `[num_heads]` loss-dependent factors of these, or None.
            combined: The encoder's gradients over all replicas; they are the last row.
        """
        if condition is None:
            return None
        reduced = [replicas.all_reduce_sum(row) for row in rows]
        size = len(rows) + 1
        padded = None if factors is None else tf.concat([factors, [1.0]], axis=0)

        def products() -> list[Any]:
            of_layers = []
            for positions in self.positions:
                of_layer = [[row[i] for i in positions] for row in (*reduced, combined)]
                of_layers.append(weighted(products_of(of_layer), padded))
            return [tf.stack(of_layers)]

        return computed_if(condition, products, [tf.constant([len(self.names), size, size])])[0]
