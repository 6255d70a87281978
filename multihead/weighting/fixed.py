"""Fixed weights of the losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from multihead._ground.keras import keras
from multihead._ground.validation import check_head_names, is_number
from multihead.weighting._base import Weighting


@keras.saving.register_keras_serializable(package="multihead")
class Fixed(Weighting):
    """Multiplies the losses by fixed factors, in addition to `weight=` of the heads.

    For weights that are known only after the heads were added.

    Formula: `total = sum_k c_k L_k`, so `w_k = c_k`, with `c` the `factors`, 1 for a head without one.

    What it fixes: the scales of losses that are known beforehand.

    State: none.

    Args:
        factors: Numbers above 0 by head name.
        name: Name of the layer.

    Raises:
        ValueError: A factor is not above 0, or a head is unknown.

    Example:
        >>> Fixed()([4.0, 0.5]).numpy().tolist()
        [1.0, 1.0]

    Source: Kurin et al., In Defense of the Unitary Scalarization for Deep Multi-Task Learning, NeurIPS 2022, who compare all
    other methods to it.
    """

    uses = ()

    def __init__(self, factors: Mapping[str, float] | None = None, *, name: str | None = None) -> None:
        super().__init__(name=name)
        self._factors = tuple((factors or {}).items())  # as pairs: Keras wraps dicts
        for head, factor in self._factors:
            if not is_number(factor) or factor <= 0:
                raise ValueError(
                    f"`factors` must be finite numbers above 0. Received: {factor!r} for head {head!r}. "
                    "To leave a head out, pass `weight=0` to `add_head`."
                )

    @property
    def factors(self) -> dict[str, float]:
        """The factors as they were given."""
        return dict(self._factors)

    def bind(self, head_names: Sequence[str]) -> None:
        check_head_names("factors", list(self.factors), head_names)
        super().bind(head_names)

    def total(self, losses: tf.Tensor, active: tf.Tensor) -> tf.Tensor:
        names = self.head_names or ()
        return tf.reduce_sum(tf.constant([self.factors.get(name, 1.0) for name in names], losses.dtype) * losses)
