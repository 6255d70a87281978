"""Data sets of sentences: orders, for the study and for the example's own model, and five slots about restaurants."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np

from benchmarks.research.lag import THIS, FromThisUpdate
from benchmarks.research.record import ALONE, EQUAL_COST, PLAIN, Line
from benchmarks.research.runner import DataSet, Part, halves
from examples._rows import read_table
from examples.convergence_study import BATCH, METRICS, Study
from examples.seq2seq_price import batches, command, comparison, run
from examples.seq2seq_price.data import Data, load_data, workshop_data
from examples.seq2seq_price.model import NO_LABEL, WAYS, Way
from multihead import MultiHeadTrainer, balancing
from multihead.models import PriceClassifier, Seq2SeqEncoder


def study(folder: Path, every: int = 1) -> DataSet:
    """The network and the orders of the convergence study: the reply from the final state of a GRU, and the price."""
    found = Study(6000 // every, 3000 // every)
    data = {"train": found.part("train"), **halves(found.part("dev"))}
    adam = (6e-3, 12e-3, 24e-3, 48e-3)
    rates = {"Adam": adam, "AdamW": adam, "SGD": (0.5, 1.0, 2.0, 4.0)}
    return DataSet(found.trainer, 64, data, METRICS, 400, BATCH, rates, clip=1.0)


LATE = Way("norms of this update", ("reply", "price"), lambda: FromThisUpdate(1.0))
JOINT = {"plain sum": PLAIN, "by hand": "price 0.3", "balanced": "NormFloor 1", LATE.name: f"NormFloor 1{THIS}"}
"""The variants of the joint models by what the example calls them."""


def replies(name: str, options: Namespace) -> Line:
    """Runs the first command of `examples.seq2seq_price` with several seeds, and two more models beside it.

    One has a price weight of 0.3; the other is balanced by the norms of the same update.

    Args:
        name: The name of the data set.
        options: The flags of the command.
    """
    quick = ["--orders", "120", "--epochs", "1", "--units", "4"] if options.quick else []
    chosen = (*WAYS, Way("by hand", ("reply", "price")), LATE)
    values: dict[str, dict[str, list[float]]] = {
        variant: {} for variant in (ALONE, *(f"{each}{EQUAL_COST}" for each in JOINT.values()))
    }
    updates = {}
    for seed in range(options.seeds):
        given = command.parse([*quick, "--seed", str(seed)])
        found, _ = comparison.train_all(
            given, workshop_data(given.orders, given.orders // 6, seed), chosen, {"by hand": 0.3}
        )
        for each in found.values():
            variant = f"{JOINT[each.way.name]}{EQUAL_COST}" if each.way.name in JOINT else ALONE
            updates[variant] = each.updates
            for head, score in each.scores.items():
                values[variant].setdefault(head, []).append(round(score, 5))
        print(f"seed {seed}: {values}", flush=True)
    return {
        "set": name,
        "optimizer": options.optimizers[0],
        "seeds": list(range(options.seeds)),
        "directions": {"reply": "max", "price": "max"},
        "metrics": {"reply": "reply_exact", "price": "price_accuracy"},
        "updates": updates,
        "rates": dict.fromkeys(values, given.learning_rate),
        "costs": {},
        "values": values,
        "validation": {},
        "keras": f"Keras {keras.__version__[0]}, {keras.__version__}",
    }


FILES = {
    ALONE: balancing.Sum,
    PLAIN: balancing.Sum,
    "NormFloor": balancing.NormFloor,
    "NormFloor 1": lambda: balancing.NormFloor(1.0),
}
"""The variants on files, and their balancers."""
MEASURED = ("reply_exact", "reply_slot_f1", "price_accuracy")
SHARE = 0.75
"""Two models alone with this fraction of the epochs take about as long as a joint one."""


def files(name: str, options: Namespace) -> Line:
    """Trains the command of `docs/howto/text.md` on the restaurants' files, at equal cost in other ways, too.

    A finished run is a file in `--runs`, and is not repeated.

    Args:
        name: The name of the data set.
        options: The flags of the command.
    """
    quick = ["--epochs", "1", "--units", "4"] if options.quick else []
    train, dev = (str(options.data / f"restaurants_{split}.csv.gz") for split in ("train", "dev"))
    given = command.parse(["--train", train, "--dev", dev, "--missing", "class", *quick])
    known = load_data(given)
    if options.quick:
        known = replace(known, splits={split: rows.at_most(60) for split, rows in known.splits.items()})
    epochs = max(1, round(SHARE * given.epochs))
    values: dict[str, dict[str, list[float]]] = {}
    costs, updates = {}, {}
    for variant in options.variants:
        ways = [(("reply",), epochs), (("price",), epochs)] if variant == ALONE else [(("reply", "price"), given.epochs)]
        seconds = []
        for seed in range(options.seeds):
            runs = []
            for heads, number in ways:
                path = options.runs / f"{variant} {'-'.join(heads)} {seed}.json"
                if not path.exists():
                    chosen = {**vars(given), "seed": seed, "epochs": number, "output": str(path.with_suffix(""))}
                    found = _one_run(Namespace(**{**chosen, "balancer": FILES[variant]()}), known, heads)
                    path.write_text(json.dumps(found) + "\n")
                runs.append(json.loads(path.read_text()))
                print(variant, heads, seed, runs[-1], flush=True)
            for metric in MEASURED:
                value = next(run[metric] for run in runs if metric in run)
                values.setdefault(variant, {}).setdefault(metric, []).append(round(value, 5))
            seconds.append(sum(run["seconds"] for run in runs))
            updates[variant] = runs[0]["updates"]
        costs[variant] = {"seconds": round(float(np.median(seconds)), 1)}
    return {
        "set": f"{name}, Keras {keras.__version__[0]}",
        "optimizer": "AdamW",
        "seeds": list(range(options.seeds)),
        "directions": dict.fromkeys(MEASURED, "max"),
        "metrics": {metric: metric for metric in MEASURED},
        "updates": updates,
        "rates": dict.fromkeys(values, given.learning_rate),
        "costs": costs,
        "values": values,
        "validation": {},
        "keras": f"Keras {keras.__version__[0]}, {keras.__version__}",
    }


def _one_run(options: Namespace, data: Data, heads: tuple[str, ...]) -> dict[str, float]:
    """Trains some heads, and measures them on the development file."""
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data, heads=heads)
    Path(options.output).mkdir(parents=True, exist_ok=True)
    statistics, _ = run.train_model(options, model, data)
    held_out = data.splits["dev"]
    found = run.evaluate(model, held_out, model.answer(held_out.texts), batch_size=options.batch_size)
    return {**found, "seconds": statistics["seconds"], "updates": statistics["updates"]}


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
