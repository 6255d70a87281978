"""36 small problems with several heads: twelve to find a rule with, fourteen not looked at before, and ten made last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np

from benchmarks.research import digits, molecules
from benchmarks.research.runner import DATA, DataSet, halves
from examples._rows import read_table
from multihead import MultiHeadTrainer

NUMBER, CLASSES, RARE, PIXELS = "number", "classes", "rare", "pixels"


class Head(NamedTuple):
    """What a head predicts.

    Attributes:
        kind: A number (judged by R2), classes (accuracy), a rare yes (area under the ROC curve) or many numbers in 0 to 1
            whose squared error is averaged (R2).
        labels: `[examples]`, or `[examples, n]` for pixels; NaN, or -1 for classes, where there is no label.
        weight: Of its loss.
    """

    kind: str
    labels: np.ndarray
    weight: float = 1.0

    @property
    def outputs(self) -> int:
        """The number of outputs."""
        if self.kind == PIXELS:
            return int(self.labels.shape[1])
        return int(self.labels.max()) + 1 if self.kind == CLASSES else 1


class Problem(NamedTuple):
    """A problem, its data of one seed, and how long it is trained.

    Attributes:
        inputs: `[examples, features]`.
        heads: By name.
        train: The number of examples to train on; the others are held out.
        encoder: The widths of the encoder's dense layers.
        updates: Of 32 examples.
        rate: The first learning rate of Adam, which decays to zero by a cosine.
    """

    inputs: np.ndarray
    heads: dict[str, Head]
    train: int
    encoder: tuple[int, ...] = (32, 16)
    updates: int = 500
    rate: float = 5e-3


def standard(values: np.ndarray) -> np.ndarray:
    """Each column with mean 0 and standard deviation 1."""
    deviation = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def shuffled(seed: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """The rows in an order of the seed."""
    order = np.random.default_rng(seed).permutation(len(arrays[0]))
    return [each[order] for each in arrays]


def features(seed: int, count: int = 1600, wide: int = 6) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Ten inputs, and hidden features of them that heads share."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(5)
    x = rng.normal(size=(count, 10))
    return x, np.tanh(2 * x @ fixed.normal(size=(10, wide)) / np.sqrt(10)), rng


def mixed(hidden: np.ndarray, rng: np.random.Generator, count: int, noise: float = 0.2) -> list[np.ndarray]:
    """Numbers of unit scale that depend on the hidden features."""
    fixed = np.random.default_rng(7)
    sums = [hidden @ fixed.normal(size=hidden.shape[1]) for _ in range(count)]
    return [standard(each + noise * rng.normal(size=len(each))) for each in sums]


def healthy(seed: int) -> Problem:
    """Two numbers and a class of unit scale."""
    x, hidden, rng = features(seed)
    a, b, c = mixed(hidden, rng, 3)
    return Problem(
        x,
        {"a": Head(NUMBER, a), "b": Head(NUMBER, b), "c": Head(CLASSES, np.digitize(c, [-0.6, 0, 0.6]))},
        600,
    )


def summed(seed: int) -> Problem:
    """A class whose loss is summed over the batch."""
    found = healthy(seed)
    return found._replace(heads={**found.heads, "c": found.heads["c"]._replace(weight=320.0)})


def digit_pictures(seed: int) -> Problem:
    """scikit-learn's digits: the digit, and the picture again."""
    from sklearn.datasets import load_digits

    x, y = shuffled(seed, *load_digits(return_X_y=True))
    return Problem(x / 16, {"digit": Head(CLASSES, y), "picture": Head(PIXELS, x / 16)}, 1000, (64, 16), 600, 3e-3)


def wine(seed: int) -> Problem:
    """scikit-learn's wines: the grower, and the alcohol; one column, proline, in its own unit."""
    from sklearn.datasets import load_wine

    x, y = shuffled(seed, *load_wine(return_X_y=True))
    heads = {
        "grower": Head(CLASSES, y),
        "alcohol": Head(NUMBER, standard(x[:, 0])),
        "proline": Head(NUMBER, (x[:, 12] - x[:, 12].mean()) / 30),
    }
    return Problem(standard(x[:, 1:12]), heads, 110, (16, 8), 400)


