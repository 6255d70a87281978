"""Ten more problems, made after the floor and `diagnose` were fixed; six use the data sets of other benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from benchmarks import molecules, multimnist
from benchmarks._problems import CLASSES, NUMBER, PIXELS, RARE, Head, Problem, features, mixed, shuffled, standard
from benchmarks._published import DATA
from examples.seq2seq_price.rows import read_table

SLOTS = ("food", "price_range", "customer_rating", "area", "family_friendly")


@cache
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


@cache
def _images() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Of 3,000 images with two digits, a quarter of the pixels; the digits; and a sixteenth of the right one's pixels."""
    digits = multimnist.read(DATA)["train"]
    images, classes, pairs = digits[0], digits[1], digits[2][:3000]
    x = multimnist.joined(images[: len(pairs)], images[pairs])[:, ::2, ::2].reshape(len(pairs), -1) / 255
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


@cache
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
