"""What does each way of clipping do to the norm and the direction of an exploding gradient?

A recurrent network reads thirty tokens, and two heads predict the class of the third-to-last token and the fraction of
high tokens. Its gradient explodes on the way back through thirty time steps. A custom training loop calls
`compute_gradients` and `apply_gradients`; in between, you can inspect the gradients and clip them: by value, by norm, by
average norm or by global norm.
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
# The trainable variables in order: those of the encoder, then those of each head.
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
    """Tokens `[size, 30]`, the class of the third-to-last, and the fraction of high ones; low ones are more frequent."""
    tokens = (VOCABULARY * generator.random((size, TIME)) ** 2).astype("int32")
    high = (tokens >= VOCABULARY // 2).mean(axis=1, keepdims=True).astype("float32")
    return tokens, {"recent": tokens[:, -3] % CLASSES, "high": high}


def make_trainer(seed: int, optimizer: Any) -> MultiHeadTrainer:
    """The network and its two heads; the same seed gives the same weights."""
    keras.utils.set_random_seed(seed)
    encoder = keras.Sequential(
        [
            keras.layers.Embedding(VOCABULARY, 8),
            # Every time step enlarges the state, and every step of backpropagation the gradient.
            keras.layers.SimpleRNN(32, recurrent_initializer=keras.initializers.Orthogonal(1.5)),
        ]
    )
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("recent", keras.layers.Dense(CLASSES, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("high", keras.layers.Dense(1), "mse")
    trainer.compile(optimizer, max_skipped_updates=None)  # the run without clipping diverges, to show how
    return trainer


# ------------------------------------------------------------------------------------------- inspecting gradients


def dense(gradient: Any) -> Array:
    """A gradient as a dense float64 array; duplicate rows of a sparse gradient are summed."""
    return tf.convert_to_tensor(gradient).numpy().astype("float64")


def global_norm(gradients: Sequence[Any]) -> float:
    """The norm of all gradients together."""
    return float(np.sqrt(sum(np.sum(dense(gradient) ** 2) for gradient in gradients if gradient is not None)))


def cosine(first: Sequence[Any], second: Sequence[Any]) -> float:
    """The cosine of the angle between two lists of gradients."""
    pairs = [(dense(a), dense(b)) for a, b in zip(first, second) if a is not None]
    return float(sum(np.sum(a * b) for a, b in pairs)) / (global_norm(first) * global_norm(second))


def kind_of(gradient: Any) -> str:
    """`none`, `sparse` or `dense`."""
    return "none" if gradient is None else "sparse" if isinstance(gradient, tf.IndexedSlices) else "dense"


def calibrated(kind: Callable[[float], Any], gradients: Sequence[Any], target: float) -> Any:
    """A clipping whose limit gives these gradients a target global norm, so that directions can be compared."""
    low, high = 1e-9, 1e6
    for _ in range(45):
        middle = float(np.sqrt(low * high))
        if global_norm(kind(middle)(gradients)) < target:
            low = middle
        else:
            high = middle
    return kind(high)


class Look(NamedTuple):
    """One variable's gradient: its kind, and its norm before and after each way of clipping."""

    kind: str
    norm: float
    clipped: dict[str, float]


def inspect(gradients: Sequence[Any], clips: dict[str, Any]) -> dict[str, Look]:
    """One entry per variable; a gradient of None has norm 0."""
    after = {name: clip(gradients) for name, clip in clips.items()}
    return {
        name: Look(
            kind_of(gradient),
            global_norm([gradient]),
            {way: global_norm([clipped[i]]) for way, clipped in after.items()},
        )
        for i, (name, gradient) in enumerate(zip(VARIABLES, gradients))
    }


def directions(gradients: Sequence[Any], norms: Sequence[float]) -> dict[str, list[float]]:
    """The cosine with the unclipped gradient after clipping to each of these norms, for each way of clipping."""
    return {
        name: [cosine(gradients, calibrated(kind, gradients, norm)(gradients)) for norm in norms]
        for name, kind in KINDS.items()
    }


# ------------------------------------------------------------------------------------------------------- training


class Trace(NamedTuple):
    """A training run, with one value per update (accuracy: every ten updates).

    Attributes:
        norms: Global norms of the gradients.
        applied: Global norms after clipping.
        cosines: Cosines between the two.
        made: Whether the update was applied; it is skipped if a gradient is not finite.
        accuracy: Accuracy of the head `recent` on held-out examples.
    """

    norms: list[float]
    applied: list[float]
    cosines: list[float]
    made: list[bool]
    accuracy: list[float]


