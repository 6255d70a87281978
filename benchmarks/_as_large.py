"""Encoders as large as those of the single-task models together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from multihead import MultiHeadTrainer
from multihead.comparison._run import parameters_of, start
from multihead.comparison._study import TUNE, Job, Study, Variant

LARGE = ", as large"
"""What follows the name of a variant whose model is as large as the single-task models together."""


def width_as_large(
    make: Callable[[int], MultiHeadTrainer], width: int, data: Mapping[str, Any], heads: Sequence[str], batch_size: int
) -> int:
    """The largest width with which a joint model has at most the parameters of all single-task models together.

    Args:
        make: Makes the trainer for a width of the representation.
        width: That of single-task models.
        data: The data, as `multihead.compare` takes them.
        heads: The heads.
        batch_size: The number of examples of a batch.
    """

    def parameters(width: int, head: str = "") -> int:
        """Those of a joint model or, with the name of a head, of its single-task model."""
        study = Study(functools.partial(make, width), data, keras.optimizers.SGD, {}, batch_size, None)
        return parameters_of(start(study, Job(TUNE, Variant("alone" if head else "joint"), head, 0, 1e-3))[0])

    most = sum(parameters(width, head) for head in heads)
    low, high = width, width * len(heads) + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if parameters(middle) <= most else (low, middle)
    return low
