"""The tables and the figure of `benchmarks.molecules`, from its lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._published import PLAIN, finished, interval, judged_on, markdown, mean_over_heads, number_of, paired, spread
from benchmarks._results import read_lines
from multihead._display.drawing import GREY, colour, new_figure, open_axis, title
from multihead.comparison import Comparison

SKLEARN = "sklearn"
LINEAR, UNTUNED, FOREST = "logistic regression", "logistic regression, C = 1", "random forest"
PARTS = ("validation", "test")
NAMES = {"tox21": "Tox21", "sider": "SIDER", "clintox": "ClinTox"}
MULTITASK = "multi-task net"
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "tox21": {
        "logistic regression": 0.705,
        "random forest": 0.736,
        MULTITASK: 0.768,
        "robust multi-task net": 0.766,
        "XGBoost": 0.753,
        "influence relevance voting": 0.767,
        "graph convolutions": 0.814,
    },
    "sider": {
        "logistic regression": 0.622,
        "random forest": 0.669,
        MULTITASK: 0.630,
        "robust multi-task net": 0.634,
        "XGBoost": 0.639,
        "influence relevance voting": 0.643,
        "graph convolutions": 0.593,
    },
    "clintox": {
        "logistic regression": 0.683,
        "random forest": 0.763,
        MULTITASK: 0.832,
        "robust multi-task net": 0.840,
        "XGBoost": 0.890,
        "influence relevance voting": 0.811,
        "graph convolutions": 0.812,
    },
}
"""DeepChem's areas under the ROC curve on the validation data of its split by index, from its README of 2017."""


def tables(results: Path, names: Sequence[str]) -> str:
    """The tables of some data sets, in Markdown; of those without lines, the published figures."""
    return "\n".join(_of_set(results, name) for name in names)


def _of_set(results: Path, name: str) -> str:
    ours, path = _sklearn(results / f"{name}_{SKLEARN}.jsonl"), results / f"{name}.jsonl"
    compared = finished(path)
    if not ours and compared is None:
        rows = [[model, f"{value:.3f}"] for model, value in PUBLISHED[name].items()]
        return markdown([f"{NAMES[name]}, area under the ROC curve", "published, validation"], rows)
    columns = ["model", "published", "validation", "against alone", "test", "against alone", "assays better, worse"]
    rows = [[model, _published(name, model), *_of_model(figures)] for model, (figures, _) in ours.items()]
    versions = [f"scikit-learn {version}" for version in dict.fromkeys(version for _, version in ours.values())]
    if compared is not None:
        rows += _of_variants(name, compared)
        versions.append(str(compared.lines[0]["settings"]["keras"]).replace(", ", " "))
    shown = {row[0] for row in rows} | ({MULTITASK} if compared is not None else set())
    rows += [[model, f"{value:.3f}", *[""] * 5] for model, value in PUBLISHED[name].items() if model not in shown]
    seeds = "" if compared is None else f"; {number_of(compared.seeds)} of the variants"
    caption = f"{NAMES[name]}: mean area under the ROC curve of the assays{seeds}; {', '.join(versions)}"
    assays = _of_assays(compared) if compared is not None else ""
    return f"{caption}\n\n{markdown(columns, rows)}" + (f"\n{assays}" if assays else "")


def _sklearn(path: Path) -> dict[str, tuple[dict[str, list[float]], str]]:
    """Means over assays by part, one for each seed, and the version, by model."""
    found: dict[str, tuple[dict[str, list[float]], str]] = {}
    for line in read_lines(path):
        figures, _ = found.setdefault(line["model"], ({part: [] for part in PARTS}, line["scikit-learn"]))
        for part in PARTS:
            figures[part].append(float(np.mean(list(line["metrics"][part].values()))))
    return found


def _published(name: str, model: str) -> str:
    value = PUBLISHED[name].get(model)
    return "" if value is None else f"{value:.3f}"


def _of_model(figures: Mapping[str, Sequence[float]]) -> list[str]:
    return [spread(np.array(figures["validation"])), "", spread(np.array(figures["test"])), "", ""]


