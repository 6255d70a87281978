"""The tables and the pictures of recorded lines: one layout by data set, one by variant, and one that counts heads."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.research.record import ALONE, EQUAL_COST, LARGE, PLAIN, RATES, Line, comparison, first_weight, is_fixed
from multihead.comparison import Comparison, Difference

MOST_HEADS = 4
"""With more heads, a table has their mean."""


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are aligned to the right."""
    bars = ["---", *["---:"] * (len(columns) - 1)]
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, bars, *rows))


def interval(found: Difference, digits: int = 1, scale: float = 1.0) -> str:
    """A difference: the mean, and with several seeds its interval of 95 %."""
    mean, low, high = (f"{scale * each:+.{digits}f}" for each in found[:3])
    return f"{mean} ({low} to {high})" if found.low <= found.high else mean


def spread(values: np.ndarray, digits: int = 3) -> str:
    """The mean and, with several seeds, the standard deviation."""
    mean = f"{np.mean(values):.{digits}f}"
    return f"{mean} ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else mean


def verdicts(found: Comparison, variant: str, baseline: str = ALONE) -> list[Difference]:
    """The difference of each head from the baseline, without heads that the baseline has no value of at some seed.

    A head that did not stay finite in the variant alone is worse without limit.
    """
    differences = []
    for head in found.heads:
        if np.isfinite(found.values(baseline, head)).all():
            each = found.difference(variant, head, baseline)
            is_finite = np.isfinite(found.values(variant, head)).all()
            differences.append(each if is_finite else Difference(-np.inf, -np.inf, -np.inf, each.seeds))
    return differences


def count(found: Sequence[Difference], verdict: str) -> int:
    """How many heads are better, or worse, by the interval of 95 %."""
    return sum(each.verdict == verdict for each in found)


def better_and_worse(found: Sequence[Difference]) -> str:
    """How many heads are better, how many worse, and of how many."""
    return f"{count(found, 'better')}, {count(found, 'worse')} of {len(found)}"


def by_set(lines: Sequence[Line], variants: Sequence[str]) -> str:
    """A row for each data set and optimizer: delta-m in percent; heads better, worse; updates against alone."""
    variants, rows = [each for each in variants if any(each in line["values"] for line in lines)], []
    for line in lines:
        cells = [_cell(line, variant) for variant in variants]
        if any(cells):
            rows.append([f"{line['set']}, {line['optimizer']}", *cells])
    return markdown(["data set, optimizer", *variants], rows)


def _cell(line: Line, variant: str) -> str:
    found = comparison(line, [variant])
    if found is None:
        return ""
    heads = verdicts(found, variant)
    parts = [interval(found.delta_m(variant), scale=100), *([better_and_worse(heads)] if len(found.seeds) > 1 else [])]
    if variant.endswith(EQUAL_COST):
        parts.append(f"{found.updates[variant] / found.updates[ALONE]:.2f}")
    parts += [f"{len(found.seeds)} seeds"] if len(found.seeds) < len(line["seeds"]) else []
    return "; ".join(parts)


def by_variant(line: Line, beside: Callable[[str, str], str] | None = None, digits: int = 3) -> str:
    """A row for each variant of a line: its metrics, delta-m, heads better and worse, and what is published or the front.

    Args:
        line: The line.
        beside: From the names of the data set and a variant, what is published; None shows how far the variant is beyond
            the front of the fixed weights, if there are three.
        digits: Of the metrics.
    """
    fixed = [variant for variant in line["values"] if is_fixed(line, variant)]
    fixed.sort(key=lambda variant: first_weight(line, variant))
    many, rows = len(line["metrics"]) > MOST_HEADS, []
    alike = bool(beside) and len({metric.rpartition("_")[2] for metric in line["metrics"].values()}) == 1
    for variant in dict.fromkeys((ALONE, *fixed, *line["values"])):
        found = comparison(line, [variant])
        if found is None:
            continue
        values = [found.values(variant, head) for head in found.heads]
        cells = [spread(each, digits) for each in ([np.mean(values, axis=0)] if many else values)]
        if alike:
            validation = [found.values(variant, head, "validation") for head in found.heads]
            cells.append(spread(np.mean(validation, axis=0), digits))
        heads = verdicts(found, variant)
        change = interval(found.delta_m(variant), scale=100) if variant != ALONE else ""
        better = better_and_worse(heads) if variant != ALONE else ""
        shown = beside(line["set"], variant) if beside else ""
        if not beside and len(fixed) > 2 and variant not in (ALONE, *fixed) and not variant.endswith((EQUAL_COST, LARGE)):
            shown = "{:+.1f} ({:+.1f} to {:+.1f})".format(*beyond(line, variant, fixed))
        rows.append([variant, *cells, change, better if len(found.seeds) > 1 else "", shown])
    title = f"{line['set']}: {line['updates'][ALONE]} updates, {line['optimizer']}, {seeds(line)}; {line['keras']}"
    metrics = ["mean over heads"] if many else list(line["metrics"].values())
    metrics += ["mean on validation data"] if alike else []
    last = "published" if beside else "beyond the front, percent"
    return f"{title}\n\n" + markdown(["variant", *metrics, "delta-m, percent", "better, worse", last], rows)


