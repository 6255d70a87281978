"""How do you weight the losses of a network that solves a differential equation? Balancers beside seven weights.

Residual, boundary values and measurements are losses of the same variables, whose gradients `balancing.balance` combines.
Prints relative errors over seeds: of a boundary layer, `-E u'' + u' = 1`, or of `u'' + u = f`, solved by `sin(4 pi x)`.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

from multihead import balancing

E, WAVES = 0.05, 4 * np.pi
SOLUTIONS = {
    "layer": lambda x: x - (np.exp((x - 1) / E) - np.exp(-1 / E)) / (1 - np.exp(-1 / E)),
    "helmholtz": lambda x: np.sin(WAVES * x),
}
RESIDUALS = {
    "layer": lambda x, u, slope, curvature: slope - E * curvature - 1,
    "helmholtz": lambda x, u, slope, curvature: curvature + u - (1 - WAVES**2) * tf.sin(WAVES * x),
}
ENDS, POINTS = tf.constant([[0.0], [1.0]]), tf.constant([[0.1], [0.3], [0.5], [0.7], [0.9]])
WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
BALANCERS = ("ConFIG", "EqualNorms", "NormFloor", "UPGrad")


def losses(equation: str, model: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
    """The mean squares of the residual at points `[n, 1]`, of the boundary values, and of the errors at the measurements."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            u = model(x)
        slope = inner.gradient(u, x)
    residual = RESIDUALS[equation](x, u, slope, outer.gradient(slope, x))
    errors = model(POINTS) - tf.constant(SOLUTIONS[equation](POINTS.numpy()), tf.float32)
    return [tf.reduce_mean(tf.square(part)) for part in (residual, model(ENDS), errors)]


def train(equation: str, seed: int, updates: int, weight: float = 1.0, balancer: str = "Sum") -> float:
    """Trains with a weight of boundary values and measurements; returns the relative error in the norm of L2, in percent."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(32, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((1,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(3e-3, updates))
    method, x = balancing.get(balancer), tf.linspace(0.0, 1.0, 128)[:, tf.newaxis]
    optimizer.build(model.trainable_variables)

    @tf.function
    def update() -> None:
        with tf.GradientTape(persistent=True) as tape:
            weighted = [part * scale for part, scale in zip(losses(equation, model, x), (1.0, weight, weight))]
        rows = [tape.gradient(part, model.trainable_variables) for part in weighted]
        optimizer.apply_gradients(zip(balancing.balance(rows, method), model.trainable_variables))

    for _ in range(updates):
        update()
    grid = np.linspace(0, 1, 1001, dtype="float32")[:, np.newaxis]
    return float(100 * np.linalg.norm(model(grid) - SOLUTIONS[equation](grid)) / np.linalg.norm(SOLUTIONS[equation](grid)))


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(prog="python -m examples.physics", description=__doc__)
    parser.add_argument("--equation", choices=[*SOLUTIONS], default="layer", help="the differential equation")
    parser.add_argument("--updates", type=int, default=3000, help="of each run")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each way to train")
    options, errors = parser.parse_args(arguments), {}
    ways = {f"plain sum, weight {weight:g}": {"weight": weight} for weight in WEIGHTS}
    for name, way in {**ways, **{balancer: {"balancer": balancer} for balancer in BALANCERS}}.items():
        errors[name] = [train(options.equation, seed, options.updates, **way) for seed in range(options.seeds)]
        print(f"{name}: {np.mean(errors[name]):.2f} ± {np.std(errors[name]):.2f} %", flush=True)
    return errors


if __name__ == "__main__":
    main()
