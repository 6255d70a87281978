"""What telemetry costs: processor time of a training step, relative to one with `telemetry=None`.

The workloads are those of `benchmarks.step`, and a convolutional encoder with three heads. The variants alternate, and each
ratio is the median over rounds. `layers_every=100` is computed from a step that measures layers and one that does not. Run
`python -m benchmarks.telemetry`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks._timing import measure
from benchmarks.step import by_hand, sequence_workload, small_workload, with_eight_heads, with_trainer
from multihead import MultiHeadTrainer

VARIANTS: dict[str, dict[str, Any]] = {
    "telemetry=None": {"telemetry": None},
    'telemetry="norms"': {"telemetry": "norms"},
    '"full", a step between': {"telemetry": "full", "layers_every": 10**9},
    '"full", a step by layer': {"telemetry": "full", "layers_every": 1},
}
EVERY = 100


def with_pictures(**options: Any) -> Callable[[], Any]:
    """The training step of a convolutional encoder with three heads."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(32, 32, 32, 3)).astype("float32"))
    targets = {"kind": tf.constant(rng.integers(0, 5, 32)), "size": tf.constant(rng.normal(size=(32, 1)).astype("float32"))}
    targets["age"] = targets["size"] + 1.0
    layers = [keras.layers.Conv2D(n, 3, strides=2, activation="relu", padding="same") for n in (32, 64, 128)]
    trainer = MultiHeadTrainer(keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D()]))
    trainer.add_head("kind", keras.layers.Dense(5, activation="softmax"), "sparse_categorical_crossentropy")
    for name in ("size", "age"):
        trainer.add_head(name, keras.layers.Dense(1), "mse")
    trainer.compile(keras.optimizers.Adam(1e-3), **options)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0, shuffle=False)
    step = tf.function(trainer.train_step)
    return lambda: step((x, targets))


WORKLOADS: dict[str, Callable[..., Callable[[], Any]]] = {
    "GRU encoder, sequence and class": lambda **options: with_trainer(sequence_workload, **options),
    "convolutions, three heads": with_pictures,
    "two small dense heads": lambda **options: with_trainer(small_workload, **options),
    "eight small dense heads": with_eight_heads,
}
BY_HAND = {"GRU encoder, sequence and class": sequence_workload, "two small dense heads": small_workload}


def main(arguments: list[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="number of rounds (default: 15)")
    parser.add_argument("--steps", type=int, default=10, help="steps per round and variant (default: 10)")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="which workloads")
    options = parser.parse_args(arguments)
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}; processor time of a step, relative to the first row")
    for title in options.workloads:
        runs = {name: WORKLOADS[title](**variant) for name, variant in VARIANTS.items()}
        if title in BY_HAND:
            runs["custom training loop"] = by_hand(BY_HAND[title])
        ratios = measure(runs, options.rounds, options.steps, time.process_time)
        print(f"\n| {title} ({ratios.pop('milliseconds'):.1f} ms) | ratio |\n| --- | --- |")
        between, by_layer = ratios['"full", a step between'], ratios['"full", a step by layer']
        ratios[f'telemetry="full", layers_every={EVERY}'] = between + (by_layer - between) / EVERY
        for name, ratio in ratios.items():
            print(f"| {name} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
