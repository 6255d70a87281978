"""Runs, read from ledgers or Keras's `History`, and the panels that draw one on an axis."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from multihead._display.drawing import (
    GREY,
    colour,
    cosine_matrix,
    heat_map,
    label_ends,
    lines,
    needed,
    open_axis,
    plain,
    title,
)
from multihead._ground.types import Axis, Callback, Config, Given
from multihead._ground.validation import nearest

_LOSS = "_loss"

_WIDE = 20.0
"""Positive values whose ratio is larger are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Run:
    """A run, from its ledger or from Keras's `History`.

    Attributes:
        heads: The heads' names, including heads that were added or dropped during the run.
        steps: `[lines]`: the number of updates after each line's, or of epochs.
        values: By name, `[lines]` statistics; NaN where an update does not have one.
        validation_steps: `[epochs]`: the number of updates after each epoch with validation.
        validation: By name (`val_...`), `[epochs]` values.
        name: What the run is called beside others.
        unit: What `steps` count: `"updates"`, or `"epochs"`, whose values are means already.
    """

    heads: tuple[str, ...]
    steps: np.ndarray
    values: Mapping[str, np.ndarray]
    validation_steps: np.ndarray
    validation: Mapping[str, np.ndarray]
    name: str = ""
    unit: str = "updates"

    def smoothed(self, values: np.ndarray) -> np.ndarray:
        """Values as they are drawn: those of updates as exponential averages over about a twentieth of the run.

        They have no bias towards 0, and are NaN for missing values.
        """
        if self.unit != "updates":
            return values
        decay = 1 - min(0.3, 20 / len(values))
        averages, total, weight = np.full(len(values), np.nan), 0.0, 0.0
        for i in np.flatnonzero(np.isfinite(values)):
            total, weight = decay * total + values[i], decay * weight + 1
            averages[i] = total / weight
        return averages


def read(path: str | os.PathLike[str]) -> Run:
    """Reads a ledger.

    Args:
        path: The file that `callbacks.UpdateLogger` has written.

    Raises:
        ValueError: The file is no ledger, or has no updates.
    """
    found = read_ledger(path)
    updates, epochs = ([line for line in found if ("applied" in line) == is_update] for is_update in (True, False))
    updates = [line for line in updates if line["applied"]]
    if not updates:
        raise ValueError(
            f"`path` must be a ledger with at least one applied update. Received: {os.fspath(path)!r}, with none. Train "
            "further, or pass another file."
        )
    names = dict.fromkeys(name for line in updates for name in line)  # heads may have been added and dropped
    heads = tuple(name.removesuffix(_LOSS) for name in names if name.endswith(_LOSS))
    return Run(
        heads,
        np.array([line["step"] for line in updates]),
        _columns(updates),
        np.array([line["step"] for line in epochs]),
        _columns(epochs),
        Path(path).stem,
    )


def _of_history(history: Callback) -> Run:
    """The run of one call of `fit`, which has returned the history, by epoch."""
    known = {name: np.array(values, np.float64) for name, values in history.history.items()}
    of_training = {name: values for name, values in known.items() if not name.startswith("val_")}
    heads = tuple(name.removesuffix(_LOSS) for name in of_training if name.endswith(_LOSS))
    if not heads:
        raise ValueError(
            "`run` must be the history of a `fit` with the losses of heads. Received: a history of "
            f"{', '.join(known) or 'no epoch'}. Pass what `MultiHeadTrainer.fit` has returned."
        )
    steps = np.array(history.epoch) + 1
    validation = {name: values for name, values in known.items() if name.startswith("val_")}
    steps_of = {len(values): steps[-len(values) :] for values in validation.values()}
    return Run(heads, steps, of_training, next(iter(steps_of.values()), steps[:0]), validation, "history", "epochs")


def read_ledger(path: str | os.PathLike[str]) -> list[Config]:
    """The lines of a ledger. A last line that a crash has cut off is left out."""
    hint = "Pass a file of `callbacks.UpdateLogger`."
    return read_lines(path, "a ledger, with a JSON object per line", lambda line, number: "step" in line, hint)


def read_lines(path: str | os.PathLike[str], kind: str, is_valid: Callable[[Config, int], bool], hint: str) -> list[Config]:
    """The lines of a file of JSON objects; `kind` says of what, and `is_valid` whether a line with its number is one.

    A last line without a line break, which a crash has cut off, is left out.
    """
    if not os.path.exists(path):
        folder = Path(path).parent
        near = nearest(Path(path).name, [file.name for file in folder.iterdir()] if folder.is_dir() else [])
        hint = f"Did you mean {str(folder / near)!r}?" if near else hint
        raise FileNotFoundError(f"`path` must be a file. Received: {os.fspath(path)!r}, which does not exist. {hint}")
    texts, found = Path(path).read_text(encoding="utf-8").split("\n"), []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text) if text else None
        except ValueError:
            line = None
        if isinstance(line, dict) and is_valid(line, number):
            found.append(line)
        elif text and number < len(texts):
            raise ValueError(
                f"`path` must be the file of {kind}. Received: {os.fspath(path)!r}, whose line {number} is {text[:60]!r}. "
                f"{hint}"
            )
    return found


