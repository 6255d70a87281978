"""Time of the balancers with many heads, relative to a plain step, with a certificate of each solution.

Gradients of `independent` heads have a common direction and 4,096 columns; those of `dependent` heads have half as many
columns as there are heads, so that some are combinations of others. Norms are scaled by factors from 0.1 to 10. Milliseconds
are those of a compiled function from inner products in float32 to coefficients, the fastest of several calls. The plain step
is that of a trainer without a balancer, with as many heads of one unit on an encoder of 256 and 128 units, 256 examples.

The certificate is computed in float64 from the coefficients alone: the relative gap between the solution and a bound on the
best one, or the largest relative error of the equations that the method solves. For all methods, the smallest cosine between
the update and a gradient is recorded, too, which must not be below -1e-5 where the method promises so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from benchmarks.speed._record import Line, Row, Table, finish, newest
from benchmarks.speed._shared import in_turns, parsed, parser_of
from multihead import MultiHeadTrainer, balancing

HEADS = (32, 64, 128, 617)
Gap = Callable[[np.ndarray, np.ndarray], float]


def rows_of(kind: str, num_heads: int, seed: int = 0) -> np.ndarray:
    """`[num_heads, columns]` gradients."""
    random = np.random.default_rng([seed, num_heads])
    rows = random.normal(size=(num_heads, 4096 if kind == "independent" else num_heads // 2))
    if kind == "independent":
        rows += 0.5 * random.normal(size=(num_heads, 1)) * random.normal(size=rows.shape[1])
    return rows * 10.0 ** random.uniform(-1, 1, size=(num_heads, 1))


def units(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def gap_of_projection(rows: np.ndarray, weights: np.ndarray) -> float:
    """Of the point of the dual cone next to the sum: how far the multipliers are from complementary."""
    update = weights @ rows
    return float(np.maximum(weights - 1, 0) @ np.abs(rows @ update) / max(np.sum(rows.sum(axis=0) ** 2), 1e-300))


def gap_of_shortest(rows: np.ndarray, weights: np.ndarray) -> float:
    """Of the shortest vector in the convex hull: Frank and Wolfe's duality gap, relative to the shortest gradient."""
    update = weights @ rows
    return float((update @ update - (rows @ update).min()) / (rows**2).sum(axis=1).min())


def gap_of_ball(rows: np.ndarray, weights: np.ndarray) -> float:
    """Between the smallest improvement and its bound by the dual, for `c = 0.4`."""
    mean = rows.mean(axis=0)
    pull = np.maximum(weights - 1 / len(rows), 0)
    pull = pull / pull.sum() @ rows
    bound = pull @ mean + 0.4 * np.linalg.norm(mean) * np.linalg.norm(pull)
    return float((bound - (rows @ (weights @ rows)).min()) / abs(bound))


def gap_of_cone(rows: np.ndarray, weights: np.ndarray) -> float:
    """The same for a cone, `c = 0.9`."""
    mean, update = rows.mean(axis=0), weights @ rows
    size = np.linalg.norm(mean)
    pull = weights - weights.min()  # without the part of the mean gradient
    pull = pull / pull.sum() @ rows
    along, length = pull @ mean / size, np.linalg.norm(pull)
    across = np.sqrt(max(length**2 - along**2, 0))
    bound = size * (length if along >= 0.9 * length else 0.9 * along + np.sqrt(1 - 0.81) * across)
    return float((bound - (rows @ update).min()) / abs(bound))


def gap_of_bargain(rows: np.ndarray, weights: np.ndarray, alpha: float = 1.0) -> float:
    """The largest error of `(G w)_k^alpha w_k = 1`."""
    return float(np.abs(np.maximum(rows @ (weights @ rows), 0.0) ** alpha * weights - 1).max())


def spread(values: np.ndarray) -> float:
    return float(np.ptp(values) / np.abs(values).max())


GAPS: dict[str, Gap | None] = {
    "EqualNorms": lambda rows, weights: spread(weights * np.linalg.norm(rows, axis=1)),
    "PCGrad": None,
    "GradVac": None,
    "UPGrad": None,
    "DualProj": gap_of_projection,
    "MGDA": gap_of_shortest,
    "CAGrad": gap_of_ball,
    "ConicGrad": gap_of_cone,
    "NashMTL": gap_of_bargain,
    "FairGrad": lambda rows, weights: gap_of_bargain(rows, weights, 2.0),
    "IMTLG": lambda rows, weights: spread(units(rows) @ (weights @ rows)),
    "ConFIG": lambda rows, weights: spread(units(rows) @ (weights @ rows)),
    "AlignedMTL": None,
}
"""The certificate of each method; those without one promise at most that no head is opposed."""


