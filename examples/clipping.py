"""What does each way of clipping do to a gradient that explodes, to its length and to its direction?

A recurrent net reads thirty tokens and two heads answer: which the third last was, and how many were high ones. Back
through thirty steps its gradient explodes. A step by hand is two halves, `compute_gradients` and `apply_gradients`;
between them one may look, and clip: by value, by norm, by average norm or by global norm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples._shared import Session, new_figure, run_program
from multihead import MultiHeadTrainer
from multihead import clipping as clippings

Array = np.ndarray[Any, Any]
Batch = tuple[Array, dict[str, Array]]
KINDS = {
    "by value": clippings.ByValue,
    "by norm": clippings.ByNorm,
    "by average norm": clippings.ByAverageNorm,
    "by global norm": clippings.ByGlobalNorm,
}
VOCABULARY, CLASSES, TIME = 64, 4, 30
# The trainable variables in order: the encoder's, then each head's.
VARIABLES = (
    "embedding",
    "input kernel",
    "recurrent kernel",
    "recurrent bias",
    "recent: kernel",
    "recent: bias",
    "high: kernel",
    "high: bias",
)


def make_batch(generator: np.random.Generator, size: int = 32) -> Batch:
    """Tokens `[size, 30]`, the class of the third last, and the share of high ones; low tokens are more frequent."""
    tokens = (VOCABULARY * generator.random((size, TIME)) ** 2).astype("int32")
    high = (tokens >= VOCABULARY // 2).mean(axis=1, keepdims=True).astype("float32")
    return tokens, {"recent": tokens[:, -3] % CLASSES, "high": high}


def make_trainer(seed: int, optimizer: Any) -> MultiHeadTrainer:
    """The net and its two heads, the same for the same seed."""
    keras.utils.set_random_seed(seed)
    encoder = keras.Sequential(
        [
            keras.layers.Embedding(VOCABULARY, 8),
            # Each step stretches what the net remembers, and each step back the gradient.
            keras.layers.SimpleRNN(32, recurrent_initializer=keras.initializers.Orthogonal(1.5)),
        ]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("recent", keras.layers.Dense(CLASSES, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("high", keras.layers.Dense(1), "mse")
    trainer.compile(optimizer)
    return trainer


# ------------------------------------------------------------------------------------------- looking at gradients


def dense(gradient: Any) -> Array:
    """A gradient's elements in float64, those of a sparse one in their places; duplicate rows are summed."""
    return tf.convert_to_tensor(gradient).numpy().astype("float64")


def global_norm(gradients: Sequence[Any]) -> float:
    """The norm of all elements together."""
    return float(np.sqrt(sum(np.sum(dense(gradient) ** 2) for gradient in gradients if gradient is not None)))


def cosine(first: Sequence[Any], second: Sequence[Any]) -> float:
    """The cosine of the angle between two lists of gradients."""
    pairs = [(dense(a), dense(b)) for a, b in zip(first, second) if a is not None]
    return float(sum(np.sum(a * b) for a, b in pairs)) / (global_norm(first) * global_norm(second))


def kind_of(gradient: Any) -> str:
    """`none`, `sparse` or `dense`."""
    return "none" if gradient is None else "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"


def calibrated(kind: Callable[[float], Any], gradients: Sequence[Any], target: float) -> Any:
    """A clipping with the limit at which these gradients get a given global norm: equal lengths compare directions."""
    low, high = 1e-9, 1e6
    for _ in range(45):
        middle = float(np.sqrt(low * high))
        if global_norm(kind(middle)(gradients)) < target:
            low = middle
        else:
            high = middle
    return kind(high)


class Look(NamedTuple):
    """What is seen at one variable: the kind of its gradient, and norms before and after each clipping."""

    kind: str
    norm: float
    clipped: dict[str, float]


def inspect(gradients: Sequence[Any], clips: dict[str, Any]) -> dict[str, Look]:
    """One entry per variable; the norm of no gradient is 0."""
    after = {name: clip(gradients) for name, clip in clips.items()}
    return {
        name: Look(
            kind_of(gradient),
            global_norm([gradient]),
            {way: global_norm([clipped[i]]) for way, clipped in after.items()},
        )
        for i, (name, gradient) in enumerate(zip(VARIABLES, gradients))
    }


