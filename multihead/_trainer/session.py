"""What exists only while a trainer is fitted."""

from __future__ import annotations

from dataclasses import dataclass

from multihead._update.spec import UpdateSpec


@dataclass(frozen=True)
class FitSession:
    """A call of `fit`, or of `train_on_batch` with weights of classes.

    Attributes:
        requires_every_head: Whether each batch must have targets for all heads.
        spec: How updates are computed with the weights of classes of this call; None without such weights.
        is_evaluating: Whether `evaluate` was called meanwhile, for the validation data.
    """

    requires_every_head: bool = True
    spec: UpdateSpec | None = None
    is_evaluating: bool = False
