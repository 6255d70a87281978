"""Weightings: how much each head's loss counts in the total.

Constants and functions of the count of updates are given as `weight=` to `MultiHeadTrainer.add_head`. What depends on the
losses is a class: pass an instance (or its name) as `weighting=` to `MultiHeadTrainer.compile`, or call it by hand on
`[num_heads]` losses.
"""

from multihead._keras import add_state
from multihead.weighting._base import Weighting
from multihead.weighting._registry import get
from multihead.weighting.dwa import DWA
from multihead.weighting.famo import FAMO
from multihead.weighting.geometric_mean import GeometricMean
from multihead.weighting.gradnorm import GradNorm
from multihead.weighting.imtll import IMTLL
from multihead.weighting.log_loss import LogLoss
from multihead.weighting.random_loss_weighting import RandomLossWeighting
from multihead.weighting.smooth_tchebycheff import SmoothTchebycheff
from multihead.weighting.uncertainty import Uncertainty

__all__ = [
    "DWA",
    "FAMO",
    "IMTLL",
    "GeometricMean",
    "GradNorm",
    "LogLoss",
    "RandomLossWeighting",
    "SmoothTchebycheff",
    "Uncertainty",
    "Weighting",
    "add_state",
    "get",
]
