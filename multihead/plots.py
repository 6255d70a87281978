"""Plots of a run, of a model and of a comparison. They need matplotlib: `pip install 'multihead[plots]'`.

`python -m multihead plot run.jsonl` draws all plots of the file of a `callbacks.UpdateLogger`. Each function draws one, and
returns a `matplotlib.figure.Figure`: `figure.savefig("losses.png")`. A run is the file of a ledger, what `read` returns, or
what `fit` has returned, Keras's `History`, which is drawn by epoch. Of a list of runs, one is drawn below the other. `front`
draws a comparison of several runs (`multihead.compare`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from multihead._display import runs
from multihead._display.drawing import GREY, new_figure
from multihead._display.runs import Run, read, runs_of
from multihead._display.trainer import draw_model
from multihead._ground.types import Axis, Callback, Figure, Given, Trainer

__all__ = ["Run", "all_of", "cosines", "front", "losses", "model", "norms", "read", "shares", "weights"]

OneRun = Run | str | os.PathLike[str] | Callback
"""A run: from `read`, the file of a ledger, or Keras's `History`."""


def _draw(
    found: Sequence[Run], what: str, panels: Sequence[Callable[[Axis, Run], None]], size: tuple[float, float]
) -> Figure:
    """Draws panels of each run, one of some size below the other, with the run's name if there are several."""
    rows = [(run, panel) for run in found for panel in panels]
    figure, axes = new_figure(f"`plots.{what}`", len(rows), 1, (size[0], size[1] * len(rows)))
    for axis, (run, panel) in zip(axes[:, 0], rows):
        if what != "cosines":
            axis.set_xlabel(run.unit, color=GREY)
        panel(axis, run)
        if len(found) > 1:
            axis.set_title(f"{run.name}: {axis.get_title(loc='left')}", loc="left", fontsize=12, fontweight="bold", pad=24)
    return figure


def _with(run: Given, has: Callable[[Run], object], rule: str, remedy: str) -> list[Run]:
    """The runs that have what a plot shows.

    Raises:
        ValueError: No run has it.
    """
    found = [each for each in runs_of(run) if has(each)]
    if not found:
        raise ValueError(f"`run` must have {rule}. Received: a run without. {remedy}")
    return found


def losses(run: OneRun | Sequence[OneRun]) -> Figure:
    """How far each head's loss has fallen: its loss relative to that at the start, on validation data if there are any.

    Relative, so that heads with losses in different units can be compared.

    Args:
        run: A run, or a list of runs.
    """
    return _draw(runs_of(run), "losses", [runs.draw_losses], (8, 4.5))


def norms(run: OneRun | Sequence[OneRun]) -> Figure:
    """The norm of each head's gradient where the heads are combined, on a logarithmic scale.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no norms.
    """
    found = _with(run, lambda each: runs.of_heads(each, "norm"), "norms", 'Train with `compile(telemetry="norms")`.')
    return _draw(found, "norms", [partial(runs.draw_values, name="norm")], (8, 4.5))


def shares(run: OneRun | Sequence[OneRun]) -> Figure:
    """Each head's share of the encoder's gradient, after balancing, as a stack of areas.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: There are no shares.
    """
    found = _with(run, lambda each: runs.of_heads(each, "share"), "shares", 'Train with `compile(telemetry="norms")`.')
    return _draw(found, "shares", [runs.draw_shares], (8, 4.5))


def weights(run: OneRun | Sequence[OneRun]) -> Figure:
    """The weights of the losses and the coefficients of the balancer, as far as recorded.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: Weights are constant, and there is no balancer.
    """
    names, rule = ("weight", "coefficient"), "weights that change, or coefficients of a balancer"
    found = _with(run, lambda each: any(runs.of_heads(each, name) for name in names), rule, "Draw another plot.")
    shown = [partial(runs.draw_values, name=name) for name in names if any(runs.of_heads(each, name) for each in found)]
    return _draw(found, "weights", shown, (8, 4))


def cosines(run: OneRun | Sequence[OneRun]) -> Figure:
    """The mean cosines between the heads' gradients, and of each with the update, as a heat map.

    Args:
        run: A run, or a list of runs.

    Raises:
        ValueError: The run has no cosines.
    """
    remedy = 'Train two heads or more with `compile(telemetry="full")`.'
    found = _with(run, lambda each: runs.cosines(each)[0], "cosines", remedy)
    size = 1.6 + 0.8 * max(len(runs.cosines(each)[0]) for each in found)
    return _draw(found, "cosines", [runs.draw_cosines], (max(size, 4.6), size))


def front(comparison: Given) -> Figure:
    """What each head gains and pays in the variants of a comparison.

    With two heads, each has an axis, on which better is further out: variants with fixed weights are joined by a line, in
    the order of `variants`; other rules are single points, and the single-task models are the star whose dotted lines are
    the corner to reach. Variants at equal cost are hollow, and an arrow leads to them from the same variant in as many
    updates. Bars are standard deviations over seeds. With more heads, each variant is a line over the heads: its relative
    change against each head alone.

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
    return comparison.plot()


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
    """
    found, folder = runs_of(run), Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for plot in (losses, norms, shares, weights, cosines):
        try:
            figure = plot(found)
        except ValueError:  # the runs do not have these values
            continue
        files.append(folder / f"{plot.__name__}.png")
        figure.savefig(files[-1], dpi=150)
    return files
