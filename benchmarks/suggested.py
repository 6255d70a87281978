"""For which of the 36 small problems does `diagnose` suggest a floor before training, and is it the same at every seed?

    python -m benchmarks.suggested [--problems wine fraud ...] [--seeds 10] [--show]

The problems are those of `python -m benchmarks.norm_floor`, whose lines say what following the suggestion does to each head.
A problem is a line of JSON in `--output`, with what is suggested at each seed; what is there is not repeated.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from benchmarks import norm_floor
from benchmarks._problems import CLASSES, RARE, Problem
from benchmarks.norm_floor import PROBLEMS
from multihead import MultiHeadTrainer

LINES = norm_floor.LINES.with_name("suggested.jsonl")


def trainer_of(problem: Problem) -> MultiHeadTrainer:
    """The problem's encoder and heads, compiled."""
    *hidden, last = problem.encoder
    layers = [keras.layers.Dense(n, activation="relu") for n in hidden]
    layers.append(keras.layers.Dense(last, activation=None if last == 1 else "relu"))
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    losses = {
        CLASSES: keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        RARE: keras.losses.BinaryCrossentropy(from_logits=True),
    }
    for name, head in problem.heads.items():
        trainer.add_head(name, keras.layers.Dense(head.outputs), losses.get(head.kind, "mse"), weight=head.weight)
    trainer.compile("adam", telemetry=None)
    return trainer


def suggested(problem: Problem, seed: int) -> dict[str, Any] | None:
    """What `diagnose` suggests before training: the floor, the preference, and who pays; None for nothing."""
    keras.utils.set_random_seed(seed)
    kinds = {name: "int32" if head.kind == CLASSES else "float32" for name, head in problem.heads.items()}
    batches = []
    for start in range(0, min(9 * norm_floor.BATCH, problem.train), norm_floor.BATCH):
        rows = slice(start, min(start + norm_floor.BATCH, problem.train))
        y = {name: head.labels[rows].astype(kinds[name]) for name, head in problem.heads.items()}
        batches.append((problem.inputs[rows].astype("float32"), y))
    found = trainer_of(problem).diagnose(batches)
    if not found.suggestion:
        return None
    balancer = found.suggestion["balancer"]
    cost = re.search(r"the cost is that (.*?)\. A lower floor", " ".join(str(found).split()))
    pays = [head for head in problem.heads if cost and f"'{head}' moves" in cost[1]]
    return {"floor": balancer.floor, "preference": balancer.preference, "pays": pays}


def summary(lines: Sequence[norm_floor.Line], of_floor: Sequence[norm_floor.Line]) -> str:
    """By problem: how often a floor is suggested, whom `floor 0.5` makes better and hurts, who was named; in Markdown."""
    rows = ["| problem | seeds with a suggestion | better | hurt | named as paying |", "| --- | ---: | --- | --- | --- |"]
    for line in lines:
        found = norm_floor.differences(of_floor, line["problem"], "floor 0.5")
        better = [f"{head} {change:+.3f}" for head, _, change, half in found if change > half]
        hurt = [f"{head} {change:+.3f}" for head, _, change, half in found if change < -half]
        made = [each for each in line["suggested"] if each is not None]
        named = Counter(head for each in made for head in each["pays"])
        pays = [head if count == len(made) else f"{head} ({count})" for head, count in named.items()]
        lists = (", ".join(each) or "none" for each in (better, hurt, pays))
        cells = (f"{len(made)} of {len(line['suggested'])}", *lists)
        rows.append(f"| `{line['problem']}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--show", action="store_true", help="print the table of the file, without diagnosing")
    parser.add_argument("--output", type=Path, default=LINES, help="file with a line for each problem")
    options = parser.parse_args(arguments)
    done = {line["problem"] for line in norm_floor.read(options.output)}
    tf.config.run_functions_eagerly(True)  # tracing takes longer than nine batches
    for problem in () if options.show else [each for each in options.problems if each not in done]:
        found = [suggested(PROBLEMS[problem](seed), seed) for seed in range(options.seeds)]
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"problem": problem, "suggested": found}) + "\n")
    tf.config.run_functions_eagerly(False)
    print(summary(norm_floor.read(options.output), norm_floor.read(norm_floor.LINES)))


if __name__ == "__main__":
    sys.exit(main())
