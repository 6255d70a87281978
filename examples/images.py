"""What do three heads on one image encoder need, if one of them has raw units and one lacks most of its labels?

MobileNetV2 without its last blocks, with random weights, on scikit-learn's handwritten digits. The heads predict which
digit it is; whether it is even or odd, with 60 % of these labels missing; and the sum of the pixels, about 300. They are
trained with the plain sum; with what `diagnose` suggests; with the best of some balancers, chosen on validation data; and
with `Uncertainty`. The rate decays to zero each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from examples import _style
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer

BALANCERS = ("IMTLG", "FairGrad")
WAYS: dict[str, Mapping[str, Any] | None] = {
    "plain sum": {},
    "what diagnose suggests": None,
    **{name: {"balancer": name} for name in BALANCERS},
    "Uncertainty": {"weighting": "Uncertainty"},
}
"""Options of `compile` to train with; None for what `diagnose` suggests."""
SIDE, BATCH, RATE = 32, 60, 3e-3
TRAIN, VALIDATION = 1200, 200
CLASSES = "sparse_categorical_crossentropy"
SCORES = {"digit": "digit: accuracy", "parity": "parity: accuracy", "sum": "sum of pixels: R²"}
NO_LABEL = -1

Arrays = tuple[np.ndarray, dict[str, np.ndarray]]


class Split(NamedTuple):
    """Pictures `[n, 32, 32, 3]` and targets, to train, to choose a balancer, and to compare on."""

    train: Arrays
    validation: Arrays
    test: Arrays


def digits(seed: int) -> Split:
    """The digits in random order, four times as large, with 60 % of the parities missing in training."""
    from sklearn.datasets import load_digits

    generator = np.random.default_rng(seed)
    pixels, digit = load_digits(return_X_y=True)
    order = generator.permutation(len(pixels))
    pixels, digit = pixels[order].astype("float32"), digit[order].astype("int64")
    larger = pixels.reshape(-1, 8, 8).repeat(SIDE // 8, axis=1).repeat(SIDE // 8, axis=2)
    pictures = np.repeat(larger[..., np.newaxis] / 8 - 1, 3, axis=-1)  # from -1 to 1
    parity = digit % 2
    parity[:TRAIN][generator.random(TRAIN) < 0.6] = NO_LABEL
    targets = {"digit": digit, "parity": parity, "sum": pixels.sum(axis=1, keepdims=True)}
    parts = slice(TRAIN), slice(TRAIN, TRAIN + VALIDATION), slice(TRAIN + VALIDATION, None)
    return Split(*((pictures[part], {name: values[part] for name, values in targets.items()}) for part in parts))


def new_trainer() -> MultiHeadTrainer:
    """Three heads on MobileNetV2, up to its maps of 4 x 4: smaller maps cannot be trained on pictures of this size."""
    whole_network = keras.applications.MobileNetV2(input_shape=(SIDE, SIDE, 3), alpha=0.35, include_top=False, weights=None)
    maps = whole_network.get_layer("block_6_expand_relu").output
    encoder = keras.Model(whole_network.input, keras.layers.GlobalAveragePooling2D()(maps))
    for layer in encoder.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            layer.momentum = 0.9  # Keras's 0.999 needs thousands of updates before inference is that of training
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("digit", keras.layers.Dense(10, activation="softmax"), CLASSES)
    trainer.add_head("parity", keras.layers.Dense(2, activation="softmax"), CLASSES, ignore_label=NO_LABEL)
    trainer.add_head("sum", keras.layers.Dense(1), "mse")
    return trainer


def train(way: Mapping[str, Any] | None, data: Split, seed: int, epochs: int) -> tuple[MultiHeadTrainer, str]:
    """Trains with options, and says what `diagnose` has found and suggested."""
    keras.utils.set_random_seed(seed)
    trainer = new_trainer()
    x, y = data.train
    rate = keras.optimizers.schedules.CosineDecay(RATE, epochs * -(-len(x) // BATCH))
    optimizer = keras.optimizers.Adam(rate)
    options, told = way, ""
    if options is None:
        trainer.compile(optimizer, telemetry=None)
        found = trainer.diagnose(x, y, batch_size=BATCH, batches=4)
        options = found.suggestion
        kinds = ", ".join(dict.fromkeys(finding.kind for finding in found.findings))
        names = [type(each).__name__ if name == "balancer" else f"{name}={each}" for name, each in options.items()]
        told = f"finds: {kinds}; suggests: {', '.join(names) or 'nothing'}"
    trainer.compile(optimizer, telemetry=None, **options)
    trainer.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)
    return trainer, told


def scores(trainer: MultiHeadTrainer, part: Arrays) -> dict[str, float]:
    """Accuracy of the classes and R² of the sum."""
    x, y = part
    found = trainer.predict(x, batch_size=len(x), verbose=0)
    scored = {head: float(np.mean(found[head].argmax(axis=-1) == y[head])) for head in ("digit", "parity")}
    return {**scored, "sum": float(1 - np.mean((found["sum"] - y["sum"]) ** 2) / y["sum"].var())}


def compare(
    data: Split, seed: int, epochs: int, advance: Callable[[], None]
) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The scores of each way, of the balancers only those of the best, and what `diagnose` tells.

    The best balancer has the largest mean over heads on the validation data, where an R² below -1 counts as -1.
    """
    found, chosen_by, told = {}, {}, []
    for name, way in WAYS.items():
        trainer, words = train(way, data, seed, epochs)
        found[name] = scores(trainer, data.test)
        if name in BALANCERS:
            chosen_by[name] = float(np.mean([max(-1.0, each) for each in scores(trainer, data.validation).values()]))
        if words:
            told.append(f"diagnose {words}")
        advance()
    best = max(chosen_by, key=lambda name: chosen_by[name])
    others = [f"{name} {value:.3f}" for name, value in chosen_by.items()]
    told.append(f"the balancers' means on the validation data: {', '.join(others)}")
    shown = {name: scored for name, scored in found.items() if name not in BALANCERS or name == best}
    return {f"best balancer: {name}" if name == best else name: scored for name, scored in shown.items()}, told


