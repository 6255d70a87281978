"""Which way to train a pretrained encoder, and with how many labels? From scratch, frozen, LoRA, unfrozen.

    python -m benchmarks.pretrained_encoder [--orders 500 5000] [--seeds 3] [--updates 300] [--pretraining 1000]

For each seed, a small KerasHub backbone is pretrained on the texts of 5,000 orders by masked tokens, as in
`examples.pretrained_encoder`, and trained in each of its ways, with a price head and a tag head, on the first orders. Every
run has the same number of updates. A finished run is a line in `--output`; the command continues where it stopped, and
prints the table of all lines. `--write` writes it into `docs/howto/keras_hub.md` instead of training.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from benchmarks import _results
from benchmarks._results import read_lines as read
from examples._backbones import what_keras_it_needs
from examples._command_line import fail
from examples._orders import draw_rows
from examples.pretrained_encoder import WAYS, figures, finetune, from_config, trained_parameters

RESULTS = Path(__file__).parent / "results" / "pretrained_encoder.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "howto" / "keras_hub.md"
TEXTS = 5000


def table(lines: Sequence[dict[str, Any]]) -> str:
    """The table in Markdown: a row for each way, and for each number of orders the mean over seeds and its deviation."""
    numbers = sorted({line["orders"] for line in lines})
    cells = [f"{figure}, {number:,} orders" for figure in ("price", "tags") for number in numbers]
    rows = [f"| encoder | its trained parameters | {' | '.join(cells)} |", f"| --- | ---: |{' ---: |' * len(cells)}"]
    for way in dict.fromkeys(line["way"] for line in lines):
        own = [line for line in lines if line["way"] == way]
        found = [
            _results.mean_and_spread([line for line in own if line["orders"] == number], figure)
            for figure in ("price", "tags")
            for number in numbers
        ]
        rows.append(f"| {way} | {own[0]['trained']:,} | {' | '.join(found)} |")
    return "\n".join(rows) + "\n"


def with_table(page: str, lines: Sequence[dict[str, Any]]) -> str:
    """A page with the table of some lines between its two marks; the page itself if it has none."""
    before, begin, rest = page.partition("<!-- ways: begin -->\n")
    _, end, after = rest.partition("<!-- ways: end -->\n")
    return f"{before}{begin}\n{table(lines)}\n{end}{after}" if begin and end else page


def run_seed(seed: int, options: argparse.Namespace, wanted: Sequence[tuple[int, str]]) -> None:
    """Pretrains, and trains in the ways and with the numbers of orders that are wanted; appends a line for each."""
    keras.utils.set_random_seed(seed)
    rows = draw_rows(max(TEXTS, *options.orders), held_out=False, seed=seed)[: options.texts]
    start, accuracy = from_config("Bert", rows, options.pretraining, None, size=options.size, seed=seed)
    held_out = start.tokens(draw_rows(options.held_out, held_out=True, seed=seed))
    for number, name in wanted:
        keras.utils.set_random_seed(seed)
        trainer = finetune(WAYS[name], start, start.tokens(rows[:number]), options.updates)
        line = {"seed": seed, "orders": number, "way": name, "trained": trained_parameters(trainer, WAYS[name])}
        line |= {**figures(trainer, held_out), "masked": accuracy}
        line |= {"updates": options.updates, "pretraining": options.pretraining, "size": options.size}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, nargs="+", default=[500, 5000], help="numbers of orders with labels")
    parser.add_argument("--texts", type=int, default=TEXTS, help="orders whose texts are used for pretraining")
    parser.add_argument("--held-out", type=int, default=1000, help="held-out orders")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds")
    parser.add_argument("--updates", type=int, default=300, help="updates of each way")
    parser.add_argument("--pretraining", type=int, default=1000, help="updates of pretraining")
    parser.add_argument("--size", type=int, default=64, help="size of a token's representation")
    parser.add_argument("--output", type=Path, default=RESULTS, help="file of lines")
    parser.add_argument("--write", action="store_true", help="only write the table of the lines into the page")
    options = parser.parse_args(arguments)
    absent = None if options.write else what_keras_it_needs()
    if absent is not None:
        return fail("benchmarks.pretrained_encoder", absent)
    for seed in range(0 if options.write else options.seeds):
        done = {(line["orders"], line["way"]) for line in read(options.output) if line["seed"] == seed}
        wanted = [(number, way) for number in options.orders for way in WAYS if (number, way) not in done]
        if wanted:
            run_seed(seed, options, wanted)
    print(table(read(options.output)), end="")
    if options.write:
        PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), read(options.output)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
