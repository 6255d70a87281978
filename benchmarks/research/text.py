"""Two data sets of sentences: the orders of the convergence study, and five slots of sentences about restaurants."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.research.runner import DataSet, Part, halves
from examples.convergence_study import BATCH, METRICS, Study
from examples.seq2seq_price import batches
from examples.seq2seq_price.columns import NO_LABEL
from examples.seq2seq_price.rows import read_table
from multihead import MultiHeadTrainer
from multihead.models import PriceClassifier, Seq2SeqEncoder


def study(folder: Path, every: int = 1) -> DataSet:
    """The network and the orders of the convergence study: the reply from the final state of a GRU, and the price."""
    found = Study(6000 // every, 3000 // every)
    data = {"train": found.part("train"), **halves(found.part("dev"))}
    adam = (6e-3, 12e-3, 24e-3, 48e-3)
    rates = {"Adam": adam, "AdamW": adam, "SGD": (0.5, 1.0, 2.0, 4.0)}
    return DataSet(found.trainer, 64, data, METRICS, 400, BATCH, rates, clip=1.0)


WORDS = 40
"""Longer sentences are cut off."""
SLOTS = ("food", "price_range", "customer_rating", "area", "family_friendly")


def restaurants(folder: Path, every: int = 1) -> DataSet:
    """Five slots of sentences about restaurants, from the final state of a GRU; a missing value is a class."""
    splits = {part: read_table(folder / f"restaurants_{part}.csv.gz", ["text", *SLOTS]) for part in ("train", "dev")}
    splits = {"train": splits["train"][:: 5 * every], "dev": splits["dev"][::every]}
    texts = {part: [row["text"] for row in rows] for part, rows in splits.items()}
    words = batches.build_vocabulary(texts["train"], batches.standardize_source, least=5)
    vectorizer = batches.vectorizer(words, batches.standardize_source)
    classes = {slot: sorted({row[slot] for row in splits["train"]}) for slot in SLOTS}

    def part(name: str) -> Part:
        ids = vectorizer(texts[name]).to_tensor().numpy().astype(np.int32)[:, :WORDS]
        return ids, {slot: np.array([_place(classes[slot], row[slot]) for row in splits[name]], np.int32) for slot in SLOTS}

    def make(units: int) -> MultiHeadTrainer:
        trainer = MultiHeadTrainer(Seq2SeqEncoder(len(words) + 2, 32, units, cell="gru"))
        for slot in SLOTS:
            module = PriceClassifier(len(classes[slot]), hidden_units=48)
            trainer.add_head(slot, module, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=NO_LABEL)
        return trainer

    data = {"train": part("train"), **halves(part("dev"))}
    metrics = {slot: (f"{slot}_accuracy", "max") for slot in SLOTS}
    adam = (3e-3, 6e-3, 12e-3, 24e-3, 48e-3)
    rates = {"Adam": adam, "AdamW": adam, "SGD": (0.03, 0.1, 0.3, 1.0, 3.0)}
    return DataSet(make, 48, data, metrics, 150, 64, rates, clip=1.0)


def _place(known: list[str], value: str) -> int:
    return known.index(value) if value in known else NO_LABEL