def runs_of(run: Given) -> list[Run]:
    """The runs of what a plot is given: one or several, each with a unique name."""
    given = list(run) if isinstance(run, (list, tuple)) else [run]
    found = []
    for each in given:
        if isinstance(each, (str, os.PathLike)):
            found.append(read(each))
        elif isinstance(each, Run) or (hasattr(each, "history") and hasattr(each, "epoch")):
            found.append(each if isinstance(each, Run) else _of_history(each))
        else:
            raise TypeError(
                "`run` must be the file of a ledger, what `plots.read` returns, Keras's `History`, or a list of these. "
                f"Received: {each!r}. Pass what `fit` has returned."
            )
    if not found:
        raise ValueError("`run` must be at least one run. Received: an empty list. Pass the file of a ledger.")
    names = [each.name or "run" for each in found]
    numbered = (f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names))
    return [replace(each, name=name) for each, name in zip(found, numbered)]


def _columns(found: Sequence[Config]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for line in found for name in line)
    names = {name: None for name in names if name not in ("step", "epoch", "applied")}
    return {name: np.array([line.get(name) for line in found], np.float64) for name in names}


def _mean(values: Sequence[float]) -> float:
    known = np.isfinite(values)
    return float(np.mean(np.asarray(values)[known])) if known.any() else float("nan")


def of_heads(run: Run, name: str) -> dict[str, np.ndarray]:
    """A statistic as it is drawn, by head; empty if no head has it."""
    if not any(f"{head}_{name}" in run.values for head in run.heads):
        return {}
    nothing = np.full(len(run.steps), np.nan)
    return {head: run.smoothed(run.values.get(f"{head}_{name}", nothing)) for head in run.heads}


def cosines(run: Run) -> tuple[list[str], np.ndarray]:
    """The names of the rows of the matrix of mean cosines, and the matrix; nothing if no cosine is known."""
    means = {name: _mean(list(values)) for name, values in run.values.items()}
    return cosine_matrix({name: value for name, value in means.items() if np.isfinite(value)}, run.heads)


def draw_losses(axis: Axis, run: Run) -> None:
    """Each head's loss relative to that at the start."""
    by_head, texts, dots = {}, {}, []
    for k, head in enumerate(run.heads):
        values = run.values[f"{head}_loss"]
        known = values[np.isfinite(values)]
        first = float(np.mean(known[: 1 + len(known) // 50])) if len(known) else 1.0
        start = first if first > 0 else 1.0
        by_head[head] = run.smoothed(values) / start
        texts[head] = f"{head}: {_share(_last(by_head[head]))} of {plain(start)}"
        if f"val_{head}_loss" in run.validation:
            dots.append((run.validation[f"val_{head}_loss"] / start, colour(k)))
    if (_known(by_head) > 0).all():
        axis.set_yscale("log")
    for values, of_head in dots:
        axis.plot(run.validation_steps, values, "o", color=of_head, ms=4, mfc="white")
    lines(axis, run.steps, by_head, texts)
    axis.axhline(1, color=GREY, lw=0.8, ls=":")
    _ticks(axis, _share)
    detail = "relative to its start; circles are validation" if dots else "relative to its start"
    title(axis, "How far each head's loss has fallen", detail)


_TITLES = {
    "norm": ("How large each head's gradient is", "norm where the heads are combined, weighted, before balancing"),
    "weight": ("How much each loss counts", "its weight in the total loss"),
    "coefficient": ("What the balancer does", "the factor of each head's gradient; 1 changes nothing"),
}


def draw_values(axis: Axis, run: Run, name: str) -> None:
    """A statistic of each head: its norm, weight or coefficient; norms, and values far apart, on a logarithmic scale."""
    by_head = of_heads(run, name)
    texts, drawn = {head: f"{head}: {plain(_last(values))}" for head, values in by_head.items()}, _known(by_head)
    if name == "norm" or (len(drawn) and drawn.min() > 0 and drawn.max() > _WIDE * drawn.min()):
        axis.set_yscale("log")
        _ticks(axis, plain)
        by_head = {head: np.where(values > 0, values, np.nan) for head, values in by_head.items()}
    lines(axis, run.steps, by_head, texts)
    if name == "coefficient":
        axis.axhline(1, color=GREY, lw=0.8, ls=":")
    title(axis, *_TITLES[name])


def draw_shares(axis: Axis, run: Run) -> None:
    """Each head's share of the encoder's gradient, as a stack of areas."""
    values = np.array([np.nan_to_num(each) for each in of_heads(run, "share").values()])
    values = values / np.where(values.sum(axis=0) > 0, values.sum(axis=0), 1.0)
    colours, ends = [colour(k) for k in range(len(run.heads))], values[:, -1]
    axis.stackplot(run.steps, values, colors=colours, edgecolor="white", lw=1, alpha=0.85)
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    open_axis(axis)
    _ticks(axis, _share)
    texts = [f"{head}: {_share(end)}" for head, end in zip(run.heads, ends)]
    label_ends(axis, list(zip(np.cumsum(ends) - ends / 2, texts, colours)))
    title(axis, "Who moves the encoder", "share of each head in the sum of the gradients' norms, after balancing")


def draw_cosines(axis: Axis, run: Run) -> None:
    """The mean cosines between heads."""
    heat_map(axis, "", *cosines(run))
    title(axis, "Which heads agree", "mean cosine of gradients: +1 the same, −1 opposed")


def _known(by_head: Mapping[str, np.ndarray]) -> np.ndarray:
    """All finite values."""
    return np.concatenate([values[np.isfinite(values)] for values in by_head.values()] or [np.zeros(0)])


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 or value == 0 else f"{value:.1%}" if value >= 0.001 else f"{value:.2%}"


def _ticks(axis: Axis, text: Callable[[float], str]) -> None:
    """Labels of the vertical axis; on a logarithmic one at 1, 2 and 5 times the powers of ten."""
    if axis.get_yscale() == "log":
        ticker = needed("matplotlib.ticker", "plots", "`plots`")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter(lambda value, place: text(value))
