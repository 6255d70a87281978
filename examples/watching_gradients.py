"""Which layer receives no gradient?

`trainer.diagnose` measures the norm of each head's gradient in each encoder layer, here before and after training. In an
encoder with eight sigmoid layers, hardly any gradient reaches the first layers; with eight tanh layers, all of them receive
one.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import keras
import numpy as np

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer

LAYERS = 8
TITLES = {"sigmoid": "sigmoid: gradients vanish", "tanh": "tanh: they do not"}


def make_data(generator: np.random.Generator, size: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Points `[size, 8]` with a kind (0, 1 or 2) and a size."""
    inputs = generator.normal(size=(size, 8)).astype("float32")
    kind = np.digitize(inputs[:, 0] + inputs[:, 1], [-0.6, 0.6]).astype("int32")
    return inputs, {"kind": kind, "size": (inputs[:, 2:3] * 1.5 - inputs[:, 3:4]).astype("float32")}


def make_trainer(activation: str, seed: int) -> MultiHeadTrainer:
    """A deep encoder with two heads; the same seed gives the same weights."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(32, activation=activation, name=f"layer_{i + 1}") for i in range(LAYERS)]
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    kind = keras.layers.Dense(3, activation="softmax")
    trainer.add_head("kind", kind, "sparse_categorical_crossentropy", metrics=["accuracy"])
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.SGD(0.05))
    return trainer


def train(activation: str, seed: int, size: int, epochs: int) -> tuple[np.ndarray, dict[str, list[float]]]:
    """Trains an encoder.

    Returns:
        The norms of the gradients of `kind` and of `size` before and after training, `[2, 2, layers]`, and Keras's history.
    """
    x, y = make_data(np.random.default_rng(seed), size)
    trainer = make_trainer(activation, seed)
    batch = x[:64], {name: values[:64] for name, values in y.items()}
    before = trainer.diagnose([batch])
    history = trainer.fit(x, y, batch_size=64, epochs=epochs, shuffle=False, verbose=0).history
    measured = [list(each.layer_norms.values()) for each in (before, trainer.diagnose([batch]))]
    return np.swapaxes(measured, 1, 2), history


@_style.styled
def draw(norms: dict[str, np.ndarray]) -> Any:
    """Draws the norms of each head's gradient by layer, before and after training."""
    figure, axes = _style.new_figure(1, 2, 3.6, sharey=True)
    for axis, (activation, measured) in zip(axes, norms.items()):
        for when, style, of_heads in zip(("before", "after"), (":", "-"), measured):
            for head, color, values in zip(("kind", "size"), (_style.RED, _style.BLUE), of_heads):
                axis.plot(range(1, LAYERS + 1), values, style, color=color, marker="o", ms=4, label=f"{head}, {when}")
        axis.set(yscale="log", xlabel="encoder layer", title=TITLES[activation])
    axes[0].set_ylabel("gradient norm")
    figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def run(session: Session) -> None:
    """Trains both encoders and shows the gradients of their layers."""
    size, epochs = (256, 2) if session.quick else (1024, 25)
    norms, histories = {}, {}
    with session.progress("training both encoders", len(TITLES)) as advance:
        for activation in TITLES:
            norms[activation], histories[activation] = train(activation, session.seed, size, epochs)
            advance()
    rows = []
    for layer in range(LAYERS):
        rows.append([f"layer {layer + 1}", *(f"{norm:.1e}" for _, after in norms.values() for norm in after[:, layer])])
    columns = ["", *(f"{activation}: {head}" for activation in norms for head in ("kind", "size"))]
    session.table("Norms of the gradients in the encoder after training", columns, rows)
    for activation, history in histories.items():
        starved = 1 + int(np.argmin(norms[activation][1, 1]))
        found = ", ".join(f"{name} {history[name][-1]:.3g}" for name in ("kind_accuracy", "size_loss"))
        session.say(f"{activation}: layer {starved} has the smallest gradient; {found}.")
    session.save(draw(norms))


main = partial(run_program, "watching_gradients", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
