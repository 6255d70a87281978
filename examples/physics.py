"""How do you weight the losses of a network that solves a differential equation? One balancer beside seven weights.

A boundary layer: `-E u'' + u' = 1` on [0, 1] with `u(0) = u(1) = 0`, E = 0.02, and u at 5 points. Residual, boundary and
data are three losses of the same variables; `balancing.balance` combines their gradients. Prints the relative error against
`u(x) = x - (exp((x - 1) / E) - exp(-1 / E)) / (1 - exp(-1 / E))`: mean and standard deviation over seeds.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np
import tensorflow as tf

from multihead import balancing

E = 0.02
BOUNDARY, POINTS = tf.constant([[0.0], [1.0]]), tf.constant([[0.1], [0.3], [0.5], [0.7], [0.9]])
WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
BALANCERS = ("ConFIG", "EqualNorms", "UPGrad")


def solution(x: np.ndarray) -> np.ndarray:
    """The closed solution."""
    return x - (np.exp((x - 1) / E) - np.exp(-1 / E)) / (1 - np.exp(-1 / E))


def losses(model: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
    """The mean squares of the residual at some points `[n, 1]`, of the boundary values, and of the errors of the data."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            u = model(x)
        slope = inner.gradient(u, x)
    residual = slope - E * outer.gradient(slope, x) - 1.0
    data = model(POINTS) - tf.constant(solution(POINTS.numpy()), tf.float32)
    return [tf.reduce_mean(tf.square(part)) for part in (residual, model(BOUNDARY), data)]


def train(seed: int, updates: int, weight: float = 1.0, balancer: str = "Sum") -> float:
    """Trains a network with a weight of the boundary and the data; returns its relative error in the norm of L2."""
    keras.utils.set_random_seed(seed)
    layers = [keras.layers.Dense(32, activation="tanh") for _ in range(3)]
    model = keras.Sequential([keras.layers.Input((1,)), *layers, keras.layers.Dense(1)])
    optimizer = keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(5e-3, updates))
    method, x = balancing.get(balancer), tf.linspace(0.0, 1.0, 128)[:, tf.newaxis]
    optimizer.build(model.trainable_variables)

    @tf.function
    def update() -> None:
        with tf.GradientTape(persistent=True) as tape:
            parts = losses(model, x)
            weighted = [part * scale for part, scale in zip(parts, (1.0, weight, weight))]
        rows = [tape.gradient(part, model.trainable_variables) for part in weighted]
        gradients = balancing.balance(rows, method, losses=tf.stack(weighted))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for _ in range(updates):
        update()
    grid = np.linspace(0, 1, 1001, dtype="float32")[:, np.newaxis]
    return float(np.linalg.norm(model(grid).numpy() - solution(grid)) / np.linalg.norm(solution(grid)))


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(prog="python -m examples.physics", description=__doc__)
    parser.add_argument("--updates", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=5)
    options, errors = parser.parse_args(arguments), {}
    ways = {f"plain sum, weight {weight:g}": {"weight": weight} for weight in WEIGHTS}
    for name, way in {**ways, **{balancer: {"balancer": balancer} for balancer in BALANCERS}}.items():
        errors[name] = [100 * train(seed, options.updates, **way) for seed in range(options.seeds)]
        print(f"{name}: {np.mean(errors[name]):.2f} ± {np.std(errors[name]):.2f} %", flush=True)
    return errors


if __name__ == "__main__":
    main()
