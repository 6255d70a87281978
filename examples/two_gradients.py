"""What happens when the gradients of two heads conflict? Draws the figure of `docs/concepts/multi_task_learning.md`.

`python -m examples.two_gradients [FILE]` draws two gradients, their plain sum and the update of a balancer.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from examples import _style

# The gradients of two heads for three shared parameters; they and all their combinations lie in one plane.
GRADIENTS = np.array([[-4.0, 1.0, 1.0], [6.0, 1.0, 1.0]], np.float32)
PLANE = np.array([[1.0, 0.0, 0.0], [0.0, 0.5**0.5, 0.5**0.5]], np.float32)


def updates() -> dict[str, np.ndarray]:
    """The update for each way of combining the two gradients, `[3]` each."""
    from multihead import balancing

    return {"plain sum": GRADIENTS.sum(0), "UPGrad": np.asarray(balancing.UPGrad()(GRADIENTS))}


@_style.styled
def draw(path: Path) -> None:
    """Draws gradients and updates and saves the figure."""
    figure, axes = _style.new_figure(1, 2, 2.5, sharey=True)
    for axis, (name, update) in zip(axes, updates().items()):
        inner = GRADIENTS @ update
        # The directions in which neither loss increases: a cone between the normals of the two gradients.
        (x1, y1), (x2, y2) = GRADIENTS @ PLANE.T
        edges = 9 * np.array([[y1, -x1] / np.hypot(x1, y1), [-y2, x2] / np.hypot(x2, y2)])
        axis.fill(*np.vstack([[0, 0], edges]).T, color=_style.GREEN, alpha=0.15, lw=0, label="neither loss increases")
        for vector, color, label in (
            (GRADIENTS[0], _style.BLUE, "head 1"),
            (GRADIENTS[1], _style.ORANGE, "head 2"),
            (update, _style.GREEN if min(inner) > -1e-4 else _style.RED, name),
        ):
            x, y = PLANE @ vector
            axis.annotate("", (x, y), (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2.5, "shrinkB": 0})
            axis.text(x, y + 0.25, label, color=color, ha="center", fontsize=11)
        effect = "head 1's loss rises" if inner[0] < -1e-4 else "neither loss rises"
        axis.set_title(f"{name[0].upper()}{name[1:]}:\n{effect}", loc="center")
        axis.set(xlim=(-5.5, 7.5), ylim=(-0.4, 6.8), aspect="equal", xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line, draws the figure and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m examples.two_gradients", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("two_gradients.png"), help="the figure to write")
    path = parser.parse_args(arguments).file
    try:
        draw(path)
    except ModuleNotFoundError as error:
        print(f"{error.name} is not installed: run `pip install -e '.[examples]'`.", file=sys.stderr)
        return 2
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
