"""A balancer combines the heads' encoder gradients into one gradient and so decides how the heads move the encoder.

The methods are classes. Pass an instance (or its name) as `balancer=` to `MultiHeadTrainer.compile`, or call it on a
`[num_heads, num_parameters]` matrix. For a custom training loop, use `balance`.

A row of zeros is an idle head: it changes neither the coefficients of the other heads nor the state of its own. Options
outside of their documented range, a preference without a number above 0, and more heads than `max_heads` raise a
`ValueError`; a preference that is not a mapping raises a `TypeError`.
"""

from multihead.balancing._base import Balancer, balance, get
from multihead.balancing.bargaining import FairGrad, NashMTL
from multihead.balancing.chain import Chain
from multihead.balancing.common_directions import IMTLG, MGDA, AlignedMTL, ConFIG
from multihead.balancing.near_the_mean import CAGrad, ConicGrad
from multihead.balancing.norms import EqualNorms, MetaBalance, NormBudget, NormFloor, Sum
from multihead.balancing.projections import DualProj, GradDrop, GradVac, PCGrad, UPGrad
from multihead.balancing.running import DBMTL, ExcessMTL, MoCo

__all__ = [
    "IMTLG",
    "MGDA",
    "AlignedMTL",
    "Balancer",
    "CAGrad",
    "Chain",
    "ConFIG",
    "ConicGrad",
    "DBMTL",
    "DualProj",
    "EqualNorms",
    "ExcessMTL",
    "FairGrad",
    "GradDrop",
    "GradVac",
    "MetaBalance",
    "MoCo",
    "NashMTL",
    "NormBudget",
    "NormFloor",
    "PCGrad",
    "Sum",
    "UPGrad",
    "balance",
    "get",
]
