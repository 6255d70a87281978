"""Which mutants of the package the tests catch: `python -m tests.mutants --number 60 --seed 0`."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import subprocess
import tempfile
from collections import deque
from importlib.metadata import version
from pathlib import Path

from tests.mutants.operators import Mutant, choose
from tests.mutants.processes import ROOT, Run, copy_checkout, forget_compiled, import_libraries, run_all
from tests.mutants.reach import SELECTED, Reach


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--number", type=int, default=60, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="which mutants")
    parser.add_argument(
        "--suite", choices=["quick", "full"], default="quick", help="full: what quick lets live meets all tests"
    )
    parser.add_argument("--output", type=Path, default=Path("runs/mutants.jsonl"), help="one line per mutant and suite")
    parser.add_argument("--resume", action="store_true", help="keep the lines of the output, and go on after them")
    parser.add_argument("--other-python", type=Path, help="the interpreter of the other stack, for the full suite")
    parser.add_argument("--jobs", type=int, default=2, help="how many mutants at a time")
    parser.add_argument("--tests", nargs="+", default=["tests", "multihead"], help="folders and files of tests")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # the other stack's part of the full suite
    options = parser.parse_args()
    if not options.resume:
        options.output.unlink(missing_ok=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    mutants = choose(ROOT, options.number, options.seed)
    import_libraries()
    stages = [options.only] if options.only else ["quick", "rest"][: 2 if options.suite == "full" else 1]
    for stage in stages:
        run_stage(stage, mutants, options)
    if options.suite == "full" and options.other_python and not options.only:
        given: list[object] = [
            "--number",
            options.number,
            "--seed",
            options.seed,
            "--output",
            options.output,
            "--jobs",
            options.jobs,
        ]
        given += ["--tests", *options.tests]
        for stage in ("quick", "rest"):
            command = [options.other_python, "-m", "tests.mutants", *given, "--resume", "--only", stage]
            subprocess.run([str(word) for word in command], cwd=ROOT, check=True)
    if not options.only:
        summarize(mutants, lines_of(options.output))


def run_stage(suite: str, mutants: list[Mutant], options: argparse.Namespace) -> None:
    """Runs the tests of a suite on the mutants that no earlier one has caught."""
    name = f"{suite} with Keras {version('keras')}"
    lines = lines_of(options.output)
    done = {line["mutant"] for line in lines if line["caught"] or line["suite"] == name}
    left = [number for number in range(len(mutants)) if number not in done]
    if not left:
        return
    reach = Reach(suite, options.tests, options.jobs)
    phases = {number: reach.phases(mutants[number]) for number in left}
    seconds = collections.Counter()
    runs = deque(
        (number, run_of(mutants[number], *phases[number].pop(0), suite, reach)) for number in left if phases[number]
    )
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [copy_checkout(Path(folder, f"{i}", "checkout")) for i in range(options.jobs)]
        for number in left:
            if number not in [number for number, _ in runs]:
                record(options.output, number, mutants[number], name, "", 0.0)
        for number, result in run_all(runs, copies):
            seconds[number] += result["seconds"]
            if phases[number] and not result["failed"]:
                runs.appendleft((number, run_of(mutants[number], *phases[number].pop(0), suite, reach)))
            else:
                by = "".join(result["failed"][:1])
                record(options.output, number, mutants[number], name, by, seconds[number])


def record(output: Path, number: int, mutant: Mutant, suite: str, by: str, seconds: float) -> None:
    """Writes and prints what became of a mutant."""
    line = {"mutant": number, "suite": suite, "caught": bool(by), "by": by, "seconds": round(seconds, 1)}
    with output.open("a") as file:
        file.write(json.dumps({**line, **dataclasses.asdict(mutant)}) + "\n")
    fate = f"caught by {by}" if by else "SURVIVED"
    print(f"{number}: {mutant.path}:{mutant.line}: {mutant.text[:80]}: {fate}, {seconds:.0f} s", flush=True)


def run_of(mutant: Mutant, files: list[str], tests: set[str], suite: str, reach: Reach) -> Run:
    """A run of some tests on a mutant."""

    def change(copy: Path) -> None:
        forget_compiled(copy / mutant.path)
        mutant.apply(copy)

    def put_back(copy: Path) -> None:
        (copy / mutant.path).write_bytes((ROOT / mutant.path).read_bytes())

    arguments = [*files, "-x", "-m", SELECTED[suite]]
    return Run(arguments, tests, reach.seconds, prepare=change, finish=put_back)


def lines_of(output: Path) -> list[dict]:
    return [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []


def summarize(mutants: list[Mutant], lines: list[dict]) -> None:
    """Prints how many mutants each suite caught, and those that no suite did."""
    caught = collections.Counter(line["suite"] for line in lines if line["caught"])
    print(f"{len(mutants)} mutants; caught by", *(f"{suite}: {number};" for suite, number in caught.items()))
    dead = {line["mutant"] for line in lines if line["caught"]}
    for number, mutant in enumerate(mutants):
        if number not in dead:
            print(f"survived: {number}, {mutant.path}:{mutant.line}, {mutant.kind}: {mutant.text}")


if __name__ == "__main__":
    main()
