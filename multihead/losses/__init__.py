"""Losses as sums and counts.

A head's loss is kept as the sum over its labelled elements and their count, and divided once, at the update:
`loss = sum_i s_i * loss_i / sum_i s_i`. Sums and counts add up over micro-batches, batches and replicas; means do not.

An element is the smallest thing that can have its own label: one column of one row if Keras's loss is a mean over columns
(`"mse"`, `"binary_crossentropy"`), a row if it reads all columns (`"categorical_crossentropy"`), a token for class numbers.
A missing label therefore removes only that element.

A custom loss can have a denominator other than the number of elements: it returns a sum and a count, as tensors of the same
shape. These are arrays with one pair per element, or two numbers for all rows that it receives. Sums and counts add up in
the same way, so `loss = sum_i s_i * sum_i / sum_i s_i * count_i`; an update whose count is 0 does not train the head. Two
numbers cannot be weighted by row, so rows without a label are removed before the loss is called. The count must be a
function of the targets, and of the predictions' shape; it takes a call of its own, so the loss must not change variables.
"""

from multihead.losses._elements import ElementLoss, SequenceCrossentropy, get

__all__ = ["ElementLoss", "SequenceCrossentropy", "get"]
