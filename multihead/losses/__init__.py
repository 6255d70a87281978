"""Losses as sums and counts.

A head's loss is kept as the sum over its labelled elements and their count, and divided once, at the update:
`loss = sum_i s_i * loss_i / sum_i s_i`. Sums and counts add up over micro-batches, batches and replicas; means do not.

An element is the smallest thing that can have a label of its own: one column of one row where Keras's loss is a mean over
columns (`"mse"`, `"binary_crossentropy"`), a row where it reads all columns (`"categorical_crossentropy"`), a token for
class numbers. So a missing label costs that element alone.
"""

from multihead.losses._elements import ElementLoss, SequenceCrossentropy, get

__all__ = ["ElementLoss", "SequenceCrossentropy", "get"]
