"""Callbacks: checkpoints and resumed runs, early stopping and selection by head, and records of updates."""

from multihead._runs.checkpoint import Checkpoint
from multihead.callbacks._ledger_callback import HeadTensorBoard, UpdateLogger
from multihead.callbacks._per_head import HeadEarlyStopping

__all__ = ["Checkpoint", "UpdateLogger", "HeadEarlyStopping", "HeadTensorBoard"]
