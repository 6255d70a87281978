"""Heads: their modules, losses, labels and metrics."""

from multihead.heads._head import Head

__all__ = ["Head"]
