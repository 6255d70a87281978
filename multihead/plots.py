"""Plots of a run, of a model and of a comparison. They need matplotlib: `pip install 'multihead[plots]'`.

`python -m multihead plot run.jsonl` draws all plots of the file of a `callbacks.UpdateLogger`. Each function draws one, and
returns a `matplotlib.figure.Figure`: `figure.savefig("losses.png")`. A run is the file of a ledger, what `read` returns, or
what `fit` has returned, Keras's `History`, which is drawn by epoch. Of a list of runs, one is drawn below the other. `front`
draws a comparison of several runs (`multihead.compare`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from multihead._display import drawing
from multihead._display.runs import Run, read, runs_of
from multihead._display.trainer import draw_model
from multihead._ground.types import Axis, Callback, Comparison, Figure, Trainer

__all__ = ["Run", "all_of", "cosines", "front", "losses", "model", "norms", "read", "shares", "weights"]

OneRun = Run | str | os.PathLike[str] | Callback
"""A run: from `read`, the file of a ledger, or Keras's `History`."""

_TITLES = {
    "loss": ("How far each head's loss has fallen", "relative to its start; circles are validation"),
    "norm": ("How large each head's gradient is", "norm where the heads are combined, weighted, before balancing"),
    "share": ("Who moves the encoder", "share of each head in the sum of the gradients' norms, after balancing"),
    "weight": ("How much each loss counts", "its weight in the total loss"),
    "coefficient": ("What the balancer does", "the factor of each head's gradient; 1 changes nothing"),
    "cosine": ("Which heads agree", "mean cosine of gradients: +1 the same, −1 opposed"),
}


def losses(run: OneRun | Sequence[OneRun]) -> Figure:
    """How far the heads' losses have fallen: the losses relative to those at the start, on validation data if there are any.

    Relative, so that heads with losses in different units can be compared.

    Args:
        run: A run, or a list of runs.
    """
    return _draw(run, ["loss"], _draw_lines, "losses", "Pass another run.")


def norms(run: OneRun | Sequence[OneRun]) -> Figure:
    """The norms of the heads' gradients where the heads are combined.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no norms.
    """
    return _draw(run, ["norm"], _draw_lines, "norms", 'Train with `compile(telemetry="norms")`.')


def shares(run: OneRun | Sequence[OneRun]) -> Figure:
    """The heads' shares of the encoder's gradient, after balancing, as a stack of areas.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no shares.
    """
    return _draw(run, ["share"], _draw_shares, "shares", 'Train with `compile(telemetry="norms")`.')


def weights(run: OneRun | Sequence[OneRun]) -> Figure:
    """The weights of the losses and the coefficients of the balancer, as far as recorded.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: Weights are constant, and there is no balancer.
    """
    what = "weights that change, or coefficients of a balancer"
    return _draw(run, ["weight", "coefficient"], _draw_lines, what, "Draw another plot.")


def cosines(run: OneRun | Sequence[OneRun]) -> Figure:
    """The mean cosines of the heads' gradients with one another and with the update, as a heat map.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: The run has no cosines.
    """
    return _draw(run, ["cosine"], _draw_cosines, "cosines", 'Train two heads or more with `compile(telemetry="full")`.')


def _draw(run: object, names: Sequence[str], draw: Callable[[Axis, Run, str], None], what: str, remedy: str) -> Figure:
    """Draws the statistics that the runs have, on separate axes, with the run's name if there are several."""
    runs = runs_of(run)
    rows = [(one_run, name) for one_run in runs for name in names if any(key.endswith(f"_{name}") for key in one_run.values)]
    if not rows:
        raise ValueError(f"`run` must have {what}. Received: a run without. {remedy}")
    figure, axes = drawing.new_figure("`plots`", len(rows), 1, (6.2, 4.0 * len(rows)))
    for axis, (one_run, name) in zip(axes[:, 0], rows):
        draw(axis, one_run, name)
        message, detail = _TITLES[name]
        drawing.title(axis, message if len(runs) == 1 else f"{one_run.name}: {message}", detail)
    return figure


