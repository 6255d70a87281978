"""Callbacks: runs that continue where they stopped, stopping and selecting by each head's figures, and records."""

from multihead._runs.checkpoint import Checkpoint
from multihead.callbacks._ledger_callback import Ledger, TensorBoardByHead
from multihead.callbacks._per_head import PerHead

__all__ = ["Checkpoint", "Ledger", "PerHead", "TensorBoardByHead"]