def _of_variants(name: str, compared: Comparison) -> list[list[str]]:
    """A row for each variant: means over assays, and paired differences from each assay alone."""
    by_part = {part: judged_on(compared.lines, part) for part in PARTS}
    rows = []
    for variant in compared.variants:
        cells = []
        for found in by_part.values():
            values = mean_over_heads(found, variant)
            is_alone = variant == found.variants[0]
            cells += [
                spread(values),
                "" if is_alone else interval(paired(values, mean_over_heads(found, found.variants[0]))),
            ]
        shown = {compared.variants[0]: "each assay alone", PLAIN: f"{PLAIN}, as the {MULTITASK}"}.get(variant, variant)
        rows.append(
            [shown, _published(name, MULTITASK) if variant == PLAIN else "", *cells, _verdicts(by_part["test"], variant)]
        )
    return rows


def _verdicts(found: Comparison, variant: str) -> str:
    """On how many assays of the test data the variant is better and worse than alone, by the interval."""
    if variant == found.variants[0] or len(found.seeds) < 2:
        return ""
    verdicts = [found.difference(variant, head).verdict for head in found.heads]
    return f"{verdicts.count('better')}, {verdicts.count('worse')} of {len(verdicts)}"


def _of_assays(compared: Comparison) -> str:
    """A row for each assay: alone, the plain sum and their difference on the test data, the largest gain first."""
    if PLAIN not in compared.variants:
        return ""
    found: Any = judged_on(compared.lines, "test")
    gains = {head: found.difference(PLAIN, head) for head in found.heads}
    rows = [
        [head, spread(found.values(found.variants[0], head)), spread(found.values(PLAIN, head)), interval(gains[head])]
        for head in sorted(gains, key=lambda head: -gains[head].mean)
    ]
    return markdown(["assay, test data", "alone", PLAIN, "difference"], rows)


def draw(results: Path) -> Any:
    """Draws what each assay gains and pays on the test data: a panel for each data set; None without lines.

    Args:
        results: The folder of the lines.
    """
    known = {name: finished(results / f"{name}.jsonl") for name in NAMES}
    compared = {name: found for name, found in known.items() if found is not None and len(found.variants) > 1}
    if not compared:
        return None
    most = max(4, *(len(found.heads) for found in compared.values()))
    figure, axes = new_figure("`benchmarks.molecules`", 1, len(compared), (7.0 * len(compared), 2.0 + 0.22 * most))
    for axis, (name, lines) in zip(axes[0], compared.items()):
        _draw_set(axis, NAMES[name], judged_on(lines.lines, "test"))
    return figure


def _short(head: str) -> str:
    """A name that fits beside the axis."""
    return head if len(head) <= 30 else f"{head[:29]}…"


def _draw_set(axis: Any, name: str, found: Comparison) -> None:
    """A row for each assay, the largest gain of the plain sum at the top; bars are intervals of 95 %."""
    gains = {variant: {head: found.difference(variant, head) for head in found.heads} for variant in found.variants[1:]}
    first = gains[found.variants[1]]
    order = sorted(found.heads, key=lambda head: first[head].mean)
    for number, (variant, of_heads) in enumerate(gains.items()):
        shift = 0.3 * (number - (len(gains) - 1) / 2)
        for place, head in enumerate(order):
            each = of_heads[head]
            axis.plot([each.low, each.high], [place + shift] * 2, color=colour(number), lw=1, alpha=0.6)
            axis.plot([each.mean], [place + shift], "o", color=colour(number), ms=5)
        at = {"xytext": (0, 6 + 12 * number), "textcoords": "offset points", "ha": "right"}
        axis.annotate(variant, (1, 1), xycoords="axes fraction", color=colour(number), fontsize=9, **at)
    axis.axvline(0, color=GREY, lw=0.8, ls=":")
    axis.set_ylim(-0.6, len(order) - 0.4)
    axis.set_yticks(range(len(order)), [_short(head) for head in order], fontsize=7 if len(order) > 12 else 9)
    axis.set_xlabel("area under the ROC curve, against alone", color=GREY)
    open_axis(axis)
    seeds = number_of(found.seeds) + (", bars: 95 %" if len(found.seeds) > 1 else "")
    title(axis, name, f"right of 0: sharing helps; test data, {seeds}")