def cancer(seed: int) -> Problem:
    """scikit-learn's breast cancer: the diagnosis from ten means, and the worst area, times 100."""
    from sklearn.datasets import load_breast_cancer

    x, y = shuffled(seed, *load_breast_cancer(return_X_y=True))
    heads = {
        "malignant": Head(CLASSES, y),
        "worst": Head(NUMBER, 100 * standard(x[:, 27])),
        "texture": Head(NUMBER, standard(x[:, 21])),
    }
    return Problem(standard(x[:, :10]), heads, 350, (16, 8), 500)


def small_noise(seed: int) -> Problem:
    """A number of pure noise with a tenth of the weight, beside two that can be learned."""
    x, hidden, rng = features(seed)
    a, b = mixed(hidden, rng, 2)
    heads = {"a": Head(NUMBER, a), "b": Head(NUMBER, b), "noise": Head(NUMBER, rng.normal(size=len(x)), 0.1)}
    return Problem(x, heads, 600)


def large_noise(seed: int) -> Problem:
    """A number of pure noise with ten times the weight, beside two that can be learned."""
    found = small_noise(seed)
    return found._replace(heads={**found.heads, "noise": found.heads["noise"]._replace(weight=10.0)})


def fraud(seed: int) -> Problem:
    """A rare yes, and an amount that is easy to learn."""
    x, hidden, rng = features(seed, 3000)
    a, b = mixed(hidden, rng, 2)
    rare = (b + 0.3 * rng.normal(size=len(b)) > 1.8).astype(float)
    return Problem(x, {"fraud": Head(RARE, rare), "amount": Head(NUMBER, a)}, 1500, (32, 16), 600)


def many(seed: int) -> Problem:
    """Eight numbers whose weights span a factor of a thousand."""
    x, hidden, rng = features(seed)
    weights = 10.0 ** np.linspace(-1.5, 1.5, 8)
    return Problem(x, {f"n{i}": Head(NUMBER, y, weights[i]) for i, y in enumerate(mixed(hidden, rng, 8))}, 600, (32, 8))


def narrow(seed: int) -> Problem:
    """Two numbers that share a representation of one, the second with three times the weight."""
    x, hidden, rng = features(seed)
    a, b = mixed(hidden, rng, 2)
    return Problem(x, {"a": Head(NUMBER, a), "b": Head(NUMBER, b, 3.0)}, 600, (32, 1))


def diabetes(seed: int) -> Problem:
    """scikit-learn's diabetes: the progression beside two measurements, one of them twenty times too large."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    x, y = shuffled(seed, data.data, data.target)
    heads = {
        "progression": Head(NUMBER, standard(y)),
        "cholesterol": Head(NUMBER, 20 * standard(x[:, 4])),
        "lamotrigine": Head(NUMBER, standard(x[:, 8])),
    }
    return Problem(standard(np.delete(x, [4, 8], axis=1)), heads, 300, (16, 8), 400)


def auxiliary(seed: int) -> Problem:
    """A class that matters, and its inputs again with a small weight on purpose."""
    x, hidden, rng = features(seed)
    (a,) = mixed(hidden, rng, 1)
    heads = {"main": Head(CLASSES, np.digitize(a, [-0.6, 0, 0.6])), "again": Head(PIXELS, x, 0.02)}
    return Problem(x, heads, 300, (32, 6))


FIRST: tuple[Callable[[int], Problem], ...] = (
    healthy, summed, digit_pictures, wine, cancer, small_noise, large_noise, fraud, many, narrow, diabetes, auxiliary,
)  # fmt: skip
"""The problems with which the rule was found."""


def lower_half(seed: int) -> Problem:
    """The lower halves of scikit-learn's digits from the upper ones; the digit; and the amount of ink in its own unit."""
    from sklearn.datasets import load_digits

    x, y = shuffled(seed, *load_digits(return_X_y=True))
    ink = x.sum(axis=1)
    heads = {"digit": Head(CLASSES, y), "lower": Head(PIXELS, x[:, 32:] / 16), "ink": Head(NUMBER, ink - ink.mean())}
    return Problem(x[:, :32] / 16, heads, 1000, (64, 16), 600, 3e-3)


