"""Matrices of head gradients, from harmless to hard."""

from __future__ import annotations

import numpy as np

HARD = ("conflicting", "colinear", "rank_deficient", "zero_row", "equal", "opposed", "opposed_scaled", "all_zero")
KINDS = ("random", *HARD)
COUNTS = (1, 2, 3, 5, 8, 16)


def matrix(kind: str, num_heads: int, spread: float = 0.0, overall: float = 1.0, seed: int = 0, size: int = 31):
    """A float32 matrix `[num_heads, size]`, returned in float64.

    `spread`: rows are scaled by powers of ten from -spread to spread; `overall`: and all by this.
    """
    rng = np.random.default_rng([seed, num_heads, KINDS.index(kind)])
    rows = rng.normal(size=(num_heads, size))
    last = num_heads - 1
    if kind == "conflicting":
        common = rng.normal(size=size)
        rows = rng.normal(size=(num_heads, 1)) * common + 0.5 * rows
    elif kind == "colinear":
        rows[last] = 2.5 * rows[0]
    elif kind == "rank_deficient":
        rank = max(1, num_heads // 2)
        rows = rng.normal(size=(num_heads, rank)) @ rng.normal(size=(rank, size))
    elif kind == "zero_row":
        rows[num_heads // 2] = 0
    elif kind == "equal":
        rows[:] = rows[0]
    elif kind == "opposed":
        rows[last] = -rows[0] if num_heads > 1 else rows[0]
    rows *= overall * 10.0 ** rng.uniform(-spread, spread, size=(num_heads, 1))
    if kind == "opposed_scaled" and num_heads > 1:
        rows[last] = -1e3 * rows[0]
    elif kind == "all_zero":
        rows[:] = 0
    return rows.astype(np.float32).astype(np.float64)


def norms(rows):
    return np.linalg.norm(rows, axis=1)


def units(rows):
    lengths = norms(rows)
    return rows / np.where(lengths > 0, lengths, 1.0)[:, None]


def conflict(update, rows):
    """The least cosine of the update with a row: negative if it opposes one; 0 for an update of zero."""
    length = np.linalg.norm(update)
    return 0.0 if length == 0 else (units(rows) @ (update / length)).min()


def preferring(method, numbers, **options):
    """A balancer that knows the heads' names, with one number of its preference per head."""
    names = [f"head_{k}" for k in range(len(numbers))]
    balancer = method(preference=dict(zip(names, numbers)), **options)
    balancer.bind(names)
    return balancer
