"""What do three heads on one image encoder need, if one of them has raw units and one lacks most of its labels?

MobileNetV2 without its last blocks, with random weights, on scikit-learn's handwritten digits. The heads predict which
digit it is; whether it is even or odd, with 60 % of these labels missing; and the sum of the pixels, about 300. They are
trained with the plain sum; with what `diagnose` suggests; with the best of some balancers, chosen on validation data; and
with `Uncertainty`. The rate decays to zero each time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from examples import _style
from examples._command_line import whole
from examples._shared import Session, run_program
from multihead import MultiHeadTrainer, balancing

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


Way = Mapping[str, Any] | None
"""Options of `compile` to train with; None for what `diagnose` suggests."""


def ways(balancers: Sequence[str]) -> dict[str, Way]:
    """The ways by their names."""
    return {
        "plain sum": {},
        "what diagnose suggests": None,
        **{name: {"balancer": name} for name in balancers},
        "Uncertainty": {"weighting": "Uncertainty"},
    }


def train(way: Way, data: Split, seed: int, epochs: int) -> tuple[MultiHeadTrainer, str]:
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
    data: Callable[[int], Split], balancers: Sequence[str], seeds: Sequence[int], epochs: int, advance: Callable[[], None]
) -> tuple[dict[str, list[dict[str, float]]], list[str]]:
    """The scores of each way and seed, of the balancers only those of the best, and what `diagnose` tells at the first seed.

    The best balancer has the largest mean over heads and seeds on the validation data, where an R² below -1 counts as -1.
    """
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways(balancers)}
    chosen_by: dict[str, list[float]] = {name: [] for name in balancers}
    told = []
    for seed in seeds:
        split = data(seed)
        for name, way in ways(balancers).items():
            trainer, words = train(way, split, seed, epochs)
            found[name].append(scores(trainer, split.test))
            if name in balancers:
                chosen_by[name].append(np.mean([max(-1.0, each) for each in scores(trainer, split.validation).values()]))
            if words and seed == seeds[0]:
                told.append(f"diagnose {words}")
            advance()
    best = max(balancers, key=lambda name: np.mean(chosen_by[name]))
    shown = {name: scored for name, scored in found.items() if name not in balancers or name == best}
    others = [f"{name} {np.mean(chosen_by[name]):.3f}" for name in balancers]
    told.append(f"the balancers' means on the validation data: {', '.join(others)}")
    return {f"best balancer: {name}" if name == best else name: scored for name, scored in shown.items()}, told


@_style.styled
def draw(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Any:
    """Draws the scores: a row for each way, a dot for each seed."""
    figure, axes = _style.new_figure(1, 3, 3.4, sharey=True)
    for axis, (head, title) in zip(axes, SCORES.items()):
        for row, scored in enumerate(found.values()):
            values = [max(0.0, each[head]) for each in scored]
            color = _style.BLUE if row == 1 else _style.GREY
            axis.hlines(row, 0, np.mean(values), color=color, lw=2, alpha=0.5)
            axis.plot(values, [row] * len(values), "o", color=color, ms=6)
            shown = f"{np.mean([each[head] for each in scored]):.2f}".replace("-", "−")
            side = "center" if np.mean(values) > 0.1 else "left"
            axis.text(np.mean(values), row - 0.2, shown, color=color, ha=side)
        axis.set(title=title, xlim=(0, 1.08), ylim=(len(found) - 0.5, -0.7))
        axis.set_yticks(range(len(found)), list(found))
        axis.set_xticks([0, 0.5, 1])
        axis.grid(axis="x", alpha=0.3)
    return figure


def run(session: Session) -> None:
    """Trains in every way and shows the results."""
    options = session.options
    seeds = range(session.seed, session.seed + (1 if session.quick else options.seeds))
    balancers = options.balancers[:1] if session.quick else options.balancers
    data = digits
    if session.quick:
        data = lambda seed: Split(*((x[:24], {k: v[:24] for k, v in y.items()}) for x, y in digits(seed)))  # noqa: E731
    total = len(seeds) * len(ways(balancers))
    with session.progress("training every way", total) as advance:
        found, told = compare(data, balancers, list(seeds), 1 if session.quick else options.epochs, advance)
    for line in told:
        session.say(line)
    rows = [[name, *(_mean(scored, head) for head in SCORES)] for name, scored in found.items()]
    title = f"On pictures not trained on: accuracy of digit and parity, R² of the sum of pixels (seeds: {len(seeds)})"
    session.table(title, ["way", *SCORES], rows)
    session.save(draw(found))


def _mean(scored: Sequence[Mapping[str, float]], head: str) -> str:
    values = [each[head] for each in scored]
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


OPTIONS: dict[str, dict[str, Any]] = {
    "--balancers": {
        "nargs": "+",
        "metavar": "NAME",
        "choices": [name for name in balancing.__all__ if name[0].isupper()],
        "default": ["IMTLG", "FairGrad"],
        "help": "balancers, of which the best is shown (default: IMTLG FairGrad)",
    },
    "--seeds": {"type": whole(1), "default": 1, "metavar": "N", "help": "number of seeds, from --seed on (default: 1)"},
    "--epochs": {"type": whole(1), "default": 20, "metavar": "N", "help": "epochs of each way (default: 20)"},
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the program and returns the exit status."""
    return run_program("images", __doc__, run, arguments, needs=("matplotlib", "rich", "sklearn"), own=OPTIONS)


if __name__ == "__main__":
    sys.exit(main())
