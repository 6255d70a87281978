"""What a run leaves in its folder: figures, history, curves and samples."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the choice of what draws

from examples.seq2seq_price.batches import Examples  # noqa: E402
from examples.seq2seq_price.model import Answers  # noqa: E402
from examples.seq2seq_price.ranges import NO_LABEL  # noqa: E402

History = Mapping[str, Sequence[float]]


def write_history(path: Path, history: History) -> None:
    """One row per epoch, one column per figure of Keras's logs."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", *history])
        for epoch, values in enumerate(zip(*history.values()), start=1):
            writer.writerow([epoch, *(f"{float(value):.6g}" for value in values)])


def draw_curves(path: Path, history: History, heads: Sequence[str]) -> None:
    """Losses, gradient norms at the encoder and shares of its update, per head and epoch."""
    figure, all_axes = pyplot.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    panels = (("loss", "loss", "log"), ("norm", "gradient norm at the encoder", "log"), ("share", "share", "linear"))
    for axes, (kind, title, scale) in zip(all_axes, panels):
        for color, head in enumerate(heads):
            for prefix, style in (("", "-"), ("val_", "--")):
                values = history.get(f"{prefix}{head}_{kind}")
                if values is not None:
                    label = f"{head} (held out)" if prefix else head
                    axes.plot(range(1, len(values) + 1), values, style, color=f"C{color}", label=label)
        axes.set(title=title, xlabel="epoch", yscale=scale)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend()
    all_axes[2].set_ylim(0, 1)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def write_samples(
    path: Path,
    examples: Examples,
    answers: Answers,
    names: Sequence[str],
    number: int = 10,
) -> None:
    """Texts with what was wanted and what came: rows with a mistake and rows without one, from all over the split.

    Args:
        path: The file.
        examples: The rows.
        answers: The answers to them of a model with both heads.
        names: Names of the classes.
        number: How many rows of each kind at most.
    """
    replies, ranges = answers.replies, answers.probabilities.argmax(axis=1)
    right, wrong = [], []
    for row, (text, target, label) in enumerate(zip(*examples)):
        correct = " ".join(target.split()) == replies[row] and label in (ranges[row], NO_LABEL)
        wanted = "no label" if label == NO_LABEL else names[label]
        lines = (
            f"text   {' '.join(text.split())}",
            f"wanted {target} | {wanted}",
            f"got    {replies[row]} | {names[ranges[row]]}",
        )
        (right if correct else wrong).append("\n".join(lines))
    parts = []
    for kind, samples in (("with a mistake", wrong), ("without one", right)):
        places = np.linspace(0, len(samples) - 1, min(number, len(samples))).astype(int)
        parts += [f"{len(samples)} of {len(replies)} rows {kind}, for example:", *(samples[place] for place in places)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
