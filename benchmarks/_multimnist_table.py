"""The tables and the figure of `benchmarks.multimnist`, from its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._published import AT_PARAMETERS, finished, interval, markdown, number_of, spread
from multihead.comparison import Comparison, read
from multihead.comparison._findings import difference_of, relative_changes

TASKS: Mapping[str, tuple[str, str]] = {"cl_rr": ("cl", "rr"), "cl_cr": ("cl", "cr")}
"""The heads of each task: `c` classifies and `r` reconstructs, `l` the left digit and `r` the right one."""
HEADS = {"cl": "left digit, accuracy", "cr": "right digit, accuracy", "rr": "right image, error"}
CHANGES: Mapping[str, tuple[float, float, float]] = {
    "plain sum": (-1.04, -16.86, -8.95),
    "PCGrad": (-1.04, -15.36, -8.20),
    "GradDrop": (-1.08, -22.04, -11.56),
    "MGDA": (-1.45, -11.26, -6.35),
    "Uncertainty": (-1.11, -26.30, -13.70),
    "RandomLossWeighting": (-1.15, -19.48, -10.31),
    "IMTLG": (-2.51, -1.98, -2.24),
    "EqualNorms": (-1.61, -2.99, -2.30),
    "FAMO": (-4.59, -0.75, -2.67),
    "NashMTL": (-1.70, -4.43, -3.06),
    "CAGrad": (-1.69, -2.59, -2.14),
}
"""Changes in percent of the left digit, the right image and their mean against each head alone: Gama and Grassi, table 3.

