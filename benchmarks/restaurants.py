"""Do the tasks of one file help each other? Trains heads on one encoder, and each alone, with several seeds.

    python -m benchmarks.restaurants --train train.csv.gz --dev dev.csv.gz [--rows 4000] [--seeds 3] [--slots food area ...]

The reply (the target column) and the price are trained together and alone. Each of `--slots` is an additional head: a
classifier for the target's value of that slot, with a class for a missing value; all heads are then also trained on one
encoder. All variants of a seed use the same rows for the same number of epochs, and keep their final weights. All other
options and their defaults are those of the example (`python -m examples.seq2seq_price --help`), except the options for one
seed, a test file, schedules, early stopping and finished models; `--price-weight` is the weight of each classifier. By
default the benchmark is small and takes minutes: `--rows 0` uses all rows.

Prints a table, and writes the results of every run to `--output` as soon as it is finished. Results that the file already
contains are not computed again, so you can continue an interrupted benchmark, or run several processes with `--variants`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks._results import mean_and_spread
from examples._command_line import Parser, whole
from examples.seq2seq_price import command, run
from examples.seq2seq_price.batches import Examples, evaluation_batches, training_batches
from examples.seq2seq_price.columns import NO_LABEL
from examples.seq2seq_price.report import reply_figures, slots
from multihead.models import PriceClassifier

UNUSED = {
    "seed": "seeds are counted from 0; set --seeds",
    "test": "only the file of --dev is used for evaluation",
    "schedule": "the variants have different heads",
    "patience": "all variants train for the same number of epochs; set --epochs",
    "load": "models are trained from scratch",
    "predict": "models are trained from scratch",
    "export": "models are not saved",
}
"""The example's options that this benchmark does not support, and why."""
APART = ("seeds", "variants", "output", *UNUSED)
"""Options that do not affect the results of a run."""


def slot_values(targets: Sequence[str], slot: str) -> list[str]:
    """The value of a slot in each target, empty where it has none."""
    values = []
    for target in targets:
        found = [value for name, value in slots(target) if name == slot]
        values.append(found[0] if found else "")
    return values


def with_slots(data: run.Data, names: Sequence[str]) -> tuple[run.Data, list[int]]:
    """The data with a label column for the price and each slot, int32 `[rows, 1 + slots]`, and the numbers of classes.

    The classes of a slot are its values in all splits.
    """
    values = {split: [slot_values(rows.targets, name) for name in names] for split, rows in data.splits.items()}
    classes = [sorted(set().union(*(columns[place] for columns in values.values()))) for place in range(len(names))]
    splits = {}
    for split, rows in data.splits.items():
        columns = [np.searchsorted(known, column) for known, column in zip(classes, values[split])]
        splits[split] = rows._replace(labels=np.stack([rows.labels, *columns], axis=1).astype(np.int32))
    return replace(data, splits=splits), [len(data.ranges.names), *map(len, classes)]


def some_rows(data: run.Data, number: int, seed: int) -> run.Data:
    """The data with `number` random training rows, drawn without replacement; 0 for all."""
    train = data.splits["train"]
    if not 0 < number < len(train.texts):
        return data
    chosen = np.random.default_rng(seed).choice(len(train.texts), number, replace=False)
    texts, targets, *swaps = ([column[row] for row in chosen] for column in (train.texts, train.targets, *data.swaps))
    return replace(data, splits={**data.splits, "train": Examples(texts, targets, train.labels[chosen])}, swaps=swaps)


