"""Which ways of combining the gradients of two losses reach the Pareto front from everywhere, and which get stuck?

Every balancer on the landscape of two losses and two parameters from the CAGrad and Nash-MTL papers, from the five starting
points of the latter. Its upper half has a narrow valley for each loss; on the steep walls of a valley, the gradient of its
loss dominates the other. The lower half contains the Pareto front: the points from which no update decreases both losses.

Sources: Liu et al., Conflict-Averse Gradient Descent for Multi-Task Learning, NeurIPS 2021; Navon et al., Multi-Task
Learning as a Bargaining Game, ICML 2022, which multiplies the first loss by 0.1.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import balancing

STARTS = ((-8.5, 7.5), (-8.5, 5.0), (9.0, 9.0), (-7.5, -0.5), (9.0, -1.0))
# As far as the 100,000 updates of 0.001 in the CAGrad paper, in the 35,000 updates of the Nash-MTL paper.
STEPS, RATE, SCALE = 35000, 3e-3, 0.1
TOLERANCE = 0.1
RECORDS = 350  # points kept of a path
QUICK = ("Sum", "EqualNorms")
REACHED, NOT_REACHED, FRONT = _style.GREEN, _style.RED, "gold"


def losses(points: Any) -> Any:
    """Both losses `[..., 2]` at points `[..., 2]`, a float tensor."""
    x, y = points[..., 0], points[..., 1]
    upper, lower = tf.maximum(tf.tanh(0.5 * y), 0.0), tf.maximum(tf.tanh(-0.5 * y), 0.0)
    valleys = (0.5 * (-x - 7.0) + tf.tanh(y), 0.5 * (-x + 3.0) - tf.tanh(y) + 2.0)
    both = [
        upper * (tf.math.log(tf.maximum(tf.abs(valley), 5e-6)) + 6.0)
        + lower * (((x - best) ** 2 + 0.1 * (y + 8.0) ** 2) / 10.0 - 20.0)
        for valley, best in zip(valleys, (7.0, -7.0))
    ]
    return tf.stack([SCALE * both[0], both[1]], axis=-1)


def losses_and_gradients(point: Any) -> tuple[Any, Any]:
    """Both losses `[2]` at a point `[2]`, and their gradients as the rows of a `[2, 2]` tensor."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(point)
        values = losses(point)
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
    options: dict[str, Any] = {
        "Chain": lambda: balancing.Chain("EqualNorms", "UPGrad"),
        "NormBudget": lambda: balancing.NormBudget({"first": 0.5, "second": 0.5}),
    }
    classes = {name: getattr(balancing, name) for name in balancing.__all__ if name != "Balancer"}
    found = {
        name: options.get(name, value)()
        for name, value in sorted(classes.items(), key=lambda pair: (pair[0] != "Sum", pair[0].lower()))
        if isinstance(value, type) and issubclass(value, balancing.Balancer)
    }
    for balancer in found.values():
        balancer.bind(["first", "second"])
    return found


def follow(balancer: Any, steps: int = STEPS, rate: float = RATE, starts: Sequence[Any] = STARTS) -> Iterator[np.ndarray]:
    """The path `[points, 2]` of a balancer's updates with Adam from each starting point, whose state is fresh each time."""
    records = min(steps, RECORDS)
    every = -(-steps // records)
    with tf.device("CPU:0"):  # updates this small are faster without an accelerator
        balancer.build((2, 2))

    @tf.function(jit_compile=True)  # tens of times faster for thousands of tiny updates
    def descend(start: Any) -> Any:
        def step(update: Any, point: Any, mean: Any, square: Any) -> tuple[Any, ...]:
            values, gradients = losses_and_gradients(point)
            gradient = balancer(gradients, step=update, losses=values)
            update += 1
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            count = tf.cast(update, point.dtype)
            change = mean / (1.0 - 0.9**count) / (tf.sqrt(square / (1.0 - 0.999**count)) + 1e-8)
            return update, point - rate * change, mean, square

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


@_style.styled
def draw(paths: dict[str, np.ndarray], columns: int, size: float) -> Any:
    """Draws a panel of some size for each balancer: its paths on the mean loss, with the Pareto front."""
    lines = -(-len(paths) // columns)
    sizes = {"height": (size + 0.25) * lines + 0.4, "width": size * columns}
    figure, axes = _style.new_figure(lines, columns, **sizes, sharex=True, sharey=True, squeeze=False)
    if columns > 1:
        figure.suptitle("Green paths end on the yellow Pareto front, red ones do not", fontsize=11)
    side = np.linspace(-10.5, 10.5, 211)
    height = losses(np.stack(np.meshgrid(side, side), axis=-1)).numpy().mean(axis=-1)
    for axis in axes.flat[len(paths) :]:
        axis.set_visible(False)
    for axis, (name, points) in zip(axes.flat, paths.items()):
        axis.contourf(side, side, height, levels=24, cmap="Greys_r", alpha=0.55)
        axis.contour(side, side, height, levels=24, colors="black", linewidths=0.25, alpha=0.35, linestyles="solid")
        axis.plot(*pareto_front().T, color=FRONT, lw=5, solid_capstyle="round", zorder=2)
        reached = distance_to_front(points[:, -1]) <= TOLERANCE
        for path, ends_there in zip(points, reached):
            color = REACHED if ends_there else NOT_REACHED
            axis.plot(*path.T, color=color, lw=1.3, zorder=3)
            axis.plot(*path[0], "o", color="white", mec="black", mew=0.9, ms=4.5, zorder=4)
            axis.plot(*path[-1], "o", color=color, mec="black", mew=0.7, ms=6, zorder=5)
        axis.set(xlim=(-10.5, 10.5), ylim=(-10.5, 10.5), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
        axis.set_title(f"{name} {sum(reached)}/{len(points)}", fontsize=10 if columns > 1 else 11)
    return figure


def run(session: Session) -> None:
    """Follows every balancer and shows where its paths end."""
    steps = 40 if session.quick else STEPS
    chosen = {name: each for name, each in balancers().items() if not session.quick or name in QUICK}
    paths = {}
    with session.progress("balancers", len(chosen)) as advance:
        for name, balancer in chosen.items():
            paths[name] = np.stack(list(follow(balancer, steps)))
            advance()
    rows = []
    for name, points in paths.items():
        far = distance_to_front(points[:, -1])
        mean = float(np.mean(losses(points[:, -1])))
        rows.append([name, f"{np.sum(far <= TOLERANCE)}/{len(far)}", f"{far.max():.2f}", f"{mean:.2f}"])
    title = f"After {steps} updates: paths that end within {TOLERANCE:g} of the front, largest distance from it, mean loss"
    columns = ["balancer", "on the front", "largest distance", "mean loss"]
    session.table(title, columns, sorted(rows, key=lambda row: -int(row[1][0])))
    session.save(draw(paths, 4, 1.6))
    for name, points in paths.items():
        session.save(draw({name: points}, 1, 3.6), f"landscape/{name}")


main = partial(run_program, "toy_landscape", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
