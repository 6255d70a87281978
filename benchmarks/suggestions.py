"""Six models with the plain sum, and with each balancer and weighting with its defaults.

    python -m benchmarks.suggestions [--models diabetes two_outputs ...] [--seeds 3] [--methods UPGrad ...] [--quick]

A head's score is R² or accuracy on held-out examples. `widened` is not one of the six: it is `narrow` with the larger
encoder that `diagnose` asks for after training. Prints a table, and writes the results of every run to `--output`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console

from benchmarks import _results
from multihead import MultiHeadTrainer, balancing, weighting

Arrays = tuple[np.ndarray, dict[str, np.ndarray]]
CLASSES = "sparse_categorical_crossentropy"


class Model(NamedTuple):
    """A model, its data and how long it is trained.

    Attributes:
        encoder: Creates the encoder.
        heads: By name, what creates the module, the loss, and further options of `add_head`.
        train: Inputs and targets.
        held_out: The same, to compare on.
        updates: Updates of 32 examples.
        learning_rate: Of Adam.
    """

    encoder: Callable[[], Any]
    heads: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]]
    train: Arrays
    held_out: Arrays
    updates: int
    learning_rate: float


def dense(*units: int) -> Callable[[], Any]:
    """What creates an encoder of dense layers."""
    return lambda: keras.Sequential([keras.layers.Dense(n, activation="relu") for n in units])


def number() -> Any:
    """A head for a number."""
    return keras.layers.Dense(1)


def classes(count: int) -> Callable[[], Any]:
    """What creates a head for classes."""
    return lambda: keras.layers.Dense(count, activation="softmax")


def split(x: np.ndarray, y: Mapping[str, np.ndarray], count: int, seed: int) -> tuple[Arrays, Arrays]:
    """Examples to train on, and the rest."""
    order = np.random.default_rng(seed).permutation(len(x))
    parts = order[:count], order[count:]
    one, other = ((x[part].astype("float32"), {name: values[part] for name, values in y.items()}) for part in parts)
    return one, other


def table(seed: int, noise: float = 0.2) -> tuple[np.ndarray, list[np.ndarray]]:
    """Ten inputs, and numbers of unit scale that depend on shared features of them."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(5)
    x = rng.normal(size=(1600, 10))
    hidden = np.tanh(2 * x @ fixed.normal(size=(10, 6)) / np.sqrt(10))
    numbers = [hidden @ fixed.normal(size=6) + noise * rng.normal(size=len(x)) for _ in range(3)]
    return x, [((each - each.mean()) / each.std()).astype("float32") for each in numbers]


def healthy(seed: int) -> Model:
    """Three heads, with nothing wrong."""
    x, (a, b, c) = table(seed)
    train, held_out = split(x, {"a": a, "b": b, "c": np.digitize(c, [-0.6, 0, 0.6])}, 600, seed)
    heads = {"a": (number, "mse", {}), "b": (number, "mse", {}), "c": (classes(4), CLASSES, {})}
    return Model(dense(32, 32), heads, train, held_out, 700, 3e-3)


def summed(seed: int) -> Model:
    """A class whose loss is summed over the batch, beside two numbers."""
    found = healthy(seed)
    heads = {**found.heads, "c": (classes(4), CLASSES, {"weight": 32.0 * 10})}
    return found._replace(heads=heads)