def seeds(line: Line) -> str:
    """The number of seeds in words."""
    return f"{len(line['seeds'])} seed{'s' if len(line['seeds']) > 1 else ''}"


def changes(line: Line, variant: str) -> np.ndarray:
    """`[heads, seeds]`: how much better each head is than alone, in percent of the mean alone."""
    found: Any = comparison(line, [variant])
    signs = [1.0 if direction == "max" else -1.0 for direction in line["directions"].values()]
    both = [(found.values(variant, head), found.values(ALONE, head)) for head in found.heads]
    return np.array([100 * sign * (value - alone) / alone.mean() for sign, (value, alone) in zip(signs, both)])


def beyond(line: Line, variant: str, fixed: Sequence[str]) -> tuple[float, float, float]:
    """How far a variant is beyond the front of the fixed weights, in percent of the metrics alone, with a 95 % interval.

    The front joins the weights' mean relative changes against alone, by that of the first head, and ends at the outermost
    weights. The distance is the least, over its points, of the variant's largest lead in one of the heads: so much could
    both heads lose before a point of the front is better for both. The interval is that of 1,000 resamples of the seeds.
    """
    by_name = {name: changes(line, name) for name in (variant, *fixed)}
    number = min(each.shape[1] for each in by_name.values())
    here = by_name.pop(variant)
    others = [each for each in by_name.values() if np.isfinite(each[:, :number]).all()]

    def distance(drawn: np.ndarray) -> float:
        corners = np.array(sorted(each[:, drawn].mean(axis=1).tolist() for each in others))
        steps = np.linspace(0, 1, 100)[:, None, None]
        points = (corners[:-1] + steps * (corners[1:] - corners[:-1])).reshape(-1, len(here))
        return float((here[:, drawn].mean(axis=1) - points).max(axis=1).min())

    draws = np.random.default_rng(0).integers(0, number, (1000, number))
    low, high = np.quantile([distance(each) for each in draws], [0.025, 0.975])
    return distance(np.arange(number)), float(low), float(high)


def counts(lines: Sequence[Line], variants: Sequence[str], baseline: str = ALONE) -> str:
    """A row for each optimizer and variant: heads better and worse than the baseline, and sets in which none is worse."""
    rows = []
    for optimizer in dict.fromkeys(line["optimizer"] for line in lines):
        own = [line for line in lines if line["optimizer"] == optimizer]
        for variant in variants:
            found = [comparison(line, [variant], baseline) for line in own]
            if None in found:
                continue
            of_sets = [each for each in (verdicts(one, variant, baseline) for one in found if one) if each]
            heads = [head for of_set in of_sets for head in of_set]
            worst = min((head.mean for head in heads if head.verdict == "worse"), default=0.0)
            unharmed = sum(not count(of_set, "worse") for of_set in of_sets)
            largest = f"{worst:+.3f}" if worst > -1 else "below -1"
            cells = [f"{count(heads, 'better')} of {len(heads)}", f"{count(heads, 'worse')}", largest]
            rows.append([f"{variant}, {optimizer}", *cells, f"{unharmed} of {len(of_sets)}"])
    return markdown(["variant, optimizer", "heads better", "worse", "largest loss", "data sets with none worse"], rows)


