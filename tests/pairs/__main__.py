"""Trains every row of the covering array and compares it with three oracles: `python -m tests.pairs`.

A line of JSON per row goes to `--output`; rows that are in it already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from tests.pairs.factors import as_text, rows
from tests.pairs.worker import run_row, start

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pairs", description=__doc__)
    parser.add_argument("--output", default="runs/pairs.jsonl", help="the file of results")
    parser.add_argument("--only", type=int, nargs="*", help="the numbers of rows; all by default")
    parser.add_argument("--sample", type=int, help="so many rows, drawn at random with --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--salt", default="0", help="another text: other rows that cover the same pairs")
    given = parser.parse_args(arguments)
    wanted = list(enumerate(rows(given.salt)))
    if given.only is not None:
        wanted = [wanted[i] for i in given.only]
    if given.sample is not None:
        wanted = random.Random(given.seed).sample(wanted, given.sample)
    path = Path(given.output)
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {json.loads(line)["number"] for line in path.read_text().splitlines()} if path.exists() else set()
    count = 0
    left = [(i, row) for i, row in wanted if i not in done]
    per_pool = 8 * given.processes  # then new processes, since TensorFlow keeps some memory of every row
    for at in range(0, len(left), per_pool):
        with ProcessPoolExecutor(given.processes, get_context("spawn"), initializer=start) as pool:
            running = {pool.submit(run_row, row): i for i, row in left[at : at + per_pool]}
            for future in as_completed(running):
                result = {"number": running[future], **future.result()}
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
                if result["failed"]:
                    count += 1
                    print(f"{result['number']}: {as_text(result['row'])}", flush=True)
                    for oracle, error in result["failed"].items():
                        print(f"  {oracle}: {error.strip().splitlines()[-1][:300]}", flush=True)
    print(f"{len(wanted)} rows, {count} with errors")
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
