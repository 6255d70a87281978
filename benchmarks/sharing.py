"""Does sharing the encoder help? Trains both heads on one encoder, and each alone, on few orders, with several seeds.

    python -m benchmarks.sharing [--orders 4000] [--seeds 3] [--epochs 40]

Each seed has its own training orders, held-out orders and initial weights. All variants of a seed use the same orders for
the same number of epochs. Prints a table, and writes the results of every run to `--output`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import keras
from rich.console import Console

from benchmarks import _results
from examples.seq2seq_price import command, run

VARIANTS = {"both heads": ("reply", "price"), "price alone": ("price",), "reply alone": ("reply",)}
FIGURES = {"price_accuracy": "price accuracy", "reply_exact": "exact order"}


def measure(heads: Sequence[str], data: run.Data, options: argparse.Namespace, console: Console) -> dict[str, float]:
    """Trains a model with the given heads and returns its metrics on the held-out orders."""
    keras.utils.set_random_seed(options.seed)
    model = run.build_model(options, data, heads=heads)
    run.train_model(options, model, data, console)
    figures, _ = run.evaluate(model, data.splits["dev"], batch_size=options.batch_size)
    return {name: figures[name] for name in FIGURES if name in figures}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=4000, help="orders to train on")
    parser.add_argument("--held-out", type=int, default=2000, help="held-out orders")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--epochs", type=int, default=40, help="number of epochs")
    parser.add_argument("--output", default="runs/sharing.json", help="file for the results of every run")
    asked = parser.parse_args(arguments)
    console = Console()
    results: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for seed in range(asked.seeds):
        data = run.workshop_data(asked.orders, asked.held_out, seed)
        options = command.parse(["--epochs", str(asked.epochs), "--seed", str(seed)])
        for variant, heads in VARIANTS.items():
            results[variant].append(measure(heads, data, options, console))
            console.print(f"seed {seed}, {variant}: {results[variant][-1]}", highlight=False, soft_wrap=True)
    title = f"{asked.orders} orders, {asked.epochs} epochs, {asked.seeds} seeds"
    _results.print_table(console, results, FIGURES, "trained", title)
    _results.write(results, asked.output)


if __name__ == "__main__":
    sys.exit(main())