@_style.styled
def draw(found: Mapping[str, Mapping[str, float]]) -> Any:
    """Draws the scores, a row for each way."""
    figure, axes = _style.new_figure(1, 3, 3.0, sharey=True)
    for axis, (head, title) in zip(axes, SCORES.items()):
        for row, scored in enumerate(found.values()):
            value, color = max(0.0, scored[head]), _style.BLUE if row == 1 else _style.GREY
            axis.hlines(row, 0, value, color=color, lw=2, alpha=0.5)
            axis.plot(value, row, "o", color=color, ms=6)
            shown = f"{scored[head]:.2f}".replace("-", "−")
            axis.text(value, row - 0.2, shown, color=color, ha="center" if value > 0.1 else "left")
        axis.set(title=title.replace(": ", ":\n"), xlim=(0, 1.08), ylim=(len(found) - 0.5, -0.7))
        axis.set_yticks(range(len(found)), list(found))
        axis.set_xticks([0, 0.5, 1])
        axis.grid(axis="x", alpha=0.3)
    return figure


def run(session: Session) -> None:
    """Trains in every way and shows the results."""
    data, epochs = digits(session.seed), 20
    if session.quick:
        data, epochs = Split(*((x[:24], {name: each[:24] for name, each in y.items()}) for x, y in data)), 1
    with session.progress("training every way", len(WAYS)) as advance:
        found, told = compare(data, session.seed, epochs, advance)
    for line in told:
        session.say(line)
    rows = [[name, *(f"{scored[head]:.3f}" for head in SCORES)] for name, scored in found.items()]
    title = "On pictures not trained on: accuracy of digit and parity, R² of the sum of pixels"
    session.table(title, ["way", *SCORES], rows)
    session.save(draw(found))


main = partial(run_program, "images", __doc__, run, needs=("matplotlib", "rich", "sklearn"))

if __name__ == "__main__":
    sys.exit(main())