def directions(gradients: Sequence[Any], lengths: Sequence[float]) -> dict[str, list[float]]:
    """The cosine with the unclipped gradient that each way leaves when it clips to each of these lengths."""
    return {
        name: [cosine(gradients, calibrated(kind, gradients, length)(gradients)) for length in lengths]
        for name, kind in KINDS.items()
    }


# ------------------------------------------------------------------------------------------------------- training


class Trace(NamedTuple):
    """What a training did, one value per update (accuracy: one per ten).

    Attributes:
        norms: Global norms of the gradients.
        applied: The same after clipping.
        cosines: Between the two.
        made: Whether the update was made: not if a gradient is not finite.
        accuracy: Of the head `recent` on held-out examples.
    """

    norms: list[float]
    applied: list[float]
    cosines: list[float]
    made: list[bool]
    accuracy: list[float]


def train(
    clip: Any, seed: int, updates: int, rate: float, advance: Callable[[], None] = lambda: None
) -> tuple[Trace, MultiHeadTrainer]:
    """Trains by hand: compute, look, clip, apply.

    Args:
        clip: A clipping, or None.
        seed: Of weights and data.
        updates: How many.
        rate: Of plain gradient descent.
        advance: Called after each update.
    """
    trainer = make_trainer(seed, keras.optimizers.SGD(rate))
    generator = np.random.default_rng(seed)
    held_out = make_batch(generator, 256)
    trainer.compute_gradients(held_out)  # creates the variables
    compute = tf.function(lambda *batch: [gradient for gradient, _ in trainer.compute_gradients(batch)])
    answer = tf.function(lambda tokens: trainer(tokens)["recent"])
    variables = [variable for _, variable in trainer.compute_gradients(held_out)]
    trace = Trace([], [], [], [], [])
    for update in range(updates):
        gradients = compute(*make_batch(generator))
        clipped = gradients if clip is None else clip(gradients)
        trace.norms.append(global_norm(gradients))
        trace.applied.append(global_norm(clipped))
        finite = np.isfinite(trace.norms[-1])
        trace.cosines.append(cosine(gradients, clipped) if finite else np.nan)
        trace.made.append(bool(trainer.apply_gradients(zip(clipped, variables))))
        if update % 10 == 9:
            right = answer(held_out[0]).numpy().argmax(axis=1) == held_out[1]["recent"]
            trace.accuracy.append(float(right.mean()))
        advance()
    return trace, trainer


# ------------------------------------------------------------------------------------------------------- results

COLORS = {"unclipped": "tab:gray", **dict(zip(KINDS, ("tab:red", "tab:orange", "tab:purple", "tab:green")))}


def draw(
    looks: dict[str, Look], traces: dict[str, Trace], lengths: Sequence[float], left: dict[str, list[float]], length: float
) -> Any:
    """Norms and accuracy of the trainings, directions at many lengths, and shares of the variables at one."""
    figure, axes = new_figure(2, 2, (12, 8))
    for name, trace in traces.items():
        axes[0, 0].plot(trace.norms, color=COLORS[name], lw=1, alpha=0.8)
        axes[0, 1].plot(np.arange(1, len(trace.accuracy) + 1) * 10, trace.accuracy, color=COLORS[name], label=name)
    broken = next((i for i, made in enumerate(traces["unclipped"].made) if not made), None)
    if broken is not None:
        axes[0, 0].axvline(broken, color=COLORS["unclipped"], ls=":")
        axes[0, 0].text(broken, 1e10, f"  unclipped: not finite from update {broken} on", color="dimgray")
    axes[0, 0].set(yscale="log", ylim=(0.1, 1e12), xlabel="update", title="norm of the gradient, before it is clipped")
    axes[0, 1].set(ylim=(0, 1.03), xlabel="update", title="accuracy of the head `recent`, held out")
    axes[0, 1].legend(loc="upper left", fontsize=9)
    for name, cosines in left.items():
        axes[1, 0].plot(lengths, cosines, color=COLORS[name], label=name)
    axes[1, 0].set(xscale="log", ylim=(0, 1.05), xlabel="length to which it is clipped")
    axes[1, 0].set(title=f"cosine with the unclipped gradient, of length {length:.3g}")
    axes[1, 0].axvline(1, color="black", lw=0.8, ls=":")
    places = np.arange(len(looks))
    norms = {"unclipped": [look.norm for look in looks.values()]}
    norms |= {name: [look.clipped[name] for look in looks.values()] for name in KINDS}
    for i, (name, values) in enumerate(norms.items()):
        share = np.square(values) / np.sum(np.square(values))
        axes[1, 1].bar(places + 0.16 * (i - 2), share, 0.16, color=COLORS[name], label=name)
    axes[1, 1].set_xticks(places, list(looks), rotation=30, ha="right")
    axes[1, 1].set(title="each variable's share of the squared norm, clipped to length 1")
    return figure