def diabetes(seed: int) -> Model:
    """Three numbers in raw units, from scikit-learn's data on diabetes."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    columns = data.data.astype("float32")
    y = {"progression": data.target.astype("float32"), "cholesterol": columns[:, 4], "lamotrigine": columns[:, 8]}
    inputs = np.delete(columns, [4, 8], axis=1)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    train, held_out = split(inputs, y, 300, seed)
    heads = {name: (number, "mse", {}) for name in y}
    return Model(dense(32, 32), heads, train, held_out, 1500, 3e-3)


@keras.saving.register_keras_serializable("benchmarks")
class TwoOutputs(keras.layers.Layer):
    """Two tensors from one shared layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.shared, self.p, self.q = (keras.layers.Dense(n, activation="relu") for n in (32, 16, 16))

    def build(self, shape: Any) -> None:
        """Creates the layers' variables."""
        self.shared.build(shape)
        for layer in (self.p, self.q):
            layer.build((None, 32))
        super().build(shape)

    def call(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        """Both tensors."""
        hidden = self.shared(x)
        return {"p": self.p(hidden), "q": self.q(hidden)}


def two_outputs(seed: int) -> Model:
    """Heads that read two different outputs of the encoder, one of them with a loss that is far too large."""
    found = healthy(seed)
    heads = {
        "a": (number, "mse", {"reads": "p"}),
        "b": (number, "mse", {"reads": "q", "weight": 300.0}),
        "c": (classes(4), CLASSES, {"reads": "p"}),
    }
    return found._replace(encoder=TwoOutputs, heads=heads)


def narrow(seed: int) -> Model:
    """Two numbers that must share a representation of one number, so that they oppose each other."""
    x, (a, b, _) = table(seed)
    train, held_out = split(x, {"a": a, "b": b}, 600, seed)
    heads = {"a": (number, "mse", {}), "b": (number, "mse", {})}

    def encoder() -> Any:
        return keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])

    return Model(encoder, heads, train, held_out, 700, 3e-3)


def widened(seed: int) -> Model:
    """The same with a representation of eight numbers."""

    def encoder() -> Any:
        return keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(8)])

    return narrow(seed)._replace(encoder=encoder)


def images(seed: int) -> Model:
    """The first blocks of MobileNetV2 on pictures of a disc: its colour, its size, and its brightness times 100."""
    rng = np.random.default_rng(seed)
    count, side = 480, 32
    radius, level, colour = rng.uniform(4, 12, count), rng.uniform(0.3, 1, count), rng.integers(0, 3, count)
    rows, columns = np.mgrid[:side, :side]
    centre = rng.uniform(12, 20, (count, 2))
    distance = np.hypot(rows - centre[:, :1, None], columns - centre[:, 1:, None])
    pictures = 0.05 * rng.normal(size=(count, side, side, 3))
    disc = level[:, None, None] * (distance < radius[:, None, None])
    pictures[np.arange(count), :, :, colour] += disc
    size, bright = (radius - 8) / 2.3, 100 * (level - 0.65) / 0.2
    y = {"colour": colour, "size": size.astype("float32"), "brightness": bright.astype("float32")}
    train, held_out = split(pictures, y, 360, seed)

    def encoder() -> Any:
        whole = keras.applications.MobileNetV2(input_shape=(side, side, 3), alpha=0.35, include_top=False, weights=None)
        # Up to maps of 4 x 4: what follows are maps of one pixel, which pictures as small as these cannot train.
        features = whole.get_layer("block_5_add").output
        network = keras.Model(whole.input, keras.layers.GlobalAveragePooling2D()(features))
        for layer in network.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = 0.9  # Keras's 0.999 needs thousands of updates before inference is that of training
        return network

    heads = {"colour": (classes(3), CLASSES, {}), "size": (number, "mse", {}), "brightness": (number, "mse", {})}
    return Model(encoder, heads, train, held_out, 198, 3e-3)


