"""What a run shows: its progress, figures of its replies, and files with history, curves, confusion, attention, samples."""

from __future__ import annotations

import csv
import importlib.util
import re
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import keras
import matplotlib
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the choice of the backend

from examples import _style  # noqa: E402
from examples.seq2seq_price.batches import Examples  # noqa: E402
from examples.seq2seq_price.columns import NO_LABEL  # noqa: E402
from examples.seq2seq_price.model import Answers, AttentionMap, PriceModel  # noqa: E402

History = Mapping[str, Sequence[float]]
COUNTED_CLASSES = 20
"""With more classes, the cells of the figure are too small for their counts."""
SAMPLE_WIDTH = 78
"""Characters in each of the two columns of samples."""
_EVERY_SECONDS = 0.2
_SLOT = re.compile(r"([^\[\],;]+)\[([^\[\]]*)\]")
_CUT = re.compile(r"@@( |$)")


class ProgressBar(keras.callbacks.Callback):
    """Shows the progress of an epoch, and each head's loss, share of the encoder's update and accuracy.

    Args:
        console: The console to print to.
        steps: Batches per epoch.
    """

    def __init__(self, console: Console, steps: int) -> None:
        super().__init__()
        self.console = console
        self.steps = steps
        self._started = self._shown = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            transient=True,
        )

    def get_run_state(self) -> dict[str, Any]:
        """Nothing: the times and the bar are of this process."""
        return {}

    def set_run_state(self, state: dict[str, Any]) -> None:
        """Nothing is restored in a run that goes on."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._started = time.perf_counter()
        self._progress.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        name = f"epoch {epoch + 1}/{self.params['epochs']}"
        self._task = self._progress.add_task(name, total=self.steps, figures="")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if now - self._shown > _EVERY_SECONDS:
            self._shown = now
            self._progress.update(self._task, completed=batch + 1, figures=_figures(logs, self.model.heads))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._progress.remove_task(self._task)
        seconds = time.perf_counter() - self._started
        line = f"epoch {epoch + 1}/{self.params['epochs']}  {seconds:.0f} s  {_figures(logs, self.model.heads)}"
        self.console.print(line, soft_wrap=True, highlight=False)

    def on_train_end(self, logs: Any = None) -> None:
        self.close()

    def close(self) -> None:
        """Removes the bar from the screen."""
        self._progress.stop()


def slots(text: str) -> Counter[tuple[str, str]]:
    """The (slot, value) pairs of a meaning such as `name[The Mill], area[riverside]`, with their counts."""
    return Counter((name.strip(), value.strip()) for name, value in _SLOT.findall(text))


def reply_figures(wanted: Sequence[str], received: Sequence[str]) -> dict[str, float]:
    """Exact match, and slot F1 if the reference replies have slots.

    `reply_exact` is the fraction of replies that equal their references, up to the amount of white space. `reply_slot_f1`
    is micro-averaged: `2 tp / (wanted + received)`, with `tp` the number of (slot, value) pairs in both.
    """
    pairs = [(" ".join(left.split()), " ".join(right.split())) for left, right in zip(wanted, received)]
    figures = {"reply_exact": float(np.mean([left == right for left, right in pairs]))}
    counted = [(slots(left), slots(right)) for left, right in pairs]
    number_wanted = sum(left.total() for left, _ in counted)
    if number_wanted:
        both = sum((left & right).total() for left, right in counted)
        figures["reply_slot_f1"] = 2 * both / (number_wanted + sum(right.total() for _, right in counted))
    return figures


def overlap_figures(wanted: Sequence[str], received: Sequence[str]) -> dict[str, float]:
    """Corpus BLEU and chrF from sacrebleu, from 0 to 100; empty if sacrebleu is not installed.

    Both are computed on whole words: subwords, where `@@` marks a piece that continues in the next one (Sennrich, Haddow
    and Birch, 2016, arXiv 1508.07909), are joined first.
    """
    if importlib.util.find_spec("sacrebleu") is None:
        return {}
    from sacrebleu.metrics import BLEU, CHRF

    wanted, received = ([_CUT.sub("", text) for text in texts] for texts in (wanted, received))
    # Forced, because sacrebleu mistakes replies that end with a space and a full stop for tokenized texts.
    bleu, chrf = (metric.corpus_score(received, [wanted]) for metric in (BLEU(force=True), CHRF()))
    return {"reply_bleu": float(bleu.score), "reply_chrf": float(chrf.score)}


def confusion(labels: np.ndarray, predicted: np.ndarray, number: int) -> np.ndarray:
    """The confusion matrix, int64 `[number, number]`, with labels in rows and predictions in columns.

    Args:
        labels: Class numbers `[rows]`, `NO_LABEL` where a label is missing.
        predicted: Class numbers `[rows]`.
        number: The number of classes.
    """
    labelled = labels != NO_LABEL
    pairs = labels[labelled].astype(np.int64) * number + predicted[labelled]
    return np.bincount(pairs, minlength=number * number).reshape(number, number)


def metrics_table(splits: dict[str, dict[str, float]]) -> Table:
    """A table with one row per metric and one column per split."""
    table = Table("metric", *splits)
    names = dict.fromkeys(name for figures in splits.values() for name in figures)
    for name in names:
        cells = [_cell(figures.get(name)) for figures in splits.values()]
        table.add_row(name, *cells)
    return table


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
        counts: The result of `confusion`.
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
    ranges = np.argmax(answers.by_head["price"], axis=1) if "price" in answers.by_head else None
    right: list[list[str]] = []
    wrong: list[list[str]] = []
    for row, (text, target, label) in enumerate(zip(examples.texts, examples.targets, examples.labels)):
        reply = answers.replies[row]
        correct = not target.strip() or " ".join(target.split()) == " ".join(reply.split())
        wanted, got = target if target.strip() else "no reply known", reply
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


def write_report(folder: Path, model: PriceModel, examples: Examples, answers: Answers) -> None:
    """Writes samples of predictions, and the figures that the model supports: confusion matrix, attention."""
    names = model.columns["price"].names if "price" in model.columns else ()
    write_samples(folder / "samples.txt", examples, answers, names)
    if names:
        counts = confusion(examples.labels, np.argmax(answers.by_head["price"], axis=1), len(names))
        draw_confusion(folder / "confusion.png", counts, names)
    by_length = sorted((text for text in examples.texts if text.strip()), key=lambda text: len(text.split()))
    if by_length:
        quarters = dict.fromkeys(by_length[len(by_length) * quarter // 4] for quarter in (1, 2, 3))
        maps = model.attention_maps(list(quarters))
        if maps:
            draw_attention(folder / "attention.png", maps)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, SAMPLE_WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():  # characters that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _figures(logs: Any, heads: Iterable[str]) -> str:
    """`reply loss 0.21 share 62 % token_accuracy 0.95 (0.96) | price ...`, with validation metrics in parentheses."""
    logs = logs or {}
    parts = []
    for head in [name for name in heads if f"{name}_loss" in logs]:
        part = [head, f"loss {_pair(logs, f'{head}_loss')}"]
        if f"{head}_share" in logs:
            part.append(f"share {logs[f'{head}_share']:.0%}")
        part += [
            f"{key.removeprefix(f'{head}_').replace('_', ' ')} {_pair(logs, key)}"
            for key in logs
            if key.startswith(f"{head}_") and key.endswith("accuracy")
        ]
        parts.append(" ".join(part))
    return " | ".join(parts)


def _pair(logs: Any, key: str) -> str:
    validation = f" ({logs[f'val_{key}']:.3f})" if f"val_{key}" in logs else ""
    return f"{logs[key]:.3f}{validation}"


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.4g}"
