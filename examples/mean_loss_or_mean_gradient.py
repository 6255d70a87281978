"""Is the average of the losses the same as the average of the gradients?

Yes: the gradient is linear. But neither is what you want if mini-batches differ in size or examples in weight. Fifty
Gaussian blobs in two classes, each of them one mini-batch, train a single-layer perceptron with one update per epoch: with
means of means, with sums that are never divided, and with the library, compared with one large batch. The last part shows
why a sum is worst for a policy gradient, where better play leads to longer episodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator

Array = np.ndarray[Any, Any]
LINE = np.array([1.0, -0.5])
LONGEST = 200
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.5),
    "Adam": lambda: keras.optimizers.Adam(0.05),
}


class Batch(NamedTuple):
    """Points `[n, 2]`, classes `[n, 1]` (0 or 1) and weights `[n]`."""

    points: Array
    classes: Array
    weights: Array


def blobs(generator: np.random.Generator, sizes: Sequence[int], *, weighted: bool = False, gap: float = 0.0) -> list[Batch]:
    """One mini-batch per Gaussian blob; the class of a blob is the side of a line on which its centre lies.

    Args:
        generator: Random number generator.
        sizes: Points per blob.
        weighted: Whether blobs and points have different weights; otherwise all weights are 1.
        gap: Minimum distance of a centre from the line (in units of the line's equation).
    """
    batches = []
    for size in sizes:
        centre = generator.uniform(-2, 2, 2)
        while abs(centre @ LINE - 0.3) < gap:
            centre = generator.uniform(-2, 2, 2)
        points = centre + 0.4 * generator.normal(size=(size, 2))
        classes = np.full((size, 1), float(centre @ LINE > 0.3))
        weights = np.exp(generator.normal() + 0.5 * generator.normal(size=size)) if weighted else np.ones(size)
        batches.append(Batch(*(array.astype("float32") for array in (points, classes, weights))))
    return batches


def cases(generator: np.random.Generator, number: int) -> dict[str, list[Batch]]:
    """The three kinds of mini-batches, `number` of each."""
    ragged = np.rint(np.exp(generator.uniform(0, np.log(60), number))).astype(int)
    return {
        "equal": blobs(generator, [12] * number),
        "ragged": blobs(generator, ragged.tolist()),
        "weighted": blobs(generator, [12] * number, weighted=True),
    }


def joined(batches: Sequence[Batch]) -> Batch:
    """All mini-batches as one large batch."""
    return Batch(*(np.concatenate(parts) for parts in zip(*batches)))


# -------------------------------------------------------------------------------------------- custom training loops


class Perceptron:
    """One layer in plain TensorFlow, initialized with zeros: its losses and their gradients."""

    def __init__(self) -> None:
        self.variables = [tf.Variable(tf.zeros([2, 1])), tf.Variable(tf.zeros([1]))]
        specs = [tf.TensorSpec([None, size]) for size in (2, 1)] + [tf.TensorSpec([None])]
        self.mean_gradient = tf.function(self._mean_gradient, input_signature=specs)

    def mean_loss(self, points: Any, classes: Any, weights: Any) -> tf.Tensor:
        """`sum_i s_i loss_i / sum_i s_i` of a batch."""
        logits = tf.matmul(points, self.variables[0]) + self.variables[1]
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=classes, logits=logits)[:, 0]
        return tf.reduce_sum(weights * losses) / tf.reduce_sum(weights)

    def _mean_gradient(self, points: tf.Tensor, classes: tf.Tensor, weights: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = self.mean_loss(points, classes, weights)
        return tape.gradient(loss, self.variables)


def gradient_of_large_batch(model: Perceptron, batches: Sequence[Batch]) -> list[tf.Tensor]:
    """The reference for all other ways."""
    return list(model.mean_gradient(*joined(batches)))


def gradient_of_mean_loss(model: Perceptron, batches: Sequence[Batch]) -> list[tf.Tensor]:
    """The gradient of the average of the mini-batches' mean losses."""
    with tf.GradientTape() as tape:
        loss = tf.add_n([model.mean_loss(*batch) for batch in batches]) / len(batches)
    return list(tape.gradient(loss, model.variables))


def mean_of_mean_gradients(model: Perceptron, batches: Sequence[Batch]) -> list[tf.Tensor]:
    """The average of the gradients of the mini-batches' mean losses."""
    return [total / len(batches) for total in sum_of_mean_gradients(model, batches)]


def sum_of_mean_gradients(model: Perceptron, batches: Sequence[Batch]) -> list[tf.Tensor]:
    """The same without the division."""
    gradients = [model.mean_gradient(*batch) for batch in batches]
    return [tf.add_n(list(parts)) for parts in zip(*gradients)]


def accumulated_with_counts(model: Perceptron, batches: Sequence[Batch]) -> list[tf.Tensor]:
    """The library's accumulator, with the sum of its weights as the count of each mini-batch."""
    accumulator = GradientAccumulator(model.variables)
    for batch in batches:
        accumulator.add(model.mean_gradient(*batch), count=batch.weights.sum())
    return accumulator.mean()


BY_HAND: dict[str, Callable[[Perceptron, Sequence[Batch]], list[tf.Tensor]]] = {
    "gradient of the mean of mean losses": gradient_of_mean_loss,
    "mean of the mean gradients": mean_of_mean_gradients,
    "sum of the mean gradients": sum_of_mean_gradients,
    "GradientAccumulator with counts": accumulated_with_counts,
}
LIBRARY: dict[str, str] = {
    "fit, gradient_accumulation_steps": "gradient_accumulation_steps",
    "fit, micro_batches": "micro_batches",
}


def train_by_hand(gather: Callable[..., list[tf.Tensor]], batches: Sequence[Batch], optimizer: Any, epochs: int) -> Array:
    """The perceptron's three weights after one update per epoch."""
    model = Perceptron()
    for _ in range(epochs):
        optimizer.apply_gradients(zip(gather(model, batches), model.variables))
    return np.concatenate([variable.numpy().ravel() for variable in model.variables])


def train_with_library(way: str, batches: Sequence[Batch], optimizer: Any, epochs: int) -> Array:
    """The same with `fit`: one update per epoch, from accumulated mini-batches or from one large batch in micro-batches."""
    layer = keras.layers.Dense(1, kernel_initializer="zeros")
    trainer = MultiHeadTrainer(layer)
    trainer.add_head("class", keras.layers.Activation("sigmoid"), "binary_crossentropy")
    trainer.compile(optimizer, telemetry=None, **{LIBRARY[way]: len(batches)})
    given = [joined(batches)] if LIBRARY[way] == "micro_batches" else batches
    elements = [(batch.points, {"class": batch.classes}, {"class": batch.weights}) for batch in given]
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), elements[0])
    data = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)
    # One pass over the data is one update, so repeating the data gives that many epochs.
    data = data.repeat(epochs).apply(tf.data.experimental.assert_cardinality(len(elements) * epochs))
    trainer.fit(data, shuffle=False, verbose=0)
    return np.concatenate([np.ravel(values) for values in layer.get_weights()])


