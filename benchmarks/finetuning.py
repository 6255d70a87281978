"""How to add a head to a trained encoder? Trains all, freezes, freezes and then trains, or decays learning rates by layer.

    python -m benchmarks.finetuning [--orders 4000] [--priced 2000] [--seeds 3] [--epochs 30]

For each seed, an encoder and a decoder are trained on the reply of `--orders` orders. Then a price head is added, and both
heads are trained on `--priced` of these orders, in several ways from the same weights; "from scratch" does not use them.
Prints a table, and writes the results of every run to `--output`.

    python -m benchmarks.finetuning --cost

Prints the time of a step with a frozen encoder, relative to one that trains all. The variants alternate, so that changes in
the machine's speed affect all of them; each ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from rich.console import Console

from benchmarks import _results
from benchmarks._timing import measure
from benchmarks.step import sequence_workload
from examples.seq2seq_price import command, run
from examples.seq2seq_price.batches import Examples, training_batches
from examples.seq2seq_price.model import PriceModel
from multihead import LayerwiseDecay, MultiHeadTrainer, Stages, losses

VARIANTS: dict[str, Callable[[int], Any]] = {
    "from scratch": lambda updates: 1.0,
    "all trained": lambda updates: 1.0,
    "a tenth": lambda updates: 0.1,
    "frozen": lambda updates: 0.0,
    "frozen, then trained": lambda updates: Stages({0: 0, max(1, updates // 3): 1}),
    "layer-wise decay": lambda updates: LayerwiseDecay(0.5),
}
"""The encoder's learning rate in each variant, from the number of updates."""
FIGURES = {"price_accuracy": "price accuracy", "reply_exact": "exact order", "first_price_accuracy": "price, first quarter"}


def first_rows(examples: Examples, number: int) -> Examples:
    """The first rows of some examples."""
    return Examples(examples.texts[:number], examples.targets[:number], examples.labels[:number])


def pretrained(data: run.Data, options: argparse.Namespace, console: Console) -> PriceModel:
    """A model with a decoder alone, trained."""
    model = run.build_model(options, data, heads=("reply",))
    run.train_model(options, model, data, console)
    return model


def finetune(variant: str, start: PriceModel, data: run.Data, priced: int, epochs: int, options: Any) -> dict[str, float]:
    """Adds a price head to a trained model, trains both heads, and returns the metrics on the held-out orders."""
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data, heads=("reply", "price"))
    batches, steps = training_batches(
        first_rows(data.splits["train"], priced), model.vectorizers, options.batch_size, seed=options.seed
    )
    trainer, batches = model.trainer, model.with_own_targets(batches)
    trainer.compile(keras.optimizers.Adam(1e-3), encoder_learning_rate_multiplier=VARIANTS[variant](steps * epochs))
    trainer.compute_gradients(next(iter(batches)))  # creates the variables
    if variant != "from scratch":
        trainer.encoder.set_weights(start.trainer.encoder.get_weights())
        model.decoder.set_weights(start.decoder.get_weights())
    quarter = max(1, epochs // 4)
    trainer.fit(batches, epochs=quarter, shuffle=False, verbose=0)
    early, _ = run.evaluate(model, data.splits["dev"], batch_size=options.batch_size)
    trainer.fit(batches, initial_epoch=quarter, epochs=epochs, shuffle=False, verbose=0)
    figures, _ = run.evaluate(model, data.splits["dev"], batch_size=options.batch_size)
    found = {name: figures[name] for name in FIGURES if name in figures}
    return {**found, "first_price_accuracy": early["price_accuracy"]}


def stepper(rate: Any, telemetry: str | None) -> Callable[[], Any]:
    """A training step on a GRU encoder with a sequence head and a classifier."""
    encoder, heads, x, targets = sequence_workload()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("reply", heads["reply"], losses.SequenceCrossentropy())
    trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy")
    trainer.compile("adam", encoder_learning_rate_multiplier=rate, telemetry=telemetry)
    trainer.compute_gradients((x, targets))
    return tf.function(lambda: trainer.apply_gradients(trainer.compute_gradients((x, targets))))


def cost(rounds: int, console: Console) -> dict[str, float]:
    """The times of steps relative to one that trains all, as medians over rounds."""
    variants = {"all trained": (1.0, "norms"), "frozen": (0, "norms"), "frozen, without norms": (0, None)}
    steps = {name: stepper(*options) for name, options in variants.items()}
    ratios = measure(steps, rounds, 1, time.process_time)
    del ratios["milliseconds"]
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.2f}")
    return ratios


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=4000, help="orders with a reply, to train the encoder on")
    parser.add_argument("--priced", type=int, default=2000, help="orders with a price, too")
    parser.add_argument("--held-out", type=int, default=1000, help="held-out orders")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--pretraining-epochs", type=int, default=12, help="number of epochs on the reply")
    parser.add_argument("--epochs", type=int, default=30, help="number of epochs with the price")
    parser.add_argument("--units", type=int, default=64, help="size of the recurrent state")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="the variants to compare")
    parser.add_argument("--output", default="runs/finetuning.json", help="file for the results of every run")
    parser.add_argument("--cost", action="store_true", help="time of a step with a frozen encoder instead")
    parser.add_argument("--rounds", type=int, default=30, help="rounds of --cost")
    asked = parser.parse_args(arguments)
    console = Console()
    if asked.cost:
        cost(asked.rounds, console)
        return
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in asked.variants}
    for seed in range(asked.seeds):
        data = run.workshop_data(asked.orders, asked.held_out, seed)
        given = ["--epochs", str(asked.pretraining_epochs), "--seed", str(seed), "--units", str(asked.units)]
        options = command.parse([*given, "--batch-size", "64"])
        keras.utils.set_random_seed(seed)
        start = pretrained(data, options, console)
        for variant, found in results.items():
            found.append(finetune(variant, start, data, asked.priced, asked.epochs, options))
            console.print(f"seed {seed}, {variant}: {found[-1]}", highlight=False, soft_wrap=True)
    title = f"{asked.orders} orders, {asked.priced} with a price, {asked.epochs} epochs, {asked.seeds} seeds"
    _results.print_table(console, results, FIGURES, "encoder", title)
    _results.write(results, asked.output)


if __name__ == "__main__":
    sys.exit(main())
