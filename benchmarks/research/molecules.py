"""Tox21, SIDER and ClinTox: 12, 27 and 2 assays of molecules, many labels missing.

Each molecule is 1,024 bits of ECFP4 (Rogers and Hahn, "Extended-Connectivity Fingerprints", 2010: Morgan's circular
fingerprint of radius 2), made by RDKit. The split is that by index of DeepChem: the first 80 % of the molecules that RDKit
reads, the next 10 % for validation, the last 10 % for the test. A label that was not measured is missing. The network is
that of DeepChem's multi-task net, with 512 hidden units where that has 1,500: dropout 0.5, a penalty of 0.05 times the
squared weights, biases that begin at 1, batches of 50, Adam, rate 0.001, and weights with which the positives of an assay
count as much as its negatives. Logistic regression (`C` chosen by three folds of the training data, and scikit-learn's own
1) and a random forest of 100 trees have one model per assay. The metric is the area under the ROC curve.

The data are `molecules/{tox21,sider,clintox}.csv.gz`: columns `smiles` and one per assay, empty where it was not measured.
"""

from __future__ import annotations

import csv
import functools
import gzip
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from benchmarks.research.record import Line
from benchmarks.research.runner import DataSet, Part
from examples._command_line import InputError
from multihead import MultiHeadTrainer
from multihead._display.drawing import needed

LINEAR, UNTUNED, FOREST = "logistic regression", "logistic regression, C = 1", "random forest"
BITS, RADIUS = 1024, 2
UNITS, DROPOUT, PENALTY, BATCH = 512, 0.5, 0.05, 50
TREES, PENALTIES = 100, (0.01, 0.1, 1.0)
NO_HEADS = ("", "smiles", "mol_id")
"""Columns that are no assays."""


@dataclass(frozen=True)
class Molecules:
    """A data set.

    Attributes:
        assays: The names of the assays by head.
        parts: Training, validation and test data.
        unread: How many molecules RDKit could not read.
    """

    assays: Mapping[str, str]
    parts: Mapping[str, Part]
    unread: int


def read(path: Path, every: int = 1) -> Molecules:
    """Reads a file, and splits it by index.

    Args:
        path: The file.
        every: Only each n-th molecule is used.

    Raises:
        InputError: There is no such file, or it has no column `smiles`.
    """
    if not path.exists():
        raise InputError(
            f"`--data` must be a folder with the file molecules/{path.name}. Received: {str(path.parent.parent)!r}, "
            "without. The files of MoleculeNet are at https://moleculenet.org/datasets-1; pass the folder that has them."
        )
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))[::every]
    if not rows or "smiles" not in rows[0]:
        raise InputError(f"{path.name} must have a column 'smiles'. Received: {list(rows[0]) if rows else 'no rows'}.")
    assays = {slug(name): name for name in rows[0] if name not in NO_HEADS}
    bits = [fingerprint(row["smiles"]) for row in rows]
    known = [place for place, each in enumerate(bits) if each is not None]
    x = np.array([bits[place] for place in known], np.float32)
    y = {
        head: np.array([[float(rows[place][name] or "nan")] for place in known], np.float32) for head, name in assays.items()
    }
    ends = [0, int(0.8 * len(known)), int(0.9 * len(known)), len(known)]
    parts = {
        part: (x[begin:end], {head: values[begin:end] for head, values in y.items()})
        for part, begin, end in zip(("train", "validation", "test"), ends, ends[1:])
    }
    return Molecules(assays, parts, len(rows) - len(known))


def slug(assay: str) -> str:
    """An assay as the name of a head."""
    return re.sub(r"\W+", "_", assay.lower()).strip("_")


def fingerprint(smiles: str) -> np.ndarray | None:
    """The bits of ECFP4, uint8 `[1024]`; None if RDKit cannot read the molecule."""
    chem, maker = _rdkit()
    molecule = chem.MolFromSmiles(smiles) if smiles else None
    return None if molecule is None else maker.GetFingerprintAsNumPy(molecule)


@functools.cache
def _rdkit() -> tuple[Any, Any]:
    chem = _needed("rdkit.Chem")
    _needed("rdkit").RDLogger.DisableLog("rdApp.*")
    return chem, _needed("rdkit.Chem.rdFingerprintGenerator").GetMorganGenerator(radius=RADIUS, fpSize=BITS)


def area(labels: np.ndarray, scores: np.ndarray) -> float:
    """The area under the ROC curve of the labelled rows; NaN without both classes.

    The probability that a positive has a higher score than a negative, and half of that of an equal one: from ranks, as in
    Mann and Whitney.
    """
    labels, scores = np.ravel(labels), np.ravel(scores)
    known = np.isfinite(labels)
    labels, scores = labels[known], scores[known].astype(np.float64)
    positive = int((labels == 1).sum())
    negative = len(labels) - positive
    if not positive or not negative or not np.isfinite(scores).all():
        return float("nan")
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[np.ravel(place)]
    return float((ranks[labels == 1].sum() - positive * (positive + 1) / 2) / (positive * negative))


