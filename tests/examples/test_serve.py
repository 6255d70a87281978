"""The endpoint, asked by real requests on the loopback address: answers, what is rejected, and many clients at once."""

from __future__ import annotations

import asyncio
import http.client
import importlib.util
import json
import re
import threading

import pytest
import tensorflow as tf

from tests.helpers.ports import free_ports, running

pytestmark = pytest.mark.programs
pytest.importorskip("fastapi")

from benchmarks.speed import serving  # noqa: E402
from examples import serve  # noqa: E402
from tests.helpers.exported import TEXTS, exported  # noqa: E402

LIMITS = serve.Limits(texts=4, characters=40, waiting=64)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported")
    return path, exported(path)


@pytest.fixture(scope="module")
def port(folder):
    """The port of a server that runs during this module."""
    (free,) = free_ports(1)
    server = serve.create_server(serve.Export(folder[0]), LIMITS, free)
    with running(server):
        yield free


def ask(port, body, *, method="POST", path="/predict", kind="application/json"):
    """The status and the decoded answer of a request."""
    connection = http.client.HTTPConnection(serve.HOST, port, timeout=20)
    connection.request(method, path, body, {"Content-Type": kind} if kind else {})
    response = connection.getresponse()
    assert response.getheader("Content-Type") == "application/json"
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_a_batch_of_texts_is_answered_as_the_model_does(port, folder):
    assert ask(port, None, method="GET", path="/health", kind=None) == (200, {"status": "ok", "heads": ["price", "reply"]})
    status, body = ask(port, json.dumps({"texts": TEXTS}), kind="application/json; charset=utf-8")
    model = folder[1]
    texts = tf.constant(TEXTS)
    representation = model.trainer.encoder(model.vectorizers.inputs(texts), training=False)
    replies = model.vectorizers.texts(model.decoder.generate(representation, engine="native"), texts)
    replies = [reply.decode() for reply in replies.numpy()]
    assert status == 200 and [each["reply"] for each in body["answers"]] == replies and any(replies)
    for found, probabilities in zip(body["answers"], model.trainer.heads["price"].module(representation).numpy()):
        assert found["price"]["label"] == ("low", "high")[probabilities.argmax()]
        assert found["price"]["probability"] == pytest.approx(float(probabilities.max()), rel=1e-4)


