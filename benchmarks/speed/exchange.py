"""Bytes that replicas exchange per update, by where gradients are balanced, and how long that takes on a network.

A replica sends and receives `2 (R - 1) / R` times the bytes of what is summed over `R` replicas (a ring). Times are of the
network's bandwidth alone; their fraction of an update is given, too. Nothing is measured: a test compares the formula with
the collective operations of two workers.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.speed._shared import markdown, parsed, parser_of

LEVELS = ("none", "representation", "parameters")
REPLICAS, NETWORKS = (8, 64, 1024), (10, 100)
FLOAT, DOUBLE = 4, 8


def summed_bytes(level: str, heads: int, encoder: int, own: int, *, measured: bool = True) -> int:
    """The bytes of one update that each replica gives to sums over all replicas, gradients in float32.

    Formula: `4 (n P + Q) + 4 (3 K + 1) + 8 K^2`, where `n` is `K` at the parameters and otherwise 1. The first part are
    gradients; then counts and flags, and at last inner products of the heads at the representation.

    Args:
        level: Where gradients are balanced: `"none"`, `"representation"` or `"parameters"`.
        heads: `K`, the number of heads.
        encoder: `P`, the number of the encoder's parameters.
        own: `Q`, the number of the parameters of all heads together.
        measured: Whether inner products are summed: always at the representation, never at the parameters, which has them
            from the gradients; for the plain sum, if the heads' norms are in the logs.
    """
    gradients = (heads if level == "parameters" else 1) * encoder + own
    products = level == "representation" or (level == "none" and measured)
    return FLOAT * (gradients + 3 * heads + 1) + (DOUBLE * heads**2 if products else 0)


def sent_bytes(summed: float, replicas: int) -> float:
    """The bytes that each replica sends, and receives, for the sum of so many bytes over some replicas in a ring."""
    return 2 * (replicas - 1) / replicas * summed


def seconds(summed: float, replicas: int, gigabits: float) -> float:
    """The time in which a network of so many Gbit/s in each direction passes the bytes of an update."""
    return sent_bytes(summed, replicas) * 8 / (gigabits * 1e9)


def table(heads: int, encoder: int, own: int, step: float) -> list[list[str]]:
    """A row for each level and number of replicas: bytes, and for each network the seconds and their share of an update."""
    rows = []
    for level in LEVELS:
        summed = summed_bytes(level, heads, encoder, own)
        for replicas in REPLICAS:
            times = [seconds(summed, replicas, network) for network in NETWORKS]
            shares = [f"{1e3 * time:.1f} ms ({time / (time + step):.0%})" for time in times]
            rows.append([level, f"{replicas:,}", f"{sent_bytes(summed, replicas) / 1e6:.1f} MB", *shares])
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("exchange", __doc__, rounds=None)
    add = parser.add_argument
    add("--heads", type=int, default=3, help="number of heads (default: 3)")
    add("--encoder", type=float, default=1e8, help="parameters of the encoder (default: 1e8)")
    add("--own", type=float, default=3e6, help="parameters of all heads together (default: 3e6)")
    add("--step", type=float, default=0.2, help="seconds of a step on one replica, without any exchange (default: 0.2)")
    options = parsed(parser, arguments)
    columns = ["balanced at", "replicas", "each sends", *(f"{network} Gbit/s" for network in NETWORKS)]
    print(markdown(columns, table(options.heads, int(options.encoder), int(options.own), options.step)), end="")
