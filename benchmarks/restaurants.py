"""Do the tasks of one file help each other? Heads on one encoder, and each alone, over several seeds.

    python -m benchmarks.restaurants --train train.csv.gz --dev dev.csv.gz [--rows 4000] [--seeds 3] [--slots food area ...]

The reply (the target column) and the price are trained together and alone. Each of `--slots` is a further head: a
classifier of the target's value of that slot, missing being a class of its own; all heads are then trained on one
encoder, too. All arms of a seed see the same rows in as many epochs, and keep their last weights; what is not asked for
here is as the example has it. As it stands it is small and takes minutes: `--rows 0` takes all rows.

Prints the table, and writes the figures of every run to `--output`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from benchmarks.sharing import summary
from examples.seq2seq_price import command, run
from examples.seq2seq_price.batches import Examples, evaluation_batches, training_batches
from examples.seq2seq_price.metrics import reply_figures, slots
from models import PriceClassifier


def slot_values(targets: Sequence[str], slot: str) -> list[str]:
    """The value of a slot in each target, empty where it has none."""
    values = []
    for target in targets:
        found = [value for name, value in slots(target) if name == slot]
        values.append(found[0] if found else "")
    return values


def with_slots(data: run.Data, names: Sequence[str]) -> tuple[run.Data, list[int]]:
    """The data with a column of labels for the price and each slot, int32 `[rows, 1 + slots]`, and their classes.

    A slot's classes are its values in all splits.
    """
    values = {split: [slot_values(rows.targets, name) for name in names] for split, rows in data.splits.items()}
    classes = [sorted(set().union(*(columns[place] for columns in values.values()))) for place in range(len(names))]
    splits = {}
    for split, rows in data.splits.items():
        columns = [np.searchsorted(known, column) for known, column in zip(classes, values[split])]
        splits[split] = rows._replace(labels=np.stack([rows.labels, *columns], axis=1).astype(np.int32))
    return replace(data, splits=splits), [len(data.ranges.names), *map(len, classes)]


def some_rows(data: run.Data, number: int, seed: int) -> run.Data:
    """The data with so many of the training rows, drawn without replacement; 0 for all."""
    train = data.splits["train"]
    if not 0 < number < len(train.texts):
        return data
    chosen = np.random.default_rng(seed).choice(len(train.texts), number, replace=False)
    texts, targets, *swaps = ([column[row] for row in chosen] for column in (train.texts, train.targets, *data.swaps))
    return replace(data, splits={**data.splits, "train": Examples(texts, targets, train.labels[chosen])}, swaps=swaps)


def measure(heads: Sequence[str], sizes: dict[str, int], data: run.Data, options: argparse.Namespace) -> dict[str, float]:
    """Figures on the held-out rows of a model with some heads.

    Args:
        heads: Names of the heads.
        sizes: The number of classes of each classifier, in the order of the labels' columns.
        data: What `with_slots` gave.
        options: The example's.
    """
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data, heads=[head for head in heads if head == "reply"])
    for head in heads:
        if head != "reply":
            classifier = PriceClassifier(sizes[head], hidden_units=options.units, pool=True, name=head.replace(" ", "_"))
            model.trainer.add_head(head, classifier, "sparse_categorical_crossentropy", metrics=["accuracy"])
    columns = {head: place for place, head in enumerate(sizes) if head in heads}

    def pick(batches: tf.data.Dataset) -> tf.data.Dataset:
        def targets_of(targets: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            reply = {"reply": targets["reply"]} if "reply" in heads else {}
            return {**reply, **{head: targets["price"][:, place] for head, place in columns.items()}}

        return batches.map(lambda ids, targets: (ids, targets_of(targets)))

    batches, steps = training_batches(
        data.splits["train"], model.vectorizers, options.batch_size, seed=options.seed, swaps=data.swaps
    )
    rate = keras.optimizers.schedules.CosineDecay(options.learning_rate, steps * options.epochs)
    model.trainer.compile(
        keras.optimizers.AdamW(rate, weight_decay=options.weight_decay),
        clip=run.CLIPPINGS[options.clip[0]](options.clip[1]),
    )
    started = time.perf_counter()
    with warnings.catch_warnings():  # Keras 3 takes the end of data of unknown size for an accident
        warnings.filterwarnings("ignore", message=".*ran out of data")
        model.trainer.fit(pick(batches), epochs=options.epochs, shuffle=False, verbose=0)
    figures = {"seconds": time.perf_counter() - started}
    dev = data.splits["dev"]
    if "reply" in heads:
        figures |= reply_figures(dev.targets, model.answer(dev.texts).replies)
    if columns:
        logs = model.trainer.evaluate(
            pick(evaluation_batches(dev, model.vectorizers, options.batch_size)), return_dict=True, verbose=0
        )
        figures |= {f"{head}_accuracy": float(logs[f"{head}_accuracy"]) for head in columns}
    return figures


def draw_table(results: dict[str, list[dict[str, float]]], heads: Sequence[str], title: str) -> Table:
    """One row per figure: of its head alone, and of each arm with several heads."""
    together = [arm for arm in results if arm not in heads]
    table = Table("figure", "alone", *together, title=title)
    for head in heads:
        for figure in [name for name in results[head][0] if name != "seconds"]:
            table.add_row(figure, summary(results[head], figure), *(summary(results[arm], figure) for arm in together))
    sums = [{"seconds": sum(results[head][seed]["seconds"] for head in heads)} for seed in range(len(results[heads[0]]))]
    cells = [np.mean([figures["seconds"] for figures in runs]) for runs in (sums, *(results[arm] for arm in together))]
    table.add_row("seconds of training", *(f"{cell:.0f}" for cell in cells))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, metavar="FILE", help="table to train on")
    parser.add_argument("--dev", required=True, metavar="FILE", help="table to evaluate on")
    parser.add_argument("--slots", nargs="+", default=[], metavar="SLOT", help="slots of the target to classify, too")
    parser.add_argument("--swap-column", nargs="+", default=[], metavar="COLUMN", help="as in the example")
    parser.add_argument("--rows", type=int, default=4000, metavar="N", help="training rows to draw; 0 takes all")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="number of seeds")
    parser.add_argument("--epochs", default="8", metavar="N", help="passes over the rows")
    parser.add_argument("--batch-size", default="32", metavar="N", help="rows in a batch; few rows need small ones")
    parser.add_argument("--units", default="64", metavar="N", help="size of the recurrent states")
    parser.add_argument("--output", default="runs/restaurants.json", help="file for the figures of every run")
    asked = parser.parse_args(arguments)
    swaps = ["--swap-column", *asked.swap_column] if asked.swap_column else []
    files = ["--train", asked.train, "--dev", asked.dev, "--missing", "class"]
    sizes = ["--epochs", asked.epochs, "--batch-size", asked.batch_size, "--units", asked.units]
    options = command.parse([*files, *swaps, *sizes])
    console = Console()
    whole, numbers = with_slots(run.load_data(options), asked.slots)
    classes = dict(zip(("price", *asked.slots), numbers))
    heads = ("reply", *classes)
    arms = {**{head: (head,) for head in heads}, "reply and price": ("reply", "price")}
    if asked.slots:
        arms[f"all {len(heads)}"] = heads
    results: dict[str, list[dict[str, float]]] = {arm: [] for arm in arms}
    path = Path(asked.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    for options.seed in range(asked.seeds):
        data = some_rows(whole, asked.rows, options.seed)
        for arm, trained in arms.items():
            results[arm].append(measure(trained, classes, data, options))
            console.print(f"seed {options.seed}, {arm}: {results[arm][-1]}", highlight=False, soft_wrap=True)
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    title = f"{len(data.splits['train'].texts)} rows, {asked.epochs} epochs, {asked.seeds} seeds"
    console.print(draw_table(results, heads, title))


if __name__ == "__main__":
    sys.exit(main())
