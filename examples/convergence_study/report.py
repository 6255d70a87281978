"""The tables, the figures and the JSON file of the study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.ticker import LogLocator
from rich.table import Table

from examples import _style
from examples.convergence_study.study import Result
from examples.convergence_study.variants import REFERENCES, references

PANELS = {"reply_loss": "decoder: loss", "reply_exact": "decoder: exact replies", "price_accuracy": "price: accuracy"}
HEAD_OF = {"reply_loss": "reply", "reply_exact": "reply", "price_accuracy": "price"}
COLORS = {"turns": _style.ORANGE, "sum": _style.RED, "equal_norms": _style.BLUE}
NAMES = {"turns": "in turns", "sum": "plain sum", "equal_norms": "EqualNorms"}
IN = {"turns": "in turns", "sum": "in the plain sum", "equal_norms": "with EqualNorms"}
FIGURES = ("variant", "decoder loss", "exact", "price accuracy", "s")
SPEEDS = ("variant", "decoder at alone + 5 %", "of alone", "pace", "price at alone - 5 %", "norms", "cosine")


def make_tables(results: dict[str, Result]) -> list[Table]:
    """Two tables with one row per variant: the final metrics; training speed and gradients at the hidden state."""
    tables = []
    for title, columns, cells in (
        ("At the end, on the validation rows: mean ± standard deviation over seeds", FIGURES, final_rows(results)),
        ("Updates until nearly as good as alone; gradients at the hidden state", SPEEDS, speed_rows(results)),
    ):
        table = Table(title=title, title_justify="left")
        for column in columns:
            table.add_column(column, justify="left" if column == "variant" else "right", no_wrap=column == "variant")
        for row in cells:
            table.add_row(*row)
        tables.append(table)
    return tables


def final_rows(results: dict[str, Result]) -> list[list[str]]:
    """The cells of the first table; empty where a variant does not train a head."""
    found = []
    for name, result in results.items():
        pairs = [_pair(result.summary.get(figure)) for figure in PANELS]
        found.append([name, *pairs, f"{result.summary['seconds'][0]:.0f}"])
    return found


def speed_rows(results: dict[str, Result]) -> list[list[str]]:
    """The cells of the second table."""
    found = []
    for name, result in results.items():
        summary, seeds = result.summary, len(result.curves)
        slowness = summary.get("reply_slowness")
        row = [name, _updates(summary, "reply", seeds), "" if slowness is None else f"{slowness:.2f}"]
        row.append(f"{summary['reply_pace']:.2f}" if "reply_pace" in summary else "")
        row.append(_updates(summary, "price", seeds))
        has_both = "cosine" in summary
        row.append(f"{summary['reply_norm']:.1e}, {summary['price_norm']:.1e}" if has_both else "")
        found.append([*row, f"{summary['cosine']:.2f}" if has_both else ""])
    return found


@_style.styled
def draw(path: Path, results: dict[str, Result], axis: str) -> None:
    """Draws learning curves with bands of one standard deviation over seeds, with a row for each group of variants.

    The names stand at the ends of the curves in the first column; the other columns have the same colours.

    Args:
        path: The file to write.
        results: Results by variant.
        axis: `"examples"` or `"seconds"`.
    """
    alone = {name: result for name, result in results.items() if result.variant.group == REFERENCES}
    groups: dict[str, dict[str, Result]] = {}
    for name, result in results.items():
        if result.variant.group != REFERENCES:
            groups.setdefault(result.variant.group, {})[name] = result
    groups = groups or {REFERENCES: {}}
    options = {"squeeze": False, "sharex": True, "sharey": "col", "width_ratios": [1.5, 1, 1]}
    figure, axes = _style.new_figure(len(groups), len(PANELS), 2.9 * len(groups) + 0.4, width=10.5, **options)
    _log_scale(axes[0, 0])  # the column shares its axis
    named: list[tuple[Any, list[Any]]] = []
    for row, (group, members) in enumerate(groups.items()):
        used = {result.variant.optimizer for result in members.values()}
        shown = {name: result for name, result in alone.items() if not used or result.variant.optimizer in used}
        styles = {name: ("black", style) for name, style in zip(shown, _dashes(len(shown)))}
        styles |= {name: (f"C{place}", "-") for place, name in enumerate(members)}
        for column, name in enumerate(PANELS):
            panel = axes[row, column]
            ends = []
            for variant, result in {**shown, **members}.items():
                if HEAD_OF[name] in result.variant.heads:
                    last = _band(panel, result, axis, name, styles[variant])
                    ends.append((*last, variant.replace("_", " "), styles[variant][0]))
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(group)
                named.append((panel, ends))
    for panel, ends in named:  # only now are the limits of the column known
        right = max((x for x, *_ in ends), default=0.0)
        _style.label_ends(panel, right, [tuple(end[1:]) for end in ends], gap=0.09)
    for panel, title in zip(axes[0], PANELS.values()):
        panel.set_title(title)
    for panel in axes[-1]:
        panel.locator_params(axis="x", nbins=3)
        panel.set_xlabel("examples seen" if axis == "examples" else "seconds of training")
    figure.savefig(path)


@_style.styled
def draw_pace(path: Path, results: dict[str, Result], main: str) -> None:
    """Draws the decoder and the price of a few variants: each head alone, in turns, the plain sum, and with `EqualNorms`.

    Args:
        path: The file to write.
        results: Results by variant.
        main: The optimizer of the variants that do not specify their own.
    """
    figure, axes = _style.new_figure(1, 2, 3.6, sharex=True)
    shown = {name: results[name] for name in COLORS if name in results}
    decoder, price = references(main, main)
    paces = {name: result.summary["reply_pace"] for name, result in shown.items()}
    accuracies = {name: results[name].summary["price_accuracy"][0] for name in (price.name, *shown)}
    of_decoder = {decoder.name: "alone", **{name: f"{NAMES[name]}: {pace:.0%} of the pace" for name, pace in paces.items()}}
    of_price = {name: f"{NAMES.get(name, 'alone')}: {accuracy:.2f}" for name, accuracy in accuracies.items()}
    for panel, figure_name, words in ((axes[0], "reply_loss", of_decoder), (axes[1], "price_accuracy", of_price)):
        ends = []
        for name, text in words.items():
            style = (COLORS[name], "-") if name in COLORS else ("black", "--")
            ends.append((*_band(panel, results[name], "examples", figure_name, style), text, style[0]))
        panel.set_xlabel("examples seen")
        panel.locator_params(axis="x", nbins=4)
        if panel is axes[0]:
            _log_scale(panel)
        panel.margins(y=0.12)  # names at the upper end stay clear of the title
        _style.label_ends(panel, max(x for x, *_ in ends), [tuple(end[1:]) for end in ends])
    axes[0].set_title("Decoder loss" + (f": slowest {IN[min(paces, key=lambda name: paces[name])]}" if paces else ""))
    worst = min(shown, key=lambda name: accuracies[name], default=None)
    axes[1].set_title("Price accuracy" + ("" if worst is None else f": lowest {IN[worst]}"))
    figure.savefig(path)


def write_figures(path: Path, options: dict[str, Any], results: dict[str, Result], more: dict[str, Any]) -> None:
    """Writes options, every measurement and every summary as JSON."""
    variants = {name: result.to_json() for name, result in results.items()}
    text = json.dumps({"options": options, **more, "variants": variants}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _band(panel: Any, result: Result, axis: str, figure: str, style: tuple[str, Any]) -> tuple[float, float]:
    """Draws the mean and a band, and returns the end of the line."""
    measured = [place for place, point in enumerate(result.curves[0]) if figure in point]
    x = np.mean([[curve[place][axis] for place in measured] for curve in result.curves], axis=0)
    values = np.array([[curve[place][figure] for place in measured] for curve in result.curves])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    color, line = style
    panel.plot(x, mean, color=color, linestyle=line, linewidth=1.4)
    panel.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
    return float(x[-1]), float(mean[-1])


def _log_scale(panel: Any) -> None:
    """A logarithmic axis with plain numbers."""
    panel.set_yscale("log")
    panel.yaxis.set_minor_locator(LogLocator(subs=(2, 3, 4, 6)))
    for formatted in (panel.yaxis.set_major_formatter, panel.yaxis.set_minor_formatter):
        formatted(lambda value, _: f"{value:g}")


def _dashes(number: int) -> list[Any]:
    """Line styles for the references, which come in pairs of heads that are never in the same panel."""
    return [("--", ":", "-.")[place // 2 % 3] for place in range(number)]


def _pair(values: tuple[float, float] | None) -> str:
    return "" if values is None else f"{values[0]:.3f} ± {values[1]:.3f}"


def _updates(summary: dict[str, Any], head: str, seeds: int) -> str:
    reached = summary.get(f"{head}_reached")
    if reached is None:
        return ""
    if not reached:
        return "never"
    return f"{summary[f'{head}_updates']:.0f}" + ("" if reached == seeds else f" ({reached} of {seeds})")
