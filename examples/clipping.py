"""What does each way of clipping do to the norm and the direction of an exploding gradient?

A recurrent network reads thirty tokens, and two heads predict the class of the third-to-last token and the fraction of
high tokens. Its gradient explodes on the way back through thirty time steps. A custom training loop calls
`compute_gradients` and `apply_gradients`; in between, you can inspect the gradients and clip them: by value, by norm, by
average norm or by global norm.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.clipping import ByAverageNorm, ByGlobalNorm, ByNorm, ByValue

Array = np.ndarray[Any, Any]
Batch = tuple[Array, dict[str, Array]]
KINDS = {"by value": ByValue, "by norm": ByNorm, "by average norm": ByAverageNorm, "by global norm": ByGlobalNorm}
VOCABULARY, CLASSES, TIME = 64, 4, 30
# The trainable variables in order: those of the encoder, then those of each head.
VARIABLES = (
    *("embedding", "input kernel", "recurrent kernel", "recurrent bias"),
    *("recent: kernel", "recent: bias", "high: kernel", "high: bias"),
)


def make_batch(generator: np.random.Generator, size: int = 32) -> Batch:
    """Tokens `[size, 30]`, the class of the third-to-last, and the fraction of high ones; low ones are more frequent."""
    tokens = (VOCABULARY * generator.random((size, TIME)) ** 2).astype("int32")
    high = (tokens >= VOCABULARY // 2).mean(axis=1, keepdims=True).astype("float32")
    return tokens, {"recent": tokens[:, -3] % CLASSES, "high": high}


def make_trainer(seed: int, optimizer: Any) -> MultiHeadTrainer:
    """The network and its two heads; the same seed gives the same weights."""
    keras.utils.set_random_seed(seed)
    embedding = keras.layers.Embedding(VOCABULARY, 8)
    # Every time step enlarges the state, and every step of backpropagation the gradient.
    recurrent = keras.layers.SimpleRNN(32, recurrent_initializer=keras.initializers.Orthogonal(1.5))
    trainer = MultiHeadTrainer(keras.Sequential([embedding, recurrent]))
    trainer.add_head("recent", keras.layers.Dense(CLASSES, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.add_head("high", keras.layers.Dense(1), "mse")
    trainer.compile(optimizer, max_skipped_updates=None)  # the run without clipping diverges, to show how
    return trainer


def dense(gradient: Any) -> Array:
    """A gradient as a dense float64 array; duplicate rows of a sparse gradient are summed."""
    return tf.convert_to_tensor(gradient).numpy().astype("float64")


def global_norm(gradients: Sequence[Any]) -> float:
    """The norm of all gradients together."""
    return float(np.sqrt(sum(np.sum(dense(gradient) ** 2) for gradient in gradients if gradient is not None)))


def cosine(first: Sequence[Any], second: Sequence[Any]) -> float:
    """The cosine of the angle between two lists of gradients."""
    products = [np.sum(dense(a) * dense(b)) for a, b in zip(first, second) if a is not None]
    return float(sum(products)) / (global_norm(first) * global_norm(second))


def gradients_of(trainer: MultiHeadTrainer, tokens: Array, targets: dict[str, Array]) -> list[Any]:
    """The gradients of a batch, in the order of `VARIABLES`."""
    return [gradient for gradient, _ in trainer.compute_gradients((tokens, targets))]


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


class Trace(NamedTuple):
    """A training run: norms before clipping, whether each update was applied, and `recent`'s accuracy every ten updates."""

    norms: list[float]
    made: list[bool]
    accuracy: list[float]


def train(clip: Any, seed: int, updates: int, advance: Callable[[], None] = lambda: None) -> Trace:
    """A custom training loop with SGD: compute, inspect, clip (unless `clip` is None) and apply gradients."""
    trainer = make_trainer(seed, keras.optimizers.SGD(0.1))
    generator = np.random.default_rng(seed)
    held_out = make_batch(generator, 256)
    variables = [variable for _, variable in trainer.compute_gradients(held_out)]  # creates them
    compute = tf.function(lambda *batch: [gradient for gradient, _ in trainer.compute_gradients(batch)])
    answer = tf.function(lambda tokens: trainer(tokens)["recent"])
    trace = Trace([], [], [])
    for update in range(updates):
        gradients = compute(*make_batch(generator))
        clipped = gradients if clip is None else clip(gradients)
        trace.norms.append(global_norm(gradients))
        trace.made.append(bool(trainer.apply_gradients(zip(clipped, variables))))
        if update % 10 == 9:
            right = answer(held_out[0]).numpy().argmax(axis=1) == held_out[1]["recent"]
            trace.accuracy.append(float(right.mean()))
        advance()
    return trace


