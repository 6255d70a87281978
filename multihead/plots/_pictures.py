"""The pictures, each of one run or of several below each other."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multihead._display.drawing import GREY, colour, heat_map, label_ends, lines, new_figure, open_axis, title
from multihead._display.extras import needed
from multihead._display.model import draw_model
from multihead._display.tables import plain
from multihead.callbacks._board import cosines as matrix_of
from multihead.comparison import Comparison
from multihead.comparison import read as read_comparison
from multihead.plots._run import Run, mean, runs_of

_WIDE = 20.0
"""Positive values whose ratio is larger are drawn on a logarithmic scale."""

OneRun = Run | str | os.PathLike[str] | Any
"""A run: from `read`, the file of a ledger, or Keras's `History`."""


def _of_heads(run: Run, name: str) -> dict[str, np.ndarray]:
    """The values of a statistic by head, in the order of the heads."""
    return {head: run.values.get(f"{head}_{name}", np.full(len(run.steps), np.nan)) for head in run.heads}


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else float("nan")


def _draw(
    what: str, runs: Sequence[Run], panels: Sequence[Callable[[Any, Run], None]], size: tuple[float, float], *, over: bool
) -> Any:
    """Draws panels of each run, one below the other, with the run's name if there are several.

    Args:
        what: The name of the picture.
        runs: The runs.
        panels: What draws one run on an axis.
        size: Width and height of a panel.
        over: Whether the panels have the updates on their horizontal axis.
    """
    rows = [(run, panel) for run in runs for panel in panels]
    figure, axes = new_figure(f"`plots.{what}`", len(rows), 1, (size[0], size[1] * len(rows)))
    for axis, (run, panel) in zip(axes[:, 0], rows):
        if over:
            axis.set_xlabel(run.unit, color=GREY)
        panel(axis, run)
        if len(runs) > 1:
            axis.set_title(f"{run.name}: {axis.get_title(loc='left')}", loc="left", fontsize=12, fontweight="bold", pad=24)
    return figure


def _require(runs: Sequence[Run], has: Callable[[Run], bool], rule: str, remedy: str) -> list[Run]:
    """The runs that have what a picture shows.

    Raises:
        ValueError: None has.
    """
    found = [run for run in runs if has(run)]
    if not found:
        raise ValueError(f"`run` must have {rule}. Received: a run without. {remedy}")
    return found


def losses(run: OneRun | Sequence[OneRun]) -> Any:
    """How far each head's loss has fallen: its loss relative to that at the start, on validation data if there are any.

    Relative, so that heads with losses in different units can be compared.

    Args:
        run: A run, or a list of runs.
    """
    return _draw("losses", runs_of(run), [_losses], (8, 4.5), over=True)


