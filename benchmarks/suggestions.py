"""Does following `diagnose` help, and does it ever hurt? Six models, each by the plain sum, by the suggestion, and by hand.

    python -m benchmarks.suggestions [--models diabetes two_outputs ...] [--seeds 3] [--methods UPGrad ...] [--quick]

The suggestion is measured before training and followed to the letter. By hand, five settings of the weights are tried, and
the one with the best mean over heads and seeds is shown. With `--methods`, balancers and weightings are tried instead. A
head's figure is R² or accuracy on held-out examples. It counts as better or worse than by the plain sum if the difference of
the means is more than twice its standard error. `widened` is not one of the six: it is `narrow` with the larger encoder that
`diagnose` asks for after training. Prints a table, and writes the results of every run to `--output`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

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
        by_hand: Five settings: factors of the heads' losses.
    """

    encoder: Callable[[], Any]
    heads: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]]
    train: Arrays
    held_out: Arrays
    updates: int
    learning_rate: float
    by_hand: list[dict[str, float]]


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


def settings(small: Sequence[str], large: str) -> list[dict[str, float]]:
    """Five settings that take weight from one head, by powers of ten and by half."""
    return [{**dict.fromkeys(small, 1.0), large: factor} for factor in (0.5, 0.1, 0.01, 0.001, 0.0001)]


def healthy(seed: int) -> Model:
    """Three heads, with nothing wrong."""
    x, (a, b, c) = table(seed)
    train, held_out = split(x, {"a": a, "b": b, "c": np.digitize(c, [-0.6, 0, 0.6])}, 600, seed)
    heads = {"a": (number, "mse", {}), "b": (number, "mse", {}), "c": (classes(4), CLASSES, {})}
    return Model(dense(32, 32), heads, train, held_out, 700, 3e-3, settings(["a", "b"], "c"))


def summed(seed: int) -> Model:
    """A class whose loss is summed over the batch, beside two numbers."""
    found = healthy(seed)
    heads = {**found.heads, "c": (classes(4), CLASSES, {"weight": 32.0 * 10})}
    return found._replace(heads=heads, by_hand=settings(["a", "b"], "c"))


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
    by_hand = [
        {"progression": factor, "cholesterol": factor, "lamotrigine": 1.0} for factor in (0.5, 0.1, 0.01, 0.001, 0.0001)
    ]
    return Model(dense(32, 32), heads, train, held_out, 1500, 3e-3, by_hand)


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
    return found._replace(encoder=TwoOutputs, heads=heads, by_hand=settings(["a", "c"], "b"))


def narrow(seed: int) -> Model:
    """Two numbers that must share a representation of one number, so that they oppose each other."""
    x, (a, b, _) = table(seed)
    train, held_out = split(x, {"a": a, "b": b}, 600, seed)
    heads = {"a": (number, "mse", {}), "b": (number, "mse", {})}

    def encoder() -> Any:
        return keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)])

    return Model(encoder, heads, train, held_out, 700, 3e-3, settings(["a"], "b"))


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
    return Model(encoder, heads, train, held_out, 198, 3e-3, settings(["colour", "size"], "brightness"))


SIX = (healthy, summed, diabetes, two_outputs, narrow, images)
MODELS = {each.__name__: each for each in (*SIX, widened)}


def optimizer_variables(optimizer: Any) -> list[Any]:
    """The optimizer's counters and slots: a property in Keras 3, a method in Keras 2."""
    variables = optimizer.variables
    return list(variables() if callable(variables) else variables)


