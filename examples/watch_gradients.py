"""How do you see what each head does to the encoder? `telemetry="full"`: norms, shares and cosines in Keras's logs.

The size is in units of thousands: its gradient is as many times as large, and the log shows it. The remedy is in the same
log: with `scaling.Standardize`, the shares are of one magnitude.
"""

from __future__ import annotations

import keras
import numpy as np

from examples._command_line import Parser
from multihead import Head, MultiHeadTrainer, scaling

NAMES = ("kind_norm", "size_norm", "kind_share", "size_share")


def data() -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Inputs and targets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 16)).astype("float32")
    kind = np.argmax(x[:, :4], axis=1)
    size = 3000 + 1000 * np.tanh(x[:, 2] + x[:, 5])
    return x, {"kind": kind, "size": size[:, None].astype("float32")}


def main() -> dict[str, dict[str, float]]:
    """Trains with both units; returns the statistics of the last epoch."""
    found = {}
    for unit, target_scaling in (("raw", None), ("scaled", scaling.Standardize())):
        keras.utils.set_random_seed(0)
        heads = {
            "kind": Head(keras.layers.Dense(4, activation="softmax"), "sparse_categorical_crossentropy"),
            "size": Head(keras.layers.Dense(1), "mse", target_scaling=target_scaling),
        }
        trainer = MultiHeadTrainer(keras.layers.Dense(8, activation="tanh"), heads)
        trainer.compile(keras.optimizers.Adam(3e-3), telemetry="full")
        history = trainer.fit(*data(), batch_size=64, epochs=5, verbose=0).history
        found[unit] = {name: history[name][-1] for name in NAMES}
        print(f"{unit}: " + ", ".join(f"{name} {value:.3g}" for name, value in found[unit].items()))
    return found


if __name__ == "__main__":
    Parser("examples.watch_gradients", description=__doc__).parse_args()
    main()
