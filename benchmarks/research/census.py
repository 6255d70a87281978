"""Census rows with the labels of Ma et al. (2018): is one encoder for both worth it, and do experts help?

The model is that of `examples.ranking`; the data are rows of UCI's Census-Income. Results are AUCs on the development file;
the validation data are the last 6,000 of the training rows.
"""

from __future__ import annotations

import functools
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.research.runner import DataSet
from examples._command_line import InputError
from examples.ranking import model, scores, tables
from multihead import MultiHeadTrainer

COLLEGE = (
    "Some college but no degree", "Associates degree-academic program", "Associates degree-occup /vocational",
    "Bachelors degree(BA AB BS)", "Masters degree(MA MS MEng MEd MSW MBA)", "Prof school degree (MD DDS DVM LLB JD)",
    "Doctorate degree(PhD EdD)",
)  # fmt: skip
LABELS = {"income": ("income=50000+", []), "college": (f"college:education={'|'.join(COLLEGE)}", ["income"])}
"""By pair, its label beside that of people who never married, and columns that are no inputs."""
PASSES, BATCH, NUM_HELD_OUT, RATE = 3, 256, 6000, 2e-3


def measure(trainer: MultiHeadTrainer, part: tf.data.Dataset) -> dict[str, float]:
    """The AUC of each head."""
    found, labels = [], []
    for x, y in part:
        predicted = trainer.predict_on_batch(x)
        found.append(predicted if isinstance(predicted, dict) else {next(iter(y)): predicted})
        labels.append(y)
    both = {
        name: [np.concatenate([np.ravel(each[name]) for each in parts]) for parts in (labels, found)] for name in labels[0]
    }
    return {f"{name}_auc": scores.auc(*each) for name, each in both.items()}


def pair(name: str, folder: Path, every: int = 1) -> DataSet:
    """A label of `LABELS`, and people who never married."""
    label, others = LABELS[name]
    paths = [folder / f"census_{part}.csv.gz" for part in ("train", "dev")]
    for path in paths:
        if not path.exists():
            raise InputError(
                f"`--data` must be a folder with {path.name}. Received: {str(folder)!r}. Pass the folder that has it."
            )
    options = Namespace(train=str(paths[0]), dev=str(paths[1]), category=[], request=None, separator=None, quotes=None)
    options.label = [tables.label_of(text) for text in (label, "never_married:marital_status=Never married")]
    options.drop = ["instance_weight", "year", *others]
    read: Any = tables.read_files(options, lambda line: None)
    train, test, kinds = read
    columns = {each: model.column_of(cells) for each, cells in train.inputs.items()}

    def rows(part: tables.Part, places: slice) -> tuple[model.Arrays, model.Arrays]:
        return tuple({each: cells[places] for each, cells in arrays.items()} for arrays in (part.inputs, part.targets))

    train_rows, held_out = rows(train, slice(0, -NUM_HELD_OUT, every)), rows(train, slice(-NUM_HELD_OUT, None, every))
    number = len(next(iter(train_rows[1].values())))
    updates = max(1, PASSES * number // BATCH)

    def fixed(part: tuple[model.Arrays, model.Arrays]) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices(part).batch(3000)

    def data(seed: int) -> dict[str, Any]:
        return {
            "train": model.batches(*train_rows, BATCH, seed).take(updates),
            "validation": fixed(held_out),
            "test": fixed(rows(test, slice(0, None, every))),
        }

    def build(encoder: str) -> MultiHeadTrainer:
        return model.build_trainer(columns, kinds, train_rows[1], encoder)

    metrics = {each: (f"{each}_auc", "max") for each in kinds}
    builds = {"MMoE": functools.partial(build, "mmoe"), "CGC": functools.partial(build, "cgc")}
    rates = dict.fromkeys(("Adam", "AdamW"), (RATE,))
    return DataSet(lambda width: build("shared"), 0, data, metrics, updates, BATCH, rates, measure, builds=builds)


SETS = {name: functools.partial(pair, name) for name in LABELS}
