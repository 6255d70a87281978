"""What HTTP adds to a call of TensorFlow: requests per second and latencies of `examples.serve` beside the bare call.

One run: the same texts are answered by calling the export in a process without HTTP, and by `examples.serve` in a process of
its own, asked over 127.0.0.1 by 1 and by 8 clients that send their next request when the last one is answered. Both are
measured in turns, each for at most so many requests and seconds; during the bare call the server stands still. An answer
that is not that of the bare call is an error.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.speed._shared import markdown, parsed, parser_of, stopped
from examples import serve
from examples._orders import draw_rows

BARE = "bare call"
DEADLINE = 120.0
"""Seconds until the server must have started."""


class Load(NamedTuple):
    """What was measured.

    Attributes:
        seconds: The time of all requests.
        latencies: The seconds of each request.
    """

    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Milliseconds within which so many percent of the requests were answered."""
        return 1000 * float(np.percentile(self.latencies, percent))


Ask = Callable[[list[str]], Any]
Connect = Callable[[], AbstractContextManager[Ask]]


def together(loads: Sequence[Load]) -> Load:
    """Several loads as one."""
    return Load(sum(load.seconds for load in loads), [each for load in loads for each in load.latencies])


def measure(connect: Connect, requests: Sequence[list[str]], clients: int, seconds: float) -> Load:
    """Answers requests by several clients at once.

    Args:
        connect: A context with the function by which a client asks.
        requests: The texts of each request.
        clients: The number of clients.
        seconds: When to stop, even if requests are left.

    Raises:
        RuntimeError: A client has failed.
    """
    latencies: list[float] = []
    failed: list[BaseException] = []
    left, lock, start = iter(requests), threading.Lock(), time.perf_counter()

    def client() -> None:
        try:
            with connect() as ask:
                while time.perf_counter() - start < seconds:
                    with lock:
                        texts = next(left, None)
                    if texts is None or failed:
                        return
                    began = time.perf_counter()
                    ask(texts)
                    latencies.append(time.perf_counter() - began)
        except Exception as error:  # noqa: BLE001 - raised below
            failed.append(error)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise RuntimeError(f"a client failed: {failed[0]!r}") from failed[0]
    return Load(time.perf_counter() - start, latencies)


def over_http(port: int, expected: dict[str, Any]) -> Connect:
    """Clients with a connection each, which compare the answers with those expected."""

    @contextmanager
    def connect() -> Iterator[Ask]:
        connection = http.client.HTTPConnection(serve.HOST, port, timeout=60)

        def ask(texts: list[str]) -> None:
            connection.request("POST", "/predict", json.dumps({"texts": texts}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {body}")
            for text, answer in zip(texts, body["answers"], strict=True):
                if not similar(answer, expected[text]):
                    raise RuntimeError(f"{text!r} was answered by {answer}, not by {expected[text]}")

        try:
            yield ask
        finally:
            connection.close()

    return connect


def similar(one: Any, other: Any) -> bool:
    """Whether answers are the same, numbers up to rounding: sums depend on the rows that are computed together."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(similar(one[key], other[key]) for key in one)
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-4)
    return bool(one == other)


@contextmanager
def server(export: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of a server, and its process, which ends with the context."""
    with socket.socket() as free:
        free.bind((serve.HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "examples.serve", "--export", export, "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for(port, process)
        yield port, process
    finally:
        process.terminate()
        process.wait(30)


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    start = time.perf_counter()
    while time.perf_counter() - start < DEADLINE and process.poll() is None:
        connection = http.client.HTTPConnection(serve.HOST, port, timeout=5)
        try:
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.2)
        finally:
            connection.close()
    raise RuntimeError(f"the server did not start on port {port}; its exit status is {process.poll()}")


def table(loads: dict[str, Load]) -> str:
    """A row for each way to ask, relative to the first, the bare call."""
    bare, rows = next(iter(loads.values())), []
    for name, load in loads.items():
        percentiles = [f"{load.percentile(percent):.1f}" for percent in (50, 99)]
        rows.append([name, f"{load.rate:.0f}", f"{load.rate / bare.rate:.2f}", *percentiles])
    return markdown(["", "requests per second", "relative to the bare call", "p50, ms", "p99, ms"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("serving", __doc__, rounds=3)
    parser.add_argument("--export", metavar="DIR", required=True, help="folder of exported heads")
    parser.add_argument("--requests", type=int, default=400, help="requests of each measurement, at most")
    parser.add_argument("--texts", type=int, default=4, help="texts per request")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8], help="clients at once")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each measurement, at most")
    asked = parsed(parser, arguments, requests=12)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    export = serve.Export(Path(asked.export))
    rows = draw_rows(max(20, 8 * asked.texts), held_out=True, seed=0)
    texts = [row["text"] for row in rows]
    number = -(-asked.requests // asked.rounds)
    requests = [[texts[(i * asked.texts + k) % len(texts)] for k in range(asked.texts)] for i in range(number)]
    expected = {text: export.answer([text])[0] for text in texts}
    loads: dict[str, list[Load]] = {}
    with server(asked.export) as (port, process):
        ways: dict[str, tuple[Connect, int]] = {BARE: (lambda: nullcontext(export.answer), 1)}
        for clients in asked.clients:
            name = f"HTTP, {clients} {'client' if clients == 1 else 'clients'}"
            ways[name] = over_http(port, expected), clients
        for connect, clients in ways.values():  # warm-up
            measure(connect, requests[:4], clients, asked.seconds)
        for _ in range(asked.rounds):
            for name, (connect, clients) in ways.items():
                with stopped(process) if name == BARE else nullcontext():
                    loads.setdefault(name, []).append(measure(connect, requests, clients, asked.seconds / asked.rounds))
    print(table({name: together(of_name) for name, of_name in loads.items()}), end="")
    return 0