TEXT = r"Each text must have 1 to 40 characters, .* Received: {}\. Leave it out"
REFUSED = {
    "not JSON": ("{", {}, 400, r"The body must be JSON in UTF-8: .*Send, for example"),
    "not UTF-8": (b"\xff\xfe", {}, 400, r"The body must be JSON in UTF-8"),
    "deep": ("[" * 1500, {}, 400, r"The body must be JSON in UTF-8"),
    "no body": ("", {}, 400, r"The body must be JSON in UTF-8"),
    "a list": ("[]", {}, 422, r"an object with the key `texts`, or `text`, only\. Received: \[\]\."),
    "null": ("null", {}, 422, r"only\. Received: null\."),
    "missing key": ("{}", {}, 422, r"only\. Received: {}\."),
    "another key": ('{"texts": ["a"], "beam": 3}', {}, 422, r"only\. Received: .*beam"),
    "both forms": ('{"text": "a", "texts": ["a"]}', {}, 422, r"only\. Received: "),
    "a string": ('{"texts": "a"}', {}, 422, r"`texts` must be a list of strings, and .*Received: {\"texts\": \"a\"}\."),
    "a number in it": ('{"texts": ["a", 3]}', {}, 422, r"`texts` must be a list of strings"),
    "a text that is none": ('{"text": ["a"]}', {}, 422, r"`text` a string\. Received: {\"text\": \[\"a\"\]}\."),
    "no text": ('{"texts": []}', {}, 422, r"`texts` must hold 1 to 4 texts\. Received: 0\."),
    "too many": ('{"texts": ["a", "a", "a", "a", "a"]}', {}, 422, r"1 to 4 texts\. Received: 5\. Send several requests"),
    "one empty text": ('{"text": " "}', {}, 422, TEXT.format("' ', 1 characters")),
    "empty text": ('{"texts": ["a", "  "]}', {}, 422, TEXT.format("'  ', 2 characters")),
    "too long": (json.dumps({"texts": ["a" * 41]}), {}, 422, TEXT.format("'a{20}', 41 characters")),
    "half a character": ('{"texts": ["\\ud800"]}', {}, 422, TEXT.format(r"'\\ud800', 1 characters")),
    "too large": (" " * (LIMITS.size + 1), {}, 413, r"The body must have at most \d+ bytes"),
    "plain text": ('{"texts": ["a"]}', {"kind": "text/plain"}, 415, r"`Content-Type` must be .*Received: 'text/plain'"),
    "no type": ('{"texts": ["a"]}', {"kind": None}, 415, r"`Content-Type` must be application/json\. Received: ''"),
    "another path": ("{}", {"path": "/"}, 404, r"Not Found: POST /\. Use POST /predict or GET /health\."),
    "another method": (None, {"method": "GET"}, 405, r"Method Not Allowed: GET /predict\. Use POST /predict"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused(case, port):
    body, options, expected, message = REFUSED[case]
    status, answer = ask(port, body, **options)
    assert status == expected and set(answer) == {"error"}
    assert re.search(message, answer["error"]), answer


def test_many_clients_get_their_own_answers(port, folder):
    export = serve.Export(folder[0])
    expected = {text: export.answer([text])[0] for text in TEXTS}
    requests = [[TEXTS[i % 4], TEXTS[(i + i // 4) % 4]] for i in range(60)]
    connect = serving.over_http(port, lambda texts: [expected[text] for text in texts], serving.TEXTS)
    load = serving.measure(connect, requests, clients=6, seconds=20)
    assert len(load.latencies) == 60 and 0 < load.percentile(50) <= load.percentile(99) <= 20000
    bare, other = serving.rows_of({"bare call": load, "HTTP": load})
    assert bare["asked by"] == "bare call" and other[serving.SHARE] == 1.0 and other[serving.RATE] > 0


class Stuck:
    """Heads that answer when they are told to, or fail."""

    def __init__(self):
        self.calls, self.go = [], threading.Event()

    def answer(self, texts):
        self.calls.append(list(texts))
        assert self.go.wait(10)
        if "bad" in texts:
            raise ValueError("a bad text")
        return [{"reply": text} for text in texts]


def test_waiting_requests_share_a_call_and_too_many_are_refused():
    async def scenario():
        export = Stuck()
        batches = serve.Batches(export, serve.Limits(texts=4, characters=9, waiting=3))
        running = asyncio.create_task(batches.run())
        first = asyncio.create_task(batches.answer(["a"]))
        while not export.calls:
            await asyncio.sleep(0.01)
        waiting = [asyncio.create_task(batches.answer(texts)) for texts in (["b", "c"], ["d"], ["bad", "e"])]
        await asyncio.sleep(0)
        with pytest.raises(serve.Refused, match="3 requests wait already") as refused:
            await batches.answer(["f"])
        assert refused.value.status == 503
        export.go.set()
        answers = await asyncio.gather(first, *waiting, return_exceptions=True)
        running.cancel()
        return export.calls, answers

    calls, (*answers, failed) = asyncio.run(scenario())
    assert calls == [["a"], ["b", "c", "d"], ["bad", "e"]]
    assert answers == [[{"reply": "a"}], [{"reply": "b"}, {"reply": "c"}], [{"reply": "d"}]]
    assert isinstance(failed, ValueError)


def test_errors_of_the_command_are_one_line(tmp_path, capsys, monkeypatch):
    assert serve.main(["--export", str(tmp_path)]) == 2
    assert "`--export` must be a folder of exported heads that take texts. Received:" in capsys.readouterr().err
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert serve.main(["--export", str(tmp_path)]) == 2
    assert "needs uvicorn. Install the extra: pip install -e '.[examples,serving]'" in capsys.readouterr().err


@pytest.mark.thorough
def test_the_benchmark_starts_the_command_and_measures_it(folder, capsys):
    assert serving.main(["--export", str(folder[0]), "--quick", "--clients", "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert "| bare call |" in printed and "| HTTP, 1 client |" in printed and "| HTTP, 2 clients |" in printed
