"""Which ways of combining the gradients of two losses reach the Pareto front from everywhere, and which get stuck?

`python -m examples.toy_landscape` runs every balancer on the landscape of two losses and two parameters from the CAGrad and
Nash-MTL papers, from the five starting points of the latter. It draws the paths and prints where they end.

The upper half of the landscape has a narrow valley for each loss; on the steep walls of a valley, the gradient of its loss
dominates the other. The lower half contains the Pareto front: the points from which no update decreases both losses.

Sources: Liu et al., Conflict-Averse Gradient Descent for Multi-Task Learning, NeurIPS 2021; Navon et al., Multi-Task
Learning as a Bargaining Game, ICML 2022, which multiplies the first loss by 0.1.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from examples import _style
from examples._command_line import Parser, fail, what_to_install, whole

STARTS = ((-8.5, 7.5), (-8.5, 5.0), (9.0, 9.0), (-7.5, -0.5), (9.0, -1.0))
# As far as the 100,000 updates of 0.001 in the CAGrad paper, in the 35,000 updates of the Nash-MTL paper.
STEPS, LEARNING_RATE, SCALE = 35000, 3e-3, 0.1
TOLERANCE = 0.1
RECORDS = 350  # points kept of a path
PROGRAM = "examples.toy_landscape"
REACHED, NOT_REACHED, FRONT = _style.GREEN, _style.RED, "gold"


def losses(points: Any, scale: float = SCALE) -> Any:
    """Both losses at the given points.

    Args:
        points: `[..., 2]`, a float tensor.
        scale: Factor of the first loss.

    Returns:
        `[..., 2]`.
    """
    import tensorflow as tf

    x, y = points[..., 0], points[..., 1]
    upper, lower = tf.maximum(tf.tanh(0.5 * y), 0.0), tf.maximum(tf.tanh(-0.5 * y), 0.0)
    valleys = (0.5 * (-x - 7.0) + tf.tanh(y), 0.5 * (-x + 3.0) - tf.tanh(y) + 2.0)
    both = [
        upper * (tf.math.log(tf.maximum(tf.abs(valley), 5e-6)) + 6.0)
        + lower * (((x - best) ** 2 + 0.1 * (y + 8.0) ** 2) / 10.0 - 20.0)
        for valley, best in zip(valleys, (7.0, -7.0))
    ]
    return tf.stack([scale * both[0], both[1]], axis=-1)


def losses_and_gradients(point: Any, scale: float = SCALE) -> tuple[Any, Any]:
    """Both losses `[2]` at a point `[2]`, and their gradients as the rows of a `[2, 2]` tensor."""
    import tensorflow as tf

    with tf.GradientTape(persistent=True) as tape:
        tape.watch(point)
        values = losses(point, scale)
        first, second = values[0], values[1]
    return values, tf.stack([tape.gradient(first, point), tape.gradient(second, point)])


def pareto_front(count: int = 1001) -> np.ndarray:
    """Points `[count, 2]` on the Pareto front, from the minimum of the second loss to that of the first.

    On the front the two gradients are parallel. With `lower(y)` and its slope written out, this is an equation in y for
    each x between the minima, which bisection solves. The factor of the first loss does not change the front.
    """
    x = np.linspace(-7.0, 7.0, count)

    def determinant(y: np.ndarray) -> np.ndarray:
        lower, slope = np.tanh(-0.5 * y), -0.5 / np.cosh(0.5 * y) ** 2
        rows = []
        for best in (7.0, -7.0):
            bowl = ((x - best) ** 2 + 0.1 * (y + 8.0) ** 2) / 10.0 - 20.0
            rows.append((lower * (x - best) / 5.0, slope * bowl + lower * (y + 8.0) / 50.0))
        return rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]

    low, high = np.full(count, -9.5), np.full(count, -8.0)
    is_positive = determinant(low) > 0
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = (determinant(middle) > 0) == is_positive
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    return np.stack([x, 0.5 * (low + high)], axis=1)


def distance_to_front(points: np.ndarray) -> np.ndarray:
    """Distances of points `[count, 2]` from the Pareto front, in parameter space."""
    return np.linalg.norm(np.asarray(points)[:, None] - pareto_front()[None], axis=2).min(axis=1)


def balancers() -> dict[str, Any]:
    """Every public balancer by name, with options where the defaults have no effect for two heads."""
    from multihead import balancing

    classes = {name: getattr(balancing, name) for name in balancing.__all__}
    options: dict[str, Callable[[], Any]] = {
        "Chain": lambda: balancing.Chain("EqualNorms", "UPGrad"),
        "NormBudget": lambda: balancing.NormBudget({"first": 0.5, "second": 0.5}),
    }
    found = {
        name: options.get(name, value)()
        for name, value in sorted(classes.items(), key=lambda pair: (pair[0] != "Sum", pair[0].lower()))
        if isinstance(value, type) and issubclass(value, balancing.Balancer) and value is not balancing.Balancer
    }
    for balancer in found.values():
        balancer.bind(["first", "second"])
    return found


def follow(
    balancer: Any,
    *,
    steps: int = STEPS,
    learning_rate: float = LEARNING_RATE,
    scale: float = SCALE,
    starts: Sequence[tuple[float, float]] = STARTS,
) -> Iterator[np.ndarray]:
    """Applies a balancer's updates with Adam, from one starting point after another.

    Args:
        balancer: The balancer; its state is reset for each starting point.
        steps: Updates per starting point.
        learning_rate: Adam's learning rate.
        scale: Factor of the first loss.
        starts: The starting points.

    Yields:
        `[points, 2]`: the path from a starting point, including it.
    """
    import tensorflow as tf

    records = min(steps, RECORDS)
    every = -(-steps // records)
    with tf.device("CPU:0"):  # updates this small are faster without an accelerator
        balancer.build((2, 2))

    @tf.function(jit_compile=True)  # tens of times faster for thousands of tiny updates
    def descend(start: Any) -> Any:
        def step(update: Any, point: Any, mean: Any, square: Any) -> tuple[Any, ...]:
            values, gradients = losses_and_gradients(point, scale)
            gradient = balancer(gradients, step=update, losses=values)
            update += 1
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            count = tf.cast(update, point.dtype)
            change = mean / (1.0 - 0.9**count) / (tf.sqrt(square / (1.0 - 0.999**count)) + 1e-8)
            return update, point - learning_rate * change, mean, square

        def leg(index: Any, path: Any, *state: Any) -> tuple[Any, ...]:
            end = tf.minimum(tf.cast((index + 1) * every, tf.int64), steps)
            state = tf.while_loop(lambda update, *_: update < end, step, state)
            return index + 1, tf.tensor_scatter_nd_update(path, [[index + 1]], state[1][None]), *state

        path = tf.tile(start[None], [records + 1, 1])
        zeros = tf.zeros_like(start)
        state = (tf.constant(0), path, tf.constant(0, tf.int64), start, zeros, zeros)
        return tf.while_loop(lambda index, *_: index < records, leg, state)[1]

    initial = balancer.get_weights()
    for start in starts:
        balancer.set_weights(initial)
        with tf.device("CPU:0"):
            path = descend(tf.constant(start, tf.float64)).numpy()
        yield path


class Row(NamedTuple):
    """The result of one balancer.

    Attributes:
        name: The balancer's name.
        paths: `[starts, points, 2]`.
        distances: `[starts]`, distances of the end points from the Pareto front.
        mean_loss: The mean of both losses over all end points.
    """

    name: str
    paths: np.ndarray
    distances: np.ndarray
    mean_loss: float

    @property
    def reached(self) -> int:
        """The number of paths that end on the front."""
        return int(np.sum(self.distances <= TOLERANCE))


def measure(name: str, paths: Sequence[np.ndarray], scale: float) -> Row:
    """Measures where a balancer's paths end."""
    stacked = np.stack(paths)
    ends = stacked[:, -1]
    return Row(name, stacked, distance_to_front(ends), float(np.mean(losses(ends, scale))))