def iris(seed: int) -> Problem:
    """scikit-learn's irises from their sepals: the species, and the petals in millimetres."""
    from sklearn.datasets import load_iris

    x, y = shuffled(seed, *load_iris(return_X_y=True))
    heads = {
        "species": Head(CLASSES, y),
        "length": Head(NUMBER, 10 * (x[:, 2] - x[:, 2].mean())),
        "width": Head(NUMBER, 10 * (x[:, 3] - x[:, 3].mean())),
    }
    return Problem(standard(x[:, :2]), heads, 100, (16, 8), 300)


def friedman(seed: int) -> Problem:
    """Friedman's first function, a class of the same inputs, and classes of pure noise with a tenth of the weight."""
    from sklearn.datasets import make_friedman1

    x, y = make_friedman1(1600, noise=1.0, random_state=seed)
    rng = np.random.default_rng(seed)
    heads = {
        "value": Head(NUMBER, standard(y)),
        "class": Head(CLASSES, (x[:, 0] * x[:, 1] > 0.2).astype(int)),
        "noise": Head(CLASSES, rng.integers(0, 3, len(x)), 0.1),
    }
    return Problem(standard(x), heads, 600)


def circuits(seed: int) -> Problem:
    """Friedman's second and third functions, impedance and phase of a circuit: one in hundreds, one of unit scale."""
    from sklearn.datasets import make_friedman2, make_friedman3

    x, impedance = make_friedman2(1600, noise=50.0, random_state=seed)
    _, phase = make_friedman3(1600, noise=0.05, random_state=seed)
    heads = {"impedance": Head(NUMBER, (impedance - impedance.mean()) / 10), "phase": Head(NUMBER, standard(phase))}
    return Problem(standard(x), heads, 600)


def swiss_roll(seed: int) -> Problem:
    """The place along a rolled sheet, which turn it is, and the place across it, with 100 times the weight."""
    from sklearn.datasets import make_swiss_roll

    x, along = make_swiss_roll(1600, noise=0.5, random_state=seed)
    turn = np.digitize(along, [7.85, 10.99])
    heads = {
        "along": Head(NUMBER, standard(along)),
        "turn": Head(CLASSES, turn),
        "across": Head(NUMBER, standard(x[:, 1]), 100.0),
    }
    return Problem(standard(x), heads, 600)


def topics(seed: int) -> Problem:
    """Five yes or no labels of made documents; nothing is wrong."""
    from sklearn.datasets import make_multilabel_classification

    x, y = make_multilabel_classification(1600, n_features=20, n_classes=5, n_labels=2, random_state=3)
    x, y = shuffled(seed, x, y)
    return Problem(standard(x), {f"topic{i}": Head(CLASSES, y[:, i]) for i in range(5)}, 600)


def few_labels(seed: int) -> Problem:
    """Two numbers of which one has labels for a tenth of the examples."""
    x, hidden, rng = features(seed, 2000)
    a, b = mixed(hidden, rng, 2)
    return Problem(x, {"all": Head(NUMBER, a), "few": Head(NUMBER, np.where(rng.random(len(b)) < 0.1, b, np.nan))}, 1000)


def two_labels(seed: int) -> Problem:
    """Six made classes, and a coarser class that follows from them; the finer loss is summed over the batch."""
    from sklearn.datasets import make_classification

    x, y = make_classification(1600, n_features=16, n_informative=8, n_classes=6, class_sep=1.5, random_state=4)
    x, y = shuffled(seed, x, y)
    return Problem(standard(x), {"fine": Head(CLASSES, y, 32.0), "coarse": Head(CLASSES, (y % 2).astype(int))}, 600)


def agreeing(seed: int) -> Problem:
    """Two noisy copies of one number, the second with a hundredth of the weight."""
    x, hidden, rng = features(seed)
    (a,) = mixed(hidden, rng, 1, noise=0.0)
    one, other = (standard(a + 0.5 * rng.normal(size=len(a))) for _ in range(2))
    return Problem(x, {"one": Head(NUMBER, one), "other": Head(NUMBER, other, 0.01)}, 400)


