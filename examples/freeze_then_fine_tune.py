"""How do you add a head to a trained encoder? Train it on the frozen encoder, then fine-tune both with a smaller rate.

The encoder is trained with one head on many rows. The new head has few rows: from the start, it would spoil what the encoder
knows, and frozen, the encoder cannot learn what the new head needs.
"""

from __future__ import annotations

import keras
import numpy as np

from examples._command_line import Parser
from multihead import Head, MultiHeadTrainer


def rows(number: int, seed: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Inputs `[number, 20]`, and both labels."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng(seed)
    x = rng.normal(size=(number, 20)).astype("float32")
    hidden = np.tanh(x @ fixed.normal(size=(20, 6)))
    kind = np.argmax(hidden @ fixed.normal(size=(6, 5)), axis=1)
    return x, {"kind": kind, "size": (hidden @ fixed.normal(size=(6, 1))).astype("float32")}


def main() -> dict[str, dict[str, float]]:
    """Trains in three stages; returns the losses on held-out rows after each."""
    keras.utils.set_random_seed(0)
    encoder = keras.Sequential([keras.layers.Dense(64, activation="tanh"), keras.layers.Dense(12, activation="tanh")])
    kind = Head(keras.layers.Dense(5, activation="softmax"), "sparse_categorical_crossentropy")
    trainer = MultiHeadTrainer(encoder, {"kind": kind})
    (x, targets), held_out, found = rows(5000, 1), rows(1000, 2), {}
    trainer.compile(keras.optimizers.Adam(3e-3))
    trainer.fit(x, {"kind": targets["kind"]}, epochs=10, verbose=0)
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    few = x[:300], {name: values[:300] for name, values in targets.items()}
    stages = {
        "frozen encoder": {"encoder_learning_rate_multiplier": 0.0},
        "fine-tuned": {"encoder_learning_rate_multiplier": 0.1},
    }
    for stage, options in stages.items():
        trainer.compile(keras.optimizers.Adam(3e-3), **options)
        trainer.fit(*few, epochs=60, verbose=0)
        logs = trainer.evaluate(*held_out, verbose=0, return_dict=True)
        found[stage] = {head: logs[f"{head}_loss"] for head in trainer.heads}
        print(f"{stage}: " + ", ".join(f"{head} {loss:.3f}" for head, loss in found[stage].items()))
    return found


if __name__ == "__main__":
    Parser("examples.freeze_then_fine_tune", description=__doc__).parse_args()
    main()