SIX = (healthy, summed, diabetes, two_outputs, narrow, images)
MODELS = {each.__name__: each for each in (*SIX, widened)}


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The optimizer's counters and slots: a property in Keras 3, a method in Keras 2."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class Runner:
    """One trainer per model, compiled once per variant: seeds differ in data and initial values, not in the graph.

    Args:
        name: The model.
        updates: At most as many updates.
        options: Further options of `compile`, such as a balancer.
    """

    def __init__(self, name: str, updates: int, options: Mapping[str, Any] | None = None) -> None:
        self.make, self.updates = MODELS[name], updates
        keras.utils.set_random_seed(0)
        model = self.make(0)
        self.trainer = MultiHeadTrainer(model.encoder())
        for head, (module, loss, of_head) in model.heads.items():
            self.trainer.add_head(head, module(), loss, **of_head)
        optimizer = keras.optimizers.Adam(model.learning_rate)
        at_once = {"steps_per_execution": 9} if updates > 9 else {"run_eagerly": True}  # tracing takes longer than a few
        self.trainer.compile(optimizer, telemetry=None, **at_once, **(options or {}))
        x, y = model.train
        self.trainer.diagnose(x[:2], {head: values[:2] for head, values in y.items()})  # creates the variables
        self._methods = [each for each in (self.trainer.weighting, self.trainer.balancer) if each is not None]
        self._state = [each.get_weights() for each in self._methods]

    def start(self, seed: int) -> Model:
        """Sets fresh initial values, and returns the model with the data of a seed."""
        keras.utils.set_random_seed(seed)
        model = self.make(seed)
        fresh = MultiHeadTrainer(model.encoder())
        for head, (module, loss, of_head) in model.heads.items():
            fresh.add_head(head, module(), loss, **of_head)
        fresh.compile("sgd", run_eagerly=True, telemetry=None)
        x, y = model.train
        fresh.compute_gradients((x[:2], {head: values[:2] for head, values in y.items()}))
        self.trainer.encoder.set_weights(fresh.encoder.get_weights())
        for head, made in self.trainer.heads.items():
            made.module.set_weights(fresh.heads[head].module.get_weights())
        for method, state in zip(self._methods, self._state):
            method.set_weights(state)
        for variable in optimizer_variables(self.trainer.optimizer):
            if "learning_rate" not in variable.name:
                variable.assign(tf.zeros(variable.shape, variable.dtype))
        return model

    def figures(self, seed: int) -> dict[str, float]:
        """Trains, and returns R² or accuracy by head."""
        model = self.start(seed)
        x, y = model.train
        per_epoch = min(len(x) // 32, self.updates)
        epochs = max(1, min(self.updates, model.updates) // per_epoch)
        rows = slice(per_epoch * 32)  # whole batches
        targets = {head: values[rows] for head, values in y.items()}
        self.trainer.fit(x[rows], targets, batch_size=32, epochs=epochs, verbose=0)
        return self._compare(*model.held_out)

    def _compare(self, x: np.ndarray, y: Mapping[str, np.ndarray]) -> dict[str, float]:
        found = {}
        for head, predictions in self.trainer.predict(x, verbose=0, batch_size=512).items():
            if predictions.shape[-1] > 1:
                found[head] = float((predictions.argmax(axis=-1) == y[head]).mean())
            else:
                found[head] = float(1 - np.mean((predictions[:, 0] - y[head]) ** 2) / y[head].var())
        return found


def verdict(runs: Sequence[_results.Run], plain: Sequence[_results.Run], head: str) -> str:
    """Whether a head ends better or worse than by the plain sum, beyond the noise of the seeds."""
    if len(runs) < 2 or runs == plain:
        return ""
    one, other = (np.array([run[head] for run in each]) for each in (runs, plain))
    error = np.sqrt((one.var(ddof=1) + other.var(ddof=1)) / len(one))
    difference = one.mean() - other.mean()
    return "" if abs(difference) <= 2 * error else "better" if difference > 0 else "worse"


def options_of(name: str, method: str | None) -> dict[str, Any]:
    """The options of `compile` for a balancer or a weighting with its defaults; none for the plain sum."""
    if method in balancing.__all__:
        at_parameters = name == "two_outputs" or "representation" not in getattr(balancing, method).levels
        return {"balancer": method, "balance_at": "parameters" if at_parameters else "representation"}
    return {} if method is None else {"weighting": method}


def measure_methods(name: str, seeds: Sequence[int], updates: int, method: str | None) -> list[dict[str, float]]:
    """The runs of a model by a method, or by the plain sum."""
    runner = Runner(name, updates, options_of(name, method))
    return [runner.figures(seed) for seed in seeds]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=[each.__name__ for each in SIX])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    methods = [each for each in (*balancing.__all__, *weighting.__all__) if each[0].isupper()]
    parser.add_argument("--methods", nargs="+", choices=methods, default=[], help="balancers and weightings")
    parser.add_argument("--quick", action="store_true", help="a few updates each, to see that it runs")
    parser.add_argument("--output", default="runs/suggestions.json", help="file for the results of every run")
    options = parser.parse_args(arguments)
    console = Console()
    results: dict[str, Any] = {}
    updates = 4 if options.quick else sys.maxsize
    for name in options.models:
        results[name] = {}
        for method in (None, *options.methods):
            runs = measure_methods(name, range(options.seeds), updates, method)
            results[name]["plain sum" if method is None else method] = runs
            _results.write(results, options.output)
        columns = {head: head for head in results[name]["plain sum"][0]}
        _results.print_table(console, results[name], columns, "method", f"{name}, {options.seeds} seeds")


if __name__ == "__main__":
    sys.exit(main())
