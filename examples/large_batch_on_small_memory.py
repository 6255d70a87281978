"""Can 64 mini-batches give exactly the update of one large batch, in the memory of one mini-batch?

The same 2048 examples train the same network with one large batch, with `fit` on micro-batches or accumulated batches, and
with a custom training loop that accumulates a stream of mini-batches with `GradientAccumulator`. In each case Adam takes
one step, and the weights are the same up to rounding. Peak memory, measured in a new process for each, is not the same.
(`fit` also holds a compiled graph with 64 parts.) The last part shows a classic mistake: counting the last mini-batch twice.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.accumulation import GradientAccumulator

Array = np.ndarray[Any, Any]
LARGE = "one large batch"
BY_HAND = "GradientAccumulator, custom loop"
SEPARATE = "one update per mini-batch"
CASES = (LARGE, "fit, micro_batches", "fit, gradient_accumulation_steps", BY_HAND, SEPARATE)
TIME, FEATURES, UNITS, KINDS = 400, 4, 64, 4


class Size(NamedTuple):
    """The number of mini-batches, and of examples in each."""

    parts: int
    examples: int


class Outcome(NamedTuple):
    """The increase of the process's peak memory; how often Adam was applied; all weights before and after; Adam's slots."""

    megabytes: float
    updates: int
    start: Array
    weights: Array
    slots: Array


def stream(size: Size, seed: int) -> tf.data.Dataset:
    """Mini-batches that are generated on demand: sequences, a kind and a level."""

    def draw(part: tf.Tensor) -> Any:
        part = tf.cast(part, tf.int32)
        inputs = tf.random.stateless_normal([size.examples, TIME, FEATURES], [seed, part])
        level = tf.reduce_mean(inputs[:, :, :2], axis=[1, 2])[:, tf.newaxis] * 5
        kind = tf.cast(tf.argmax(tf.reduce_mean(inputs[:, :, :KINDS], axis=1), axis=1), tf.int32)
        return inputs, {"kind": kind, "level": level}

    return tf.data.Dataset.range(size.parts).map(draw)


def joined(batches: tf.data.Dataset) -> tf.data.Dataset:
    """All mini-batches as one large batch."""
    whole = tf.nest.map_structure(lambda *parts: np.concatenate(parts), *batches.as_numpy_iterator())
    return tf.data.Dataset.from_tensors(whole)


def make_trainer(seed: int, **options: Any) -> MultiHeadTrainer:
    """A network whose activations need far more memory than its weights; the same seed gives the same weights."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(UNITS, activation="relu") for _ in range(6)]
    trainer = MultiHeadTrainer(keras.Sequential([*layers, keras.layers.GlobalAveragePooling1D()]))
    trainer.add_head("kind", keras.layers.Dense(KINDS, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("level", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(1e-3), telemetry=None, **options)
    return trainer


def update_by_hand(trainer: MultiHeadTrainer, batches: tf.data.Dataset) -> None:
    """One update from a stream: accumulates each mini-batch's gradients with its count, then applies their mean."""
    variables = [variable for _, variable in trainer.compute_gradients(next(iter(batches)))]
    compute = tf.function(lambda *batch: [gradient for gradient, _ in trainer.compute_gradients(batch)])
    accumulator = GradientAccumulator(variables)
    for batch in batches:
        accumulator.add(compute(*batch), count=len(batch[0]))
    trainer.apply_gradients(zip(accumulator.mean(), variables))


def train(case: str, size: Size, seed: int) -> Outcome:
    """Applies the update, or updates, of a case in this process."""
    options = {"fit, micro_batches": "micro_batches", "fit, gradient_accumulation_steps": "gradient_accumulation_steps"}
    trainer = make_trainer(seed, **({options[case]: size.parts} if case in options else {}))
    batches = stream(size, seed)
    data = joined(batches) if case in (LARGE, "fit, micro_batches") else batches
    first = next(iter(batches))
    pairs = trainer.compute_gradients([tf.nest.map_structure(lambda tensor: tensor[:1], first)])
    start = flat([variable for _, variable in pairs])
    before = peak_megabytes()
    if case == BY_HAND:
        update_by_hand(trainer, data)
    else:
        trainer.fit(data, shuffle=False, verbose=0)
    megabytes = peak_megabytes() - before
    slots = [variable for variable in trainer.optimizer.variables if len(variable.shape)]
    return Outcome(megabytes, int(trainer.optimizer.iterations), start, flat([v for _, v in pairs]), flat(slots))


def flat(variables: Sequence[Any]) -> Array:
    """The values of variables as one vector."""
    return np.concatenate([np.ravel(tf.convert_to_tensor(variable)) for variable in variables])


def peak_megabytes() -> float:
    """The peak memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would include the memory of the parent process when it started this one
        (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024


def in_fresh_processes(size: Size, seed: int, advance: Callable[[], None]) -> dict[str, Outcome]:
    """The outcome of each case, trained in a process of its own, whose peak memory is that of the case."""
    outcomes = {}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for case in CASES:
            outcomes[case] = pool.apply(train, (case, size, seed))
            advance()
    return outcomes


def distance(outcome: Outcome, reference: Outcome) -> tuple[float, float]:
    """Distance of weights and slots from those of the large batch, relative to how far the latter have moved."""
    moved = np.linalg.norm(reference.weights - reference.start)
    weights = np.linalg.norm(outcome.weights - reference.weights) / moved
    return float(weights), float(np.linalg.norm(outcome.slots - reference.slots) / np.linalg.norm(reference.slots))


def means_of(gradients: Sequence[float]) -> tuple[float, float]:
    """The mean from an update that accumulates again to read its result, and from the accumulator, which only reads."""
    total, count, accumulator = tf.Variable(0.0), tf.Variable(0.0), GradientAccumulator([tf.Variable(0.0)])
    for gradient in [*gradients, gradients[-1]]:
        total.assign_add(gradient)
        count.assign_add(1.0)
    for gradient in gradients:
        accumulator.add([tf.constant(gradient)])
    return float(total / count), float(accumulator.mean()[0])


@_style.styled
def draw(outcomes: dict[str, Outcome], size: Size) -> Any:
    """Draws memory and distances, one bar per case."""
    figure, axes = _style.new_figure(1, 2, 3.4, sharey=True)
    memory = [outcome.megabytes for outcome in outcomes.values()]
    far = [distance(outcome, outcomes[LARGE])[0] for outcome in outcomes.values()]
    colors = [_style.GREY, *[_style.GREEN] * (len(outcomes) - 2), _style.RED]
    for axis, values, form in zip(axes, (memory, far), ("{:.0f} MB", "{:.1g}")):
        bars = axis.barh(list(outcomes), [max(value, 1e-9) for value in values], color=colors)
        axis.bar_label(bars, [form.format(value) for value in values], padding=3)
        axis.spines["bottom"].set_visible(False)
        axis.tick_params(axis="x", which="both", bottom=False, labelbottom=False)
    axes[0].invert_yaxis()
    axes[0].set(xlim=(0, 1.3 * max(memory)), title="Less memory", xlabel=f"{size.parts} mini-batches of {size.examples}")
    axes[1].set(xscale="log", xlim=(1e-9, 1e3), title="Same weights", xlabel="relative distance")
    return figure


def run(session: Session) -> None:
    """Measures every case and shows the results."""
    size = Size(4, 4) if session.quick else Size(64, 32)
    with session.progress("one process for each case", len(CASES)) as advance:
        outcomes = in_fresh_processes(size, session.seed, advance)
    rows = []
    for case, outcome in outcomes.items():
        weights, slots = distance(outcome, outcomes[LARGE])
        rows.append([case, f"{outcome.megabytes:.0f}", str(outcome.updates), f"{weights:.1e}", f"{slots:.1e}"])
    title = f"{size.parts} mini-batches of {size.examples}: peak memory, and relative distance from the large batch"
    session.table(title, ["", "memory, MB", "Adam steps", "weights", "slots"], rows)
    mistaken, right = means_of([1.0, 1.0, 2.0, 4.0])
    session.say(
        "A classic mistake: an update that runs the accumulating op again counts the last mini-batch twice. The mean of "
        f"1, 1, 2 and 4 is then {mistaken:g}; the accumulator's is {right:g}."
    )
    session.save(draw(outcomes, size))


main = partial(run_program, "large_batch_on_small_memory", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
