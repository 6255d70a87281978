"""Is the average of the losses the same as the average of the gradients?

Yes: the gradient is linear. But neither is what you want if mini-batches differ in size or examples in weight. Fifty
Gaussian blobs in two classes, each of them one mini-batch, train a single-layer perceptron with one update per epoch: with
means of means, with sums that are never divided, and with the library, compared with one large batch. The last part shows
why a sum is worst for a policy gradient, where better play leads to longer episodes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator

Array = np.ndarray[Any, Any]
Batch = Sequence[Array]  # points [n, 2], classes [n, 1] (0 or 1) and weights [n]
LINE = np.array([1.0, -0.5])
LONGEST = 200
RATE = 0.5
LIBRARY = "fit, accumulated"
PLAYS = {"mean, rate 0.5": ("mean", 0.5), "sum, rate 0.5": ("sum", 0.5), "sum, rate 0.02": ("sum", 0.02)}


def blobs(generator: np.random.Generator, sizes: Sequence[int], *, weighted: bool = False, gap: float = 0.0) -> list[Batch]:
    """One mini-batch per Gaussian blob, whose class is the side of a line on which its centre lies, `gap` away at least."""
    batches = []
    for size in sizes:
        centre = generator.uniform(-2, 2, 2)
        while abs(centre @ LINE - 0.3) < gap:
            centre = generator.uniform(-2, 2, 2)
        points = centre + 0.4 * generator.normal(size=(size, 2))
        classes = np.full((size, 1), float(centre @ LINE > 0.3))
        weights = np.exp(generator.normal() + 0.5 * generator.normal(size=size)) if weighted else np.ones(size)
        batches.append((points.astype("float32"), classes.astype("float32"), weights.astype("float32")))
    return batches


def cases(generator: np.random.Generator, number: int) -> dict[str, list[Batch]]:
    """The three kinds of mini-batches, `number` of each."""
    ragged, equal = np.rint(np.exp(generator.uniform(0, np.log(60), number))).astype(int).tolist(), [12] * number
    sizes = {"equal": equal, "ragged": ragged, "weighted": equal}
    return {case: blobs(generator, each, weighted=case == "weighted") for case, each in sizes.items()}


def joined(batches: Sequence[Batch]) -> Batch:
    """All mini-batches as one large batch."""
    return [np.concatenate(parts) for parts in zip(*batches)]


class Perceptron:
    """One layer in plain TensorFlow, initialized with zeros, whose gradient is gathered from mini-batches by hand."""

    def __init__(self) -> None:
        self.variables = [tf.Variable(tf.zeros([2, 1])), tf.Variable(tf.zeros([1]))]
        specs = [tf.TensorSpec([None, size]) for size in (2, 1)] + [tf.TensorSpec([None])]
        self._mean_gradient = tf.function(lambda *batch: self.gradient_of_mean_loss([batch]), input_signature=specs)

    def gradient_of_mean_loss(self, batches: Sequence[Any]) -> list[tf.Tensor]:
        """The gradient of the average of `sum_i s_i loss_i / sum_i s_i` over batches."""
        with tf.GradientTape() as tape:
            means = []
            for points, classes, weights in batches:
                logits = tf.matmul(points, self.variables[0]) + self.variables[1]
                losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=classes, logits=logits)[:, 0]
                means.append(tf.reduce_sum(weights * losses) / tf.reduce_sum(weights))
            loss = tf.add_n(means) / len(means)
        return list(tape.gradient(loss, self.variables))

    def sum_of_mean_gradients(self, batches: Sequence[Batch]) -> list[tf.Tensor]:
        """The sum of the gradients of the mini-batches' mean losses."""
        return [tf.add_n(list(parts)) for parts in zip(*(self._mean_gradient(*batch) for batch in batches))]

    def accumulated_with_counts(self, batches: Sequence[Batch]) -> list[tf.Tensor]:
        """The library's accumulator, with the sum of its weights as the count of each mini-batch."""
        accumulator = GradientAccumulator(self.variables)
        for batch in batches:
            accumulator.add(self._mean_gradient(*batch), count=batch[2].sum())
        return accumulator.mean()


BY_HAND: dict[str, Callable[[Perceptron, Sequence[Batch]], list[tf.Tensor]]] = {
    "gradient of mean of mean losses": Perceptron.gradient_of_mean_loss,
    "mean of the mean gradients": lambda model, batches: [x / len(batches) for x in model.sum_of_mean_gradients(batches)],
    "sum of the mean gradients": Perceptron.sum_of_mean_gradients,
    "GradientAccumulator with counts": Perceptron.accumulated_with_counts,
}


def train_by_hand(gather: Callable[..., list[tf.Tensor]], batches: Sequence[Batch], epochs: int) -> Array:
    """The perceptron's three weights after one update per epoch."""
    model, optimizer = Perceptron(), keras.optimizers.SGD(RATE)
    for _ in range(epochs):
        optimizer.apply_gradients(zip(gather(model, batches), model.variables))
    return np.concatenate([variable.numpy().ravel() for variable in model.variables])