@_style.styled
def draw(rows: Sequence[Row], path: Path, scale: float) -> None:
    """Draws one panel per balancer and saves the figure."""
    columns = min(5, len(rows))
    lines = -(-len(rows) // columns)
    figure, axes = _style.new_figure(lines, columns, 2.05 * lines + 0.6, sharex=True, sharey=True, squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    background = Background.of(scale)
    for axis, row in zip(axes.flat, rows):
        axis.set_visible(True)
        background.draw(axis, row)
        axis.set_title(f"{row.name}  {row.reached}/{len(row.paths)}", fontsize=11)
    figure.legend(handles=marks(), loc="outside lower center", ncols=min(4, 2 * columns), fontsize=10, frameon=False)
    figure.savefig(path)


@_style.styled
def draw_each(rows: Sequence[Row], folder: Path, scale: float) -> None:
    """Saves a figure of each balancer, under its name."""
    folder.mkdir(parents=True, exist_ok=True)
    background = Background.of(scale)
    for row in rows:
        figure, axis = _style.new_figure(1, 1, 3.9, width=3.6)
        background.draw(axis, row)
        axis.set_title(f"{row.reached} of {len(row.paths)} paths end on the front", fontsize=11)
        figure.savefig(folder / f"{row.name}.png")


class Background(NamedTuple):
    """What is the same in all panels: the mean loss on a grid, and the Pareto front.

    Attributes:
        side: `[points]`, the coordinates of the grid.
        height: `[points, points]`, the mean loss.
        front: `[points, 2]`.
    """

    side: np.ndarray
    height: np.ndarray
    front: np.ndarray

    @classmethod
    def of(cls, scale: float) -> Background:
        """That of a landscape with a factor of the first loss."""
        side = np.linspace(-10.5, 10.5, 211)
        grid = np.stack(np.meshgrid(side, side), axis=-1)
        return cls(side, losses(grid, scale).numpy().mean(axis=-1), pareto_front())

    def draw(self, axis: Any, row: Row) -> None:
        """Draws a balancer's paths on it."""
        axis.contourf(self.side, self.side, self.height, levels=24, cmap="Greys_r", alpha=0.55)
        options = {"colors": "black", "linewidths": 0.25, "alpha": 0.35, "linestyles": "solid"}
        axis.contour(self.side, self.side, self.height, levels=24, **options)
        axis.plot(*self.front.T, color=FRONT, lw=5, solid_capstyle="round", zorder=2)
        for points, distance in zip(row.paths, row.distances):
            color = REACHED if distance <= TOLERANCE else NOT_REACHED
            axis.plot(*points.T, color=color, lw=1.3, zorder=3)
            axis.plot(*points[0], "o", color="white", mec="black", mew=0.9, ms=4.5, zorder=4)
            axis.plot(*points[-1], "o", color=color, mec="black", mew=0.7, ms=6, zorder=5)
        axis.set(xlim=(-10.5, 10.5), ylim=(-10.5, 10.5), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_visible(False)


def marks() -> tuple[Any, ...]:
    """What the marks mean, for a legend below the panels."""
    from matplotlib.lines import Line2D

    return (
        Line2D([], [], marker="o", color="white", mec="black", ls="", label="start"),
        Line2D([], [], marker="o", color=REACHED, mec="black", label="ends on the Pareto front"),
        Line2D([], [], marker="o", color=NOT_REACHED, mec="black", label="ends elsewhere"),
        Line2D([], [], color=FRONT, lw=5, label="Pareto front"),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses the command line, runs all balancers, prints and draws the results; returns the exit status."""
    options = _parse(arguments)
    absent = what_to_install(("matplotlib", "rich"))
    if absent is not None:
        return fail(PROGRAM, absent)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    chosen = balancers()
    unknown = [name for name in options.balancers or () if name not in chosen]
    if unknown:
        return fail(PROGRAM, f"--balancers must be among {', '.join(chosen)}. Received: {', '.join(unknown)}.")
    if options.output.is_dir():
        return fail(PROGRAM, f"--output must be a writable file. Received: {str(options.output)!r}, a folder.")
    try:
        options.output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return fail(PROGRAM, f"--output must be a writable file. Received: {str(options.output)!r} ({error.strerror}).")
    chosen = {name: chosen[name] for name in options.balancers or chosen}
    console, rows = Console(), []
    bar = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*bar, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(chosen) * len(STARTS))
        for name, balancer in chosen.items():
            progress.update(task, description=name)
            paths = []
            for points in follow(balancer, steps=options.steps, learning_rate=options.learning_rate, scale=options.scale):
                paths.append(points)
                progress.advance(task)
            rows.append(measure(name, paths, options.scale))
    console.print(
        f"Results after {options.steps} updates with Adam from {len(STARTS)} starting points. A path ends on the Pareto "
        f"front if its last point is within {TOLERANCE:g} of it in parameter space; the figure shows an area of 21 by 21.",
        highlight=False,
    )
    table = Table()
    for column in ("balancer", "on the front", "largest distance", "mean loss"):
        table.add_column(column, justify="left" if column == "balancer" else "right")
    for row in sorted(rows, key=lambda row: -row.reached):
        table.add_row(row.name, f"{row.reached}/{len(STARTS)}", f"{row.distances.max():.2f}", f"{row.mean_loss:.2f}")
    console.print(table)
    draw(rows, options.output, options.scale)
    console.print(f"wrote {options.output}", soft_wrap=True, highlight=False)
    if options.each is not None:
        draw_each(rows, options.each, options.scale)
        console.print(f"wrote a figure of each balancer in {options.each}", soft_wrap=True, highlight=False)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("runs/toy_landscape.png"), metavar="FILE", help="the figure")
    parser.add_argument("--each", type=Path, metavar="DIR", help="folder for a figure of each balancer")
    parser.add_argument(
        "--steps", type=whole(1), default=STEPS, metavar="N", help="updates per starting point (default: %(default)s)"
    )
    parser.add_argument(
        "--learning-rate", type=_positive, default=LEARNING_RATE, metavar="RATE", help="of Adam (default: %(default)s)"
    )
    parser.add_argument(
        "--scale",
        type=_positive,
        default=SCALE,
        metavar="FACTOR",
        help="factor of the first loss: 0.1 as in Nash-MTL, 1 as in CAGrad (default: %(default)s)",
    )
    parser.add_argument("--balancers", nargs="+", metavar="NAME", help="run only these balancers (default: all)")
    return parser.parse_args(arguments)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be a finite number above 0. Received: {text!r}.")
    return number


if __name__ == "__main__":
    sys.exit(main())