def _draw_lines(axis: Axis, run: Run, name: str) -> None:
    """A line per head, on a logarithmic axis if all values are above 0 and they are far apart."""
    for k, head in enumerate(run.heads):
        values = run.values.get(f"{head}_{name}", np.full(len(run.steps), np.nan))
        known, start = np.isfinite(values), 1.0
        if not known.any():
            continue
        if name == "loss":
            first = float(np.mean(values[known][: 1 + known.sum() // 50]))
            start = first if first > 0 else 1.0
        shown = run.smoothed(values)[known] / start
        end = f"{_percent(shown[-1])} of {drawing.plain(start)}" if name == "loss" else drawing.plain(shown[-1])
        style = drawing.DASHES[k // len(drawing.COLOURS) % len(drawing.DASHES)]
        axis.plot(run.steps[known], shown, color=drawing.colour(k), ls=style, lw=2, label=f"{head}: {end}")
        if name == "loss" and f"val_{head}_loss" in run.validation:
            validation = run.validation[f"val_{head}_loss"] / start
            axis.plot(run.validation_steps, validation, "o", color=drawing.colour(k), ms=4, mfc="white")
    low, high = axis.dataLim.intervaly
    is_wide, text = low > 0 and high > 10 * low, _percent if name == "loss" else drawing.plain
    if is_wide:
        axis.set_yscale("log", subs=(2, 5))
        axis.yaxis.set_minor_formatter(lambda value, place: text(value))
    if is_wide or name == "loss":
        axis.yaxis.set_major_formatter(lambda value, place: text(value))
    if name in ("loss", "coefficient"):
        axis.axhline(1, color=drawing.GREY, lw=0.8, ls=":")
    axis.set_xlabel(run.unit, color=drawing.GREY)
    drawing.open_axis(axis)
    drawing.legend(axis)


def _draw_shares(axis: Axis, run: Run, name: str) -> None:
    nothing = np.full(len(run.steps), np.nan)
    values = np.array([np.nan_to_num(run.smoothed(run.values.get(f"{head}_share", nothing))) for head in run.heads])
    values = values / np.where(values.sum(axis=0) > 0, values.sum(axis=0), 1.0)
    colours = [drawing.colour(k) for k in range(len(run.heads))]
    texts = [f"{head}: {_percent(value)}" for head, value in zip(run.heads, values[:, -1])]
    axis.stackplot(run.steps, values, colors=colours, labels=texts, edgecolor="white", lw=1, alpha=0.85)
    axis.margins(0)
    axis.yaxis.set_major_formatter(lambda value, place: _percent(value))
    axis.set_xlabel(run.unit, color=drawing.GREY)
    drawing.open_axis(axis)
    drawing.legend(axis, reverse=True)


def _draw_cosines(axis: Axis, run: Run, name: str) -> None:
    known = {key: values[np.isfinite(values)] for key, values in run.values.items()}
    means = {key: float(np.mean(values)) for key, values in known.items() if len(values)}
    drawing.heat_map(axis, "", *drawing.cosine_matrix(means, run.heads))
    axis.set_box_aspect(1)


def _percent(value: float) -> str:
    return f"{drawing.plain(100 * value)}%"


def front(comparison: Comparison) -> Figure:
    """What the heads gain and pay in the variants of a comparison.

    With two heads, each has an axis, on which better is further out: variants with fixed weights are joined by a line, in
    the order of `variants`; other rules are single points, and the single-task models are the star whose dotted lines are
    the corner to reach. Variants at equal cost are hollow, and an arrow leads to them from the same variant in as many
    updates. Bars are standard deviations over seeds. With more heads, a variant is a line over the heads: its relative
    change against every head alone.

    Args:
        comparison: A `multihead.comparison.Comparison`: what `compare` has returned, or `multihead.comparison.read(file)`.

    Raises:
        TypeError: `comparison` is something else, such as a path.
        ValueError: It has no finished runs of a variant and of the single-task models.
    """
    if not hasattr(comparison, "points"):
        raise TypeError(
            f"`comparison` must be a `Comparison`. Received: comparison={comparison!r}. For the file of a comparison, pass "
            "`multihead.comparison.read(file)`."
        )
    figure: Figure = comparison.plot()
    return figure


def model(trainer: Trainer) -> Figure:
    """Draws a trainer: the encoder, its outputs, the heads with their losses, and where gradients are combined.

    Args:
        trainer: A `MultiHeadTrainer`; built, so that sizes are known.
    """
    return draw_model(trainer)


def all_of(run: OneRun | Sequence[OneRun], folder: str | os.PathLike[str] = ".") -> list[Path]:
    """Draws every plot that a run has values for, as `{name}.png` in a folder.

    Args:
        run: A run, or a list of runs.
        folder: The folder; it is created.

    Returns:
        The files.

    Raises:
        ValueError: A file in the folder has the name of a plot, and is none of this library.
    """
    runs, folder = runs_of(run), Path(folder)
    figures = {}
    for plot in (losses, norms, shares, weights, cosines):
        with suppress(ValueError):  # the runs do not have these values
            figures[folder / f"{plot.__name__}.png"] = plot(runs)
    drawing.check_own("folder", list(figures))
    folder.mkdir(parents=True, exist_ok=True)
    for file, figure in figures.items():
        drawing.save(figure, file)
    return list(figures)