def crowded(seed: int) -> Problem:
    """Five numbers that share a representation of three, one of them with thirty times the weight."""
    x, hidden, rng = features(seed, wide=8)
    numbers = mixed(hidden, rng, 5)
    return Problem(x, {f"n{i}": Head(NUMBER, y, 30.0 if i == 0 else 1.0) for i, y in enumerate(numbers)}, 600, (32, 3))


def alarms(seed: int) -> Problem:
    """Four alarms, each rarer than the one before, beside a number that is easy to learn and ten times too large."""
    x, hidden, rng = features(seed, 3000)
    a, *others = mixed(hidden, rng, 5)
    rare = {f"alarm{i}": Head(RARE, (y > q).astype(float)) for i, (y, q) in enumerate(zip(others, (0.8, 1.2, 1.5, 1.8)))}
    return Problem(x, {"level": Head(NUMBER, 10 * a), **rare}, 1500)


def wrong_growers(seed: int) -> Problem:
    """scikit-learn's wines: the grower, growers in a random order, and the flavonoids; nothing has a wrong scale."""
    from sklearn.datasets import load_wine

    x, y = shuffled(seed, *load_wine(return_X_y=True))
    rng = np.random.default_rng(seed)
    heads = {
        "grower": Head(CLASSES, y),
        "wrong": Head(CLASSES, rng.permutation(y)),
        "flavonoids": Head(NUMBER, standard(x[:, 6])),
    }
    return Problem(standard(np.delete(x, 6, axis=1)), heads, 110, (16, 8), 300)


def patients(seed: int) -> Problem:
    """scikit-learn's diabetes: the progression, the sex and the body mass, all of unit scale."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    x, y = shuffled(seed, data.data, data.target)
    heads = {
        "progression": Head(NUMBER, standard(y)),
        "sex": Head(CLASSES, (x[:, 1] > 1).astype(int)),
        "mass": Head(NUMBER, standard(x[:, 2])),
    }
    return Problem(standard(np.delete(x, [1, 2], axis=1)), heads, 300, (16, 8), 300)


def nuclei(seed: int) -> Problem:
    """scikit-learn's breast cancer: the diagnosis with a tenth of the weight, and all columns again from ten of them."""
    from sklearn.datasets import load_breast_cancer

    x, y = shuffled(seed, *load_breast_cancer(return_X_y=True))
    heads = {"malignant": Head(CLASSES, y, 0.1), "others": Head(PIXELS, standard(x[:, 10:]))}
    return Problem(standard(x[:, :10]), heads, 350, (32, 8), 400)


UNSEEN: tuple[Callable[[int], Problem], ...] = (
    lower_half, iris, friedman, circuits, swiss_roll, topics, few_labels, two_labels, agreeing, crowded, alarms,
    wrong_growers, patients, nuclei,
)  # fmt: skip
"""The problems on which the rule was first tried when it was fixed."""


SLOTS = ("food", "price_range", "customer_rating", "area", "family_friendly")