def show_one_step(session: Session) -> tuple[list[Any], dict[str, Any], dict[str, Look]]:
    """Computes, inspects and clips one exploded gradient, and one of a batch in which a head has no labels."""
    trainer = make_trainer(session.seed, keras.optimizers.Adam(0.01))  # it would go on moving on zeros
    tokens, targets = make_batch(np.random.default_rng(session.seed))
    pairs = trainer.compute_gradients((tokens, targets))
    gradients = [gradient for gradient, _ in pairs]
    clips = {name: calibrated(kind, gradients, 1.0) for name, kind in KINDS.items()}
    looks = inspect(gradients, clips)
    rows = [
        [name, look.kind, f"{look.norm:.3g}", *(f"{norm:.3f}" for norm in look.clipped.values())]
        for name, look in looks.items()
    ]
    rows.append(["limit", "", "", *(f"{clip.limit:.2g}" for clip in clips.values())])
    rows.append(["cosine", "", "", *(f"{cosine(gradients, clip(gradients)):.3f}" for clip in clips.values())])
    title = f"One gradient of norm {global_norm(gradients):.3g}, clipped to norm 1: norms by variable"
    session.table(title, ["variable", "kind", "norm", *(name.removeprefix("by ") for name in clips)], rows)

    clip = clips["by global norm"]
    trainer.apply_gradients(zip(clip(gradients), [variable for _, variable in pairs]))
    high = trainer.heads["high"].module
    before = [values.copy() for values in high.get_weights()]
    pairs = trainer.compute_gradients((tokens, {"recent": targets["recent"]}))
    partial = [gradient for gradient, _ in pairs]
    kinds = [f"{name}: {kind_of(gradient)}" for name, gradient in zip(VARIABLES, partial) if kind_of(gradient) != "dense"]
    trainer.apply_gradients(zip(clip(partial), [variable for _, variable in pairs]))
    still = all(np.array_equal(*values) for values in zip(before, high.get_weights()))
    session.say(
        f"Without labels for `high`, the gradients that are not dense: {', '.join(kinds)}. None stays None when clipped, "
        f"and under Adam the head {'stays bit for bit as it was' if still else 'moves'}.\n"
    )
    return gradients, clips, looks


def run(session: Session) -> None:
    """Looks at one step, trains in all ways and shows what came out."""
    updates, points = (20, 5) if session.quick else (600, 16)
    gradients, clips, looks = show_one_step(session)
    length = global_norm(gradients)
    lengths = np.geomspace(length * 1e-3, length * 0.999, points).tolist()
    left = directions(gradients, lengths)
    traces = {}
    ways = {"unclipped": None, **clips}
    with session.progress("training in every way", updates * len(ways)) as advance:
        for name, clip in ways.items():
            traces[name], _ = train(clip, session.seed, updates, 0.1, advance)
    rows = []
    for name, trace in traces.items():
        norms, applied = (np.array(values)[np.array(trace.made)] for values in (trace.norms, trace.applied))
        figures = [f"{norms.max():.2g}", f"{applied.max():.2g}", f"{np.nanmedian(trace.cosines):.2f}"]
        rows.append([name, *figures, str(updates - sum(trace.made)), f"{trace.accuracy[-1]:.2f}"])
    title = f"Training, {updates} updates: largest norm before and after clipping, and what came of it"
    session.table(title, ["clipping", "before", "after", "median cosine", "skipped", "accuracy"], rows)
    session.say("One seed and one machine: what counts is that the clipped ways go on, not which learns soonest.")
    session.save(draw(looks, traces, lengths, left, length))


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("clipping", __doc__, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
