"""Small problems with several heads, in two groups: one to find a rule with, and one that was not looked at before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

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
