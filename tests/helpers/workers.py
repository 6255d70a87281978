"""Two workers of a strategy on the loopback address, in processes that begin as copies of one that has imported TensorFlow.

`python -W ignore -m tests.helpers.workers PROGRAM ROUNDS`: PROGRAM is a module of `tests.helpers` with `main(index,
*arguments)`; ROUNDS, as JSON, has the list of arguments of each round. Prints, as JSON, the exit codes of both workers in each
round, negative for a signal. What they write goes to `ROUND_INDEX.log` in the current folder.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys

from tests.helpers.forked import forked
from tests.helpers.ports import free_ports
from tests.helpers.sources import ROOT


def run_workers(program, rounds, folder, timeout):
    """Runs rounds of two workers in a folder; gives the exit codes of each round.

    Args:
        program: The name of a module of `tests.helpers`.
        rounds: The arguments of each round, text or numbers.
        folder: Where to run.
        timeout: Seconds after which all of it is killed.
    """
    command = [sys.executable, "-W", "ignore", "-m", "tests.helpers.workers", program, json.dumps(rounds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)
    try:
        printed, errors = running.communicate(timeout=timeout)
    finally:
        try:
            os.killpg(running.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    assert running.returncode == 0, errors[-3000:]
    return json.loads(printed.splitlines()[-1])


def _start(program, cluster, index, log, arguments):
    """The process of a worker."""

    def work():
        os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
        program.main(index, *arguments)

    return forked(work, log)


def _round(program, number, arguments):
    """The exit codes of two workers."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    children = [_start(program, cluster, index, f"{number}_{index}.log", arguments) for index in range(2)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


if __name__ == "__main__":
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    module = importlib.import_module(f"tests.helpers.{sys.argv[1]}")
    print(json.dumps([_round(module, number, arguments) for number, arguments in enumerate(json.loads(sys.argv[2]))]))
