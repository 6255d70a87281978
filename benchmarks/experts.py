"""Experts or a shared bottom? Two heads on the synthetic data of Ma et al. (2018), whose tasks have a given correlation.

    python -m benchmarks.experts [--correlations 1 0.5 0] [--seeds 5] [--epochs 16] [--quick] [--table]

Section 3.2 of the paper: with orthogonal unit vectors `u_1` and `u_2`, `w_1 = c u_1` and
`w_2 = c (p u_1 + sqrt(1 - p^2) u_2)`; `x` is standard normal, `y_k = w_k x + sum_i sin(a_i w_k x + b_i) + noise`, with a
variance of the noise of 0.01. Here `c = 1`, `a = 1, 2, 3, 4` and `b = 0, 1, 2, 3`, which the paper leaves open.

The models have as many weights below the heads as in section 4.2, gates aside: eight experts of 16 units, or a bottom of 113
units, or a bottom of 56 units for each head, which is a model for each head. All towers have 8 hidden units. For each model
and correlation the learning rate is chosen on a seed that is not reported, by the validation loss, and decays to 0 by a
cosine. Every run is a line of `--output`; a command with the same options continues where it stopped. `--table` only prints.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from scipy import stats

from benchmarks._results import read_lines as read
from multihead import MultiHeadTrainer
from multihead.models import CGC, MMoE

HEADS = ("first", "second")
FEATURES, TOWER, BATCH_SIZE, TUNING_SEED = 100, 8, 250, 1000
RATES = (3e-3, 1e-2, 3e-2)
RESULTS = Path(__file__).parent / "results" / "experts.jsonl"
SHARED, ALONE = "shared bottom", "a bottom for each head"
PARTS = {"train": 10000, "validation": 5000, "test": 5000}

Split = Mapping[str, tuple[np.ndarray, dict[str, np.ndarray]]]
Line = dict[str, Any]


def draw(correlation: float, seed: int, parts: Mapping[str, int]) -> Split:
    """The synthetic data, `x` `[rows, FEATURES]` and a column for each head, by the name of the part."""
    rng = np.random.default_rng(seed)
    one, two = np.linalg.qr(rng.normal(size=(FEATURES, 2)))[0].T
    directions = one, correlation * one + math.sqrt(1 - correlation**2) * two
    made = {}
    for name, rows in parts.items():
        x = rng.normal(size=(rows, FEATURES))
        targets = {}
        for head, direction in zip(HEADS, directions):
            z = x @ direction
            waves = sum(np.sin((i + 1) * z + i) for i in range(4))
            targets[head] = (z + waves + rng.normal(scale=0.1, size=rows)).astype("float32")[:, np.newaxis]
        made[name] = x.astype("float32"), targets
    return made


class Bottoms(keras.layers.Layer):
    """A layer for each head: nothing is shared."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.layers_of = [keras.layers.Dense(units, activation="relu") for _ in HEADS]

    def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {name: layer(x) for name, layer in zip(HEADS, self.layers_of)}


def tower() -> keras.Sequential:
    """A hidden layer and an output."""
    return keras.Sequential([keras.layers.Dense(TOWER, activation="relu"), keras.layers.Dense(1)])


def shared_bottom() -> MultiHeadTrainer:
    trainer = MultiHeadTrainer(keras.layers.Dense(113, activation="relu"))
    for name in HEADS:
        trainer.add_head(name, tower(), "mse")
    return trainer


def bottoms() -> MultiHeadTrainer:
    trainer = MultiHeadTrainer(Bottoms(56))
    for name in HEADS:
        trainer.add_head(name, tower(), "mse", reads=name)
    return trainer


def mixture(encoder: MMoE | CGC) -> MultiHeadTrainer:
    trainer = MultiHeadTrainer(encoder)
    for name in encoder.heads:
        trainer.add_head(name, encoder.head(tower()), "mse", reads=name)
    return trainer


MODELS: dict[str, Callable[[], MultiHeadTrainer]] = {
    SHARED: shared_bottom,
    "MMoE": lambda: mixture(MMoE(HEADS, 8, 16)),
    ALONE: bottoms,
    "CGC": lambda: mixture(CGC(HEADS, shared_experts=4, own_experts=2, units=16)),
}


