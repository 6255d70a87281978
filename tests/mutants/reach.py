"""Which tests reach which statements: the package is copied with a mark before every statement of a function."""

from __future__ import annotations

import ast
import hashlib
import json
import tempfile
from collections import deque
from importlib.metadata import version
from pathlib import Path

from tests.mutants.operators import Mutant, sources, statements
from tests.mutants.processes import ROOT, Run, copy_checkout, run_all

RECORDER = '''"""Writes the number of every mark that is reached, once per test."""
import os

class Marks(dict):
    def __init__(self):
        super().__init__()
        self.file = os.open(os.environ.get("MUTANTS_REACHED", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __missing__(self, number):
        self[number] = None
        os.write(self.file, b"%d\\n" % number)

marks = Marks()
reached = marks.__getitem__  # AutoGraph calls what is built in as it is
'''

SELECTED = {"quick": "not programs and not thorough", "rest": "programs or thorough"}
NEAREST = {"_update": "update", "heads": "labels", "telemetry": "telemetry"}


class Reach:
    """The tests of a suite, with their seconds and the statements that each reaches; files in the order of running.

    The map is built once for each state of the checkout and cached.

    Args:
        suite: `"quick"` or `"rest"`.
        folders: Where its tests are; `multihead` for the doctests.
        jobs: How many files run at a time.
    """

    def __init__(self, suite: str, folders: list[str], jobs: int) -> None:
        self.cache = cache_folder() / suite
        self.cache.mkdir(parents=True, exist_ok=True)
        tests = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.glob("tests/*/**/test_*.py"))
        self.files = [file for file in [*tests, "multihead"] if any(file.startswith(folder) for folder in folders)]
        self._measure(suite, jobs)
        found = {file: json.loads(self._cached(file).read_text()) for file in self.files}
        self.tests = {file: each["tests"] for file, each in found.items()}
        self.seconds = {test: seconds for tests in self.tests.values() for test, (seconds, _) in tests.items()}
        self.numbers = json.loads((cache_folder() / "numbers.json").read_text())
        self.failing = [test for each in found.values() for test in each["failing"]]

    def _cached(self, file: str) -> Path:
        return self.cache / (file.replace("/", "-") + ".json")

    def _measure(self, suite: str, jobs: int) -> None:
        missing = [file for file in self.files if not self._cached(file).exists()]
        if not missing:
            return
        with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
            copies = [copy_checkout(Path(folder, f"{i}", "checkout")) for i in range(jobs)]
            numbers = [instrument(copy) for copy in copies][0]
            (cache_folder() / "numbers.json").write_text(json.dumps(numbers))
            runs = deque()
            for i, file in enumerate(missing):
                environment = {"MUTANTS_REACHED": str(Path(folder, f"reached-{i}"))}
                runs.append(((i, file), Run([file, "-m", SELECTED[suite]], environment=environment)))
            for (i, file), result in run_all(runs, copies):
                reached = _parse(Path(folder, f"reached-{i}"))
                if not set(result["failed"]) <= set(result["tests"]):
                    raise RuntimeError(f"{file} did not run to its end without a mutant: {result['log'][-3000:]}")
                failing = [test for test in result["failed"] if test in result["tests"]]
                tests = {test: [s, reached.get(test, [])] for test, s in result["tests"].items() if test not in failing}
                self._cached(file).write_text(json.dumps({"tests": tests, "failing": failing}))
                print(f"reach of {file}: {len(tests)} tests, {result['seconds']:.0f} s", *result["failed"][:5], flush=True)

    def phases(self, mutant: Mutant) -> list[tuple[list[str], set[str]]]:
        """The files and tests to run one after another: nearest tests that reach it, all such, all tests of their files.

        The last is for tests that use what an earlier one of their file has traced.
        """
        if mutant.statement:
            marks = {self.numbers[f"{mutant.path}:{mutant.statement}"]}
        else:
            marks = {number for key, number in self.numbers.items() if key.startswith(mutant.path + ":")}
        direct = {f: {t for t, (_, r) in tests.items() if marks.intersection(r)} for f, tests in self.tests.items()}
        direct = {file: tests for file, tests in direct.items() if tests}
        total = {file: sum(self.seconds[test] for test in tests) for file, tests in direct.items()}
        files = sorted(direct, key=lambda file: (_distance(mutant.path, file), total[file]))
        near = [file for file in files if _distance(mutant.path, file) < 3]
        far = [file for file in files if file not in near]
        phases = [(each, set().union(*(direct[file] for file in each))) for each in (near, far)]
        rest = [file for file in files if len(direct[file]) < len(self.tests[file])]
        phases.append((rest, set().union(*(set(self.tests[file]) - direct[file] for file in rest))))
        return [(files, tests) for files, tests in phases if tests]


def _distance(path: str, file: str) -> int:
    """How far a test file is from a file of the package: its unit tests are nearest."""
    folder, stem = path.split("/")[1], Path(path).stem.strip("_")
    if file.startswith("tests/unit/") and (stem in file or NEAREST.get(folder, folder) in file):
        return 0
    return 1 if file == "multihead" else 2 if file.startswith("tests/unit/") else 3 if "conformance" in file else 4


def cache_folder() -> Path:
    """Where the maps of this state of the checkout are, for this stack."""
    digest = hashlib.sha256(version("keras").encode())
    for file in sorted([*ROOT.glob("multihead/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        if "mutants" not in file.parts:
            digest.update(file.read_bytes())
    return ROOT / ".pytest_cache" / "mutants" / digest.hexdigest()[:16]


def _parse(file: Path) -> dict[str, list[int]]:
    reached: dict[str, set[int]] = {}
    test = ""
    for line in file.read_text().splitlines() if file.exists() else []:
        if line.startswith("> "):
            test = line[2:]
        else:
            reached.setdefault(test, set()).add(int(line))
    return {test: sorted(numbers) for test, numbers in reached.items()}


def instrument(root: Path) -> dict[str, int]:
    """Adds marks to the files below `root`; returns the number of each statement's mark, by `path:line`."""
    (root / "multihead_marks.py").write_text(RECORDER)
    numbers: dict[str, int] = {}
    for path in sources(root):
        source = (root / path).read_text()
        lines = source.split("\n")
        tree = ast.parse(source)
        for statement in sorted(statements(tree, lines), key=lambda each: -each.lineno):
            key = f"{path}:{statement.lineno}"
            numbers[key] = len(numbers)
            lines.insert(statement.lineno - 1, " " * statement.col_offset + f"_reached({numbers[key]})")
        after = max(
            [n.end_lineno for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"], default=0
        )
        lines.insert(after, "from multihead_marks import reached as _reached")
        (root / path).write_text("\n".join(lines))
    return numbers
