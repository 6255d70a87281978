"""Pictures of a run and of a model. They need matplotlib: `pip install 'multihead[plots]'`.

`python -m multihead plot run.jsonl` draws all pictures of a ledger (`callbacks.Ledger`). Each function below draws one, from
the file's name or what `read` returns, and returns a `matplotlib.figure.Figure`: `figure.savefig("losses.png")`.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from multihead._display.drawing import GREY, colour, heat_map, label_ends, lines, new_figure, open_axis, title
from multihead._display.extras import needed
from multihead._display.model import draw_model
from multihead._display.tables import plain
from multihead._ground.names import names_arguments
from multihead.callbacks import _ledger
from multihead.callbacks._board import cosines as matrix_of

__all__ = ["Run", "all_of", "cosines", "layers", "losses", "model", "norms", "read", "shares", "weights"]


@dataclass(frozen=True)
class Run:
    """A run, from its ledger.

    Attributes:
        heads: The heads' names, including heads that were added or dropped during the run.
        steps: `[lines]`: the number of updates after each line's.
        figures: By name, `[lines]` values; NaN where an update does not have one.
        layers: By encoder layer and by name, the mean over the updates that measured it.
        validation_steps: `[epochs]`: the number of updates after each epoch with validation.
        validation: By name (`val_...`), `[epochs]` values.
    """

    heads: tuple[str, ...]
    steps: np.ndarray
    figures: Mapping[str, np.ndarray]
    layers: Mapping[str, Mapping[str, float]]
    validation_steps: np.ndarray
    validation: Mapping[str, np.ndarray]


@names_arguments
def read(path: str | os.PathLike[str]) -> Run:
    """Reads a ledger.

    Args:
        path: The file that `callbacks.Ledger` has written.

    Raises:
        ValueError: The file is no ledger, or has no updates.
    """
    found = _ledger.read(path)
    updates, epochs = ([line for line in found if ("applied" in line) == is_update] for is_update in (True, False))
    updates = [line for line in updates if line["applied"]]
    if not updates:
        raise ValueError(
            f"`path` must be a ledger with at least one applied update. Received: {os.fspath(path)!r}, with none. Train "
            "further, or pass another file."
        )
    suffix = "_loss"
    names = dict.fromkeys(name for line in updates for name in line)  # heads may have been added and dropped
    heads = tuple(name.removesuffix(suffix) for name in names if name.endswith(suffix))
    by_layer: dict[str, dict[str, list[float]]] = {}
    for line in updates:
        for layer, figures in line.get("layers", {}).items():
            for name, value in figures.items():
                by_layer.setdefault(layer, {}).setdefault(name, []).append(np.nan if value is None else value)
    return Run(
        heads,
        np.array([line["step"] for line in updates]),
        _columns(updates),
        {layer: {name: _mean(values) for name, values in figures.items()} for layer, figures in by_layer.items()},
        np.array([line["step"] for line in epochs]),
        _columns(epochs),
    )


def _columns(found: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for line in found for name in line)
    names = {name: None for name in names if name not in ("step", "epoch", "applied", "layers")}
    return {name: np.array([line.get(name) for line in found], np.float64) for name in names}


def _mean(values: Sequence[float]) -> float:
    known = np.isfinite(values)
    return float(np.mean(np.asarray(values)[known])) if known.any() else float("nan")


def _run(run: Run | str | os.PathLike[str]) -> Run:
    return run if isinstance(run, Run) else read(run)


def smooth(values: np.ndarray) -> np.ndarray:
    """An exponential average over about a twentieth of the run, without bias towards 0; NaN for missing values."""
    decay = 1 - min(0.3, 20 / len(values))
    averages, total, weight = np.full(len(values), np.nan), 0.0, 0.0
    for i in np.flatnonzero(np.isfinite(values)):
        total, weight = decay * total + values[i], decay * weight + 1
        averages[i] = total / weight
    return averages


def _of_heads(run: Run, figure: str) -> dict[str, np.ndarray]:
    """The values of a figure by head, in the order of the heads."""
    return {head: run.figures.get(f"{head}_{figure}", np.full(len(run.steps), np.nan)) for head in run.heads}


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _over_updates(what: str, run: Run | str | os.PathLike[str]) -> tuple[Run, Any, Any]:
    """A run, and a figure with one axis over its updates."""
    run = _run(run)
    figure, axes = new_figure(f"`plots.{what}`", 1, 1, (8, 4.5))
    axes[0, 0].set_xlabel("updates", color=GREY)
    return run, figure, axes[0, 0]


@names_arguments
def losses(run: Run | str | os.PathLike[str]) -> Any:
    """How far each head's loss has fallen: its loss relative to that at the start, on validation data if there are any.

    Relative, so that heads with losses in different units can be compared.
    """
    run, figure, axis = _over_updates("losses", run)
    by_head, texts, dots = {}, {}, []
    for k, (head, values) in enumerate(_of_heads(run, "loss").items()):
        smoothed, known = smooth(values), values[np.isfinite(values)]
        first = float(np.mean(known[: 1 + len(known) // 50])) if len(known) else 1.0
        start = first if first > 0 else 1.0
        by_head[head] = smoothed / start
        texts[head] = f"{head}: {_share(_last(by_head[head]))} of {plain(start)}"
        validation = run.validation.get(f"val_{head}_loss")
        if validation is not None:
            dots.append((validation / start, colour(k)))
    positive = np.concatenate([values[np.isfinite(values)] for values in by_head.values()])
    if (positive > 0).all():
        axis.set_yscale("log")
    for values, of_head in dots:
        axis.plot(run.validation_steps, values, "o", color=of_head, ms=4, mfc="white")
    lines(axis, run.steps, by_head, texts)
    axis.axhline(1, color=GREY, lw=0.8, ls=":")
    _ticks(axis, _share)
    title(axis, "How far each head's loss has fallen", "relative to its start; circles are validation" if dots else
          "relative to its start")  # fmt: skip
    return figure


@names_arguments
def norms(run: Run | str | os.PathLike[str]) -> Any:
    """The norm of each head's gradient where the heads are combined, on a logarithmic scale."""
    run, figure, axis = _over_updates("norms", run)
    by_head = {head: smooth(values) for head, values in _of_heads(run, "norm").items()}
    axis.set_yscale("log")
    positive = {head: np.where(values > 0, values, np.nan) for head, values in by_head.items()}
    lines(axis, run.steps, positive, {head: f"{head}: {plain(_last(values))}" for head, values in by_head.items()})
    _ticks(axis, plain)
    title(axis, "How large each head's gradient is", "norm where the heads are combined, weighted, before balancing")
    return figure


