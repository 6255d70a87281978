"""Data sets of sentences: orders, for the study and for the example's own model, and five slots about restaurants."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

import numpy as np

from benchmarks.research.runner import DataSet, Part, halves
from examples.convergence_study.network import Network
from examples.seq2seq_price import batches
from examples.seq2seq_price import model as of_example
from examples.seq2seq_price.data import workshop_data
from examples.seq2seq_price.model import NO_LABEL, PADDING_ID
from examples.seq2seq_price.rows import read_table
from multihead import MultiHeadTrainer, losses
from multihead.models import PriceClassifier, Seq2SeqEncoder

LONGEST = 24
"""Orders with more tokens are left out: batches are as long as the longest, and nine of ten have fewer."""


def study(folder: Path, every: int = 1) -> DataSet:
    """The network and the orders of the convergence study: the reply from the final state of a GRU, and the price."""
    found = workshop_data(6000 // every, 3000 // every, seed=0)

    @functools.cache
    def network(units: int) -> Network:
        return Network(found, units=units, embedding=32)

    def make(units: int) -> MultiHeadTrainer:
        encoder, reply, price = network(units).make_modules()
        trainer = MultiHeadTrainer(encoder)
        trainer.add_head("reply", reply, losses.SequenceCrossentropy(), teacher_forcing=True)
        trainer.add_head("price", price, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=NO_LABEL)
        return trainer

    read = network(64).vectorizers
    data = {"train": _short(read, found.splits["train"]), **halves(_short(read, found.splits["dev"]))}
    adam = (6e-3, 12e-3, 24e-3, 48e-3)
    rates = {"Adam": adam, "AdamW": adam, "SGD": (0.5, 1.0, 2.0, 4.0)}
    metrics = {"reply": ("reply_loss", "min"), "price": ("price_accuracy", "max")}
    return DataSet(make, 64, data, metrics, 400, 64, rates, clip=1.0)


def _short(read: batches.Vectorizers, examples: batches.Examples) -> Part:
    """The ids of the orders that are not too long."""
    ids, reply = (ids.to_tensor().numpy() for ids in read(examples.texts, examples.targets))
    short = ((ids != PADDING_ID).sum(axis=1) <= LONGEST) & ((reply != PADDING_ID).sum(axis=1) <= LONGEST)
    labels = {"reply": reply[short, :LONGEST], "price": examples.labels[short]}
    return ids[short, :LONGEST].astype(np.int32), {name: each.astype(np.int32) for name, each in labels.items()}


def replies(folder: Path, every: int = 1, attention: str | None = None) -> DataSet:
    """The model of the example on its own orders: exact replies, and price ranges."""
    found = workshop_data(6000 // every, 4000 // every, seed=0)
    train = found.splits["train"]
    words = batches.vocabularies(train)
    read = batches.Vectorizers.of(*words)
    parts = {split: _short(read, rows) for split, rows in found.splits.items()}
    width = max(y["reply"].shape[1] for _, y in parts.values())
    for _, y in parts.values():
        y["reply"] = np.pad(y["reply"], [(0, 0), (0, width - y["reply"].shape[1])])
    data = {"train": parts["train"], **halves(parts["dev"])}
    sizes = of_example.Sizes(len(words[0]) + 2, len(words[1]) + 2, LONGEST, attention=attention)

    def make(units: int) -> MultiHeadTrainer:
        wide = dataclasses.replace(sizes, units=units)
        heads = {"reply": of_example.reply_head(wide), "price": of_example.price_head(len(found.ranges.names), units)}
        return MultiHeadTrainer(of_example.encoder(wide), heads)

    def measure(trainer: MultiHeadTrainer, part: Part) -> dict[str, float]:
        scores = of_example.scores(trainer, *part)
        return {of_head[name][0]: score for name, score in scores.items()}

    of_head = {"reply": ("reply_exact", "max"), "price": ("price_accuracy", "max")}
    return DataSet(make, sizes.units, data, of_head, 600, 64, {"Adam": (1e-2,)}, measure, clip=1.0)


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
