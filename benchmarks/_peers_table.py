"""The table and the figure of `benchmarks.peers`, from its lines."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks._peers_problem import PARAMETERS, PLAIN, REPRESENTATION
from benchmarks._results import markdown, read_lines
from examples._style import BLUE, GREEN, GREY, ORANGE, label_ends, new_figure, styled

LINES = Path(__file__).resolve().parent / "results" / "peers.jsonl"
RATIOS = {
    "Keras": (f"Keras, {PLAIN}", f"ours, {PLAIN}"),
    "PyTorch": (f"PyTorch, {PLAIN}", f"ours, {PLAIN}"),
    "TorchJD's UPGrad": (f"PyTorch, {PARAMETERS}", f"ours, {PARAMETERS}"),
    "TorchJD's UPGrad / ours at the representation": (f"PyTorch, {PARAMETERS}", f"ours, {REPRESENTATION}"),
}
"""What is compared: a variant, and ours."""
COLORS = {"Keras": ORANGE, "PyTorch": BLUE, "TorchJD's UPGrad": GREEN}
"""The ratios in the figure."""
ALTERNATIVE = "Time per step of Keras, PyTorch and TorchJD over ours, by model and number of heads"


def read(path: Path) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    """The settings and the lines of a file."""
    settings, *lines = read_lines(path)
    return settings["settings"], lines


def ratio(line: Mapping[str, Any], name: str, kind: str = "seconds") -> float | None:
    """The median over rounds of one of `RATIOS`, of `"seconds"` or `"processor"`; None without the other library."""
    theirs, ours = (line[kind].get(variant) for variant in RATIOS[name])
    return None if theirs is None else statistics.median(a / b for a, b in zip(theirs, ours, strict=True))


def table(path: Path) -> str:
    """The table of a file in Markdown: times of the others divided by ours, with those of processor time in brackets."""
    if not path.exists():
        return "No run is recorded yet.\n"
    settings, lines = read(path)
    versions = ", ".join(f"{name} {version}" for name, version in settings["versions"].items())
    columns = ["model", "heads", "parameters", "ours, ms", *(name if "/" in name else f"{name} / ours" for name in RATIOS)]
    rows = []
    for line in lines:
        ours = 1e3 * statistics.median(line["seconds"][f"ours, {PLAIN}"])
        ratios = [(ratio(line, name), ratio(line, name, "processor")) for name in RATIOS]
        cells = ["" if time is None else f"{time:.2f} ({processor:.2f})" for time, processor in ratios]
        rows.append([line["model"], f"{line['heads']}", f"{line['parameters']:,}", f"{ours:.1f}", *cells])
    rounds = sorted({len(line["seconds"][f"ours, {PLAIN}"]) for line in lines})
    title = f"{versions}; {settings['threads']} threads each, medians of {' or '.join(map(str, rounds))} rounds"
    return f"{title}\n\n{markdown(columns, rows)}"


def link(path: Path) -> str:
    """What shows the figure of the recorded lines in `benchmarks/README.md`; empty without a file."""
    return f"\n![{ALTERNATIVE}](../docs/results/peers.png)\n" if path.exists() else ""


@styled
def draw(path: Path) -> Any:
    """The figure of a file: for each model, the others' time over ours by the number of heads; None without a file."""
    if not path.exists():
        return None
    _, lines = read(path)
    models = list(dict.fromkeys(line["model"] for line in lines))
    figure, axes = new_figure(1, len(models), 3.6, sharey=True, squeeze=False)
    for axis, model in zip(axes[0], models):
        ends = _draw_model(axis, [line for line in lines if line["model"] == model])
        axis.set_title(model)
    label_ends(axes[0, -1], max(line["heads"] for line in lines), ends)
    axes[0, 0].set_ylabel("time per step / ours")
    figure.supxlabel("number of heads", color=GREY, fontsize=11)
    return figure


def _draw_model(axis: Any, lines: list[Mapping[str, Any]]) -> list[tuple[float, str, str]]:
    """Draws the lines of a model; returns their last values, names and colors."""
    heads, ends = [line["heads"] for line in lines], [(1.0, "ours", GREY)]
    axis.set_yscale("log", base=2)
    axis.axhline(1.0, color=GREY, linewidth=1.0)
    for name, color in COLORS.items():
        ratios = [value for line in lines if (value := ratio(line, name)) is not None]
        if ratios:
            axis.plot(heads, ratios, color=color, marker="o", markersize=4)
            ends.append((ratios[-1], name, color))
    low, high = axis.get_ylim()
    axis.set_yticks([each for each in (0.5, 0.75, 1, 1.5, 2, 3, 4, 6, 8) if low <= each <= high])
    axis.set_xscale("log", base=2)
    axis.set_xticks(heads, [f"{number}" for number in heads])
    axis.yaxis.set_major_formatter("{x:g}")
    return ends