COLORS = {"unclipped": _style.GREY, **dict(zip(KINDS, (_style.RED, _style.ORANGE, _style.PURPLE, _style.GREEN)))}


@_style.styled
def draw(traces: dict[str, Trace], limits: Sequence[float], left: dict[str, list[float]]) -> Any:
    """Draws norms and accuracy of the training runs, and cosines by clipped norm."""
    figure, axes = _style.new_figure(3, 1, 8.5)
    for name, trace in traces.items():
        axes[0].plot(trace.norms, color=COLORS[name], lw=1, alpha=0.8)
        axes[1].plot(np.arange(1, len(trace.accuracy) + 1) * 10, trace.accuracy, color=COLORS[name], label=name)
    broken = next((i for i, made in enumerate(traces["unclipped"].made) if not made), None)
    if broken is not None:
        axes[0].axvline(broken, color=COLORS["unclipped"], ls=":")
        axes[0].text(broken, 1e10, f"  unclipped: not finite\n  from update {broken} on", color=_style.GREY)
    axes[0].set(yscale="log", ylim=(0.1, 1e12), title="Without clipping, the norm explodes")
    axes[0].set(xlabel="update", ylabel="norm before clipping")
    axes[1].set(ylim=(0, 1.03), xlabel="update", ylabel="accuracy, held out", title="With clipping, training goes on")
    for name, cosines in left.items():
        axes[2].plot(limits, cosines, color=COLORS[name])
    axes[2].set(xscale="log", ylim=(0, 1.05), title="Global norm keeps the direction")
    axes[2].set(xlabel="norm after clipping", ylabel="cosine with the gradient")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def without_labels(trainer: MultiHeadTrainer, clip: Any, tokens: Array, targets: dict[str, Array]) -> str:
    """What an update with Adam does to the head `high` if a batch has no labels for it."""
    variables = [variable for _, variable in trainer.compute_gradients((tokens, targets))]
    trainer.apply_gradients(zip(clip(gradients_of(trainer, tokens, targets)), variables))
    before = [values.copy() for values in trainer.heads["high"].module.get_weights()]
    lacking = gradients_of(trainer, tokens, {"recent": targets["recent"]})
    kinds = [f"{name}: {kind_of(gradient)}" for name, gradient in zip(VARIABLES, lacking) if kind_of(gradient) != "dense"]
    trainer.apply_gradients(zip(clip(lacking), variables))
    still = all(np.array_equal(*values) for values in zip(before, trainer.heads["high"].module.get_weights()))
    return (
        f"Without labels for `high`, these gradients are not dense: {', '.join(kinds)}. Clipping keeps None, and with Adam "
        f"the head {'does not change at all' if still else 'changes'}."
    )


def run(session: Session) -> None:
    """Clips one exploding gradient in every way, trains with every way of clipping and shows the results."""
    updates, points = (20, 5) if session.quick else (600, 16)
    trainer = make_trainer(session.seed, keras.optimizers.Adam(0.01))  # Adam also moves on zero gradients
    batch = make_batch(np.random.default_rng(session.seed))
    gradients = gradients_of(trainer, *batch)
    norm = global_norm(gradients)
    clips = {name: calibrated(kind, gradients, 1.0) for name, kind in KINDS.items()}
    limits = np.geomspace(norm * 1e-3, norm * 0.999, points).tolist()
    left = {}
    for name, kind in KINDS.items():
        left[name] = [cosine(gradients, calibrated(kind, gradients, limit)(gradients)) for limit in limits]
    traces, ways = {}, {"unclipped": None, **clips}
    with session.progress("training every way", updates * len(ways)) as advance:
        for name, clip in ways.items():
            traces[name] = train(clip, session.seed, updates, advance)
    after = {name: gradients if clip is None else clip(gradients) for name, clip in ways.items()}
    rows = []
    for i, name in enumerate(VARIABLES):
        rows.append([name, *(f"{global_norm([each[i]]):.3f}" for each in after.values())])
    rows.append(["limit", "", *(f"{clip.limit:.2g}" for clip in clips.values())])
    rows.append(["cosine", *(f"{cosine(gradients, each):.3f}" for each in after.values())])
    rows.append(["largest norm", *(f"{np.nanmax(trace.norms):.2g}" for trace in traces.values())])
    rows.append(["skipped updates", *(str(updates - sum(trace.made)) for trace in traces.values())])
    rows.append(["accuracy", *(f"{trace.accuracy[-1]:.2f}" for trace in traces.values())])
    title = f"One gradient with norm {norm:.3g}, clipped to norm 1: norms by variable. Below: {updates} updates"
    session.table(title, ["", *(name.removeprefix("by ") for name in ways)], rows)
    session.say(without_labels(trainer, clips["by global norm"], *batch))
    session.save(draw(traces, limits, left))


main = partial(run_program, "clipping", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
