"""A balancer combines the heads' encoder gradients into one gradient and so decides how each head moves the encoder.

Each method is a class. Pass an instance (or its name) as `balancer=` to `MultiHeadTrainer.compile`, or call it on a
`[num_heads, num_parameters]` matrix. `balance` is the way in for a custom training loop.
"""

from multihead.balancing._base import Balancer, balance, get
from multihead.balancing.aligned_mtl import AlignedMTL
from multihead.balancing.cagrad import CAGrad
from multihead.balancing.chain import Chain
from multihead.balancing.config import ConFIG
from multihead.balancing.conicgrad import ConicGrad
from multihead.balancing.dbmtl import DBMTL
from multihead.balancing.dualproj import DualProj
from multihead.balancing.equal_norms import EqualNorms
from multihead.balancing.excess_mtl import ExcessMTL
from multihead.balancing.fairgrad import FairGrad
from multihead.balancing.graddrop import GradDrop
from multihead.balancing.gradvac import GradVac
from multihead.balancing.imtlg import IMTLG
from multihead.balancing.meta_balance import MetaBalance
from multihead.balancing.mgda import MGDA
from multihead.balancing.moco import MoCo
from multihead.balancing.nash_mtl import NashMTL
from multihead.balancing.norm_budget import NormBudget
from multihead.balancing.norm_floor import NormFloor
from multihead.balancing.pcgrad import PCGrad
from multihead.balancing.sum import Sum
from multihead.balancing.upgrad import UPGrad

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
