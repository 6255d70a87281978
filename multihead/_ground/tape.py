"""Gradients of the same outputs, as many times as they are needed."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from multihead._ground.types import Gradient, Tensor


class PersistentTape:
    """Within this context, a persistent `tf.GradientTape` that watches `sources`, tensors and variables, and nothing else.

    In a graph it is `tf.gradients`, for which operations from before the context count, too: sources must be detached from
    them. A persistent tape would make functions that are called, such as the GRU of Keras 2, also return what derivatives
    of gradients need, which takes a sixth of the time of a step.
    """

    def __init__(self, sources: Sequence[Tensor]) -> None:
        self._sources, self._tape = list(sources), None
        if tf.executing_eagerly():
            self._tape = tf.GradientTape(watch_accessed_variables=False, persistent=True)
        else:  # variables as this graph knows them, for gradients that a branch of a condition computes
            graph = tf.compat.v1.get_default_graph()
            self._sources = [one if isinstance(one, tf.Tensor) else graph.capture(one.handle) for one in sources]

    def __enter__(self) -> PersistentTape:
        if self._tape is not None:
            self._tape.__enter__()
            self._tape.watch(self._sources)
        return self

    def __exit__(self, *error: object) -> None:
        if self._tape is not None:
            self._tape.__exit__(*error)

    def gradient(self, outputs: Sequence[tf.Tensor], upstream: Sequence[tf.Tensor]) -> list[Gradient]:
        """One gradient per source, from one upstream gradient per output; None where no output depends on the source."""
        if not self._sources:
            return []
        if self._tape is None:
            return list(tf.gradients(outputs, self._sources, grad_ys=upstream))
        return list(self._tape.gradient(outputs, self._sources, output_gradients=upstream))
