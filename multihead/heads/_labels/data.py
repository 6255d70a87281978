"""Labels of whole data, checked before training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._ground.calls import as_is

_VALUES_AT_ONCE = 2**20


def check_arrays(check: Callable[[Any], None], y: Any, sample_weight: Any) -> bool:
    """Checks all labels and weights of arrays, some rows at a time. Other data must be checked in each batch.

    Args:
        check: Raises an error for a batch, `(None, targets, sample_weights)`, with invalid labels.
        y: Targets as `fit` takes them.
        sample_weight: Weights as `fit` takes them, or None.

    Returns:
        Whether these are arrays, so that all were checked.
    """
    leaves = [leaf for leaf in tf.nest.flatten((y, sample_weight)) if leaf is not None]
    if not leaves or not all(hasattr(leaf, "dtype") and len(getattr(leaf, "shape", ())) > 0 for leaf in leaves):
        return False
    num_rows, num_values = leaves[0].shape[0], max(int(np.prod(leaf.shape)) for leaf in leaves)
    step = max(1, _VALUES_AT_ONCE * num_rows // max(1, num_values))
    for start in range(0, num_rows, step):

        def rows(leaf: Any, start: int = start) -> Any:
            part = None if leaf is None else leaf[start : start + step]
            return part if leaf is None or tf.is_tensor(leaf) else tf.convert_to_tensor(np.asarray(part))

        check((None, *tf.nest.map_structure(rows, (y, sample_weight))))
    return True


def checked(check: Callable[[Any], None], dataset: tf.data.Dataset, *, ahead: bool) -> tf.data.Dataset:
    """A data set of the same batches that raises an error at the first batch with invalid labels.

    Args:
        check: Raises an error for a batch with invalid labels.
        dataset: A data set of batches as `fit` takes them.
        ahead: Whether batches may be read and checked before they are needed.
    """

    @as_is
    def checked_batch(*parts: Any) -> Any:
        check(parts)
        return parts

    return dataset.map(checked_batch, num_parallel_calls=tf.data.AUTOTUNE if ahead else None)
