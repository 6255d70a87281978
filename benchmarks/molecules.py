"""Tox21, SIDER and ClinTox: 12, 27 and 2 assays of molecules, many labels missing. Where does sharing an encoder help?

    python -m benchmarks.molecules [--sets tox21 sider clintox] [--seeds 5] [--variants "plain sum" EqualNorms ...]

Each molecule is 1,024 bits of ECFP4 (Rogers and Hahn, "Extended-Connectivity Fingerprints", 2010: Morgan's circular
fingerprint of radius 2), made by RDKit. The split is that by index of DeepChem: the first 80 % of the molecules that RDKit
reads, the next 10 % for validation, the last 10 % for the test. Variants are trained by `multihead.compare`: one encoder
with a head per assay, and each head alone with an encoder of its own; a label that was not measured is missing. The network
is that of DeepChem's multi-task net, with 512 hidden units where that has 1,500: dropout 0.5, a penalty of 0.05 times the
squared weights, biases that begin at 1, batches of 50, ten epochs of Adam, rate 0.001, and weights with which the positives
of an assay count as much as its negatives. Logistic regression (`C` chosen by three folds of the training data, and
scikit-learn's own 1) and a random forest of 100 trees have one model per assay. The figure is the area under the ROC curve,
its mean over assays.

The data are `molecules/{tox21,sider,clintox}.csv.gz` in the folder `--data`: columns `smiles` and one per assay, empty
where it was not measured. A variant is `"plain sum"`, a balancer or a weighting by the name of its class, or a balancer with
`", parameters"`. Finished runs are lines in `--results`; the command continues where it stopped, also with other variants or
more seeds. `--table` prints the tables of the lines beside the published ones.
"""

from __future__ import annotations

import csv
import functools
import gzip
import json
import re
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

import multihead
from benchmarks import _published
from benchmarks._molecules_table import FOREST, LINEAR, SKLEARN, UNTUNED, tables
from benchmarks._results import read_lines
from examples._command_line import InputError
from multihead import MultiHeadTrainer
from multihead._display.tables import needed

SETS = ("tox21", "sider", "clintox")
VARIANTS = (_published.PLAIN, "EqualNorms", "EqualNorms, parameters", "UPGrad", "Uncertainty")
BITS, RADIUS = 1024, 2
UNITS, DROPOUT, PENALTY, BATCH = 512, 0.5, 0.05, 50
TREES, PENALTIES = 100, (0.01, 0.1, 1.0)
NO_HEADS = ("", "smiles", "mol_id")
"""Columns that are no assays."""

Part = tuple[np.ndarray, dict[str, np.ndarray]]
"""Fingerprints `[molecules, 1024]`, and labels `[molecules, 1]` by head, NaN where there is none."""


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


def rarest(part: Part) -> int:
    """The number of labels of the rarest class of any assay."""
    return min(int((labels == value).sum()) for labels in part[1].values() for value in (0, 1))


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


def run(name: str, data: Molecules, options: Namespace) -> None:
    """Trains the variants of a data set."""
    heads = list(data.assays)
    x, y = data.parts["train"]
    multihead.compare(
        functools.partial(build, heads),
        {**data.parts, "train": (x, y, {head: balanced(labels) for head, labels in y.items()})},
        _published.variants_of(options.variants or VARIANTS, heads),
        options.seeds,
        {"epochs": options.epochs},
        metrics={head: (f"{head}_area", "max") for head in heads},
        rates=options.rates,
        batch_size=BATCH,
        equal_cost=False,
        measure=measure,
        file=options.results / f"{name}.jsonl",
    )


def run_sklearn(name: str, data: Molecules, options: Namespace) -> None:
    """Fits logistic regressions, and a random forest with each seed, for each assay; writes a line for each."""
    sklearn = _needed("sklearn")
    path = options.results / f"{name}_{SKLEARN}.jsonl"
    known = {(line["model"], line["seed"]) for line in read_lines(path)}
    wanted = [(LINEAR, 0), (UNTUNED, 0), *((FOREST, seed) for seed in range(options.seeds))]
    for model, seed in wanted:
        if (model, seed) in known:
            continue
        figures: dict[str, dict[str, float]] = {"validation": {}, "test": {}}
        for head in data.assays:
            fitted = _fit(model, seed, *_labelled(data.parts["train"], head), trees=20 if options.quick else TREES)
            for part in figures:
                x, y = data.parts[part]
                figures[part][f"{head}_area"] = area(y[head], fitted.predict_proba(x)[:, 1])
        line = {"model": model, "seed": seed, "metrics": figures, "scikit-learn": sklearn.__version__}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{name}: {model}, seed {seed}: {np.mean(list(figures['validation'].values())):.3f}", flush=True)


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
    return needed(module, "benchmarks", "`benchmarks.molecules`")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = _published.parser_of("benchmarks.molecules", __doc__, seeds=5, epochs=10, rates=(1e-3,))
    parser.add_argument("--sets", nargs="+", choices=SETS, metavar="SET", help=f"among {', '.join(SETS)}")
    parser.add_argument("--only", choices=("heads", SKLEARN), help="only the variants, or only scikit-learn's models")
    options = _published.asked(parser, arguments)
    options.sets = options.sets or (SETS[-1:] if options.quick else SETS)
    try:
        for name in () if options.table else options.sets:
            data = read(options.data / "molecules" / f"{name}.csv.gz", every=10 if options.quick else 1)
            few = rarest(data.parts["validation"])
            print(f"{name}: {data.unread} molecules not read, {few} validation labels of the rarest class", flush=True)
            if options.only != "heads":
                run_sklearn(name, data, options)
            if options.only != SKLEARN:
                run(name, data, options)
    except (InputError, ImportError) as error:
        parser.error(str(error))
    print(tables(options.results, options.sets))
    return 0


if __name__ == "__main__":
    sys.exit(main())