@functools.cache
def _sentences() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Of every tenth sentence about restaurants: which of 300 words occur, the values of slots, the number of words."""
    rows = read_table(DATA / "restaurants_train.csv.gz", ["text", *SLOTS])[::10]
    sentences = [row["text"].lower().replace(",", " ").replace(".", " ").split() for row in rows]
    words, counts = np.unique(np.concatenate([np.array(each) for each in sentences]), return_counts=True)
    places = {word: i for i, word in enumerate(words[np.argsort(-counts, kind="stable")][:300])}
    x = np.zeros((len(rows), 300))
    for row, sentence in enumerate(sentences):
        x[row, [places[word] for word in sentence if word in places]] = 1
    slots = {slot: np.unique([row[slot] for row in rows], return_inverse=True)[1] for slot in SLOTS}
    return x, slots, np.array([len(sentence) for sentence in sentences], float)


def slots(seed: int) -> Problem:
    """Five slots of a sentence from its words; nothing has a wrong scale."""
    x, classes, _ = _sentences()
    x, *found = shuffled(seed, x, *classes.values())
    return Problem(x, {name: Head(CLASSES, each) for name, each in zip(SLOTS, found)}, 2000, (48, 24), 500, 3e-3)


def slots_and_words(seed: int) -> Problem:
    """The five slots, and the number of words as it is."""
    x, classes, words = _sentences()
    x, *found, words = shuffled(seed, x, *classes.values(), words)
    heads = {name: Head(CLASSES, each) for name, each in zip(SLOTS, found)}
    return Problem(x, {**heads, "words": Head(NUMBER, words)}, 2000, (48, 24), 500, 3e-3)


@functools.cache
def _images() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Of 3,000 images with two digits, a quarter of the pixels; the digits; and a sixteenth of the right one's pixels."""
    images, classes, pairs = digits.read(DATA)["train"]
    pairs = pairs[:3000]
    x = digits.joined(images[: len(pairs)], images[pairs])[:, ::2, ::2].reshape(len(pairs), -1) / 255
    pixels = images[pairs][:, ::4, ::4].reshape(len(pairs), -1) / 255
    return x, {"left": classes[: len(pairs)].astype(int), "right": classes[pairs].astype(int)}, pixels


def two_digits(seed: int) -> Problem:
    """Both digits of an image; nothing is wrong."""
    x, classes, _ = _images()
    x, left, right = shuffled(seed, x, *classes.values())
    return Problem(x, {"left": Head(CLASSES, left), "right": Head(CLASSES, right)}, 2000, (64, 32), 800, 3e-3)


def digit_and_image(seed: int) -> Problem:
    """The left digit, and the pixels of the right one, whose mean loss is small."""
    x, classes, pixels = _images()
    x, left, pixels = shuffled(seed, x, classes["left"], pixels)
    return Problem(x, {"left": Head(CLASSES, left), "image": Head(PIXELS, pixels)}, 2000, (64, 32), 800, 3e-3)