def train(
    clip: Any, seed: int, updates: int, rate: float, advance: Callable[[], None] = lambda: None
) -> tuple[Trace, MultiHeadTrainer]:
    """A custom training loop: compute, inspect, clip and apply gradients.

    Args:
        clip: A clipping, or None.
        seed: Seed of weights and data.
        updates: Number of updates.
        rate: Learning rate of SGD.
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

COLORS = {"unclipped": _style.GREY, **dict(zip(KINDS, (_style.RED, _style.ORANGE, _style.PURPLE, _style.GREEN)))}


@_style.styled
def draw(looks: dict[str, Look], traces: dict[str, Trace], limits: Sequence[float], left: dict[str, list[float]]) -> Any:
    """Draws norms and accuracy of the training runs, cosines by clipped norm, and each variable's share at norm 1."""
    figure, axes = _style.new_figure(2, 2, 7.4)
    for name, trace in traces.items():
        axes[0, 0].plot(trace.norms, color=COLORS[name], lw=1, alpha=0.8)
        axes[0, 1].plot(np.arange(1, len(trace.accuracy) + 1) * 10, trace.accuracy, color=COLORS[name], label=name)
    broken = next((i for i, made in enumerate(traces["unclipped"].made) if not made), None)
    if broken is not None:
        axes[0, 0].axvline(broken, color=COLORS["unclipped"], ls=":")
        axes[0, 0].text(broken, 1e10, f"  unclipped: not finite\n  from update {broken} on", color=_style.GREY)
    axes[0, 0].set(yscale="log", ylim=(0.1, 1e12), xlabel="update", title="Without clipping, the norm explodes")
    axes[0, 1].set(ylim=(0, 1.03), xlabel="update", title="With any clipping, it learns")
    axes[0, 0].set_ylabel("gradient norm before clipping")
    axes[0, 1].set_ylabel("accuracy, held out")
    for name, cosines in left.items():
        axes[1, 0].plot(limits, cosines, color=COLORS[name], label=name)
    axes[1, 0].set(xscale="log", ylim=(0, 1.05), xlabel="norm after clipping")
    axes[1, 0].set(title="Global norm keeps the direction")
    axes[1, 0].set_ylabel("cosine with the gradient")
    axes[1, 0].axvline(1, color="black", lw=0.8, ls=":")
    places = np.arange(len(looks))
    norms = {"unclipped": [look.norm for look in looks.values()]}
    norms |= {name: [look.clipped[name] for look in looks.values()] for name in KINDS}
    for i, (name, values) in enumerate(norms.items()):
        share = np.square(values) / np.sum(np.square(values))
        axes[1, 1].bar(places + 0.16 * (i - 2), share, 0.16, color=COLORS[name], label=name)
    axes[1, 1].set_xticks(places, list(looks), rotation=30, ha="right")
    axes[1, 1].set(title="and each variable's share (norm 1)")
    axes[1, 1].set_ylabel("share of the squared norm")
    handles, names = axes[1, 1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def show_one_step(session: Session) -> tuple[list[Any], dict[str, Any], dict[str, Look]]:
    """Computes, inspects and clips one exploding gradient, and one of a batch in which a head has no labels."""
    trainer = make_trainer(session.seed, keras.optimizers.Adam(0.01))  # Adam also moves on zero gradients
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
    title = f"One gradient with norm {global_norm(gradients):.3g}, clipped to norm 1: norms by variable"
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
        f"Without labels for `high`, these gradients are not dense: {', '.join(kinds)}. Clipping keeps None, and with Adam "
        f"the head {'does not change at all' if still else 'changes'}.\n"
    )
    return gradients, clips, looks


def run(session: Session) -> None:
    """Inspects one update, trains with every way of clipping and shows the results."""
    updates, points = (20, 5) if session.quick else (600, 16)
    gradients, clips, looks = show_one_step(session)
    unclipped = global_norm(gradients)
    limits = np.geomspace(unclipped * 1e-3, unclipped * 0.999, points).tolist()
    left = directions(gradients, limits)
    traces = {}
    ways = {"unclipped": None, **clips}
    with session.progress("training every way", updates * len(ways)) as advance:
        for name, clip in ways.items():
            traces[name], _ = train(clip, session.seed, updates, 0.1, advance)
    rows = []
    for name, trace in traces.items():
        norms, applied = (np.array(values)[np.array(trace.made)] for values in (trace.norms, trace.applied))
        figures = [f"{norms.max():.2g}", f"{applied.max():.2g}", f"{np.nanmedian(trace.cosines):.2f}"]
        rows.append([name, *figures, str(updates - sum(trace.made)), f"{trace.accuracy[-1]:.2f}"])
    title = f"Training, {updates} updates: largest norm before and after clipping, and the result"
    session.table(title, ["clipping", "before", "after", "median cosine", "skipped", "accuracy"], rows)
    session.say("One seed on one machine: what matters is that every clipped run keeps training, not which is fastest.")
    session.save(draw(looks, traces, limits, left))


def main(arguments: list[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("clipping", __doc__, run, arguments)


if __name__ == "__main__":
    sys.exit(main())
