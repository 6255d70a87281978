"""The table, the pictures and the file of figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from examples._shared import new_figure
from examples.convergence_study.study import Result

PANELS = {"reply_loss": "decoder: loss", "reply_exact": "decoder: exact replies", "price_accuracy": "price: accuracy"}
HEAD_OF = {"reply_loss": "reply", "reply_exact": "reply", "price_accuracy": "price"}
COLUMNS = (
    "arm",
    "decoder loss",
    "updates to alone + 5 %",
    "times alone",
    "exact",
    "price accuracy",
    "updates to alone - 5 %",
    "norms",
    "cosine",
    "s",
)


def make_table(results: dict[str, Result]) -> Table:
    """One row per arm: means over seeds, with standard deviations."""
    table = Table(title="On the development rows, mean ± standard deviation over seeds", title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "arm" else "right", overflow="fold")
    for row in rows(results):
        table.add_row(*row)
    return table


def rows(results: dict[str, Result]) -> list[list[str]]:
    """The table's cells; empty where an arm lacks a head."""
    found = []
    for name, result in results.items():
        summary, seeds = result.summary, len(result.curves)
        slowness = summary.get("reply_slowness")
        norms = [summary.get(f"{head}_norm") for head in ("reply", "price")]
        found.append(
            [
                name,
                _pair(summary.get("reply_loss")),
                _updates(summary, "reply", seeds),
                "" if slowness is None else f"{slowness:.2f}",
                _pair(summary.get("reply_exact")),
                _pair(summary.get("price_accuracy")),
                _updates(summary, "price", seeds),
                "" if norms[0] is None else f"{norms[0]:.1e}, {norms[1]:.1e}",
                "" if norms[0] is None else f"{summary['cosine']:.2f}",
                f"{summary['seconds'][0]:.0f}",
            ]
        )
    return found


def draw(path: Path, results: dict[str, Result], axis: str) -> None:
    """Curves with bands of one standard deviation over seeds; a column for each group of arms.

    Args:
        path: Where to.
        results: Results by arm.
        axis: `"examples"` or `"seconds"`.
    """
    alone = {name: result for name, result in results.items() if result.arm.group == "references"}
    groups: dict[str, dict[str, Result]] = {}
    for name, result in results.items():
        if result.arm.group != "references":
            groups.setdefault(result.arm.group, {})[name] = result
    groups = groups or {"references": {}}
    figure, axes = new_figure(
        len(PANELS), len(groups), (4.6 * len(groups) + 0.6, 9.5), squeeze=False, sharex="col", sharey="row"
    )
    for column, (group, members) in enumerate(groups.items()):
        used = {result.arm.optimizer for result in members.values()}
        shown = {name: result for name, result in alone.items() if not used or result.arm.optimizer in used}
        styles = {name: ("black", style) for name, style in zip(shown, _dashes(len(shown)))}
        styles |= {name: (f"C{place}", "-") for place, name in enumerate(members)}
        for row, (name, label) in enumerate(PANELS.items()):
            panel = axes[row, column]
            for arm, result in {**shown, **members}.items():
                if HEAD_OF[name] in result.arm.heads:
                    _band(panel, result, axis, name, arm, styles[arm])
            panel.legend(fontsize=7)
            panel.grid(alpha=0.3)
            if column == 0:
                panel.set_ylabel(label)
        axes[0, column].set(yscale="log", title=group)
        axes[-1, column].set_xlabel("examples seen" if axis == "examples" else "seconds of training")
    figure.savefig(path, dpi=110)


def write_figures(path: Path, options: dict[str, Any], results: dict[str, Result], more: dict[str, Any]) -> None:
    """Writes options, every measurement and every summary as JSON."""
    arms = {name: result.to_json() for name, result in results.items()}
    text = json.dumps({"options": options, **more, "arms": arms}, indent=1, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _band(panel: Any, result: Result, axis: str, figure: str, label: str, style: tuple[str, Any]) -> None:
    measured = [place for place, point in enumerate(result.curves[0]) if figure in point]
    x = np.mean([[curve[place][axis] for place in measured] for curve in result.curves], axis=0)
    values = np.array([[curve[place][figure] for place in measured] for curve in result.curves])
    mean, spread = values.mean(axis=0), values.std(axis=0)
    color, line = style
    panel.plot(x, mean, color=color, linestyle=line, label=label, linewidth=1.4)
    panel.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)


def _dashes(number: int) -> list[Any]:
    """Line styles for the references, which come in pairs of heads that never share a panel."""
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
