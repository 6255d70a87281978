"""Which weight would you have chosen? The plain sum with seven weights of the second head, beside balancers in one run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.research import tables
from benchmarks.research.record import PLAIN, Line
from multihead import balancing
from multihead.balancing._rows import unit_rows

SECOND = "second"
WEIGHTS = {0.01: f"{SECOND} 0.01", 0.03: f"{SECOND} 0.03", 0.1: f"{SECOND} 0.1", 0.3: f"{SECOND} 0.3", 1.0: PLAIN}
WEIGHTS |= {3.0: f"{SECOND} 3", 10.0: f"{SECOND} 10"}
"""The variants of the plain sum by the weight of the second head."""
BALANCERS = ("NormFloor", "NormFloor 1")
EXPONENTS = {f"exponent {number:g}": number for number in (0.25, 0.5, 0.75)}
"""The variants of NTKMTL's form, by name."""


class ByExponent(balancing.Balancer):
    """Divides each gradient by a power of its norm: `d = sum_k m |g_k|^(-2 e) g_k`, where `m` keeps the sum of the norms.

    With an `exponent` `e` of 0 it is the plain sum, with 0.5 `EqualNorms`; above, the smallest gradient becomes the largest.

    Source: Qin et al., NTKMTL: Mitigating Task Imbalance in Multi-Task Learning from Neural Tangent Kernel Perspective,
    NeurIPS 2025, arXiv 2510.18258.
    """

    norms_only = True

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self.exponent = exponent

    def coefficients(self, gramian: tf.Tensor) -> tf.Tensor:
        rows = unit_rows(gramian)
        powers = rows.active * rows.norms ** (1 - 2 * self.exponent)
        return rows.coefficients(
            powers * tf.math.divide_no_nan(tf.reduce_sum(rows.norms * rows.active), tf.reduce_sum(powers))
        )