@keras.saving.register_keras_serializable(package="benchmarks")
class Decay(keras.optimizers.schedules.LearningRateSchedule):
    """A cosine from `start`, a variable, so that runs of different rates need one graph."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.start = tf.Variable(0.0, trainable=False)

    def __call__(self, step: Any) -> tf.Tensor:
        done = tf.minimum(tf.cast(step, tf.float32) / self.updates, 1.0)
        return self.start * 0.5 * (1.0 + tf.cos(math.pi * done))

    def get_config(self) -> dict[str, Any]:
        return {"updates": self.updates}


class Model:
    """A model that is traced once, and begins again for every run."""

    def __init__(self, name: str, data: Split, epochs: int) -> None:
        self.build, self.epochs = MODELS[name], epochs
        x, targets = data["train"]
        self.decay = Decay(epochs * (len(x) // BATCH_SIZE))
        self.trainer = trainer = self.build()
        trainer.compile(keras.optimizers.Adam(self.decay), telemetry=None)
        trainer.compute_gradients((x[:2], {name: y[:2] for name, y in targets.items()}))

        @tf.function(jit_compile=True)
        def train(x: tf.Tensor, targets: dict[str, tf.Tensor], order: tf.Tensor) -> None:
            for rows in order:  # one program for all updates, which is quicker than `fit` for steps so small
                batch = tf.gather(x, rows), {name: tf.gather(y, rows) for name, y in targets.items()}
                trainer.apply_gradients(trainer.compute_gradients(batch))

        self.train = train

    def run(self, data: Split, seed: int, rate: float) -> dict[str, dict[str, float]]:
        """Trains from the initial weights of a seed; the fraction of its variance that a head leaves, by part and head."""
        keras.utils.set_random_seed(seed)
        start = self.build()
        start(data["train"][0][:2])
        for old, new in zip(_modules(self.trainer), _modules(start), strict=True):
            old.set_weights(new.get_weights())
        slots = self.trainer.optimizer.variables  # a method on Keras 2
        for variable in slots() if callable(slots) else slots:
            variable.assign(tf.zeros_like(variable))
        self.decay.start.assign(rate)
        x, targets = data["train"]
        rng, whole = np.random.default_rng(seed), len(x) // BATCH_SIZE * BATCH_SIZE
        order = np.stack([rng.permutation(len(x))[:whole] for _ in range(self.epochs)]).reshape(-1, BATCH_SIZE)
        self.train(tf.constant(x), {name: tf.constant(y) for name, y in targets.items()}, tf.constant(order))
        return {part: self._left(*data[part]) for part in ("validation", "test")}

    def _left(self, x: np.ndarray, targets: Mapping[str, np.ndarray]) -> dict[str, float]:
        predicted = self.trainer(x, training=False)
        return {head: float(np.mean((predicted[head].numpy() - y) ** 2) / np.var(y)) for head, y in targets.items()}


def _modules(trainer: MultiHeadTrainer) -> list[Any]:
    return [trainer.encoder, *(head.module for head in trainer.heads.values())]


class Runs:
    """The runs of a study, each of which is trained once and written to a file.

    Args:
        path: The file of JSON lines: the settings, and the runs.
        settings: What is the same for all runs.

    Raises:
        ValueError: The file has other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path, self.settings = path, settings
        written = read(path)
        if written and written[0] != settings:
            raise ValueError(
                f"`--output` must have these settings: {settings}. Received: {written[0]}. Choose another file."
            )
        self.lines = written[1:]
        if not written:
            self._write(settings)
        self._model: tuple[str, Model] | None = None

    def measure(self, model: str, correlation: float, seed: int, rate: float) -> Line:
        """The line of a run, which is trained if it is not there yet."""
        key = {"model": model, "correlation": correlation, "seed": seed, "rate": rate}
        found = next((line for line in self.lines if key.items() <= line.items()), None)
        if found is None:
            data = draw(correlation, seed, self.settings["rows"])
            if self._model is None or self._model[0] != model:
                self._model = model, Model(model, data, self.settings["epochs"])
            found = {**key, **self._model[1].run(data, seed, rate)}
            self._write(found)
            self.lines.append(found)
            print(json.dumps(found), flush=True)
        return found

    def _write(self, line: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def left(line: Line, part: str) -> float:
    """The mean over the heads of the fractions that they leave."""
    return float(np.mean(list(line[part].values())))


def chosen_rates(lines: Sequence[Line]) -> dict[tuple[str, float], float]:
    """The best learning rate on the tuning seed, by model and correlation."""
    best: dict[tuple[str, float], Line] = {}
    for line in lines:
        key = line["model"], line["correlation"]
        if line["seed"] == TUNING_SEED and (key not in best or left(line, "validation") < left(best[key], "validation")):
            best[key] = line
    return {key: line["rate"] for key, line in best.items()}


def reported(lines: Sequence[Line]) -> dict[tuple[str, float], np.ndarray]:
    """What is left of the variance of the test data, `[seeds]`, by model and correlation; unfinished models are left out."""
    rates = chosen_rates(lines)
    found: dict[tuple[str, float], list[tuple[int, float]]] = {}
    for line in lines:
        key = line["model"], line["correlation"]
        if line["seed"] != TUNING_SEED and line["rate"] == rates[key]:
            found.setdefault(key, []).append((line["seed"], left(line, "test")))
    most = max(map(len, found.values()))
    all_of = {correlation for _, correlation in found}
    done = {model for model in MODELS if all(len(found.get((model, each), ())) == most for each in all_of)}
    return {key: np.array([value for _, value in sorted(values)]) for key, values in found.items() if key[0] in done}


def tables(lines: Sequence[Line]) -> list[list[str]]:
    """What each model leaves; how much more than at the first correlation; how much less than the shared bottom."""
    values = reported(lines)
    correlations = list(dict.fromkeys(correlation for _, correlation in values))
    models = [model for model in MODELS if (model, correlations[0]) in values]
    made = []
    for cells in (_absolute, _more, _less):
        made.append([f"| model | {' | '.join(f'p = {each:g}' for each in correlations)} |"])
        made[-1].append(f"| --- |{' ---: |' * len(correlations)}")
        for model in models:
            row = [cells(values, model, each, correlations[0]) for each in correlations]
            if any(row):
                made[-1].append(f"| {model} | {' | '.join(row)} |")
    return made


Values = Mapping[tuple[str, float], np.ndarray]


def _absolute(values: Values, model: str, correlation: float, first: float) -> str:
    found = values[model, correlation]
    return f"{found.mean():.3f} ± {found.std(ddof=1):.3f}"


def _more(values: Values, model: str, correlation: float, first: float) -> str:
    return "0" if correlation == first else interval(values[model, correlation] - values[model, first])


def _less(values: Values, model: str, correlation: float, first: float) -> str:
    bottom = SHARED
    return "" if model == bottom else interval(values[bottom, correlation] - values[model, correlation])


def interval(differences: np.ndarray) -> str:
    """A mean difference with its 95 % interval by Student's distribution."""
    mean, count = differences.mean(), len(differences)
    margin = stats.t.ppf(0.975, count - 1) * differences.std(ddof=1) / math.sqrt(count)
    return f"{mean:+.3f} ({mean - margin:+.3f} to {mean + margin:+.3f})"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--correlations", type=float, nargs="+", default=[1.0, 0.5, 0.0], help="correlation scores p")
    parser.add_argument("--seeds", type=int, default=5, help="number of reported seeds")
    parser.add_argument("--epochs", type=int, default=16, help="passes over the training rows")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of JSON lines")
    parser.add_argument("--quick", action="store_true", help="few rows, one epoch, two seeds, two correlations")
    parser.add_argument("--table", action="store_true", help="print the tables of --output, and train nothing")
    asked = parser.parse_args(arguments)
    rows, rates = PARTS, RATES
    if asked.quick:
        rows, rates = dict.fromkeys(PARTS, 2 * BATCH_SIZE), RATES[-1:]
        asked.correlations, asked.seeds, asked.epochs = [1.0, 0.0], 2, 1
        asked.output = asked.output if asked.output != RESULTS else Path("runs/experts.jsonl")
    if asked.table:
        lines = read(asked.output)[1:]
    else:
        settings = {"rows": rows, "epochs": asked.epochs, "batch_size": BATCH_SIZE, "rates": list(rates)}
        runs = Runs(asked.output, settings)
        for model in MODELS:
            for correlation in asked.correlations:
                for rate in rates:
                    runs.measure(model, correlation, TUNING_SEED, rate)
                rate = chosen_rates(runs.lines)[model, correlation]
                for seed in range(asked.seeds):
                    runs.measure(model, correlation, seed, rate)
        lines = runs.lines
    for table in tables(lines):
        print("\n".join(["", *table]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
