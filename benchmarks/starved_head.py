"""Can the plain sum starve a head when everything is standardized? Tickets with 60 rare topics and a noisy number.

    python -m benchmarks.starved_head [--seeds 5] [--epochs 12]

The number has mean 0 and standard deviation 1, the topics are 0 or 1; the losses are Keras's own means. Half of the
number's variance is noise, so its gradient never becomes small, while a mean over 60 rare topics is small from the start.
Both heads read an encoder of 8 units. Prints a table, and writes the results of every run to `--output`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from rich.console import Console

from benchmarks import _results
from multihead import MultiHeadTrainer, balancing

FIGURES = {"topics": "topics, average precision", "hours": "hours, R²"}
NUM_TOPICS, NUM_TRAINING = 60, 3000


def tickets(seed: int = 0, count: int = 4000) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Features, `[count, 32]`, and the targets of both heads, all standardized."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 32)).astype("float32")
    mixes = rng.normal(size=(8, NUM_TOPICS))
    topics = x[:, :8] @ (mixes / np.linalg.norm(mixes, axis=0)) > 2.0  # 2.3 % positive
    waves, slope = rng.normal(size=(8, 6)) / 8**0.5, rng.normal(size=8) / 8**0.5
    signal = np.sin(2.0 * x[:, 8:16] @ waves).sum(axis=1) + x[:, 16:24] @ slope
    hours = signal / signal.std() + rng.normal(size=count)
    hours = (hours - hours.mean()) / hours.std()
    return x, {"topics": topics.astype("float32"), "hours": hours[:, None].astype("float32")}


def part(data: tuple[np.ndarray, dict[str, np.ndarray]], rows: slice, heads: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Some rows of the data, with the targets of some heads."""
    return data[0][rows], {name: data[1][name][rows] for name in heads}


def build(heads: Sequence[str] = ("topics", "hours"), topics_weight: float = 1.0) -> MultiHeadTrainer:
    """A trainer with one or both heads, not compiled."""
    trainer = MultiHeadTrainer(keras.layers.Dense(8, activation="tanh"))
    if "topics" in heads:
        module = keras.layers.Dense(NUM_TOPICS, activation="sigmoid")
        trainer.add_head("topics", module, "binary_crossentropy", weight=topics_weight)
    if "hours" in heads:
        trainer.add_head(
            "hours", keras.Sequential([keras.layers.Dense(16, activation="relu"), keras.layers.Dense(1)]), "mse"
        )
    return trainer


def figures(trainer: MultiHeadTrainer, data: tuple[Any, Mapping[str, Any]]) -> dict[str, float]:
    """Average precision over all topics of all rows, and the explained part of the number's variance."""
    predicted = trainer.predict(data[0], verbose=0)
    found = {}
    if "topics" in predicted:
        hits = data[1]["topics"].ravel()[np.argsort(-predicted["topics"].ravel(), kind="stable")]
        found["topics"] = float(np.mean((np.cumsum(hits) / np.arange(1, hits.size + 1))[hits > 0]))
    if "hours" in predicted:
        found["hours"] = float(1.0 - np.mean((predicted["hours"] - data[1]["hours"]) ** 2) / np.var(data[1]["hours"]))
    return found


def measure(seed: int, epochs: int, heads: Sequence[str], weight: float = 1.0, how: Any = None) -> dict[str, float]:
    """Trains one variant and measures it on the held-out rows.

    Args:
        seed: Of the data and the initial weights.
        epochs: The number of epochs.
        heads: The heads.
        weight: The topics' weight.
        how: A balancer, None for the plain sum, or `"suggestion"`: what `diagnose` suggests before training.
    """
    keras.utils.set_random_seed(seed)
    data = tickets(seed)
    train, held_out = (part(data, rows, heads) for rows in (slice(NUM_TRAINING), slice(NUM_TRAINING, None)))
    trainer = build(heads, weight)
    optimizer = keras.optimizers.Adam(3e-3)
    trainer.compile(optimizer, balancer=None if how == "suggestion" else how)
    if how == "suggestion":
        trainer.compile(optimizer, **trainer.diagnose(*train).suggestion)
    trainer.fit(*train, batch_size=64, epochs=epochs, verbose=0)
    return figures(trainer, held_out)


def variants(epochs: int) -> dict[str, dict[str, Any]]:
    """The arguments of `measure` for each variant."""
    both = {"heads": ("topics", "hours"), "epochs": epochs}
    return {
        "each head alone": {"epochs": epochs},
        "plain sum": both,
        "plain sum, four times as long": {**both, "epochs": 4 * epochs},
        "plain sum, topics weight 10": {**both, "weight": 10.0},
        "plain sum, topics weight 100": {**both, "weight": 100.0},
        "what `diagnose` suggests": {**both, "how": "suggestion"},
        "EqualNorms": {**both, "how": "EqualNorms"},
        **{f"NormFloor({floor})": {**both, "how": balancing.NormFloor(floor)} for floor in (0.2, 0.5, 1.0)},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--epochs", type=int, default=12, help="number of epochs")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=tuple(variants(1)),
        default=tuple(variants(1)),
        metavar="VARIANT",
        help="which variants",
    )
    parser.add_argument("--output", default="runs/starved_head.json", help="file for the results of every run")
    asked = parser.parse_args(arguments)
    console = Console()
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in asked.variants}
    for seed in range(asked.seeds):
        for variant in asked.variants:
            options = variants(asked.epochs)[variant]
            each = [(head,) for head in FIGURES] if "heads" not in options else [options["heads"]]
            run: dict[str, float] = {}
            for heads in each:
                run |= measure(seed, **{**options, "heads": heads})
            results[variant].append(run)
            console.print(f"seed {seed}, {variant}: {run}", highlight=False, soft_wrap=True)
    _results.print_table(console, results, FIGURES, "trained", f"{asked.epochs} epochs, {asked.seeds} seeds")
    _results.write(results, asked.output)


if __name__ == "__main__":
    sys.exit(main())
