"""`benchmarks.speed.peers`: the same model in other libraries, each of which is timed while the other process is stopped."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.speed import peers
from benchmarks.speed._peers_problem import PARAMETERS, PLAIN, Problem

pytestmark = pytest.mark.programs

TICK = """
import json, sys, threading, time
log = open(sys.argv[1], "w", buffering=1)
def tick():
    while True:
        log.write(f"{time.clock_gettime(time.CLOCK_MONOTONIC)}\\n")
        time.sleep(0.001)
threading.Thread(target=tick, daemon=True).start()
"""
"""A process with a thread that writes down when it runs."""
SERVING = (
    TICK
    + """
print(json.dumps({"fake": "1"}), flush=True)
for line in sys.stdin:
    start = time.clock_gettime(time.CLOCK_MONOTONIC)
    time.sleep(0.2)
    print(json.dumps([start, time.clock_gettime(time.CLOCK_MONOTONIC)]), flush=True)
"""
)
"""The same, which replies to requests with when it began and ended."""


def ticks(path):
    return [float(line) for line in path.read_text(encoding="utf-8").splitlines()[:-1]]


def start(code, path):
    command = [sys.executable, "-c", code, str(path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_is_asked_runs_alone(tmp_path, monkeypatch):
    class Fake(peers.Process):
        def __init__(self, path):
            self.path, self.variants, self.process = path, [], start(SERVING, path)
            self._stdin, self._stdout = self.process.stdin, self.process.stdout
            self._reply()

        def close(self):
            self.process.communicate()

    with Fake(tmp_path / "one") as one, Fake(tmp_path / "two") as two:
        times = [(each, peers.alone(each, [one, two], train="x", steps=1)) for each in (one, two, one)]
    for asked, (begin, end) in times:
        other = two if asked is one else one
        assert any(begin <= each <= end for each in ticks(asked.path))
        assert [each for each in ticks(other.path) if begin <= each <= end] == []


def test_a_process_has_the_threads_of_its_library_and_says_why_it_ended(monkeypatch):
    started, popen = {}, subprocess.Popen

    def starting(command, **options):
        started.update(options["env"])
        return popen(command, **options)

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setattr(subprocess, "Popen", starting)
    monkeypatch.setitem(peers.MODULES, "TensorFlow", "benchmarks.no_such_module")
    with pytest.raises(RuntimeError, match=r"has ended:\n(.|\n)*No module named benchmarks.no_such_module"):
        peers.Process("TensorFlow", sys.executable)
    assert started and not {name for name in started if name.startswith(("OMP_", "MKL_", "TF_NUM_"))}


@pytest.mark.thorough
def test_quick_prints_the_table_and_says_that_pytorch_is_not_there(tmp_path, capsys, monkeypatch):
    lines, tables = [], peers.tables
    monkeypatch.setattr(peers, "tables", lambda found: (lines.extend(found), tables(found))[1])
    assert peers.main(["--quick", "--cache", str(tmp_path / "torch")]) == 0
    printed, (line,) = capsys.readouterr().out, lines
    assert "without PyTorch, which is not in" in printed and printed.endswith(peers.markdown_of(line["rows"]))
    assert set(line["versions"]) == {"TensorFlow", "Keras"}
    ((keras, ours),) = [[row["seconds"][f"{who}, {PLAIN}"] for who in ("Keras", "ours")] for row in line["rows"]]
    assert f"| dense | 2 | 87,572 | {1e3 * ours[0]:.1f} | {keras[0] / ours[0]:.2f} (" in printed


def test_models_that_are_not_the_same_are_an_error():
    problem, names = Problem("GRU", 2, 1), (f"ours, {PLAIN}", f"PyTorch, {PLAIN}", f"PyTorch, {PARAMETERS}")
    same = [dict(zip(names, values)) for values in ((7, 7, 7), (4.6, 4.6001, 4.6), (4.0, 4.01, 9.0))]
    peers.check_same(problem, *same)
    for place, values in enumerate(((7, 7, 8), (4.6, 4.7, 4.6), (4.0, 4.1, 4.0))):
        other = [*same[:place], dict(zip(names, values)), *same[place + 1 :]]
        with pytest.raises(RuntimeError, match="The models of GRU with 2 heads are not the same. Parameters: {'ours"):
            peers.check_same(problem, *other)


def test_a_python_without_pytorch_is_named(tmp_path, capsys):
    assert peers.main(["--torch-python", str(tmp_path / "python")]) == 2
    assert "`--torch-python` must be a Python with torch, torchjd and quadprog. Received: " in capsys.readouterr().err