`EqualNorms` stands for their EDM, whose direction it has with two heads, and `IMTLG` for their IMTL.
"""
ACCURACIES: Mapping[str, tuple[float, float]] = {
    "alone": (97.23, 95.90),
    "plain sum": (96.46, 94.99),
    "Uncertainty": (96.47, 95.29),
    "GradNorm": (96.27, 94.84),
    "MGDA": (97.26, 95.90),
}
"""Accuracies in percent of the left and the right digit: Sener and Koltun, table 3; `MGDA` is their MGDA-UB."""


NORMALIZED = {"MGDA loss+": "MGDA"}
"""Variants with the published figures of another name: Sener and Koltun divide the gradients of MGDA by norms and losses."""


def tables(results: Path, tasks: Sequence[str]) -> str:
    """The tables of some tasks, in Markdown; of those without lines, the published figures."""
    found = [[_of_file(task, path) for path in files(results, task)] or [_published(task)] for task in tasks]
    return "\n".join(sum(found, []))


def _published(task: str) -> str:
    """The published figures of a task."""
    if task == "cl_rr":
        rows = [[variant, *(f"{value:+.2f}" for value in values)] for variant, values in CHANGES.items()]
        return markdown(["published change against alone, percent", "left digit", "right image", "mean"], rows)
    rows = [[variant, *(f"{value:.2f}" for value in values)] for variant, values in ACCURACIES.items()]
    return markdown(["published accuracy, percent", "left digit", "right digit"], rows)


def files(results: Path, task: str) -> list[Path]:
    """The files of a task with finished runs, the longest training last."""
    found = sorted(results.glob(f"multimnist_{task}_*x*.jsonl"), key=lambda path: _size(path)[::-1])
    return [path for path in found if finished(path)]


DRAWN = (
    "alone",
    "plain sum",
    "cl 0.3",
    "cl 0.1",
    "NormFloor",
    "EqualNorms",
    "NashMTL, parameters",
    "FAMO",
    "Uncertainty",
    "RandomLossWeighting",
    "LogLoss",
)
"""The variants in the figure: others lie on top of these, or so far away that these would."""


def draw(results: Path) -> Any:
    """Draws the front of `cl_rr` with the most seeds, on the test data, with the variants of `DRAWN`; None without lines.

    Args:
        results: The folder of the lines.
    """
    found = files(results, "cl_rr")
    if not found:
        return None
    lines = max(map(read, found), key=lambda comparison: len(comparison.seeds)).lines
    return Comparison([line for line in lines if line.get("variant", DRAWN[0]) in DRAWN]).plot()


def _size(path: Path) -> tuple[int, int]:
    """The number of images and of epochs of a file."""
    images, epochs = re.findall(r"\d+", path.stem)[-2:]
    return int(images), int(epochs)


def _of_file(task: str, path: Path) -> str:
    images, epochs = _size(path)
    found = read(path)
    settings = found.lines[0]["settings"]
    versions = str(settings["keras"]).replace(", ", " ")
    rates = ", ".join(f"{rate:g}" for rate in settings["rates"])
    title = f"{images:,} images, {epochs} epochs, rate {rates}, {number_of(found.seeds)}, test data; {versions}"
    table = _changes(found) if task == "cl_rr" else _accuracies(found)
    return f"{title}\n\n{table}"


def change(found: Comparison, variant: str, heads: Sequence[str]) -> np.ndarray:
    """The mean relative change of some heads against each alone, in percent, `[seeds]`."""
    signs = np.array([1.0 if found.directions[head] == "max" else -1.0 for head in heads])
    values, alone = (np.array([found.values(name, head) for head in heads]) for name in (variant, found.variants[0]))
    return 100 * relative_changes(values, alone, signs)


def _changes(found: Comparison) -> str:
    """Figures, and changes against alone beside the published ones."""
    columns = [
        "variant",
        *(HEADS[head] for head in found.heads),
        "change: left",
        "right",
        "mean",
        "published: left, right",
        "mean",
    ]
    rows, means = [], dict[str, float]()
    for variant in found.variants:
        figures = [spread(found.values(variant, head), 4) for head in found.heads]
        if variant == found.variants[0]:
            rows.append([variant, *figures, *[""] * 5])
            continue
        of_heads = [f"{change(found, variant, [head]).mean():+.2f} %" for head in found.heads]
        mean = change(found, variant, found.heads)
        published = CHANGES.get(NORMALIZED.get(variant, variant.removesuffix(AT_PARAMETERS)))
        beside = ["", ""] if published is None else [f"{published[0]:+.2f}, {published[1]:+.2f}", f"{published[2]:+.2f}"]
        rows.append([variant, *figures, *of_heads, interval(difference_of(mean, 0.95), 2), *beside])
        means[variant] = float(mean.mean())
    others = {variant: values for variant, values in CHANGES.items() if variant not in found.variants}
    rows += [
        [variant, *[""] * 5, f"{left:+.2f}, {right:+.2f}", f"{mean:+.2f}"] for variant, (left, right, mean) in others.items()
    ]
    return markdown(columns, rows) + _agreement(means)


def _agreement(means: Mapping[str, float]) -> str:
    """Whether the mean changes have the order of the published ones."""
    known = {variant: CHANGES[variant][2] for variant in means if variant in CHANGES}
    if len(known) < 4:
        return ""
    correlation = _correlation(means, known)
    text = f"Rank correlation of the mean changes with the published ones, {len(known)} variants: {correlation:.2f}"
    for variant, name in NORMALIZED.items():
        if variant in means and name in known:
            instead = {variant if each == name else each: value for each, value in known.items()}
            text += f"; with {variant} in place of {name}: {_correlation(means, instead):.2f}"
    return f"\n{text}.\n"


def _correlation(means: Mapping[str, float], published: Mapping[str, float]) -> float:
    ranks = [
        np.argsort(np.argsort(values)) for values in ([means[variant] for variant in published], list(published.values()))
    ]
    return float(np.corrcoef(*ranks)[0, 1])


def _accuracies(found: Comparison) -> str:
    """Accuracies in percent beside the published ones, and differences from alone in points."""
    columns = ["variant", "left digit", "right digit", "against alone: left", "right", "published: left", "right"]
    rows = []
    for variant in found.variants:
        figures = [spread(100 * found.values(variant, head), 2) for head in found.heads]
        published = ACCURACIES.get(NORMALIZED.get(variant, variant))
        beside = ["", ""] if published is None else [f"{value:.2f}" for value in published]
        differences = ["", ""]
        if variant != found.variants[0]:
            differences = [interval(found.difference(variant, head), 2, 100) for head in found.heads]
        rows.append([variant, *figures, *differences, *beside])
    others = {variant: values for variant, values in ACCURACIES.items() if variant not in found.variants}
    rows += [[variant, *[""] * 4, f"{left:.2f}", f"{right:.2f}"] for variant, (left, right) in others.items()]
    return markdown(columns, rows)