class Runner:
    """One trainer per model, compiled once per arm: seeds differ in data and initial values, not in the graph.

    Args:
        name: The model.
        updates: At most as many updates.
        options: Further options of `compile`, such as a balancer.
    """

    def __init__(self, name: str, updates: int, options: Mapping[str, Any] | None = None) -> None:
        self.make, self.updates = MODELS[name], updates
        keras.utils.set_random_seed(0)
        model = self.make(0)
        # Variables, so that other weights need no other graph.
        self.weights = {head: tf.Variable(1.0) for head in model.heads}
        self.trainer = MultiHeadTrainer(model.encoder())
        for head, (module, loss, of_head) in model.heads.items():
            weight = self._weight(head, of_head.get("weight", 1.0))
            self.trainer.add_head(head, module(), loss, **{**of_head, "weight": weight})
        optimizer = keras.optimizers.Adam(model.learning_rate)
        at_once = {"steps_per_execution": 9} if updates > 9 else {"run_eagerly": True}  # tracing takes longer than a few
        self.trainer.compile(optimizer, telemetry=None, **at_once, **(options or {}))
        x, y = model.train
        self.trainer.diagnose(x[:2], {head: values[:2] for head, values in y.items()})  # creates the variables
        self._methods = [each for each in (self.trainer.weighting, self.trainer.balancer) if each is not None]
        self._state = [each.get_weights() for each in self._methods]

    def _weight(self, head: str, weight: float) -> Callable[[tf.Tensor], tf.Tensor]:
        return lambda step: weight * self.weights[head]

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

    def suggested(self, seed: int) -> dict[str, Any]:
        """What `diagnose` suggests before training, for `compile`."""
        model = self.start(seed)
        self._set({})
        return self.trainer.diagnose(*model.train, batch_size=32, batches=9).suggestion or {}

    def figures(self, seed: int, factors: Mapping[str, float]) -> dict[str, float]:
        """Trains with factors of the losses, and returns R² or accuracy by head."""
        model = self.start(seed)
        self._set(factors)
        x, y = model.train
        per_epoch = min(len(x) // 32, self.updates)
        epochs = max(1, min(self.updates, model.updates) // per_epoch)
        rows = slice(per_epoch * 32)  # whole batches
        targets = {head: values[rows] for head, values in y.items()}
        self.trainer.fit(x[rows], targets, batch_size=32, epochs=epochs, verbose=0)
        return self._compare(*model.held_out)

    def _set(self, factors: Mapping[str, float]) -> None:
        for head, variable in self.weights.items():
            variable.assign(factors.get(head, 1.0))

    def _compare(self, x: np.ndarray, y: Mapping[str, np.ndarray]) -> dict[str, float]:
        found = {}
        for head, predictions in self.trainer.predict(x, verbose=0, batch_size=512).items():
            if predictions.shape[-1] > 1:
                found[head] = float((predictions.argmax(axis=-1) == y[head]).mean())
            else:
                found[head] = float(1 - np.mean((predictions[:, 0] - y[head]) ** 2) / y[head].var())
        return found


def apart(suggestion: Mapping[str, Any]) -> tuple[Mapping[str, float], dict[str, Any]]:
    """Factors of the losses, and the other options of `compile`, that a suggestion consists of."""
    method = suggestion.get("weighting")
    if not isinstance(method, weighting.Fixed):
        return {}, dict(suggestion)
    return method.factors, {name: value for name, value in suggestion.items() if name != "weighting"}


def in_words(suggestion: Mapping[str, Any], head: str) -> str:
    """What a suggestion means for a head."""
    factors, options = apart(suggestion)
    parts = [f"{factors[head]:g}"] if head in factors else []
    return ", ".join([*parts, *(each if isinstance(each, str) else type(each).__name__ for each in options.values())])


def measure(name: str, seeds: Sequence[int], updates: int) -> dict[str, Any]:
    """All runs of a model: by the plain sum, by the suggestion, and by the best of five settings tried by hand."""
    runner = Runner(name, updates)
    suggestions = [runner.suggested(seed) for seed in seeds]
    plain = [runner.figures(seed, {}) for seed in seeds]
    words = [{head: in_words(each, head) for head in plain[0]} for each in suggestions]
    runners = {"{}": runner}
    followed = []
    for run, seed, suggestion in zip(plain, seeds, suggestions):
        factors, options = apart(suggestion)
        key = json.dumps({option: _described(each) for option, each in options.items()})
        if key not in runners:
            runners[key] = Runner(name, updates, options)
        followed.append(runners[key].figures(seed, factors) if suggestion else run)
    tried = [[runner.figures(seed, factors) for seed in seeds] for factors in runner.make(0).by_hand]
    best = max(range(len(tried)), key=lambda i: np.mean([list(run.values()) for run in tried[i]]))
    by_hand = {"factors": runner.make(0).by_hand[best], "runs": tried[best]}
    return {"suggestions": words, "plain sum": plain, "suggestion": followed, "by hand": by_hand}


def _described(option: Any) -> Any:
    return option if isinstance(option, str) else {**option.get_config(), "name": type(option).__name__}


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
    return [runner.figures(seed, {}) for seed in seeds]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=[each.__name__ for each in SIX])
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    methods = [each for each in (*balancing.__all__, *weighting.__all__) if each[0].isupper()]
    parser.add_argument("--methods", nargs="+", choices=methods, default=[], help="balancers and weightings to try instead")
    parser.add_argument("--quick", action="store_true", help="a few updates each, to see that it runs")
    parser.add_argument("--output", default="runs/suggestions.json", help="file for the results of every run")
    options = parser.parse_args(arguments)
    console = Console()
    results: dict[str, Any] = {}
    updates = 4 if options.quick else sys.maxsize
    if options.methods:
        for name in options.models:
            results[name] = {}
            for method in (None, *options.methods):
                runs = measure_methods(name, range(options.seeds), updates, method)
                results[name]["plain sum" if method is None else method] = runs
                _results.write(results, options.output)
            columns = {head: head for head in results[name]["plain sum"][0]}
            _results.print_table(console, results[name], columns, "method", f"{name}, {options.seeds} seeds")
        return
    shown = Table("model", "head", "plain sum", "suggestion", "", "best of five by hand", "suggested (first seed)")
    for name in options.models:
        results[name] = measure(name, range(options.seeds), updates)
        found = results[name]
        for head in found["plain sum"][0]:
            arms = found["plain sum"], found["suggestion"], found["by hand"]["runs"]
            plain, followed, by_hand = (_results.mean_and_spread(runs, head) for runs in arms)
            of_suggestion = verdict(found["suggestion"], found["plain sum"], head)
            words = found["suggestions"][0][head] or "nothing"
            shown.add_row(name, head, plain, followed, of_suggestion, by_hand, words)
        console.print(f"{name}: done", highlight=False)
    console.print(shown)
    _results.write(results, options.output)


if __name__ == "__main__":
    sys.exit(main())
