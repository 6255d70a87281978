"""Which weight would you have chosen? The plain sum with seven weights of the second head, beside balancers in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.research import tables
from benchmarks.research.record import ALONE, PLAIN, Line, comparison

SECOND = "second"
WEIGHTS = {0.01: f"{SECOND} 0.01", 0.03: f"{SECOND} 0.03", 0.1: f"{SECOND} 0.1", 0.3: f"{SECOND} 0.3", 1.0: PLAIN}
WEIGHTS |= {3.0: f"{SECOND} 3", 10.0: f"{SECOND} 10"}
"""The variants of the plain sum by the weight of the second head."""
BALANCERS = ("NormFloor", "NormFloor 1")


def changes(line: Line, variant: str) -> np.ndarray:
    """`[seeds, 2]`: the second head's change against alone, and the mean of those of the other heads, in percent."""
    found: Any = comparison(line, [variant])
    signs = [1.0 if direction == "max" else -1.0 for direction in line["directions"].values()]
    both = [(found.values(variant, head), found.values(ALONE, head)) for head in found.heads]
    of_heads = np.array([100 * sign * (value - alone) / alone.mean() for sign, (value, alone) in zip(signs, both)])
    others = np.delete(of_heads, 1, axis=0).mean(axis=0)
    return np.stack([of_heads[1], others], axis=1)


def regrets(line: Line) -> dict[str, np.ndarray]:
    """How far variants are below the best of the weights in the mean over heads, by seed, in points of percent.

    The best weight, as the worst, is that of the mean over seeds. "median weight" is the median over the seven weights.
    """
    share = np.array([1, len(line["directions"]) - 1]) / len(line["directions"])
    means = {variant: changes(line, variant) @ share for variant in (*WEIGHTS.values(), *BALANCERS)}
    by_weight = {variant: means[variant] for variant in WEIGHTS.values()}
    order = sorted(by_weight, key=lambda variant: by_weight[variant].mean())
    chosen = {"weight 1": PLAIN, "worst weight": order[0], "median weight": order[len(order) // 2]}
    best = by_weight[order[-1]]
    return {name: best - means[variant] for name, variant in {**chosen, **dict(zip(BALANCERS, BALANCERS))}.items()}


def table(lines: Sequence[Line]) -> str:
    """A row for each data set: the best weight, and the regret of other choices."""
    known = [line for line in lines if all(each in line["values"] for each in (*WEIGHTS.values(), *BALANCERS))]
    rows = []
    for line in known:
        mean = {weight: _mean(line, variant) for weight, variant in WEIGHTS.items()}
        cells = [tables.spread(each, 1) for each in regrets(line).values()]
        rows.append([f"{line['set']}, {[*line['directions']][1]}", f"{max(mean, key=lambda w: mean[w]):g}", *cells])
    titles = ["data set, second head", "best weight", "weight 1", "worst", "median", "`NormFloor()`", "`NormFloor(1.0)`"]
    return tables.markdown(titles, rows)


def _mean(line: Line, variant: str) -> float:
    number = len(line["directions"])
    return float((changes(line, variant) @ [1 / number, 1 - 1 / number]).mean())


def picture(lines: Sequence[Line]) -> Any:
    """Draws a panel for the second head and one for the others of each data set: the curve over weights, and balancers."""
    from multihead._display.drawing import GREY, colour, new_figure, open_axis

    figure, axes = new_figure("weights", len(lines), 2, (7.0, 2.3 * len(lines)))
    for row, line in zip(axes, lines):
        second, *_ = [*line["directions"]][1:]
        others = [head for head in line["directions"] if head != second]
        names = (second, others[0] if len(others) == 1 else f"mean of {len(others)} others")
        for place, (axis, name) in enumerate(zip(row, names)):
            curve = np.array([changes(line, variant)[:, place] for variant in WEIGHTS.values()])
            mean, spread = curve.mean(axis=1), curve.std(axis=1, ddof=1) if curve.shape[1] > 1 else 0.0
            axis.fill_between([*WEIGHTS], mean - spread, mean + spread, color=GREY, alpha=0.25, lw=0)
            axis.plot([*WEIGHTS], mean, "o-", color=GREY, ms=3)
            for number, variant in enumerate(BALANCERS):
                values = changes(line, variant)[:, place]
                axis.axhspan(values.min(), values.max(), color=colour(number), alpha=0.15, lw=0)
                axis.axhline(values.mean(), color=colour(number), lw=2)
                if axis is axes[0][1]:
                    at = {"xytext": (6, -14 * number), "textcoords": "offset points", "fontsize": 9, "va": "center"}
                    axis.annotate(variant, (1, 1), xycoords="axes fraction", color=colour(number), **at)
            axis.axvline(1.0, color=GREY, lw=0.8, ls=":")
            axis.set_xscale("log")
            axis.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
            axis.minorticks_off()
            axis.set_title(f"{line['set']}: {name}", loc="left", fontsize=10, fontweight="bold")
            open_axis(axis)
            axis.locator_params(axis="y", nbins=4)
        row[0].set_ylabel("against alone, %", color=GREY, fontsize=9)
    for axis, name in zip(axes[-1], ("weight of the second head in the plain sum", "")):
        axis.set_xlabel(name, color=GREY, fontsize=9)
    return figure
