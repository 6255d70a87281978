"""Callbacks: checkpoints and resumed runs, early stopping and selection by head, and records of updates."""

from multihead._runs.checkpoint import Checkpoint
from multihead.callbacks._early_stopping import HeadEarlyStopping
from multihead.callbacks._logger import HeadTensorBoard, UpdateLogger

__all__ = ["Checkpoint", "UpdateLogger", "HeadEarlyStopping", "HeadTensorBoard"]