def train_with_library(batches: Sequence[Batch], epochs: int) -> Array:
    """The same with `fit`, which accumulates the mini-batches of an epoch."""
    layer = keras.layers.Dense(1, kernel_initializer="zeros")
    trainer = MultiHeadTrainer(layer)
    trainer.add_head("class", keras.layers.Activation("sigmoid"), "binary_crossentropy")
    trainer.compile(keras.optimizers.SGD(RATE), telemetry=None, gradient_accumulation_steps=len(batches))
    elements = [(points, {"class": classes}, {"class": weights}) for points, classes, weights in batches] * epochs
    spec = tf.nest.map_structure(lambda array: tf.TensorSpec([None, *array.shape[1:]], array.dtype), elements[0])
    data = tf.data.Dataset.from_generator(lambda: iter(elements), output_signature=spec)
    trainer.fit(data.apply(tf.data.experimental.assert_cardinality(len(elements))), shuffle=False, verbose=0)
    return np.concatenate([np.ravel(values) for values in layer.get_weights()])


def distances(batches: Sequence[Batch], epochs: int) -> dict[str, float]:
    """Distance of each way's final weights from those of the large batch, relative to how far the latter have moved."""
    reference = train_by_hand(Perceptron.sum_of_mean_gradients, [joined(batches)], epochs)
    found = {way: train_by_hand(gather, batches, epochs) for way, gather in BY_HAND.items()}
    found[LIBRARY] = train_with_library(batches, epochs)
    return {way: float(np.linalg.norm(each - reference) / np.linalg.norm(reference)) for way, each in found.items()}


def play(reduction: str, batches: Sequence[Batch], updates: int, rate: float, generator: np.random.Generator) -> Array:
    """The perceptron as a policy: it classifies one point after another, and a wrong answer ends the episode.

    With `A_t` the number of correct answers still to come, the gradient is that of `-A_t log p(answer_t)`, averaged
    (`"mean"`) or summed (`"sum"`) over all time steps of sixteen episodes. Returns, by update, the mean number of correct
    answers per episode before it, and the norm of its gradient, `[updates, 2]`.
    """
    inputs, classes, _ = joined(batches)
    points = np.concatenate([inputs, np.ones_like(classes)], axis=1).astype("float64")
    weights = np.zeros(3)
    found = []
    for _ in range(updates):
        drawn = generator.integers(0, len(points), (16, LONGEST))
        probability = 1 / (1 + np.exp(-np.clip(points[drawn] @ weights, -50, 50)))
        answers = (generator.random(drawn.shape) < probability).astype("float64")
        right = answers == classes[drawn, 0]
        still = np.cumprod(np.concatenate([np.ones((16, 1)), right[:, :-1]], axis=1), axis=1)
        rewards = still * right
        to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1] * still
        gradient = -np.einsum("et,etk->k", to_come * (answers - probability), points[drawn])
        if reduction == "mean":
            gradient /= still.sum()
        weights -= rate * gradient
        found.append((rewards.sum(axis=1).mean(), np.linalg.norm(gradient)))
    return np.array(found)


@_style.styled
def draw(found: dict[str, dict[str, float]], played: dict[str, Array]) -> Any:
    """Draws the distances of all ways in all cases, and the correct answers of the policies."""
    figure, axes = _style.new_figure(2, 1, 6.5)
    for marker, color, (case, ways) in zip("osD", (_style.BLUE, _style.ORANGE, _style.GREEN), found.items()):
        axes[0].plot([max(value, 1e-9) for value in ways.values()], list(ways), marker, color=color, label=case)
    axes[0].axvspan(1e-9, 1e-6, color=_style.GREEN, alpha=0.12, lw=0)
    axes[0].set(xscale="log", xlim=(6e-10, 30), xlabel="distance from the large batch", title="Exact with counts")
    axes[0].invert_yaxis()
    axes[0].grid(axis="x", alpha=0.3)
    for color, (name, runs) in zip((_style.GREEN, _style.RED, _style.ORANGE), played.items()):
        axes[1].plot(runs[..., 0].T, color=color, alpha=0.15, lw=1)
        axes[1].plot(np.median(runs[..., 0], axis=0), color=color, label=name)
    axes[1].set(xlabel="update", ylabel=f"right answers in a row, of {LONGEST}", title="A sum needs a smaller rate")
    for axis, title in zip(axes, ("mini-batches", "policy gradient")):
        axis.legend(title=title, frameon=False)
    return figure


def run(session: Session) -> None:
    """Trains in every way and shows the results."""
    number, epochs, updates = (4, 2, 20) if session.quick else (50, 15, 100)
    data, found = cases(np.random.default_rng(session.seed), number), {}
    with session.progress("training every way", len(data)) as advance:
        for case, batches in data.items():
            found[case] = distances(batches, epochs)
            advance()
    rows = [[way, *(f"{each[way]:.1e}" for each in found.values())] for way in (*BY_HAND, LIBRARY)]
    title = f"{epochs} updates: distance from the large batch's weights, relative to how far they moved"
    session.table(title, [f"{number} mini-batches", *found], rows)
    points = blobs(np.random.default_rng(session.seed), [12] * 50, gap=1.0)
    played = {}
    for name, (reduction, rate) in PLAYS.items():
        generators = [np.random.default_rng(seed) for seed in range(session.seed, session.seed + 5)]
        runs = played[name] = np.stack([play(reduction, points, updates, rate, each) for each in generators])
        first, most = np.median(runs[:, 0, 1]), np.median(runs[..., 1].max(axis=1))
        last = np.median(runs[:, -10:, 0].mean(axis=1))
        said = f"norm {first:.1f} at first, {most:.1f} at most; {last:.1f} right answers in a row after {updates} updates"
        session.say(f"Policy gradient, {name}: {said} (medians of five seeds)")
    session.save(draw(found, played))


main = partial(run_program, "mean_loss_or_mean_gradient", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
