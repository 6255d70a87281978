"""The six data sets of `benchmarks.equal_cost`: the data, the trainer, and how long it trains."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import molecules, multimnist
from benchmarks._as_large import width_as_large
from examples.convergence_study.network import Network
from examples.seq2seq_price import batches, run
from examples.seq2seq_price.columns import NO_LABEL
from examples.seq2seq_price.rows import read_table
from multihead import MultiHeadTrainer, losses
from multihead.models import PriceClassifier, Seq2SeqEncoder

Part = tuple[np.ndarray, dict[str, np.ndarray]]


class DataSet(NamedTuple):
    """A data set and its model.

    Attributes:
        make: Makes the trainer for a width of the representation.
        width: The width of the representation of single-task models.
        data: The training, validation and test data, as `multihead.compare` takes them.
        metrics: Each head's figure and its direction.
        updates: The number of updates of a single-task model; joint models have as many, and more at equal cost.
        batch_size: The number of examples of a batch.
        rates: By optimizer, the grid of learning rates.
        measure: Computes the figures; None for those of `evaluate`.
        clip: The limit on the global norm of an update's gradients; None for no clipping.
    """

    make: Callable[[int], MultiHeadTrainer]
    width: int
    data: Mapping[str, Any]
    metrics: Mapping[str, tuple[str, str]]
    updates: int
    batch_size: int
    rates: Mapping[str, tuple[float, ...]]
    measure: Callable[..., dict[str, float]] | None = None
    clip: float | None = None

    @property
    def build(self) -> Callable[[], MultiHeadTrainer]:
        """Makes the trainer with the width of single-task models."""
        return functools.partial(self.make, self.width)

    def as_large(self) -> int:
        """See `width_as_large`."""
        return width_as_large(self.make, self.width, self.data, [*self.metrics], self.batch_size)


def rates(adam: tuple[float, ...], sgd: tuple[float, ...]) -> dict[str, tuple[float, ...]]:
    """The grids of the three optimizers; AdamW has that of Adam."""
    return {"Adam": adam, "AdamW": adam, "SGD": sgd}


LONGEST = 24
"""Orders with more tokens are left out: batches are as long as the longest, and nine of ten have fewer."""


def study(folder: Path, every: int = 1) -> DataSet:
    """The network and the orders of the convergence study: the reply from the final state of a GRU, and the price."""
    found = run.workshop_data(6000 // every, 3000 // every, seed=0)

    @functools.cache
    def network(units: int) -> Network:
        return Network(found, units=units, embedding=32)

    def make(units: int) -> MultiHeadTrainer:
        encoder, reply, price = network(units).make_modules()
        trainer = MultiHeadTrainer(encoder)
        trainer.add_head("reply", reply, losses.SequenceCrossentropy(), teacher_forcing=True)
        trainer.add_head("price", price, "sparse_categorical_crossentropy", metrics=["accuracy"], ignore_label=NO_LABEL)
        return trainer

    def part(examples: batches.Examples) -> Part:
        ids, reply = (ids.to_tensor().numpy() for ids in network(64).vectorizers(examples.texts, examples.targets))
        short = ((ids != batches.PADDING_ID).sum(axis=1) <= LONGEST) & ((reply != batches.PADDING_ID).sum(axis=1) <= LONGEST)
        labels = {"reply": reply[short, :LONGEST], "price": examples.labels[short]}
        return ids[short, :LONGEST].astype(np.int32), {name: each.astype(np.int32) for name, each in labels.items()}

    held_out = part(found.splits["dev"])
    data = {"train": part(found.splits["train"]), **halves(held_out)}
    metrics = {"reply": ("reply_loss", "min"), "price": ("price_accuracy", "max")}
    return DataSet(make, 64, data, metrics, 400, 64, rates((6e-3, 12e-3, 24e-3, 48e-3), (0.5, 1.0, 2.0, 4.0)), clip=1.0)


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
    grids = rates((3e-3, 6e-3, 12e-3, 24e-3, 48e-3), (0.03, 0.1, 0.3, 1.0, 3.0))
    return DataSet(make, 48, data, metrics, 150, 64, grids, clip=1.0)


def _place(known: list[str], value: str) -> int:
    return known.index(value) if value in known else NO_LABEL


def digits(heads: tuple[str, str], folder: Path, every: int = 1) -> DataSet:
    """MultiMNIST: both digits, or the left digit and the right image; a tenth of the training images, a fifth of others."""
    data = multimnist.data_of(multimnist.read(folder), heads, every=5 * every)
    x, y = data["train"]
    data["train"] = (x[::2], {head: each[::2] for head, each in y.items()})
    return DataSet(
        functools.partial(multimnist.build, heads),
        multimnist.UNITS,
        data,
        multimnist.metrics_of(heads),
        300,
        128,
        rates((2e-3, 4e-3, 8e-3, 16e-3), (0.01, 0.03, 0.1, 0.3, 1.0)),
    )


def assays(name: str, epochs: int, grids: Mapping[str, tuple[float, ...]], folder: Path, every: int = 1) -> DataSet:
    """Assays of molecules from 1,024 bits of ECFP4, as in `benchmarks.molecules`."""
    found = molecules.read(folder / "molecules" / f"{name}.csv.gz", every)
    heads = list(found.assays)
    x, y = found.parts["train"]
    data = {**found.parts, "train": (x, y, {head: molecules.balanced(labels) for head, labels in y.items()})}
    updates = epochs * -(-len(x) // molecules.BATCH)
    return DataSet(
        functools.partial(molecules.build, heads),
        molecules.UNITS,
        data,
        {head: (f"{head}_area", "max") for head in heads},
        updates,
        molecules.BATCH,
        grids,
        molecules.measure,
    )


def halves(part: Part) -> dict[str, Part]:
    """Every second example for validation, the others for the test."""
    x, y = part
    return {
        name: (x[begin::2], {head: each[begin::2] for head, each in y.items()})
        for begin, name in enumerate(("validation", "test"))
    }


SETS: Mapping[str, Callable[..., DataSet]] = {
    "study": study,
    "restaurants": restaurants,
    "multimnist_cl_rr": functools.partial(digits, ("cl", "rr")),
    "multimnist_cl_cr": functools.partial(digits, ("cl", "cr")),
    "clintox": functools.partial(assays, "clintox", 10, rates((1e-3,), (0.03,))),
    "tox21": functools.partial(assays, "tox21", 5, rates((1e-3,), (0.03,))),
}
