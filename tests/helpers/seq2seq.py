"""Encoders and decoders of every kind, and short rows for them."""

from __future__ import annotations

import itertools

import numpy as np

from multihead.models import _addons_loops
from tests.helpers.cases import pairwise, quick
from tests.helpers.numpy_seq2seq import weights_of

TOKENS = np.array([[4, 5, 6, 7, 8], [9, 4, 0, 0, 0], [5, 0, 0, 0, 0], [0, 0, 0, 0, 0]], np.int32)

LENGTHS = [5, 2, 1, 1]

TARGETS = np.array([[4, 5, 6, 3], [7, 3, 0, 0], [3, 0, 0, 0], [6, 6, 3, 0]], np.int32)

ENGINES = ["addons", "native"] if _addons_loops.is_installed() else ["native"]

ATTENTIONS = [("luong", False), ("bahdanau", False), (None, False), ("luong", True), ("bahdanau", True)]

_OPTIONS = ["gru", "lstm"], [1, 2], ATTENTIONS

_PAIRS = pairwise(*_OPTIONS)

KINDS = quick(
    len(_PAIRS),
    [(*kind[:2], *kind[2]) for kind in [*_PAIRS, *(kind for kind in itertools.product(*_OPTIONS) if kind not in _PAIRS)]],
)
"""Cell, number of layers, attention and input feeding: every two of them together; the others in the thorough run."""

KINDS_BY_ENGINES = [(*kind[:2], *kind[2], kind[3]) for kind in pairwise(*_OPTIONS, ENGINES)]
"""The same with an engine: every two of them together."""


def grow(layer, factor=3.0):
    """Larger weights, so that differences show."""
    layer.set_weights([weight * factor for weight in layer.get_weights()])


def bridge(decoder, states):
    """The decoder's first states of one row in NumPy, for as many layers on both sides."""
    result = []
    for index, state in enumerate(states):
        parts = []
        for dense, part in zip(decoder.bridge._maps_of(index), state):
            kernel, bias = weights_of(dense) if dense.built else (np.eye(len(part)), None)
            parts.append(part if bias is None else np.tanh(part @ kernel + bias))
        result.append(parts)
    return result
