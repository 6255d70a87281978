"""Heads: what each is made of, and what of the data it is trained on."""

from multihead.heads._head import Head

__all__ = ["Head"]