@names_arguments
def shares(run: Run | str | os.PathLike[str]) -> Any:
    """Each head's share of the encoder's gradient, after balancing, as a stack of areas."""
    run, figure, axis = _over_updates("shares", run)
    values = np.array([np.nan_to_num(smooth(each)) for each in _of_heads(run, "share").values()])
    values = values / np.where(values.sum(axis=0) > 0, values.sum(axis=0), 1.0)
    colours = [colour(k) for k in range(len(run.heads))]
    axis.stackplot(run.steps, values, colors=colours, edgecolor="white", lw=1, alpha=0.85)
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    open_axis(axis)
    _ticks(axis, _share)
    ends = values[:, -1]
    middles = np.cumsum(ends) - ends / 2
    label_ends(
        axis, [(y, f"{head}: {_share(end)}", colours[k]) for k, (y, head, end) in enumerate(zip(middles, run.heads, ends))]
    )
    title(axis, "Who moves the encoder", "share of each head in the sum of the gradients' norms, after balancing")
    return figure


@names_arguments
def weights(run: Run | str | os.PathLike[str]) -> Any:
    """The weights of the losses and the coefficients of the balancer, as far as recorded.

    Raises:
        ValueError: Weights are constant, and there is no balancer.
    """
    run = _run(run)
    named = [
        ("weight", "How much each loss counts", "its weight in the total loss"),
        ("coefficient", "What the balancer does", "the factor of each head's gradient; 1 changes nothing"),
    ]
    shown = [each for each in named if any(f"{head}_{each[0]}" in run.figures for head in run.heads)]
    if not shown:
        raise ValueError(
            "`run` must have weights that change, or coefficients of a balancer. Received: a run with neither. Draw another "
            "picture."
        )
    figure, axes = new_figure("`plots.weights`", len(shown), 1, (8, 4 * len(shown)))
    for axis, (name, message, detail) in zip(axes[:, 0], shown):
        by_head = {head: smooth(values) for head, values in _of_heads(run, name).items()}
        drawn = np.concatenate([values[np.isfinite(values)] for values in by_head.values()])
        if len(drawn) and drawn.min() > 0 and drawn.max() > _WIDE * drawn.min():
            axis.set_yscale("log")
            _ticks(axis, plain)
        lines(axis, run.steps, by_head, {head: f"{head}: {plain(_last(values))}" for head, values in by_head.items()})
        if name == "coefficient":
            axis.axhline(1, color=GREY, lw=0.8, ls=":")
        title(axis, message, detail)
        axis.set_xlabel("updates", color=GREY)
    return figure


