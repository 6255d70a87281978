"""How do you make one update of 64 mini-batches? `gradient_accumulation_steps=64`: exactly the update of the large batch.

Mini-batches are ragged: the last one is shorter, and a third of the labels of one head are missing. The mean of 64 mean
losses would be wrong. Sums and counts are added up instead, and divided once.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from examples._command_line import Parser
from multihead import Head, MultiHeadTrainer

ROWS = 64 * 16 - 5


def labels() -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Inputs, targets and sample weights; a weight of 0 is a missing label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 20)).astype("float32")
    targets = {"kind": rng.integers(0, 5, ROWS), "size": rng.normal(size=(ROWS, 1)).astype("float32")}
    return x, targets, {"kind": np.ones(ROWS, "float32"), "size": (rng.uniform(size=ROWS) > 1 / 3).astype("float32")}


def make_trainer(x: np.ndarray, steps: int) -> MultiHeadTrainer:
    """Two heads on one encoder, with the same initial weights each time, and `steps` batches for each update."""
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential([keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(16, activation="tanh")])
    heads = {
        "kind": Head(keras.layers.Dense(5, activation="softmax"), "sparse_categorical_crossentropy"),
        "size": Head(keras.layers.Dense(1), "mse"),
    }
    trainer = MultiHeadTrainer(encoder, heads)
    trainer.compile(keras.optimizers.Adam(1e-2), gradient_accumulation_steps=steps)
    trainer.predict(x[:1], verbose=0)  # creates the variables
    return trainer


def main() -> dict[str, float]:
    """Makes one update in each way; returns the largest difference of a weight, and the number of updates."""
    data = labels()
    large, accumulated = make_trainer(data[0], 1), make_trainer(data[0], 64)
    large.fit(tf.data.Dataset.from_tensor_slices(data).batch(ROWS), verbose=0)
    accumulated.fit(tf.data.Dataset.from_tensor_slices(data).batch(16), verbose=0)
    pairs = zip(large.get_weights(), accumulated.get_weights())
    difference = max(float(np.max(np.abs(one - other))) for one, other in pairs)
    updates = accumulated.num_updates
    print(f"{updates} update of 64 batches: weights differ by at most {difference:.1e} from one batch")
    return {"difference": difference, "updates": updates}


if __name__ == "__main__":
    Parser("examples.accumulate_64_batches", description=__doc__).parse_args()
    main()