def _losses(axis: Any, run: Run) -> None:
    by_head, texts, dots = {}, {}, []
    for k, (head, values) in enumerate(_of_heads(run, "loss").items()):
        known = values[np.isfinite(values)]
        first = float(np.mean(known[: 1 + len(known) // 50])) if len(known) else 1.0
        start = first if first > 0 else 1.0
        by_head[head] = run.smoothed(values) / start
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
    _percent(axis)
    title(axis, "How far each head's loss has fallen", "relative to its start; circles are validation" if dots else
          "relative to its start")  # fmt: skip


def norms(run: OneRun | Sequence[OneRun]) -> Any:
    """The norm of each head's gradient where the heads are combined, on a logarithmic scale.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no norms.
    """
    found = _require_by_head(runs_of(run), "norm")
    return _draw("norms", found, [_norms], (8, 4.5), over=True)


def _has(run: Run, name: str) -> bool:
    return any(f"{head}_{name}" in run.values for head in run.heads)


def _require_by_head(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs that have a statistic of heads."""
    remedy = 'Train with `compile(telemetry="norms")`.'
    return _require(runs, lambda run: _has(run, name), f"{name}s", remedy)


def _norms(axis: Any, run: Run) -> None:
    by_head = {head: run.smoothed(values) for head, values in _of_heads(run, "norm").items()}
    axis.set_yscale("log")
    positive = {head: np.where(values > 0, values, np.nan) for head, values in by_head.items()}
    lines(axis, run.steps, positive, {head: f"{head}: {plain(_last(values))}" for head, values in by_head.items()})
    _ticks(axis, plain)
    title(axis, "How large each head's gradient is", "norm where the heads are combined, weighted, before balancing")


def shares(run: OneRun | Sequence[OneRun]) -> Any:
    """Each head's share of the encoder's gradient, after balancing, as a stack of areas.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no shares.
    """
    found = _require_by_head(runs_of(run), "share")
    return _draw("shares", found, [_shares], (8, 4.5), over=True)


def _shares(axis: Any, run: Run) -> None:
    values = np.array([np.nan_to_num(run.smoothed(each)) for each in _of_heads(run, "share").values()])
    values = values / np.where(values.sum(axis=0) > 0, values.sum(axis=0), 1.0)
    colours = [colour(k) for k in range(len(run.heads))]
    axis.stackplot(run.steps, values, colors=colours, edgecolor="white", lw=1, alpha=0.85)
    axis.set_ylim(0, 1)
    axis.margins(x=0)
    open_axis(axis)
    _percent(axis)
    ends = values[:, -1]
    middles = np.cumsum(ends) - ends / 2
    label_ends(
        axis, [(y, f"{head}: {_share(end)}", colours[k]) for k, (y, head, end) in enumerate(zip(middles, run.heads, ends))]
    )
    title(axis, "Who moves the encoder", "share of each head in the sum of the gradients' norms, after balancing")


def weights(run: OneRun | Sequence[OneRun]) -> Any:
    """The weights of the losses and the coefficients of the balancer, as far as recorded.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: Weights are constant, and there is no balancer.
    """
    panels = {"weight": _weights, "coefficient": _coefficients}
    found = _require(
        runs_of(run),
        lambda each: any(_has(each, name) for name in panels),
        "weights that change, or coefficients of a balancer",
        "Draw another picture.",
    )
    shown = [panel for name, panel in panels.items() if any(_has(each, name) for each in found)]
    return _draw("weights", found, shown, (8, 4), over=True)


def _weights(axis: Any, run: Run) -> None:
    _factors(axis, run, "weight")
    title(axis, "How much each loss counts", "its weight in the total loss")


def _coefficients(axis: Any, run: Run) -> None:
    _factors(axis, run, "coefficient")
    axis.axhline(1, color=GREY, lw=0.8, ls=":")
    title(axis, "What the balancer does", "the factor of each head's gradient; 1 changes nothing")


def _factors(axis: Any, run: Run, name: str) -> None:
    by_head = {head: run.smoothed(values) for head, values in _of_heads(run, name).items()}
    drawn = np.concatenate([values[np.isfinite(values)] for values in by_head.values()])
    if len(drawn) and drawn.min() > 0 and drawn.max() > _WIDE * drawn.min():
        axis.set_yscale("log")
        _ticks(axis, plain)
    lines(axis, run.steps, by_head, {head: f"{head}: {plain(_last(values))}" for head, values in by_head.items()})


def cosines(run: OneRun | Sequence[OneRun]) -> Any:
    """The mean cosines between the heads' gradients, and of each with the update, as a heat map.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: The run has no cosines.
    """
    remedy = 'Train two heads or more with `compile(telemetry="full")`.'
    found = _require(runs_of(run), lambda each: bool(_matrix(each)[0]), "cosines", remedy)
    size = 1.6 + 0.8 * max(len(_matrix(each)[0]) for each in found)
    return _draw("cosines", found, [_cosines], (max(size, 4.6), size), over=False)


def _matrix(run: Run) -> tuple[list[str], np.ndarray]:
    """The names of the rows of the matrix of mean cosines, and the matrix."""
    means = {name: mean(list(values)) for name, values in run.values.items()}
    return matrix_of({name: value for name, value in means.items() if np.isfinite(value)}, run.heads)


def _cosines(axis: Any, run: Run) -> None:
    heat_map(axis, "", *_matrix(run))
    title(axis, "Which heads agree", "mean cosine of gradients: +1 the same, −1 opposed")


def layers(run: OneRun | Sequence[OneRun]) -> Any:
    """The mean cosines between the heads' gradients in each layer of the encoder, from its input to its output.

    Of more than six pairs, those are drawn that are most opposed somewhere.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: The run has no values by layer, as an epoch has none.
    """
    remedy = 'Pass a ledger of `compile(telemetry="full", layers_every=...)`, with at least `layers_every` updates.'
    found = _require(runs_of(run), lambda each: bool(_by_layer(each)), "cosines by layer", remedy)
    pairs, depth = max(len(_by_layer(each)) for each in found), max(len(each.layers) for each in found)
    return _draw("layers", found, [_layers], (max(2.5 + 1.3 * pairs, 6.0), 1.5 + 0.34 * depth), over=False)


def _by_layer(run: Run) -> dict[str, np.ndarray]:
    """The mean cosines in each layer by pair of heads."""
    found = {
        f"{one} and {other}": np.array([values.get(f"{one}_{other}_cosine", np.nan) for values in run.layers.values()])
        for one, other in itertools.combinations(run.heads, 2)
    }
    pairs = sorted((pair for pair in found if np.isfinite(found[pair]).any()), key=lambda pair: np.nanmin(found[pair]))[:6]
    return {pair: found[pair] for pair in found if pair in pairs}


def _layers(axis: Any, run: Run) -> None:
    by_pair = _by_layer(run)
    heat_map(axis, "", list(run.layers), np.array(list(by_pair.values())).T, list(by_pair))
    title(axis, "Where in the encoder heads agree", "mean cosine of gradients in each layer, input at the top")


def front(comparison: Comparison | str | os.PathLike[str]) -> Any:
    """What each head gains and pays in the variants of a comparison.

    With two heads, each has an axis, on which better is further out: variants with fixed weights are joined by a line, in
    the order of `variants`; other rules are single points, and the single-task models are the star whose dotted lines are
    the corner to reach. Variants at equal cost are hollow, and an arrow leads to them from the same variant in as many
    updates. Bars are standard deviations over seeds. With more heads, each variant is a line over the heads: its relative
    change against each head alone.

    Args:
        comparison: What `multihead.compare` has returned, or its file.

    Raises:
        ValueError: The file is none of a comparison, or has no finished runs of a variant and of the single-task models.
    """
    found = comparison if isinstance(comparison, Comparison) else read_comparison(comparison)
    return found.plot()


def model(trainer: Any) -> Any:
    """Draws a trainer: the encoder, its outputs, the heads with their losses, and where gradients are combined.

    Args:
        trainer: A `MultiHeadTrainer`; built, so that sizes are known.
    """
    return draw_model(trainer)


_PICTURES: tuple[Callable[[Any], Any], ...] = (losses, norms, shares, weights, cosines, layers)


def all_of(run: OneRun | Sequence[OneRun], folder: str | os.PathLike[str] = ".") -> list[Path]:
    """Draws every picture that a run has values for, as `{name}.png` in a folder.

    Args:
        run: A run, or a list of runs.
        folder: The folder; it is created.

    Returns:
        The files.
    """
    runs, folder = runs_of(run), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for picture in _PICTURES:
        try:
            figure = picture(runs)
        except ValueError:  # the runs do not have these values
            continue
        files.append(folder / f"{picture.__name__}.png")
        figure.savefig(files[-1], dpi=150)
    return files


def _share(value: float) -> str:
    return f"{value:.0%}" if value >= 0.095 or value == 0 else f"{value:.1%}" if value >= 0.001 else f"{value:.2%}"


def _percent(axis: Any) -> None:
    _ticks(axis, _share)


def _ticks(axis: Any, text: Callable[[float], str]) -> None:
    """Labels of the vertical axis; on a logarithmic one at 1, 2 and 5 times the powers of ten."""
    if axis.get_yscale() == "log":
        ticker = needed("matplotlib.ticker", "plots", "`plots`")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_minor_locator(ticker.NullLocator())
    axis.yaxis.set_major_formatter(lambda value, place: text(value))