@names_arguments
def cosines(run: Run | str | os.PathLike[str]) -> Any:
    """The mean cosines between the heads' gradients, and of each with the update, as a heat map.

    Raises:
        ValueError: The run has no cosines.
    """
    run = _run(run)
    means = {name: _mean(list(values)) for name, values in run.figures.items()}
    names, values = matrix_of({name: value for name, value in means.items() if np.isfinite(value)}, run.heads)
    if not names:
        raise ValueError(
            '`run` must have cosines. Received: a run without. Train two heads or more with `compile(telemetry="full")`.'
        )
    size = 1.6 + 0.8 * len(names)
    figure, axes = new_figure("`plots.cosines`", 1, 1, (max(size, 4.6), size))
    heat_map(axes[0, 0], "", names, values)
    title(axes[0, 0], "Which heads agree", "mean cosine of gradients: +1 the same, −1 opposed")
    return figure


@names_arguments
def layers(run: Run | str | os.PathLike[str]) -> Any:
    """The mean cosines between the heads' gradients in each layer of the encoder, from its input to its output.

    Of more than six pairs, those are drawn that are most opposed somewhere.

    Raises:
        ValueError: The run has no figures by layer.
    """
    run = _run(run)
    found = {
        f"{one} and {other}": np.array([figures.get(f"{one}_{other}_cosine", np.nan) for figures in run.layers.values()])
        for one, other in itertools.combinations(run.heads, 2)
    }
    pairs = sorted((pair for pair in found if np.isfinite(found[pair]).any()), key=lambda pair: np.nanmin(found[pair]))[:6]
    if not pairs:
        raise ValueError(
            "`run` must have cosines by layer. Received: a run without. Train with "
            '`compile(telemetry="full", layers_every=...)` for at least `layers_every` updates.'
        )
    pairs.sort(key=list(found).index)
    size = (max(2.5 + 1.3 * len(pairs), 6.0), 1.5 + 0.34 * len(run.layers))
    figure, axes = new_figure("`plots.layers`", 1, 1, size)
    heat_map(axes[0, 0], "", list(run.layers), np.array([found[pair] for pair in pairs]).T, pairs)
    title(axes[0, 0], "Where in the encoder heads agree", "mean cosine of gradients in each layer, input at the top")
    return figure


@names_arguments
def model(trainer: Any) -> Any:
    """Draws a trainer: the encoder, its outputs, the heads with their losses, and where gradients are combined.

    Args:
        trainer: A `MultiHeadTrainer`; built, so that sizes are known.
    """
    return draw_model(trainer)


_WIDE = 20.0
"""Positive values whose ratio is larger are drawn on a logarithmic scale."""

_PICTURES: tuple[Callable[[Any], Any], ...] = (losses, norms, shares, weights, cosines, layers)


@names_arguments
def all_of(run: Run | str | os.PathLike[str], folder: str | os.PathLike[str] = ".") -> list[Path]:
    """Draws every picture that a run has figures for, as `{name}.png` in a folder.

    Args:
        run: The file of a ledger, or what `read` returns.
        folder: The folder; it is created.

    Returns:
        The files.
    """
    run, folder = _run(run), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for picture in _PICTURES:
        try:
            figure = picture(run)
        except ValueError:  # the run does not have these figures
            continue
        files.append(folder / f"{picture.__name__}.png")
        figure.savefig(files[-1], dpi=150)
    return files


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 or value == 0 else f"{value:.1%}" if value >= 0.001 else f"{value:.2%}"


def _ticks(axis: Any, text: Callable[[float], str]) -> None:
    """Labels of the vertical axis; on a logarithmic one at 1, 2 and 5 times the powers of ten."""
    if axis.get_yscale() == "log":
        ticker = needed("matplotlib.ticker", "plots", "`plots`")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter(lambda value, place: text(value))
