"""Runs of pytest in copies of the checkout, forked from a process that has imported TensorFlow once."""

from __future__ import annotations

import compileall
import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_OF_A_TEST = 60  # a test that has run so long, and eight times as long as without a mutant, never ends


@dataclasses.dataclass
class Run:
    """One run of pytest.

    Attributes:
        arguments: For pytest.
        tests: The tests to run, of those collected, or None for all.
        known: Seconds of each test, by which one that never ends is told.
        environment: Further environment variables.
        prepare: Called with the root of the copy before the run.
        finish: The same after it.
    """

    arguments: list[str]
    tests: set[str] | None = None
    known: dict[str, float] = dataclasses.field(default_factory=dict)
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    prepare: Callable[[Path], None] = lambda copy: None
    finish: Callable[[Path], None] = lambda copy: None


def copy_checkout(to: Path) -> Path:
    """Copies the files of the checkout that git does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True)
    to.mkdir(parents=True)
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes((ROOT / name).read_bytes())
    compileall.compile_dir(to / "multihead", quiet=1)
    return to


def forget_compiled(file: Path) -> None:
    """Removes what Python has compiled from a file, which it would take for that of a change in the same second."""
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()


def import_libraries() -> None:
    """What every run would import, the package itself excepted."""
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", MPLBACKEND="Agg", PYTHONDONTWRITEBYTECODE="1")
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    sys.dont_write_bytecode = True
    for name in ("tensorflow", "keras", "scipy.optimize", "hypothesis", "_pytest.doctest", "matplotlib.pyplot"):
        importlib.import_module(name)


def run_all(runs: deque[tuple[Any, Run]], copies: list[Path]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Runs one pytest per copy at a time; yields the key and the result of each when it ends.

    Whoever gets a result may add further runs.
    """
    free, running = list(copies), []
    while True:
        while free and runs:
            key, run = runs.popleft()
            running.append((key, _Child(run, free.pop())))
        if not running:
            return
        time.sleep(0.1)
        for key, child in list(running):
            result = child.result()
            if result is not None:
                running.remove((key, child))
                child.run.finish(child.copy)
                free.append(child.copy)
                yield key, result


class _Child:
    """A forked process that runs pytest."""

    def __init__(self, run: Run, copy: Path) -> None:
        self.run, self.copy, self.start = run, copy, time.monotonic()
        self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=copy.parent))
        run.prepare(copy)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _pytest_in(copy, self.folder, run)

    def result(self) -> dict[str, Any] | None:
        """What the process reported, once it has ended or was ended."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        lines = [json.loads(line) for line in _read(self.folder / "report").splitlines() if line.endswith("}")]
        started = [line for line in lines if "start" in line]
        if not pid:
            if started:
                test, began = started[-1]["start"], started[-1]["time"]
                if time.time() - began < SECONDS_OF_A_TEST + 8 * self.run.known.get(test, 100):
                    return None
            elif time.monotonic() - self.start < 5 * SECONDS_OF_A_TEST:
                return None
        _kill_group(self.pid)
        if not pid:
            os.waitpid(self.pid, 0)
            status = -1
        failed = [line["failed"] for line in lines if "failed" in line]
        ended = status == 0 or os.WIFEXITED(status)
        code = os.WEXITSTATUS(status) if status >= 0 and ended else None
        if not failed and code not in (0, 5):
            failed = [f"{started[-1]['start'] if started else 'start'} ({'no end' if status == -1 else f'exit {code}'})"]
        seconds = {line["end"]: line["seconds"] for line in lines if "end" in line}
        log = _read(self.folder / "log")
        return {"failed": failed, "tests": seconds, "seconds": time.monotonic() - self.start, "log": log}


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _kill_group(pid: int) -> None:
    """Ends a process that leads a group of its own, and what it has started."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _pytest_in(copy: Path, folder: Path, run: Run) -> None:
    """Runs pytest in a copy and ends the process; called right after the fork."""
    os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 3
    try:
        os.chdir(copy)
        os.environ.update(run.environment, PYTHONPATH=str(copy))
        sys.path[:] = [str(copy), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "multihead")]:
            del sys.modules[name]
        sys.meta_path.insert(0, _ModelsOf(copy))
        importlib.invalidate_caches()
        rewritten = "ignore::pytest.PytestAssertRewriteWarning"  # of plugins that are imported before the fork
        arguments = ["-q", "-W", rewritten, "--no-header", "--tb=short", f"--basetemp={folder / 'tmp'}", *run.arguments]
        code = int(pytest.main(arguments, plugins=[_Reporter(folder / "report", run)]))
    except BaseException:  # noqa: BLE001 - the process ends here, whatever happened
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


class _ModelsOf:
    """Finds `multihead.models` in the copy, as an installation from it would."""

    def __init__(self, copy: Path) -> None:
        self.file = copy / "models" / "__init__.py"

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name == "multihead.models":
            return spec_from_file_location(name, self.file, submodule_search_locations=[str(self.file.parent)])
        return None


class _Reporter:
    """Selects and orders the tests, and writes what happens to a file."""

    def __init__(self, file: Path, run: Run) -> None:
        self.file, self.run = open(file, "w", buffering=1), run

    def write(self, **line: Any) -> None:
        self.file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.run.tests is not None:
            items[:] = [item for item in items if item.nodeid in self.run.tests]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.write(failed=f"collection of {report.nodeid or 'tests'}")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(start=nodeid, time=time.time())
        self.began = time.monotonic()
        marks = sys.modules.get("multihead_marks")
        if marks:
            marks.marks.clear()
            os.write(marks.marks.file, f"> {nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.write(failed=report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.write(end=nodeid, seconds=round(time.monotonic() - self.began, 2))