def chosen(line: Line, rules: Sequence[str]) -> str | None:
    """The variant that the validation data favour: a rule with either encoder, in as many updates or at equal cost.

    None unless there are such metrics of each rule.
    """
    endings = [f"{rates}{size}{cost}" for rates in ("", RATES) for size in ("", LARGE) for cost in ("", EQUAL_COST)]
    known = [[f"{rule}{each}" for each in endings if f"{rule}{each}" in line.get("validation", {})] for rule in rules]
    variants = [variant for of_rule in known for variant in of_rule]
    found = comparison(line, variants) if all(known) else None
    return None if found is None else found.choose(variants)


def choices(lines: Sequence[Line], rules: Sequence[str]) -> str:
    """What the validation data favour among some rules for each data set and optimizer, on the test data."""
    rows, means, unharmed = [], [], 0
    for line in lines:
        variant = chosen(line, rules)
        if variant is None:
            continue
        found: Any = comparison(line, [variant])
        change, heads = found.delta_m(variant), verdicts(found, variant)
        means.append(change)
        unharmed += not count(heads, "worse")
        better = better_and_worse(heads)
        updates = f"{found.updates[variant] / found.updates[ALONE]:.2f}"
        rows.append([f"{line['set']}, {line['optimizer']}", variant, updates, interval(change, scale=100), better])
    ahead, clear = sum(each.mean > 0 for each in means), count(means, "better")
    table = markdown(["data set, optimizer", "chosen", "updates", "delta-m, percent", "heads better, worse"], rows)
    words = f"{len(rows)} in all: delta-m is above 0 in {ahead}, with an interval above 0 in {clear}; no head is worse in"
    return f"{table}\n{words} {unharmed}.\n"


def draw(panels: Mapping[str, Mapping[str, Mapping[str, Difference]]], label: str, *, logarithmic: bool = False) -> Any:
    """Draws differences with their intervals: a panel for each name, a row for each data set or head, a color per variant.

    Args:
        panels: By the names of a panel, a row and a variant, the difference.
        label: The label of the axis.
        logarithmic: Whether the axis is logarithmic beyond 10.
    """
    from multihead._display.drawing import GREY, colour, new_figure, open_axis, title

    heights = [len(rows) + 2 for rows in panels.values()]
    every_row = [of_row for rows in panels.values() for of_row in rows.values()]
    variants = list(dict.fromkeys(variant for of_row in every_row for variant in of_row))
    # One below the other, and narrow, so that letters are large enough on a phone.
    picture, axes = new_figure("differences", len(panels), 1, (5.0, 0.3 * sum(heights) + 0.5 * len(panels) + 0.3))
    axes[0][0].get_gridspec().set_height_ratios(heights)
    for (axis,), (name, rows) in zip(axes, panels.items()):
        for place, of_row in enumerate(reversed(rows.values())):
            for variant, each in of_row.items():
                number = variants.index(variant)
                height = place + 0.6 / len(variants) * ((len(variants) - 1) / 2 - number)
                axis.plot([each.low, each.high], [height, height], color=colour(number), lw=1.5, alpha=0.6)
                axis.plot([each.mean], [height], "o", color=colour(number), ms=4)
        axis.axvline(0, color=GREY, lw=0.8, ls=":")
        axis.set_ylim(-0.6, len(rows) - 0.4)
        names = [textwrap.wrap(row.replace("_", " "), 30, max_lines=2, placeholder=" ...") for row in reversed(rows)]
        axis.set_yticks(range(len(rows)), ["\n".join(lines) for lines in names], linespacing=0.9)
        axis.set_xlabel(f"{label}; logarithmic beyond 10" if logarithmic else label, color=GREY)
        if logarithmic:
            axis.set_xscale("symlog", linthresh=10)
            axis.set_xticks([-100, -10, 0, 10, 100], ["-100", "-10", "0", "10", "100"])
        else:
            axis.locator_params(axis="x", nbins=5)
        open_axis(axis)
        title(axis, name, "right of 0: sharing pays")
    lines = [axes[0][0].plot([], [], "o-", color=colour(number), ms=4)[0] for number, _ in enumerate(variants)]
    names_above = {"loc": "outside upper center", "ncols": 2 if max(map(len, variants)) > 12 else len(variants)}
    picture.legend(lines, variants, frameon=False, fontsize=9, **names_above)
    return picture


