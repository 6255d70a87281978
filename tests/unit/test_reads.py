"""`reads=`: keys, paths and lists of them select from a representation."""

from __future__ import annotations

import json
from collections import namedtuple

import pytest

from multihead.heads._reads import check_reads, decode_reads, encode_reads, select

State = namedtuple("State", ["hidden", "cell"])
NEST = {"pooled": 1, "states": (2, {"last": 3}), "both": State(4, 5), 0: 6}
CASES = [
    (None, NEST),
    ("pooled", 1),
    (0, 6),
    (("states", 0), 2),
    (("states", -1, "last"), 3),
    (("both", "cell"), 5),
    (("both", 0), 4),
    (["pooled", ("states", 0)], [1, 2]),
]


@pytest.mark.parametrize("reads, wanted", CASES, ids=str)
def test_reads_select_the_part_and_pass_through_json(reads, wanted):
    assert select(NEST, check_reads(reads), "a") == wanted
    assert decode_reads(json.loads(json.dumps(encode_reads(reads)))) == reads


UNKNOWN = [
    (
        NEST,
        "pool",
        r"`reads` of head 'a' must name outputs of the encoder. Received: reads='pool'.*'states'.*Did you mean 'pooled'",
    ),
    (NEST, ("states", 2), r"reads=\('states', 2\).*Pass one of 0, 1\."),
    (NEST, ("pooled", "both"), r"A tuple is a path into a nest; for several parts pass a list"),
    (NEST, ("pooled", "last"), r"A tuple is a path into a nest; for several parts pass a list"),
    (3.0, "pooled", r"the encoder returns float. Leave `reads` out"),
]


@pytest.mark.parametrize("nest, reads, message", UNKNOWN)
def test_an_unknown_key_lists_what_there_is(nest, reads, message):
    with pytest.raises(ValueError, match=message):
        select(nest, reads, "a")


@pytest.mark.parametrize("reads", [1.5, True, (), [], ("a", None), [["a"]], {"a": 1}])
def test_what_is_no_key_is_refused(reads):
    with pytest.raises(TypeError, match="`reads` must be a key or an index"):
        check_reads(reads)