def measure(trainer: MultiHeadTrainer, part: Part) -> dict[str, float]:
    """The area under the ROC curve of each head."""
    x, y = part[:2]
    scores = trainer.predict(x, batch_size=1024, verbose=0)
    scores = scores if isinstance(scores, Mapping) else {next(iter(y)): scores}
    return {f"{head}_area": area(y[head], scores[head]) for head in y}


def balanced(labels: np.ndarray) -> np.ndarray:
    """Weights `[molecules]` with which positives count as much as negatives, and whose mean over labels is 1."""
    positive = labels[:, 0] == 1
    share = positive.sum() / np.isfinite(labels).sum()
    return np.where(positive, 0.5 / max(share, 1e-3), 0.5 / max(1 - share, 1e-3)).astype(np.float32)


def build(heads: Sequence[str], units: int = UNITS) -> MultiHeadTrainer:
    """A hidden layer with dropout, and a head for each assay."""
    layers, penalty = keras.layers, keras.regularizers.L2(PENALTY)
    first = keras.initializers.TruncatedNormal(stddev=0.02)
    hidden = layers.Dense(
        units, activation="relu", kernel_initializer=first, bias_initializer="ones", kernel_regularizer=penalty
    )
    trainer = MultiHeadTrainer(keras.Sequential([hidden, layers.Dropout(DROPOUT)]))
    for head in heads:
        module = layers.Dense(1, activation="sigmoid", kernel_regularizer=penalty)
        trainer.add_head(head, module, "binary_crossentropy")
    return trainer


def assays(name: str, epochs: int, rates: Mapping[str, tuple[float, ...]], folder: Path, every: int = 1) -> DataSet:
    """A data set; ten epochs as in DeepChem's, or fewer."""
    found = read(folder / "molecules" / f"{name}.csv.gz", every)
    heads = list(found.assays)
    x, y = found.parts["train"]
    data = {**found.parts, "train": (x, y, {head: balanced(labels) for head, labels in y.items()})}
    updates, metrics = epochs * -(-len(x) // BATCH), {head: (f"{head}_area", "max") for head in heads}
    return DataSet(functools.partial(build, heads), UNITS, data, metrics, updates, BATCH, rates, measure)


SETS = {name: functools.partial(assays, name, 10, {"Adam": (1e-3,)}) for name in ("tox21", "sider", "clintox")}
BASELINES = {LINEAR: False, UNTUNED: False, FOREST: True}
"""scikit-learn's models, and whether they depend on the seed."""


def with_baselines(line: Line, folder: Path, every: int = 1) -> Line:
    """A line with scikit-learn's models, one for each assay, as further variants."""
    data = read(folder / "molecules" / f"{line['set']}.csv.gz", every)
    for model, is_random in BASELINES.items():
        for place in ("values", "validation"):
            line[place][model] = {head: [] for head in data.assays}
        for seed in range(len(line["seeds"]) if is_random else 1):
            for head in data.assays:
                fitted = _fit(model, seed, *_labelled(data.parts["train"], head), trees=TREES)
                for part, place in (("test", "values"), ("validation", "validation")):
                    x, y = data.parts[part]
                    line[place][model][head].append(round(area(y[head], fitted.predict_proba(x)[:, 1]), 5))
    return line


def _labelled(part: Part, head: str) -> tuple[Any, np.ndarray]:
    """The fingerprints as a sparse matrix, and the labels, of the molecules that have one."""
    x, y = part
    known = np.isfinite(y[head][:, 0])
    return _needed("scipy.sparse").csr_matrix(x[known]), y[head][known, 0].astype(int)


def _fit(model: str, seed: int, x: Any, y: np.ndarray, *, trees: int) -> Any:
    """A model of one assay: a forest, or a logistic regression, whose penalty folds of the training data may choose."""
    if model == FOREST:
        forests = _needed("sklearn.ensemble")
        return forests.RandomForestClassifier(trees, class_weight="balanced", random_state=seed).fit(x, y)
    regression = _needed("sklearn.linear_model").LogisticRegression(solver="liblinear", class_weight="balanced")
    if model == UNTUNED:
        return regression.fit(x, y)
    selection = _needed("sklearn.model_selection")
    folds = selection.StratifiedKFold(3, shuffle=True, random_state=0)
    return selection.GridSearchCV(regression, {"C": PENALTIES}, scoring="roc_auc", cv=folds).fit(x, y)


def _needed(module: str) -> Any:
    return needed(module, "benchmarks", "the experiment on molecules")
