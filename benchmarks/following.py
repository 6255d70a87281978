"""Does following `diagnose` before training help, and does it ever hurt? 48 small made models, each trained in three ways.

    python -m benchmarks.following [--kinds six_narrow ...] [--seeds 3] [--show]

The ways are the plain sum; what `diagnose` suggests before training, without reading its text; and `NormFloor()` always.
The learning rate decays to zero. A head's score on held-out examples is R², accuracy or, of rare labels, the area under the
ROC curve. A head is better or hurt if its mean over seeds differs from that of the plain sum by more than two standard
errors of the difference. Of a head that following hurts, the table says whether `diagnose` named it as one that pays. A
model is a line of JSON in `--output`; what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from benchmarks import _results
from benchmarks.suggestions import TwoOutputs, classes, dense, number, optimizer_variables, verdict
from multihead import MultiHeadTrainer, balancing, class_weights

LINES = Path(__file__).parent / "results" / "following.jsonl"
TRAIN, HELD_OUT, INPUTS, VARIANTS, EPOCHS = 640, 1000, 12, 3, 25
CLASSES = "sparse_categorical_crossentropy"


class Head(NamedTuple):
    """A head: what creates its module, its loss, the labels of all examples, and further options of `add_head`."""

    module: Callable[[], Any]
    loss: Any
    labels: np.ndarray
    options: Mapping[str, Any] = {}


class Model(NamedTuple):
    """What creates the encoder, and the heads by name."""

    encoder: Callable[[], Any]
    heads: Mapping[str, Head]

    def targets(self) -> dict[str, np.ndarray]:
        """The labels to train on."""
        return {name: head.labels[:TRAIN] for name, head in self.heads.items()}


class Draw:
    """Inputs, and labels that depend on shared features of them.

    Args:
        kind: The position of the kind.
        variant: Which of its models: the same features and sizes at every seed.
        seed: Which examples.
    """

    def __init__(self, kind: int, variant: int, seed: int) -> None:
        self.fixed = np.random.default_rng([kind, variant])
        self.rng = np.random.default_rng([kind, variant, seed])
        self.x = self.rng.normal(size=(TRAIN + HELD_OUT, INPUTS)).astype("float32")
        self.features = np.tanh(1.5 * self.x @ self.fixed.normal(size=(INPUTS, 10)) / np.sqrt(INPUTS))
        self.width = int(self.fixed.choice([8, 16, 32]))

    def size(self, low: float, high: float) -> float:
        """A number between two, on a logarithmic scale."""
        return float(np.exp(self.fixed.uniform(np.log(low), np.log(high))))

    def raw(self, noise: float = 0.3) -> np.ndarray:
        """Numbers of unit scale, partly noise."""
        signal = self.features @ self.fixed.normal(size=10)
        found = signal / signal.std() + noise * self.rng.normal(size=len(signal))
        return np.asarray((found / found.std())[:, None], "float32")

    def value(self, noise: float = 0.3, times: float = 1.0, **options: Any) -> Head:
        """A head for a number."""
        return Head(number, "mse", times * self.raw(noise), options)

    def kinds(self, count: int = 4, noise: float = 0.3, **options: Any) -> Head:
        """A head for classes of equal frequency."""
        values = self.raw(noise)[:, 0]
        edges = np.quantile(values, np.linspace(0, 1, count + 1)[1:-1])
        return Head(classes(count), CLASSES, np.digitize(values, edges), options)

    def rare(self, count: int = 1, share: float = 0.05, **options: Any) -> Head:
        """A head for rare labels."""
        values = np.concatenate([self.raw() for _ in range(count)], axis=1)
        labels = (values > np.quantile(values, 1 - share, axis=0)).astype("float32")
        return Head(lambda: keras.layers.Dense(count, activation="sigmoid"), "binary_crossentropy", labels, options)


def healthy(draw: Draw) -> Model:
    """Nothing is wrong."""
    return Model(dense(32, draw.width), {"a": draw.value(), "b": draw.value(), "c": draw.kinds()})


def loud_noise(draw: Draw) -> Model:
    """Two heads beside a loud one whose labels are noise."""
    noise = draw.rng.normal(size=(len(draw.x), 1)).astype("float32")
    loud = Head(number, "mse", noise, {"weight": draw.size(2, 20)})
    return Model(dense(32, draw.width), {"noise": loud, "a": draw.value(), "c": draw.kinds()})


def reconstruction(draw: Draw) -> Model:
    """A reconstruction of the inputs, summed over columns, beside two classifiers."""

    def loss(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.square(y - p), axis=-1)

    inputs = Head(lambda: keras.layers.Dense(INPUTS), loss, draw.x)
    return Model(dense(32, draw.width), {"inputs": inputs, "c": draw.kinds(), "d": draw.kinds(8)})


def auxiliary(draw: Draw) -> Model:
    """An auxiliary head of small weight."""
    return Model(dense(32, draw.width), {"main": draw.value(), "again": draw.kinds(weight=draw.size(0.003, 0.1))})


def likelihood(draw: Draw) -> Model:
    """The likelihood of a normal distribution, of small deviation, beside a number."""

    def loss(y: tf.Tensor, p: tf.Tensor) -> tf.Tensor:
        log = tf.clip_by_value(p[:, 1], -6.0, 6.0)
        return 0.5 * (log + tf.square(y[:, 0] - p[:, 0]) * tf.exp(-log))

    head = Head(lambda: keras.layers.Dense(2), loss, draw.raw(draw.size(0.05, 0.3)))
    return Model(dense(32, draw.width), {"normal": head, "b": draw.value()})


def six_narrow(draw: Draw) -> Model:
    """Six numbers of different weights on too narrow an encoder."""
    heads = {f"n{i}": draw.value(weight=draw.size(0.1, 10)) for i in range(6)}
    return Model(dense(32, int(draw.fixed.integers(2, 5))), heads)


def raw_units(draw: Draw) -> Model:
    """A number in raw units, of mean 1000 and deviation 300, beside others."""
    price = Head(number, "mse", 1000 + 300 * draw.raw())
    return Model(dense(32, draw.width), {"price": price, "b": draw.value(), "c": draw.kinds()})


def small_units(draw: Draw) -> Model:
    """A number in a unit that is far too large."""
    return Model(dense(32, draw.width), {"small": draw.value(times=draw.size(0.005, 0.05)), "c": draw.kinds()})


def rates(draw: Draw) -> Model:
    """Heads with learning rates of their own, one of them louder."""
    slow = draw.value(learning_rate_multiplier=0.1, weight=draw.size(3, 30))
    return Model(dense(32, draw.width), {"a": slow, "b": draw.kinds(learning_rate_multiplier=3.0)})


def conflict(draw: Draw) -> Model:
    """Two numbers that share a representation of one number."""
    return Model(
        lambda: keras.Sequential([keras.layers.Dense(32, activation="relu"), keras.layers.Dense(1)]),
        {"a": draw.value(), "b": draw.value(weight=draw.size(0.3, 3))},
    )


def summed(draw: Draw) -> Model:
    """A loss that is summed over the batch."""
    return Model(dense(32, draw.width), {"a": draw.value(), "b": draw.kinds(), "sum": draw.kinds(weight=32.0)})


def rare_labels(draw: Draw) -> Model:
    """Many rare labels beside a noisy number."""
    return Model(dense(draw.width), {"topics": draw.rare(30, 0.04), "hours": draw.value(noise=1.0)})


def missing(draw: Draw) -> Model:
    """A head of which few labels are known."""
    head = draw.value()
    head.labels[:TRAIN][draw.rng.random(TRAIN) > draw.size(0.05, 0.3)] = np.nan
    return Model(dense(32, draw.width), {"few": head, "b": draw.kinds(), "c": draw.value()})


def weighted(draw: Draw) -> Model:
    """A rare label with class weights beside a number."""
    head = draw.rare(1, 0.05)
    balanced = {"class_weight": class_weights(head.labels[:TRAIN])}
    return Model(dense(32, draw.width), {"rare": head._replace(options=balanced), "b": draw.value(weight=draw.size(1, 10))})


def many(draw: Draw) -> Model:
    """Seven classifiers beside a loud number."""
    return Model(dense(32, 16), {"a": draw.value(times=draw.size(2, 8)), **{f"c{i}": draw.kinds() for i in range(7)}})


def two_tensors(draw: Draw) -> Model:
    """Heads that read different outputs of the encoder, one of them loud."""
    return Model(TwoOutputs, {"a": draw.value(reads="p"), "b": draw.kinds(reads="q", weight=draw.size(10, 300))})


KINDS: dict[str, Callable[[Draw], Model]] = {
    each.__name__: each
    for each in (
        healthy, loud_noise, reconstruction, auxiliary, likelihood, six_narrow, raw_units, small_units, rates, conflict,
        summed, rare_labels, missing, weighted, many, two_tensors,
    )
}  # fmt: skip


class Runner:
    """A trainer that is compiled once: seeds differ in data and initial values, not in the graph.

    Args:
        model: The encoder and the heads.
        x: Inputs to build with.
        options: Options of `compile`.
    """

    def __init__(self, model: Model, x: np.ndarray, options: Mapping[str, Any]) -> None:
        self.trainer = MultiHeadTrainer(model.encoder())
        for name, head in model.heads.items():
            self.trainer.add_head(name, head.module(), head.loss, **head.options)
        decay = keras.optimizers.schedules.CosineDecay(5e-3, EPOCHS * TRAIN // 32)
        self.trainer.compile(keras.optimizers.Adam(decay), telemetry=None, steps_per_execution=20, **options)
        self.trainer.diagnose(x[:TRAIN], model.targets(), batches=1)  # creates the variables
        self.start: list[np.ndarray] = []

    def begin(self, seed: int) -> None:
        """Sets fresh initial values, and forgets the optimizer's and the methods' state."""
        of_optimizer = optimizer_variables(self.trainer.optimizer)
        everything = [*self.trainer.variables, *of_optimizer]
        self.start = self.start or [np.array(tf.convert_to_tensor(each)) for each in everything]
        rng = np.random.default_rng(seed)
        trained = {id(each) for each in self.trainer.trainable_variables}
        for variable, value in zip(everything, self.start):
            if id(variable) in trained and value.ndim > 1:
                limit = np.sqrt(6 / (value.shape[0] + value.shape[1]))
                value = rng.uniform(-limit, limit, value.shape).astype(value.dtype)
            variable.assign(value)

    def scores(self, model: Model, x: np.ndarray) -> dict[str, float]:
        """Trains, and returns the score of each head."""
        self.trainer.fit(x[:TRAIN], model.targets(), batch_size=32, epochs=EPOCHS, verbose=0)
        predicted = self.trainer.predict(x[TRAIN:], verbose=0, batch_size=HELD_OUT)
        return {name: score(np.array(predicted[name]), head.labels[TRAIN:]) for name, head in model.heads.items()}


def score(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Accuracy of classes, area under the ROC curve of rare labels, R² of numbers."""
    if labels.dtype.kind == "i":
        return float((predicted.argmax(axis=-1) == labels).mean())
    if set(np.unique(labels)) == {0.0, 1.0}:
        ranks = predicted.argsort(axis=0).argsort(axis=0)
        ones = labels.sum(axis=0)
        return float((((ranks * labels).sum(axis=0) / ones - (ones - 1) / 2) / (len(labels) - ones)).mean())
    error = np.mean((predicted[:, : labels.shape[1]] - labels) ** 2, axis=0)
    return float(np.mean(1 - error / labels.var(axis=0)))