def measured(name: str, kind: str, num_heads: int, calls: int) -> Row:
    """One row: a method with a number of heads."""
    row: Row = {"method": name, "kind": kind, "heads": num_heads}
    balancer, rows = getattr(balancing, name)(), rows_of(kind, num_heads)
    try:
        balancer.build((num_heads, None))
    except ValueError as error:
        return {**row, "error": str(error)}
    solve = tf.function(balancer.coefficients, autograph=False)
    gramian = tf.constant(rows @ rows.T, tf.float32)
    (seconds,) = in_turns({name: lambda: solve(gramian)}, calls).values()
    weights = solve(gramian).numpy().astype(np.float64)
    update, gap = weights @ rows, GAPS[name]
    cosine = units(rows) @ update / max(float(np.linalg.norm(update)), 1e-300)
    row |= {"ms": 1e3 * min(seconds), "least_cosine": float(cosine.min()), "is_zero": not update.any()}
    return row | ({} if gap is None or row["is_zero"] else {"gap": gap(rows, weights)})


def plain_step(num_heads: int, calls: int) -> float:
    """Milliseconds of a step without a balancer."""
    random = np.random.default_rng(0)
    encoder = keras.Sequential([keras.layers.Dense(256, activation="relu"), keras.layers.Dense(128)])
    trainer = MultiHeadTrainer(encoder)
    for head in range(num_heads):
        trainer.add_head(f"head_{head}", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(1e-3), telemetry=None)
    x = tf.constant(random.normal(size=(256, 64)), tf.float32)
    y = {f"head_{head}": tf.constant(random.normal(size=(256, 1)), tf.float32) for head in range(num_heads)}
    trainer.compute_gradients((x, y))  # creates the variables
    step = tf.function(lambda x, y: trainer.train_step((x, y)), autograph=False)
    (seconds,) = in_turns({"plain step": lambda: step(x, y)}, calls).values()
    return 1e3 * min(seconds)


def tables(lines: Sequence[Line]) -> list[Table]:
    return [Table("", [line], markdown_of(line["rows"])) for line in newest(lines, ["method"], {})]


def markdown_of(rows: Sequence[Row]) -> str:
    """A Markdown table: a row for each method and kind, a column for each number of heads."""
    steps = {row["heads"]: row["ms"] for row in rows if row["method"] == "plain step"}
    counts = list(dict.fromkeys(row["heads"] for row in rows))
    by_key = {(row["method"], row.get("kind"), row["heads"]): row for row in rows}
    out = ["| method | gradients | " + " | ".join(f"{count} heads" for count in counts) + " |"]
    out.append("| --- | --- |" + " ---: |" * len(counts))
    if steps:
        out.append(
            "| plain step | | " + " | ".join(f"{steps[count]:.0f} ms" if count in steps else "" for count in counts) + " |"
        )
    for method, kind in dict.fromkeys((method, kind) for method, kind, _ in by_key if kind):
        cells = [cell(by_key.get((method, kind, count)), steps.get(count)) for count in counts]
        out.append(f"| `{method}` | {kind} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


def cell(row: Row | None, step: float | None) -> str:
    """Milliseconds, what they are of a plain step, and the certificate."""
    if row is None:
        return ""
    if "error" in row:
        return "too many"
    parts = [f"{row['ms']:.2g} ms" if row["ms"] < 100 else f"{row['ms']:.0f} ms"]
    if step:
        parts.append(f"{row['ms'] / step:.2g} steps")
    if row["is_zero"]:
        parts.append("zero")
    elif "gap" in row:
        parts.append(f"{row['gap']:.0e}".replace("e-0", "e-"))
    return ", ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("many_heads", __doc__, rounds=3)
    add = parser.add_argument
    add("--heads", type=int, nargs="+", default=list(HEADS), help="numbers of heads")
    add("--methods", nargs="*", default=list(GAPS), choices=list(GAPS), help="methods to time")
    add("--kinds", nargs="+", default=["independent", "dependent"], choices=["independent", "dependent"])
    add("--plain", type=int, nargs="*", default=[32, 64, 128], help="numbers of heads of a plain step")
    options = parsed(parser, arguments, heads=[32], methods=["DualProj", "MGDA"], plain=[])
    rows: list[Row] = []
    for num_heads in options.heads:
        if num_heads in options.plain:
            rows.append({"method": "plain step", "heads": num_heads, "ms": plain_step(num_heads, options.rounds)})
        rows += [measured(name, kind, num_heads, options.rounds) for name in options.methods for kind in options.kinds]
    finish(options, rows, tables)
