"""Heads: their modules, losses, labels and metrics."""

from multihead.heads._value import Head

__all__ = ["Head"]
