"""What it costs to check the values of labels: a training step with the checks, relative to one without.

Both are measured in one process, in turns, as processor time, which other processes change least; each ratio is the median
over rounds. Labels are checked for each element, so the cost grows with their number, and it counts for most where the
modules are smallest. Run `python -m benchmarks.label_checks`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks._timing import finished
from benchmarks.step import sequence_workload, small_workload
from multihead import MultiHeadTrainer, losses


def columns_workload() -> tuple[Any, dict[str, Any], Any, Any]:
    """Twelve columns of which a third is missing, on two layers of 512 units, as for Tox21."""
    rng = np.random.default_rng(0)
    x = tf.constant(rng.normal(size=(256, 512)).astype("float32"))
    labels = rng.integers(0, 2, (256, 12)).astype("float32")
    labels[rng.random(labels.shape) < 1 / 3] = np.nan
    encoder = keras.Sequential([keras.layers.Dense(512, activation="relu"), keras.layers.Dense(512, activation="relu")])
    return encoder, {"assays": keras.layers.Dense(12, activation="sigmoid")}, x, {"assays": tf.constant(labels)}


LOSSES = {
    "reply": losses.SequenceCrossentropy(),
    "price": "sparse_categorical_crossentropy",
    "assays": "binary_crossentropy",
}
WORKLOADS = {
    "GRU encoder, 3,200 tokens and 128 classes": sequence_workload,
    "two dense layers of 512 units, 256 rows of 12 columns": columns_workload,
    "one dense layer of 32 units, 32 tokens and 32 classes": small_workload,
}


def with_checks(workload: Callable[[], Any], check: bool) -> Callable[[], Any]:
    """The training step of a trainer that checks labels, or does not."""
    encoder, heads, x, targets = workload()
    trainer = MultiHeadTrainer(encoder)
    for name, module in heads.items():
        trainer.add_head(name, module, LOSSES[name])
    trainer.compile("adam", check_labels=check)
    trainer.fit(tf.data.Dataset.from_tensors((x, targets)), verbose=0)
    step = tf.function(trainer.train_step)
    return lambda: step((x, targets))


def ratio(workload: Callable[[], Any], rounds: int, steps: int) -> float:
    """The median over rounds of the processor time with checks, relative to that without."""
    runs = [with_checks(workload, check) for check in (False, True)]
    ratios = []
    for number in range(rounds + 1):
        times = []
        for run in runs if number % 2 else reversed(runs):
            start = time.process_time()
            for _ in range(steps):
                result = run()
            finished(result)
            times.append(time.process_time() - start)
        without, with_them = times if number % 2 else reversed(times)
        ratios.append(with_them / without)
    return statistics.median(ratios[1:])  # the first includes the traces


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=31, help="number of rounds (default: 31)")
    parser.add_argument("--steps", type=int, default=20, help="steps per round and variant (default: 20)")
    options = parser.parse_args(arguments)
    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}; time of a step with checks, relative to one without\n")
    print("| model | ratio |\n| --- | ---: |")
    for title, workload in WORKLOADS.items():
        print(f"| {title} | {ratio(workload, options.rounds, options.steps):.3f} |")


if __name__ == "__main__":
    main()