@functools.cache
def _assays(name: str, count: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    found = molecules.read(DATA / "molecules" / f"{name}.csv.gz")
    x = np.concatenate([part[0] for part in found.parts.values()])
    y = {head: np.concatenate([part[1][head][:, 0] for part in found.parts.values()]) for head in found.assays}
    most_balanced = sorted(y, key=lambda head: -np.nanmean(np.minimum(y[head], 1 - np.nanmean(y[head]))))
    return x, {head: y[head] for head in sorted(most_balanced[:count])}


def _of_molecules(seed: int, name: str, count: int) -> Problem:
    x, y = _assays(name, count)
    x, *labels = shuffled(seed, x, *y.values())
    heads = {head: Head(RARE, each) for head, each in zip(y, labels)}
    return Problem(x, heads, int(0.8 * len(x)), (32, 16), 300, 2e-3)


def toxicity(seed: int) -> Problem:
    """ClinTox: whether a drug was approved, and whether it failed for its toxicity; both labels are very unbalanced."""
    return _of_molecules(seed, "clintox", 2)


def side_effects(seed: int) -> Problem:
    """The eight of SIDER's groups of side effects that come closest to half of the drugs."""
    return _of_molecules(seed, "sider", 8)


def gauges(seed: int) -> Problem:
    """Three numbers in units of their own: a thousandth of unit scale, unit scale, and ten times that."""
    x, hidden, rng = features(seed)
    small, unit, large = mixed(hidden, rng, 3)
    heads = {"small": Head(NUMBER, small / 1000), "unit": Head(NUMBER, unit), "large": Head(NUMBER, 10 * large)}
    return Problem(x, heads, 600)


def noisy_classes(seed: int) -> Problem:
    """A class with a third of its labels wrong, beside a number that is easy to learn; nothing has a wrong scale."""
    x, hidden, rng = features(seed)
    a, b = mixed(hidden, rng, 2)
    classes = np.digitize(a, [-0.6, 0, 0.6])
    wrong = np.where(rng.random(len(x)) < 1 / 3, rng.integers(0, 4, len(x)), classes)
    return Problem(x, {"class": Head(CLASSES, wrong), "number": Head(NUMBER, b)}, 600)


def mostly_missing(seed: int) -> Problem:
    """Four numbers, each labelled for half as many examples as the one before, the first five times too large."""
    x, hidden, rng = features(seed, 3000)
    heads = {}
    for i, y in enumerate(mixed(hidden, rng, 4)):
        heads[f"n{i}"] = Head(NUMBER, np.where(rng.random(len(y)) < 0.5**i, 5.0 * y if i == 0 else y, np.nan))
    return Problem(standard(x), heads, 1500)


def cubes(seed: int) -> Problem:
    """A linear target, its cube as it is, and its sign: a number with rare large values beside two simple heads."""
    x, hidden, rng = features(seed)
    (a,) = mixed(hidden, rng, 1)
    heads = {"linear": Head(NUMBER, a), "cube": Head(NUMBER, a**3), "sign": Head(CLASSES, (a > 0).astype(int))}
    return Problem(x, heads, 600)


FURTHER: tuple[Callable[[int], Problem], ...] = (
    slots, slots_and_words, two_digits, digit_and_image, toxicity, side_effects,
    gauges, noisy_classes, mostly_missing, cubes,
)  # fmt: skip
"""Six of them use the data of other experiments."""

GROUPS = {"first 12": FIRST, "unseen 14": UNSEEN, "further 10": FURTHER}


def score(kind: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """R2, accuracy, or the area under the ROC curve."""
    if kind == CLASSES:
        return float((predicted.argmax(axis=-1) == labels).mean())
    if kind == RARE:
        return molecules.area(labels, predicted)
    known = np.isfinite(labels).all(axis=-1)
    labels, predicted = labels[known], predicted[known]
    return float(1 - ((predicted - labels) ** 2).sum() / ((labels - labels.mean(axis=0)) ** 2).sum())


def data_set(make: Callable[[int], Problem], folder: Path, every: int = 1) -> DataSet:
    """A problem for `multihead.compare`: the data of a seed are drawn when it is trained."""
    problem = make(0)
    kinds = {name: head.kind for name, head in problem.heads.items()}

    def build(width: int) -> MultiHeadTrainer:
        sizes = [*problem.encoder[:-1], width]
        layers = [keras.layers.Dense(size, activation="relu" if size > 1 else None) for size in sizes]
        trainer = MultiHeadTrainer(keras.Sequential(layers))
        for name, head in problem.heads.items():
            loss, activation = {
                CLASSES: ("sparse_categorical_crossentropy", "softmax"),
                RARE: ("binary_crossentropy", "sigmoid"),
            }.get(head.kind, ("mse", None))
            trainer.add_head(name, keras.layers.Dense(head.outputs, activation=activation), loss, weight=head.weight)
        return trainer

    def data(seed: int) -> dict[str, Any]:
        drawn = make(seed)
        x, y = drawn.inputs.astype("float32"), {}
        for name, head in drawn.heads.items():
            labels = head.labels if head.kind == CLASSES else head.labels.reshape(len(x), -1).astype("float32")
            y[name] = labels
        train = slice(0, drawn.train, every)
        rest = (x[drawn.train :], {name: labels[drawn.train :] for name, labels in y.items()})
        return {"train": (x[train], {name: labels[train] for name, labels in y.items()}), **halves(rest)}

    def measure(trainer: MultiHeadTrainer, part: Any) -> dict[str, float]:
        x, y = part
        predicted = trainer.predict(x, verbose=0)
        predicted = predicted if isinstance(predicted, dict) else {next(iter(y)): predicted}
        return {f"{name}_score": score(kinds[name], labels, np.asarray(predicted[name])) for name, labels in y.items()}

    metrics = {name: (f"{name}_score", "max") for name in problem.heads}
    grids = {"Adam": (0.5, 1.0, 2.0), "AdamW": (0.5, 1.0, 2.0), "SGD": (0.2, 1.0, 5.0, 20.0)}
    rates = {name: tuple(problem.rate * factor for factor in factors) for name, factors in grids.items()}
    return DataSet(build, problem.encoder[-1], data, metrics, problem.updates, 32, rates, measure)


SETS = {make.__name__: functools.partial(data_set, make) for group in GROUPS.values() for make in group}
