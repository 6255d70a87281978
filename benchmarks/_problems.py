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
    heads = {"malignant": Head(CLASSES, y), "worst": Head(NUMBER, 100 * standard(x[:, 27])), "texture": Head(NUMBER, standard(x[:, 21]))}
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