def distances(batches: Sequence[Batch], optimizer: str, epochs: int, advance: Callable[[], None]) -> dict[str, float]:
    """Distance of each way's final weights from those of the large batch, relative to how far the latter have moved."""
    make = OPTIMIZERS[optimizer]
    reference = train_by_hand(gradient_of_large_batch, batches, make(), epochs)
    found = {}
    for way in (*BY_HAND, *LIBRARY):
        if way in BY_HAND:
            weights = train_by_hand(BY_HAND[way], batches, make(), epochs)
        else:
            weights = train_with_library(way, batches, make(), epochs)
        found[way] = float(np.linalg.norm(weights - reference) / np.linalg.norm(reference))
        advance()
    return found


# ---------------------------------------------------------------------------------------------- a policy gradient


class Play(NamedTuple):
    """A training run with one way of reducing the policy gradient, `[updates]` each.

    Attributes:
        returns: Mean number of correct answers per episode, before each update.
        norms: Norms of the gradients.
        lengths: Norms of the weights after each update.
    """

    returns: Array
    norms: Array
    lengths: Array


def play(reduction: str, batches: Sequence[Batch], updates: int, rate: float, generator: np.random.Generator) -> Play:
    """The perceptron as a policy: it classifies one point after another, and a wrong answer ends the episode.

    With `A_t` the number of correct answers still to come, the gradient is that of `-A_t log p(answer_t)`, averaged or
    summed over all time steps of sixteen episodes.

    Args:
        reduction: `"mean"` or `"sum"`.
        batches: The points with their correct answers.
        updates: Number of updates, each from sixteen new episodes of at most 200 time steps.
        rate: Learning rate of SGD.
        generator: Random number generator for points and answers.
    """
    everything = joined(batches)
    points = np.concatenate([everything.points, np.ones_like(everything.classes)], axis=1).astype("float64")
    weights = np.zeros(3)
    returns, norms, lengths = [], [], []
    for _ in range(updates):
        drawn = generator.integers(0, len(points), (16, LONGEST))
        probability = 1 / (1 + np.exp(-np.clip(points[drawn] @ weights, -50, 50)))
        answers = (generator.random(drawn.shape) < probability).astype("float64")
        right = answers == everything.classes[drawn, 0]
        still = np.cumprod(np.concatenate([np.ones((16, 1)), right[:, :-1]], axis=1), axis=1)
        rewards = still * right
        to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1] * still
        gradient = -np.einsum("et,etk->k", to_come * (answers - probability), points[drawn])
        if reduction == "mean":
            gradient /= still.sum()
        weights -= rate * gradient
        returns.append(rewards.sum(axis=1).mean())
        norms.append(np.linalg.norm(gradient))
        lengths.append(np.linalg.norm(weights))
    return Play(np.array(returns), np.array(norms), np.array(lengths))


