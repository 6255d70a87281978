"""What HTTP adds to a call of TensorFlow: requests per second and latencies of `examples.serve` beside the bare call.

One run: the same requests are answered by calling the export in a process without HTTP, and by `examples.serve` in a process
of its own, asked over 127.0.0.1 by 1 and by 8 clients that send their next request when the last one is answered. Both are
measured in turns, each for at most so many requests and seconds; during the bare call the server stands still. An answer
that is not that of the bare call is an error. With `--by`, requests have items with drawn cells, to be ranked, not texts.
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

from benchmarks.speed._record import Line, Row, Table, finish, significant, table
from benchmarks.speed._shared import parsed, parser_of, stopped
from examples import serve
from examples._command_line import InputError
from examples._orders import draw_rows
from examples._ranked import Columns

BARE = "bare call"
RATE, SHARE = "requests per second", "relative to the bare call"
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


class Kind(NamedTuple):
    """A kind of request.

    Attributes:
        path: Where it is sent.
        body: From the texts, or rows, of a request to its body.
        answers: From the body of an answer to that of each text or row, in their order.
    """

    path: str
    body: Callable[[list[Any]], dict[str, Any]]
    answers: Callable[[dict[str, Any]], list[Any]]


TEXTS = Kind("/predict", lambda texts: {"texts": texts}, lambda body: body["answers"])
ITEMS = Kind("/rank", lambda rows: {"items": rows}, lambda body: in_order(body["items"]))
Ask = Callable[[list[Any]], Any]
Connect = Callable[[], AbstractContextManager[Ask]]


def in_order(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items of a ranking in the order of the request, as the bare call has them."""
    placed = sorted(items, key=lambda item: item["place"])
    return [{name: value for name, value in item.items() if name != "place"} for item in placed]


def drawn_rows(export: Columns, number: int) -> list[dict[str, Any]]:
    """Rows of cells that are drawn from a seed: short strings, and numbers below 100."""
    cells = np.random.default_rng(0).integers(0, 100, (number, len(export.dtypes))).tolist()
    kinds = {
        name: str if dtype.name == "string" else int if dtype.is_integer else float for name, dtype in export.dtypes.items()
    }
    return [{name: kind(cell) for (name, kind), cell in zip(kinds.items(), row)} for row in cells]


def together(loads: Sequence[Load]) -> Load:
    """Several loads as one."""
    return Load(sum(load.seconds for load in loads), [each for load in loads for each in load.latencies])


def measure(connect: Connect, requests: Sequence[list[Any]], clients: int, seconds: float) -> Load:
    """Answers requests by several clients at once.

    Args:
        connect: A context with the function by which a client asks.
        requests: The texts, or rows, of each request.
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
                        request = next(left, None)
                    if request is None or failed:
                        return
                    began = time.perf_counter()
                    ask(request)
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


def over_http(port: int, expected: Callable[[list[Any]], list[Any]], kind: Kind) -> Connect:
    """Clients with a connection each, which compare the answers with those expected."""

    @contextmanager
    def connect() -> Iterator[Ask]:
        connection = http.client.HTTPConnection(serve.HOST, port, timeout=60)

        def ask(request: list[Any]) -> None:
            connection.request("POST", kind.path, json.dumps(kind.body(request)), {"Content-Type": "application/json"})
            response = connection.getresponse()
            body = json.loads(response.read())
            if response.status != 200:
                raise RuntimeError(f"status {response.status}: {body}")
            for each, answer, right in zip(request, kind.answers(body), expected(request), strict=True):
                if not similar(answer, right):
                    raise RuntimeError(f"{each!r} was answered by {answer}, not by {right}")

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
def server(export: str, by: Sequence[str]) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The port of a server, and its process, which ends with the context."""
    with socket.socket() as free:
        free.bind((serve.HOST, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "examples.serve", "--export", export, "--port", str(port)]
    command += ["--by", *by] if by else []
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


def rows_of(loads: dict[str, Load]) -> list[Row]:
    """A row for each way to ask, relative to the first, the bare call."""
    bare, rows = next(iter(loads.values())), []
    for name, load in loads.items():
        percentiles = {f"p{percent}, ms": round(load.percentile(percent), 2) for percent in (50, 99)}
        rows.append({"asked by": name, RATE: significant(load.rate), SHARE: round(load.rate / bare.rate, 4), **percentiles})
    return rows


def tables(lines: Sequence[Line]) -> list[Table]:
    return [table(lines, "", ["asked by"], (), ".1f", {RATE: ".0f", SHARE: ".2f"})]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("serving", __doc__, rounds=3)
    parser.add_argument("--export", metavar="DIR", required=True, help="folder of exported heads")
    parser.add_argument("--requests", type=int, default=400, help="requests of each measurement, at most")
    parser.add_argument("--by", metavar="HEAD", nargs="+", default=[], help="of heads that read columns: those to rank by")
    parser.add_argument("--size", type=int, default=4, help="texts, or items, of a request")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8], help="clients at once")
    parser.add_argument("--seconds", type=float, default=30.0, help="seconds of each measurement, at most")
    asked = parsed(parser, arguments, requests=12)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        export = serve.load(Path(asked.export), asked.by)
    except InputError as error:
        parser.error(str(error))
    held = max(20, 8 * asked.size)
    rows: list[Any]
    if isinstance(export, Columns):
        kind, rows = ITEMS, drawn_rows(export, held)
    else:
        kind, rows = TEXTS, [row["text"] for row in draw_rows(held, held_out=True, seed=0)]
    number = -(-asked.requests // asked.rounds)
    places = [[(i * asked.size + k) % held for k in range(asked.size)] for i in range(number)]
    requests = [[rows[place] for place in of_request] for of_request in places]
    right = {json.dumps(row): export.answer([row])[0] for row in rows}
    loads: dict[str, list[Load]] = {}
    with server(asked.export, asked.by) as (port, process):
        ways: dict[str, tuple[Connect, int]] = {BARE: (lambda: nullcontext(export.answer), 1)}
        for clients in asked.clients:
            name = f"HTTP, {clients} {'client' if clients == 1 else 'clients'}"
            ways[name] = over_http(port, lambda request: [right[json.dumps(row)] for row in request], kind), clients
        for connect, clients in ways.values():  # warm-up
            measure(connect, requests[:4], clients, asked.seconds)
        for _ in range(asked.rounds):
            for name, (connect, clients) in ways.items():
                with stopped(process) if name == BARE else nullcontext():
                    loads.setdefault(name, []).append(measure(connect, requests, clients, asked.seconds / asked.rounds))
    finish(asked, rows_of({name: together(of_name) for name, of_name in loads.items()}), tables)
    return 0
