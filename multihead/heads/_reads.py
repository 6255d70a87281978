"""`reads=` of `add_head`: which part of the representation a head reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multihead._ground.types import Config, Nested
from multihead._ground.validation import described, did_you_mean, quoted

Reads = Any
"""A key or an index, a tuple of these, or a list of both; None: all of the representation."""


def check_reads(reads: Reads) -> Reads:
    """Returns `reads` if it can select a part: None, a key, a tuple of keys (a path) or a list of these."""
    parts = reads if isinstance(reads, list) else [reads]
    paths = [part if isinstance(part, tuple) else (part,) for part in parts]
    are_keys = [isinstance(key, (str, int)) and not isinstance(key, bool) for path in paths for key in path]
    if reads is None or (paths and all(paths) and all(are_keys)):
        return reads
    raise TypeError(
        "`reads` must be a key or an index of the representation, a tuple of them for a path into a nest, or a list for "
        f"several parts. Received: reads={reads!r}. Pass, say, 'pooled_output', ('states', 0) or ['outputs', 'mask']."
    )


def select(representation: Nested, reads: Reads, head: str) -> Nested:
    """The part of a representation that a head reads, or a list of parts; a `ValueError` if there is none."""
    if reads is None:
        return representation
    if isinstance(reads, list):
        return [select(representation, part, head) for part in reads]
    part = representation
    for key in reads if isinstance(reads, tuple) else (reads,):
        entries = _entries(part)
        if key not in entries:
            names = [entry for entry in entries if not isinstance(entry, int) or entry >= 0]
            hint = f"Pass one of {quoted(names)}." if names else "Leave `reads` out."
            path_hint = " A tuple is a path into a nest; for several parts pass a list." if isinstance(reads, tuple) else ""
            raise ValueError(
                f"`reads` of head {head!r} must name outputs of the encoder. Received: reads={reads!r}; the encoder returns "
                f"{described(representation)}. {did_you_mean([key], names, hint)}{path_hint}"
            )
        part = entries[key]
    return part


def _entries(part: Nested) -> dict[object, Nested]:
    """The entries of one level of a nest, by every key that selects them: names, indices and negative indices."""
    if isinstance(part, Mapping):
        return dict(part)
    if not isinstance(part, (tuple, list)):
        return {}
    by_index = dict(enumerate(part))
    from_end = {index - len(part): value for index, value in enumerate(part)}
    return {**by_index, **from_end, **dict(zip(getattr(part, "_fields", ()), part))}


def encode_reads(reads: Reads) -> Config:
    """`reads` as JSON, which does not distinguish tuples from lists."""
    if isinstance(reads, list):
        return {"parts": [encode_reads(part) for part in reads]}
    return {"path": list(reads)} if isinstance(reads, tuple) else reads


def decode_reads(encoded: object) -> Reads:
    """The inverse of `encode_reads`."""
    if not isinstance(encoded, Mapping):
        return encoded
    return tuple(encoded["path"]) if "path" in encoded else [decode_reads(part) for part in encoded["parts"]]