def measure(kind: str, variant: int, seeds: int) -> dict[str, Any]:
    """A model's scores in each way, with the suggestion and the heads that it names as paying, for each seed."""
    found: dict[str, Any] = {
        "kind": kind,
        "variant": variant,
        "plain": [],
        "followed": [],
        "always": [],
        "suggested": [],
        "pays": [],
    }
    runners: dict[str, Runner] = {}
    for seed in range(seeds):
        draw = Draw(list(KINDS).index(kind), variant, seed)
        model = KINDS[kind](draw)
        at = {"balance_at": "parameters"} if kind == "two_tensors" else {}

        def scores(options: Mapping[str, Any]) -> dict[str, float]:
            key = described(options)
            if key not in runners:
                runners[key] = Runner(model, draw.x, options)  # noqa: B023
            runners[key].begin(seed)  # noqa: B023
            return runners[key].scores(model, draw.x)  # noqa: B023

        plain = scores({})
        runners["{}"].begin(seed)
        diagnosis = runners["{}"].trainer.diagnose(draw.x[:TRAIN], model.targets())
        always = scores({"balancer": balancing.NormFloor(), **at})
        same = {described({}): plain, described({"balancer": balancing.NormFloor(), **at}): always}
        key = described(diagnosis.suggestion)
        found["plain"].append(plain)
        found["always"].append(always)
        found["followed"].append(same[key] if key in same else scores(diagnosis.suggestion))
        found["suggested"].append(key)
        found["pays"].append(pays(str(diagnosis), list(model.heads)))
    return found