def bars(line: Line, shown: Mapping[str, str], titles: Sequence[str]) -> Any:
    """Draws metrics that are fractions as bars, with their range over seeds: a panel for each head, a bar for each variant.

    Args:
        line: The line.
        shown: By variant, what its bar is called.
        titles: The titles of the panels.
    """
    from multihead._display.drawing import GREY, colour, new_figure

    found: Any = comparison(line, list(shown))
    picture, axes = new_figure("bars", 1, len(titles), (5.6, 0.9 + 0.32 * len(shown)))
    for axis, head, name in zip(axes[0], found.heads, titles):
        for place, variant in enumerate(shown):
            values = 100 * found.values(variant, head)
            highest = variant == list(shown)[-1]
            axis.barh(place, values.mean(), color=colour(0) if highest else GREY, alpha=1.0 if highest else 0.45, height=0.7)
            axis.plot([values.min(), values.max()], [place, place], color="black", lw=1.2)
            axis.annotate(f"{values.mean():.0f} %", (values.max(), place), (4, 0), textcoords="offset points", va="center")
        names = [textwrap.fill(each, 18) for each in shown.values()] if axis is axes[0][0] else [""] * len(shown)
        axis.set_yticks(range(len(shown)), names)
        axis.set(xlim=(0, 125), ylim=(len(shown) - 0.5, -0.5), xticks=[])
        axis.set_title(name, loc="left", fontsize=11, fontweight="bold")
        axis.spines[["top", "right", "bottom"]].set_visible(False)
        axis.tick_params(length=0)
    picture.supxlabel(f"all trained for the same time; black: the range of {seeds(line)}", fontsize=9, color=GREY)
    return picture


def front(line: Line, variants: Sequence[str]) -> Any:
    """The library's picture of the front, with the variants that the line has."""
    known = [variant for variant in variants if variant in line["values"]]
    found = comparison(line, known or [PLAIN])
    return None if found is None else found.plot()


FLOORS = {0.0: PLAIN, 0.2: "NormFloor", 0.5: "NormFloor 0.5", 1.0: "NormFloor 1"}


def floors(lines: Sequence[Line], names: Sequence[str]) -> Any:
    """Draws the paces of two heads for some floors, by the law, and below it the heads' metrics on problems, as measured."""
    from multihead._display.drawing import GREY, colour, new_figure, open_axis, title

    picture, axes = new_figure("floors", 1 + len(names), 1, (5.0, 2.7 * (1 + len(names))))
    by_law = {floor: (1 / np.hypot(1, floor), floor / np.hypot(1, floor)) for floor in FLOORS}
    angle = np.linspace(0, np.pi / 2, 100)
    axes[0][0].plot(np.cos(angle), np.sin(angle), color=GREY, lw=1)
    axes[0][0].set(xlabel="pace of the larger head", ylabel="pace of the smaller head", aspect="equal")
    title(axes[0][0], "By the law", "one gradient is next to nothing")
    panels = [(axes[0][0], {floor: np.array(pair)[:, None] for floor, pair in by_law.items()})]
    for (axis,), name in zip(axes[1:], names):
        line = next(line for line in lines if line["set"] == name)
        heads = list(line["metrics"])
        panels.append(
            (axis, {floor: np.array([line["values"][each][head] for head in heads]) for floor, each in FLOORS.items()})
        )
        axis.set(xlabel=f"score of `{heads[0]}`", ylabel=f"score of `{heads[1]}`")
        title(axis, name.replace("_", " "), f"means and standard errors of {seeds(line)}")
    for axis, points in panels:
        for floor, values in points.items():
            (x, y), number = values.mean(axis=1), values.shape[1]
            dx, dy = values.std(axis=1, ddof=1) / number**0.5 if number > 1 else (0, 0)
            axis.errorbar([x], [y], [dy], [dx], fmt="o", color=colour(0), ms=5, lw=1)
            axis.annotate(f"floor {floor:g}" if floor else "plain sum", (x, y), (6, 5), textcoords="offset points")
        axis.margins(x=0.25)
        axis.locator_params(axis="x", nbins=5)
        open_axis(axis)
    return picture