def regrets(line: Line) -> dict[str, np.ndarray]:
    """How far variants are below the best of the weights in the mean over heads, by seed, in points of percent.

    The best weight, as the worst, is that of the mean over seeds. "median weight" is the median over the seven weights.
    """
    means = _means(line, [*BALANCERS, *(name for name in EXPONENTS if name in line["values"])])
    order = sorted(WEIGHTS.values(), key=lambda variant: means[variant].mean())
    chosen = {"weight 1": PLAIN, "worst weight": order[0], "median weight": order[len(order) // 2]}
    chosen |= {name: name for name in means if name not in WEIGHTS.values()}
    return {name: means[order[-1]] - means[variant] for name, variant in chosen.items()}


def _means(line: Line, more: Sequence[str] = BALANCERS) -> dict[str, np.ndarray]:
    """By variant, the mean over heads of the change against alone, by seed."""
    return {variant: tables.changes(line, variant).mean(axis=0) for variant in (*WEIGHTS.values(), *more)}


TITLES = {"weight 1": "weight 1", "worst weight": "worst", "median weight": "median"}
TITLES |= {"NormFloor": "`NormFloor()`", "NormFloor 1": "`NormFloor(1.0)`"}
TITLES |= {name: f"NTKMTL, {number:g}" for name, number in EXPONENTS.items()}
"""The columns of the table by the names of the choices."""


def table(lines: Sequence[Line]) -> str:
    """A row for each data set: the best weight, and the regret of other choices."""
    lines = [line for line in lines if {*WEIGHTS.values(), *BALANCERS} <= line["values"].keys()]
    by_line = [regrets(line) for line in lines]
    titles = {name: title for name, title in TITLES.items() if any(name in found for found in by_line)}
    rows = []
    for line, of_line in zip(lines, by_line):
        best = max(WEIGHTS, key=lambda weight: tables.changes(line, WEIGHTS[weight]).mean())
        cells = [tables.spread(of_line[name], 1) if name in of_line else "" for name in titles]
        rows.append([f"{line['set']}, {second_head(line)}", f"{best:g}", *cells])
    return tables.markdown(["data set, second head", "best weight", *titles.values()], rows)


def second_head(line: Line) -> str:
    """The head whose weight varies."""
    return list(line["directions"])[1]


def picture(lines: Sequence[Line]) -> Any:
    """Draws a panel for the second head and one for the others of each data set: the curve over weights, and balancers."""
    from multihead._display.drawing import GREY, colour, new_figure, open_axis

    figure, axes = new_figure("weights", len(lines), 2, (5.2, 1.9 * len(lines)))
    for row, line in zip(axes, lines):
        heads = list(line["directions"])
        others = [place for place in range(len(heads)) if place != 1]
        of_others = heads[0] if len(others) == 1 else f"{len(others)} others"
        changes = {variant: tables.changes(line, variant) for variant in (*WEIGHTS.values(), *BALANCERS)}
        for axis, name, places in zip(row, (second_head(line), of_others), ([1], others)):
            curve = np.array([changes[variant][places].mean(axis=0) for variant in WEIGHTS.values()])
            mean, spread = curve.mean(axis=1), curve.std(axis=1, ddof=1) if curve.shape[1] > 1 else 0.0
            axis.fill_between([*WEIGHTS], mean - spread, mean + spread, color=GREY, alpha=0.25, lw=0)
            axis.plot([*WEIGHTS], mean, "o-", color=GREY, ms=3)
            for number, variant in enumerate(BALANCERS):
                values = changes[variant][places].mean(axis=0)
                axis.axhspan(values.min(), values.max(), color=colour(number), alpha=0.15, lw=0)
                axis.axhline(values.mean(), color=colour(number), lw=2)
                if axis is axes[0][1]:
                    at = {"xytext": (6, 8 + 14 * number), "textcoords": "offset points", "fontsize": 10}
                    axis.annotate(variant, (0, 0), xycoords="axes fraction", color=colour(number), **at)
            axis.axvline(1.0, color=GREY, lw=0.8, ls=":")
            axis.set_xscale("log")
            axis.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
            axis.minorticks_off()
            axis.set_title(f"{line['set']}: {name}", loc="left", fontsize=10, fontweight="bold")
            open_axis(axis)
            axis.locator_params(axis="y", nbins=4)
        row[0].set_ylabel("against alone, %", color=GREY, fontsize=9)
    axes[-1][0].set_xlabel("weight of the second head in the plain sum", color=GREY, fontsize=9)
    return figure


def one_run(lines: Sequence[Line]) -> Any:
    """Draws a row for each data set: runs with seven weights, from the best to the worst, and a run with a balancer."""
    from multihead._display.drawing import GREY, colour, new_figure, open_axis

    figure, ((axis,),) = new_figure("one_run", 1, 1, (6.2, 0.55 * len(lines) + 1.1))
    names = []
    for row, line in enumerate(lines):
        means = {variant: by_seed.mean() for variant, by_seed in _means(line).items()}
        by_weight = [means[variant] for variant in WEIGHTS.values()]
        best, worst = max(by_weight), min(by_weight)
        lost = {variant: 100 * (best - mean) / (best - worst) for variant, mean in means.items()}
        axis.plot([0, 100], [row, row], color=GREY, lw=0.8, alpha=0.5)
        axis.plot([lost[variant] for variant in WEIGHTS.values()], [row] * len(WEIGHTS), "o", color=GREY, ms=6, alpha=0.6)
        axis.plot(lost[BALANCERS[1]], row, "D", color=colour(0), ms=9)
        axis.plot(lost[PLAIN], row, "o", mfc="none", mec="black", mew=1.5, ms=9)
        span = best - worst
        points = f"{span:.0f}" if span >= 10 else f"{span:.1f}"
        axis.text(103, row, f"{points} points", color=GREY, fontsize=9, va="center")
        heads = list(line["directions"])
        two = " and ".join(head.replace("_", " ") for head in heads)
        names.append(two if len(heads) == 2 else f"{line['set']}, {len(heads)} heads")
        if row == 0:
            at = {"xytext": (0, 12), "textcoords": "offset points", "ha": "center", "fontsize": 10, "fontweight": "bold"}
            axis.annotate("NormFloor(1.0)", (lost[BALANCERS[1]], row), color=colour(0), **{**at, "ha": "right"})
            axis.annotate("weight 1", (lost[PLAIN], row), color="black", **at)
            axis.annotate("other weights", (100, row), color=GREY, **{**at, "ha": "right"})
    axis.set_yticks(range(len(lines)), names)
    axis.set_ylim(len(lines) - 0.5, -0.9)
    axis.set_xticks([0, 50, 100], ["best of 7 weights", "halfway", "worst"])
    open_axis(axis)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)
    return figure