def described(options: Mapping[str, Any]) -> str:
    """Options of `compile` as text."""
    configs = {name: each if isinstance(each, (str, dict)) else each.get_config() for name, each in options.items()}
    return re.sub(r'"name": "\w+", ', "", json.dumps(configs))


def pays(text: str, heads: Sequence[str]) -> list[str]:
    """The heads that the text of a diagnosis names as paying."""
    cost = re.search(r"the cost is that (.*?)\. ", " ".join(text.split()))
    return [head for head in heads if cost and f"'{head}' moves" in cost[1]]


def summary(lines: Sequence[Mapping[str, Any]]) -> str:
    """By kind: the heads that following, and `NormFloor()` always, make better or hurt; in Markdown."""
    rows, totals = [], np.zeros(5, int)
    for kind in dict.fromkeys(line["kind"] for line in lines):
        of_kind = [line for line in lines if line["kind"] == kind]
        heads = [(line, head) for line in of_kind for head in line["plain"][0]]
        counts, cells = [len(heads)], [f"`{kind}`", str(len(heads))]
        for way in ("followed", "always"):
            verdicts = [verdict(line[way], line["plain"], head) for line, head in heads]
            counts += [verdicts.count("better"), verdicts.count("worse")]
            cells.append(str(counts[-2]))
            cells.append(hurt([each for each, found in zip(heads, verdicts) if found == "worse"], way))
        totals += counts
        rows.append(cells)
    rows.append(["all", *(str(each) for each in totals)])
    columns = ["kind, three models each", "heads", "following: better", "hurt", "`NormFloor()` always: better", "hurt"]
    return _results.markdown(columns, rows)


def hurt(heads: Sequence[tuple[Mapping[str, Any], str]], way: str) -> str:
    """Heads that a way hurts, from which score to which, and whether the diagnosis names them as paying."""
    found = []
    for line, head in heads:
        before, after = (np.mean([run[head] for run in line[each]]) for each in ("plain", way))
        said = "named" if all(head in each for each in line["pays"]) else "not named"
        found.append(f"{head} {before:.3f} to {after:.3f}" + (f", {said}" if way == "followed" else ""))
    return "; ".join(found) or "0"


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--variants", type=int, default=VARIANTS, help="number of models of each kind")
    parser.add_argument("--show", action="store_true", help="print the table of the file, without training")
    parser.add_argument("--output", type=Path, default=LINES, help="file with a line for each model")
    options = parser.parse_args(arguments)
    done = {(line["kind"], line["variant"]) for line in _results.read_lines(options.output)}
    models = [(kind, variant) for kind in options.kinds for variant in range(options.variants)]
    for kind, variant in () if options.show else [each for each in models if each not in done]:
        line = json.dumps(measure(kind, variant, options.seeds))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    print(summary(_results.read_lines(options.output)))


if __name__ == "__main__":
    sys.exit(main())