def plays(seeds: Sequence[int], updates: int) -> dict[str, list[Play]]:
    """A mean, a sum, and a sum with a smaller learning rate, each with several seeds."""
    batches = blobs(np.random.default_rng(seeds[0]), [12] * 50, gap=1.0)
    ways = {"mean, rate 0.5": ("mean", 0.5), "sum, rate 0.5": ("sum", 0.5), "sum, rate 0.02": ("sum", 0.02)}
    return {
        name: [play(reduction, batches, updates, rate, np.random.default_rng(seed)) for seed in seeds]
        for name, (reduction, rate) in ways.items()
    }


# ------------------------------------------------------------------------------------------------------- results


@_style.styled
def draw(found: dict[tuple[str, str], dict[str, float]], played: dict[str, list[Play]]) -> Any:
    """Draws the distances of all ways in all cases, and the policy-gradient runs."""
    figure, axes = _style.new_figure(2, 2, 7.8, height_ratios=[1.25, 1])
    ways = [*BY_HAND, *LIBRARY]
    for axis, optimizer in zip(axes[0], OPTIMIZERS):
        for shift, (marker, case) in enumerate(zip("osD", ("equal", "ragged", "weighted"))):
            values = [max(found[case, optimizer][way], 1e-9) for way in ways]
            places = np.arange(len(ways)) + 0.22 * (shift - 1)
            axis.plot(values, places, marker, color=(_style.BLUE, _style.ORANGE, _style.GREEN)[shift], label=case)
        axis.axvspan(1e-9, 1e-6, color=_style.GREEN, alpha=0.12, lw=0)
        axis.text(2e-9, len(ways) - 0.12, "rounding", color=_style.GREEN, va="bottom")
        axis.set(xscale="log", xlim=(6e-10, 30), ylim=(len(ways) - 0.1, -0.6), title=f"{optimizer}: exact with counts")
        axis.set_xlabel("distance from the large batch")
        axis.set_yticks(range(len(ways)), ways if axis is axes[0, 0] else [""] * len(ways))
        axis.grid(axis="x", alpha=0.3)
    handles, cases_shown = axes[0, 0].get_legend_handles_labels()
    legend = {"loc": "outside upper center", "ncols": 3, "frameon": False, "title": "mini-batches"}
    figure.legend(handles, cases_shown, **legend)
    for color, (name, runs) in zip((_style.GREEN, _style.RED, _style.ORANGE), played.items()):
        for axis, figures in zip(axes[1], ([run.lengths for run in runs], [run.returns for run in runs])):
            axis.plot(np.transpose(figures), color=color, alpha=0.15, lw=1)
            axis.plot(np.median(figures, axis=0), color=color, lw=2, label=name)
    axes[1, 0].set(yscale="log", xlabel="update", title="A sum of losses needs\na smaller rate")
    axes[1, 0].set_ylabel("norm of the policy's weights")
    axes[1, 1].set(xlabel="update", ylim=(-5, LONGEST + 5), title="With the mean's rate,\nit learns nothing")
    axes[1, 1].set_ylabel(f"right answers in a row, of {LONGEST}")
    for axis, field in zip(axes[1], ("lengths", "returns")):
        axis.margins(x=0.02)
        values = {name: np.median([getattr(run, field) for run in runs], axis=0)[-1] for name, runs in played.items()}
        colors = (_style.GREEN, _style.RED, _style.ORANGE)
        last = len(next(iter(played.values()))[0].returns) - 1
        _style.label_ends(
            axis, last, [(value, name, color) for (name, value), color in zip(values.items(), colors)], gap=0.1
        )
    return figure


def run(session: Session) -> None:
    """Trains in every way and shows the results."""
    number, epochs, updates = (4, 2, 20) if session.quick else (50, 15, 100)
    data = cases(np.random.default_rng(session.seed), number)
    found = {}
    with session.progress("training every way", len(data) * len(OPTIMIZERS) * (len(BY_HAND) + len(LIBRARY))) as advance:
        for case, batches in data.items():
            for optimizer in OPTIMIZERS:
                found[case, optimizer] = distances(batches, optimizer, epochs, advance)
    for optimizer in OPTIMIZERS:
        rows = [[way, *(f"{found[case, optimizer][way]:.1e}" for case in data)] for way in (*BY_HAND, *LIBRARY)]
        title = f"{optimizer}, {epochs} updates: distance from the large batch's weights, relative to how far they moved"
        session.table(title, [f"{number} mini-batches", *data], rows)
    sizes = [len(batch.weights) for batch in data["ragged"]]
    session.say(f"Equal and weighted mini-batches have 12 points, ragged ones {min(sizes)} to {max(sizes)}.")

    played = plays(range(session.seed, session.seed + 5), updates)
    rows = []
    for name, runs in played.items():
        last, norms = [run.returns[-10:].mean() for run in runs], np.stack([run.norms for run in runs])
        figures = (np.median(norms[:, 0]), np.median(norms.max(axis=1)), np.median(last), min(last), max(last))
        rows.append([name, *(f"{figure:.1f}" for figure in figures)])
    title = f"Policy gradient, {updates} updates: median norms, and correct answers in a row at the end (five seeds)"
    session.table(title, ["reduction", "first norm", "largest norm", "median", "worst seed", "best seed"], rows)
    session.save(draw(found, played))


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("mean_loss_or_mean_gradient", __doc__, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
