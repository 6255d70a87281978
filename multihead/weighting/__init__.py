"""A weighting combines the heads' losses into one total loss and so decides how much the losses count.

Weights that are constant, or a function of the step, are set with `weight=` in `MultiHeadTrainer.add_head`. Weights that
depend on the losses are computed by a class: pass an instance (or its name) as `weighting=` to
`MultiHeadTrainer.compile`, or call it directly on `[num_heads]` losses.

An idle head changes neither the weights of the other heads nor the state of its own. An option outside of its documented
range raises a `ValueError`.
"""

from multihead.weighting._base import Weighting, get
from multihead.weighting.by_progress import DWA, FAMO, GO4Align, GradNorm
from multihead.weighting.by_scale import (
    IMTLL,
    UWSO,
    GeometricMean,
    LogLoss,
    RandomLossWeighting,
    SmoothTchebycheff,
    Uncertainty,
)

__all__ = [
    "DWA",
    "FAMO",
    "IMTLL",
    "UWSO",
    "GO4Align",
    "GeometricMean",
    "GradNorm",
    "LogLoss",
    "RandomLossWeighting",
    "SmoothTchebycheff",
    "Uncertainty",
    "Weighting",
    "get",
]
