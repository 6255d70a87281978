"""Which layer receives no gradient, and how can you see it during training?

With `compile(telemetry="full", layers_every=4)`, a ledger has the norm of each head's gradient in each encoder layer. In an
encoder with eight sigmoid layers, hardly any gradient reaches the first layers; with eight tanh layers, all of them receive
one. `python -m multihead plot` draws such a ledger.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer
from multihead.callbacks import UpdateLogger

LAYERS, EVERY = 8, 4
COLORS = {"sigmoid": _style.RED, "tanh": _style.BLUE}
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
    trainer.compile(keras.optimizers.SGD(0.05), telemetry="full", layers_every=EVERY)
    return trainer


def train(activation: str, seed: int, size: int, epochs: int, ledger: Path) -> tuple[np.ndarray, dict[str, list[float]]]:
    """Trains an encoder.

    Returns:
        The norms of the gradients of `kind`, of `size` and of both, `[measurements, 3, layers]`, and Keras's history.
    """
    ledger.unlink(missing_ok=True)
    x, y = make_data(np.random.default_rng(seed), size)
    trainer = make_trainer(activation, seed)
    options: dict[str, Any] = {"batch_size": 64, "epochs": epochs, "shuffle": False, "verbose": 0}
    history = trainer.fit(x, y, callbacks=[UpdateLogger(ledger)], **options).history
    lines = [json.loads(line) for line in ledger.read_text(encoding="utf-8").splitlines()]
    names = ("kind_norm", "size_norm", "update_norm")
    measured = [[[layer[name] for layer in line["layers"].values()] for name in names] for line in lines if "layers" in line]
    return np.array(measured), history


@_style.styled
def draw(norms: dict[str, np.ndarray]) -> Any:
    """Draws the norms of both heads' gradient by layer during training, and those of each head at the end."""
    from matplotlib import colormaps

    figure, axes = _style.new_figure(1, 3, 4.0, sharey=True)
    for axis, (activation, measured) in zip(axes, norms.items()):
        updates = EVERY * np.arange(1, len(measured) + 1)
        for layer in range(LAYERS):
            color = colormaps["viridis"](layer / (LAYERS - 0.5))
            axis.plot(updates, measured[:, 2, layer], color=color, lw=1.2, label=f"layer {layer + 1}")
        axis.set(yscale="log", xlabel="update", title=TITLES[activation])
        for head, style in (("kind", "-o"), ("size", "--s")):
            last = measured[-1, 0 if head == "kind" else 1]
            label = f"{activation}, {head}"
            axes[2].plot(range(1, LAYERS + 1), last, style, color=COLORS[activation], ms=4, label=label)
    axes[0].set_ylabel("gradient norm")
    axes[1].legend(fontsize=8, ncols=2, frameon=False)
    axes[2].set(xlabel="encoder layer", title="for both heads")
    axes[2].legend(fontsize=8, frameon=False)
    return figure


def run(session: Session) -> None:
    """Trains both encoders and shows the gradients of their layers."""
    size, epochs = (256, 2) if session.quick else (1024, 25)
    norms, histories = {}, {}
    with session.progress("training both encoders", len(TITLES)) as advance:
        for activation in TITLES:
            ledger = session.folder / f"{activation}.jsonl"
            norms[activation], histories[activation] = train(activation, session.seed, size, epochs, ledger)
            advance()
    rows = []
    for layer in range(LAYERS):
        means = [each[len(each) // 2 :].mean(axis=0) for each in norms.values()]
        rows.append([f"layer {layer + 1}", *(f"{norm:.1e}" for mean in means for norm in mean[:, layer])])
    columns = ["", *(f"{activation}: {what}" for activation in norms for what in ("kind", "size", "both"))]
    session.table("Norms of the gradients in the encoder, means over the second half of training", columns, rows)
    for activation, history in histories.items():
        starved = 1 + int(np.argmin(norms[activation][-1, 2]))
        found = ", ".join(f"{name} {history[name][-1]:.3g}" for name in ("kind_accuracy", "size_loss"))
        session.say(f"{activation}: layer {starved} has the smallest gradient; {found}.")
    session.say(f"More plots: python -m multihead plot {session.folder / 'sigmoid.jsonl'}")
    session.save(draw(norms))


main = partial(run_program, "watching_gradients", __doc__, run)

if __name__ == "__main__":
    sys.exit(main())
