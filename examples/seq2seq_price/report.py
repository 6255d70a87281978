"""The files that a run writes: history, learning curves, confusion matrix, attention and samples."""

from __future__ import annotations

import csv
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the choice of the backend

from examples import _style  # noqa: E402
from examples.seq2seq_price.batches import Examples  # noqa: E402
from examples.seq2seq_price.model import Answers, AttentionMap  # noqa: E402
from examples.seq2seq_price.ranges import NO_LABEL  # noqa: E402

History = Mapping[str, Sequence[float]]
COUNTED_CLASSES = 20
"""With more classes, the cells of the figure are too small for their counts."""
SAMPLE_WIDTH = 78
"""Characters in each of the two columns of samples."""


def write_history(path: Path, history: History) -> None:
    """Writes a CSV file with one row per epoch and one column per entry of Keras's logs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", *history])
        for epoch, values in enumerate(zip(*history.values()), start=1):
            writer.writerow([epoch, *(f"{float(value):.6g}" for value in values)])


@_style.styled
def draw_curves(path: Path, history: History, heads: Sequence[str]) -> None:
    """Draws losses, representation gradient norms and shares of the encoder's update, per head and epoch.

    A dot marks each head's best epoch: that of its smallest validation loss.
    """
    figure, all_axes = _style.new_figure(1, 3, 3.6)
    panels = (("loss", "loss (dashed: validation)", "log"), ("norm", "gradient norm", "log"), ("share", "share", "linear"))
    colors = (_style.BLUE, _style.RED, _style.GREEN, _style.PURPLE, _style.ORANGE)
    for axes, (kind, title, scale) in zip(all_axes, panels):
        axes.set(title=title, xlabel="epoch", yscale=scale)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.margins(x=0.12)
        ends = []
        for place, head in enumerate(heads):
            color = colors[place % len(colors)]
            for prefix, style in (("", "-"), ("val_", "--")):
                values = history.get(f"{prefix}{head}_{kind}")
                if values is None:
                    continue
                axes.plot(range(1, len(values) + 1), values, style, color=color)
                if prefix and np.isfinite(values).any():
                    best = int(np.nanargmin(values))
                    axes.plot(best + 1, values[best], "o", color=color, ms=7)
                elif not prefix and np.isfinite(values[-1]):
                    ends.append((float(values[-1]), head, color))
        if kind == "share":
            axes.set_ylim(0, 1)
        _style.label_ends(axes, len(next(iter(history.values()))), ends, gap=0.08)
    _save(figure, path)


def draw_confusion(path: Path, counts: np.ndarray, names: Sequence[str]) -> None:
    """Draws the confusion matrix: counts as numbers, and fractions of the row as colours.

    Args:
        path: The file.
        counts: The result of `metrics.confusion`.
        names: Names of the classes.
    """
    number = len(names)
    side = 1.5 + max(0.55 * number if number <= COUNTED_CLASSES else 0.2 * number, 2.5)
    figure, axes = pyplot.subplots(figsize=(side + 1.2, side), layout="constrained")
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if number <= COUNTED_CLASSES:
        for (row, column), count in np.ndenumerate(counts):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    axes.set_xticks(range(number), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=8, parse_math=False)
    axes.set_yticks(range(number), names, fontsize=8, parse_math=False)
    right, total = int(np.trace(counts)), int(counts.sum())
    axes.set(xlabel="predicted", ylabel="labelled", title=f"price ranges: {right} of {total} rows correct")
    figure.colorbar(image, ax=axes, label="fraction of the row", shrink=0.8)
    _save(figure, path)


def draw_attention(path: Path, maps: Sequence[AttentionMap]) -> None:
    """Draws the attention of the decoder: one panel per text, with source tokens across and reply tokens down."""
    widths, heights = ([len(tokens) for tokens in side] for side in ([m.source for m in maps], [m.reply for m in maps]))
    cell, labels = 0.21, 1.15  # inches
    figure = pyplot.figure(
        figsize=(max(widths) * cell + 2.0, sum(heights) * cell + labels * len(maps)), layout="constrained"
    )
    panels = figure.subplots(len(maps), 1, height_ratios=[height * cell + labels for height in heights], squeeze=False)
    for axes, attended in zip(panels[:, 0], maps):
        axes.imshow(attended.weights, cmap="Greys", vmin=0, vmax=1, aspect="equal")
        axes.set_anchor("W")
        across = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(attended.source)), attended.source, fontsize=8, parse_math=False, **across)
        axes.set_yticks(range(len(attended.reply)), attended.reply, fontsize=8, parse_math=False)
        axes.tick_params(length=2)
    panels[0, 0].set_title("attention weights\n(white 0, black 1)", loc="left", fontsize=10)
    _save(figure, path)


def write_samples(
    path: Path,
    examples: Examples,
    answers: Answers,
    names: Sequence[str],
    number: int = 10,
) -> None:
    """Writes correct and incorrect rows side by side: the text, the expected answer and the model's answer.

    Args:
        path: The file.
        examples: The rows; samples are spread evenly over them.
        answers: The model's predictions for them, including replies.
        names: Names of the classes; not used without a price head.
        number: The maximum number of rows of each kind.
    """
    ranges = None if answers.probabilities is None else answers.probabilities.argmax(axis=1)
    right: list[list[str]] = []
    wrong: list[list[str]] = []
    for row, (text, target, label) in enumerate(zip(examples.texts, examples.targets, examples.labels)):
        reply = answers.replies[row]
        correct = " ".join(target.split()) == " ".join(reply.split())
        wanted, got = target, reply
        if ranges is not None:
            correct = correct and label in (ranges[row], NO_LABEL)
            wanted += f" | {'no label' if label == NO_LABEL else names[label]}"
            got += f" | {names[ranges[row]]}"
        sample = (f"text   {' '.join(text.split())}", f"wanted {wanted}", f"got    {got}")
        (right if correct else wrong).append([line for part in sample for line in _wrapped(part)])
    columns = []
    for kind, samples in (("without an error", right), ("with an error", wrong)):
        places = np.linspace(0, len(samples) - 1, min(number, len(samples))).astype(int)
        title = f"{len(samples)} of {len(answers.replies)} rows {kind}{', for example:' if samples else ''}"
        columns.append([[title], *(samples[place] for place in places)])
    lines = []
    for pair in zip_longest(*columns, fillvalue=[]):
        lines += [f"{left:{SAMPLE_WIDTH}}  {other}".rstrip() for left, other in zip_longest(*pair, fillvalue="")]
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, SAMPLE_WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():  # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=120)
    pyplot.close(figure)
