"""A weighting combines the heads' losses into one total loss and so decides how much each loss counts.

Weights that are constant, or a function of the step, are set with `weight=` in `MultiHeadTrainer.add_head`. Weights that
depend on the losses are computed by a class: pass an instance (or its name) as `weighting=` to
`MultiHeadTrainer.compile`, or call it directly on `[num_heads]` losses.
"""

from multihead.weighting._base import Weighting, get
from multihead.weighting.dwa import DWA
from multihead.weighting.famo import FAMO
from multihead.weighting.geometric_mean import GeometricMean
from multihead.weighting.go4align import GO4Align
from multihead.weighting.gradnorm import GradNorm
from multihead.weighting.imtll import IMTLL
from multihead.weighting.log_loss import LogLoss
from multihead.weighting.random_loss_weighting import RandomLossWeighting
from multihead.weighting.smooth_tchebycheff import SmoothTchebycheff
from multihead.weighting.uncertainty import Uncertainty
from multihead.weighting.uwso import UWSO

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