def measure(heads: Sequence[str], sizes: dict[str, int], data: run.Data, options: argparse.Namespace) -> dict[str, float]:
    """Trains a model with the given heads and returns its metrics on the validation rows.

    Args:
        heads: Names of the heads.
        sizes: The number of classes of each classifier, in the order of the label columns.
        data: The result of `with_slots`.
        options: The example's options.
    """
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data, heads=[head for head in heads if head == "reply"])
    for head in heads:
        if head != "reply":
            classifier = PriceClassifier(sizes[head], hidden_units=options.units, pool=True, name=head.replace(" ", "_"))
            loss, weight = "sparse_categorical_crossentropy", options.price_weight
            model.trainer.add_head(head, classifier, loss, weight=weight, metrics=["accuracy"], ignore_label=NO_LABEL)
    columns = {head: place for place, head in enumerate(sizes) if head in heads}

    def pick(batches: tf.data.Dataset) -> tf.data.Dataset:
        def targets_of(targets: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            reply = {"reply": targets["reply"]} if "reply" in heads else {}
            return {**reply, **{head: targets["price"][:, place] for head, place in columns.items()}}

        return batches.map(lambda ids, targets: (ids, targets_of(targets)))

    batches, steps = training_batches(
        data.splits["train"], model.vectorizers, options.batch_size, seed=options.seed, swaps=data.swaps
    )
    run.compile_trainer(options, model, steps)
    started = time.perf_counter()
    model.trainer.fit(pick(batches), epochs=options.epochs, shuffle=False, verbose=0)
    figures = {"seconds": time.perf_counter() - started}
    dev = data.splits["dev"]
    if "reply" in heads:
        figures |= reply_figures(dev.targets, model.answer(dev.texts, beam_width=options.beam).replies)
    if columns:
        logs = model.trainer.evaluate(
            pick(evaluation_batches(dev, model.vectorizers, options.batch_size)), return_dict=True, verbose=0
        )
        figures |= {f"{head}_accuracy": float(logs[f"{head}_accuracy"]) for head in columns}
    return figures


def draw_table(results: dict[str, dict[str, dict[str, float]]], heads: Sequence[str], title: str) -> Table:
    """A table with one row per metric: of the head alone, and of each variant with several heads.

    Args:
        results: Metrics by variant and seed.
        heads: Names of the heads, which are also the names of the variants with one head.
        title: Title of the table.
    """
    runs = {variant: list(by_seed.values()) for variant, by_seed in results.items()}
    alone = {head: runs.get(head, []) for head in heads}
    together = {variant: of_variant for variant, of_variant in runs.items() if variant not in heads}
    table = Table("metric", "alone", *together, title=title)
    for head in heads:
        figures = dict.fromkeys(
            name for of_variant in runs.values() for one in of_variant for name in one if _is_of(name, head)
        )
        for figure in figures:
            table.add_row(
                figure,
                mean_and_spread(alone[head], figure),
                *(mean_and_spread(of_variant, figure) for of_variant in together.values()),
            )
    seconds = {
        variant: np.mean([one["seconds"] for one in of_variant]) for variant, of_variant in runs.items() if of_variant
    }
    sums = [sum(seconds.get(head, 0.0) for head in heads), *(seconds.get(variant, 0.0) for variant in together)]
    table.add_row("seconds of training", *(f"{each:.0f}" for each in sums))
    return table


def _is_of(figure: str, head: str) -> bool:
    return figure.startswith("reply_") if head == "reply" else figure == f"{head}_accuracy"


class Record:
    """Results by variant and seed, in a file that several processes may write to.

    Args:
        path: The file.
        settings: The options that the results depend on.

    Raises:
        InputError: The file contains results for other options.
    """

    def __init__(self, path: Path, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        path.parent.mkdir(parents=True, exist_ok=True)
        if self._read()["settings"] != settings:
            raise run.InputError(
                f"`--output` must be a file with results for the same options, or a new file. Received: {str(path)!r}, with "
                "results for other options. Choose another file, or delete it."
            )

    @property
    def results(self) -> dict[str, dict[str, dict[str, float]]]:
        """The contents of the file."""
        return self._read()["results"]

    def add(self, variant: str, seed: int, figures: dict[str, float]) -> None:
        """Adds the results of a run."""
        content = self._read()
        content["results"].setdefault(variant, {})[str(seed)] = figures
        unfinished = self._path.with_suffix(f".{os.getpid()}")
        unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(self._path)

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"settings": self._settings, "results": {}}
        return json.loads(self._path.read_text(encoding="utf-8"))


def compare(asked: argparse.Namespace, options: argparse.Namespace, console: Console) -> None:
    """Computes all requested results that the file does not contain yet, and prints the table.

    Args:
        asked: The benchmark's own options.
        options: The example's options.
        console: The console to print to.

    Raises:
        InputError: The data or an option cannot be used.
    """
    everything, numbers = with_slots(run.load_data(options), asked.slots)
    settings = {name: value for name, value in {**vars(options), **vars(asked)}.items() if name not in APART}
    record = Record(Path(asked.output), json.loads(json.dumps(settings)))
    classes = dict(zip(("price", *asked.slots), numbers))
    heads = ("reply", *classes)
    variants = {**{head: (head,) for head in heads}, "reply and price": ("reply", "price")}
    if asked.slots:
        variants["all"] = heads
    unknown = [variant for variant in asked.variants or () if variant not in variants]
    if unknown:
        raise run.InputError(
            f"`--variants` must be among {', '.join(map(repr, variants))}. Received: {', '.join(map(repr, unknown))}. "
            "Correct the name, or add the slot to --slots."
        )
    for options.seed in range(asked.seeds):
        data = some_rows(everything, asked.rows, options.seed)
        for variant in asked.variants or variants:
            if str(options.seed) not in record.results.get(variant, {}):
                figures = measure(variants[variant], classes, data, options)
                record.add(variant, options.seed, figures)
                console.print(f"seed {options.seed}, {variant}: {figures}", highlight=False, soft_wrap=True)
    title = f"{len(data.splits['train'].texts)} rows, {options.epochs} epochs, mean ± standard deviation over seeds"
    console.print(draw_table(record.results, heads, title))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark."""
    parser = Parser("benchmarks.restaurants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", nargs="+", default=[], metavar="SLOT", help="slots of the target to classify as well")
    parser.add_argument("--rows", type=whole(0), default=4000, metavar="N", help="number of training rows; 0 for all")
    parser.add_argument("--seeds", type=whole(1), default=1, metavar="N", help="number of seeds")
    parser.add_argument(
        "--variants",
        nargs="+",
        metavar="VARIANT",
        help="among reply, price, the slots, 'reply and price', 'all' (default: all)",
    )
    parser.add_argument("--output", default="runs/restaurants.json", help="file for the results of every run")
    asked, others = parser.parse_known_args(arguments)
    options = command.parse(others)
    command.check_price_alone(parser, options)
    for name, reason in UNUSED.items():
        if any(other.split("=")[0] == f"--{name}" for other in others):
            parser.error(f"`--{name}` must be omitted: {reason}. Received: {' '.join(others)}.")
    try:
        compare(asked, options, Console())
    except run.InputError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
