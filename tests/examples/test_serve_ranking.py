"""The endpoint on heads that read columns: the items of a request, best first, and what is rejected."""

from __future__ import annotations

import http.client
import json
import re

import numpy as np
import pytest
import tensorflow as tf

from examples._command_line import InputError
from tests.helpers.ports import free_ports, running

pytestmark = pytest.mark.programs
pytest.importorskip("fastapi")

from benchmarks.speed import serving  # noqa: E402
from examples import serve  # noqa: E402

SPECS = {
    "user": tf.TensorSpec([None], tf.int64, name="user"),
    "color": tf.TensorSpec([None], tf.string, name="color"),
    "price": tf.TensorSpec([None], tf.float32, name="price"),
}


def answer_of(user, color, price):
    """What the exported function predicts, in NumPy."""
    return {"click": 1 / (1 + np.exp(-price)), "purchase": len(color) / 10, "level": 0.5 if np.isnan(price) else float(user)}


def save(folder, specs=SPECS):
    model = tf.Module()

    def predict(user, color, price):
        click = tf.sigmoid(price)[:, tf.newaxis]
        purchase = tf.cast(tf.strings.length(color), tf.float32)[:, tf.newaxis] / 10
        return {
            "click": click,
            "purchase": purchase,
            "level": tf.where(tf.math.is_nan(price), 0.5, tf.cast(user, tf.float32)),
        }

    signature = tf.function(predict).get_concrete_function(**specs)
    tf.saved_model.save(model, str(folder), signatures=signature)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported")
    save(path / "ranking")
    return path


@pytest.fixture(scope="module")
def port(folder):
    (free,) = free_ports(1)
    export = serve.load(folder, ["click", "purchase"])
    server = serve.create_server(export, serve.Limits(texts=4, characters=9, waiting=8), free)
    with running(server):
        yield free


def ask(port, body, method="POST", path="/rank"):
    connection = http.client.HTTPConnection(serve.HOST, port, timeout=20)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = response.status, json.loads(response.read())
    connection.close()
    return answer


def test_the_items_of_a_request_are_ranked_by_a_product_of_heads(port):
    assert ask(port, None, "GET", "/health") == (200, {"status": "ok", "heads": ["click", "level", "purchase"]})
    items = [{"price": 2, "color": "red"}, {"price": -0.5, "color": "green"}, {"price": 1.5, "color": "black"}]
    status, body = ask(port, json.dumps({"request": {"user": 2**40}, "items": items}))
    expected = [answer_of(2**40, item["color"], item["price"]) for item in items]
    scores = [each["click"] * each["purchase"] for each in expected]
    assert status == 200 and [each["place"] for each in body["items"]] == np.argsort(scores)[::-1].tolist() == [2, 0, 1]
    for found in body["items"]:
        place = found["place"]
        assert found == pytest.approx({"place": place, "score": scores[place], **expected[place]}, rel=1e-5)
    # An item's own value comes before that of the request; null is a missing number.
    status, body = ask(
        port, json.dumps({"request": {"user": 3, "color": ""}, "items": [{"price": None}, {"user": 7, "price": 0}]})
    )
    assert status == 200 and [each["level"] for each in sorted(body["items"], key=lambda each: each["place"])] == [0.5, 7.0]


ROW = {"user": 3, "color": "red", "price": 1.0}
REFUSED = {
    "not JSON": ("{", 400, r"The body must be JSON in UTF-8: .*Send, for example, {\"request\""),
    "a list": ([], 422, r"The body must be an object with `items`.*Received: \[\]\. Send, for example"),
    "no items": ({"request": ROW}, 422, r"must be an object with `items`"),
    "another key": ({"items": [ROW], "user": 3}, 422, r"must be an object with `items`"),
    "a request that is none": ({"request": 3, "items": [ROW]}, 422, r"perhaps `request`, an object"),
    "an item that is none": ({"items": [ROW, 3]}, 422, r"`items`, a list of objects"),
    "empty": ({"items": []}, 422, r"`items` must hold 1 to 4 items\. Received: 0\."),
    "too many": ({"items": [ROW] * 5}, 422, r"1 to 4 items\. Received: 5\. Send several requests"),
    "a missing column": ({"items": [ROW, {"user": 3}]}, 422, r"the columns color, price, user.*Received: no color, price in item 1"),
    "another column": ({"items": [{**ROW, "size": 3}]}, 422, r"and no others\. Received: size in item 0"),
    "a text as a number": ({"items": [{**ROW, "price": "1"}]}, 422, r"`price` must be a number, or null.*Received: \"1\"\."),
    "true as a number": ({"items": [{**ROW, "price": True}]}, 422, r"`price` must be a number.*Received: true\."),
    "too large": ({"items": [{**ROW, "price": 1e39}]}, 422, r"`price` must be a number.*Received: 1e\+39\."),
    "half an id": ({"items": [{**ROW, "user": 1.5}]}, 422, r"`user` must be a whole number of int64\. Received: 1\.5\."),
    "no id": ({"items": [{**ROW, "user": None}]}, 422, r"`user` must be a whole number of int64\. Received: null\."),
    "too large an id": ({"items": [{**ROW, "user": 2**63}]}, 422, r"`user` must be a whole number of int64\. Received: 9223"),
    "a number as a string": ({"items": [{**ROW, "color": 3}]}, 422, r"`color` must be a string of at most 9 characters"),
    "too long": ({"items": [{**ROW, "color": "a" * 10}]}, 422, r"`color` must be a string of at most 9 .*Correct it"),
    "half a character": ({"items": [{**ROW, "color": "\ud800"}]}, 422, r"`color` must be a string.*surrogate"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_ranked_is_refused(case, port):
    body, expected, message = REFUSED[case]
    status, answer = ask(port, body if isinstance(body, str) else json.dumps(body))
    assert status == expected and set(answer) == {"error"} and re.search(message, answer["error"]), answer


def test_texts_are_not_predicted(port):
    status, answer = ask(port, "{}", path="/predict")
    assert status == 404 and answer["error"].endswith("Use POST /rank or GET /health.")


def test_ids_may_be_of_32_bits(tmp_path):
    save(tmp_path / "ranking", {**SPECS, "user": tf.TensorSpec([None], tf.int32, name="user")})
    columns = serve.load(tmp_path, ["click"])
    body = json.dumps({"items": [ROW]}).encode()
    assert columns.answer(columns.read(body, 4, 9))[0]["level"] == 3.0
    with pytest.raises(serve.Refused, match=r"`user` must be a whole number of int32\. Received: 2147483648\."):
        columns.read(json.dumps({"items": [{**ROW, "user": 2**31}]}).encode(), 4, 9)


def test_what_is_said_of_exports_and_heads_that_do_not_fit(folder, tmp_path):
    for by, received in (([], "none"), (["click", "bought"], "bought")):
        with pytest.raises(
            InputError, match=rf"`--by` must name heads.* Received: {received}\. The heads are click, level, pur"
        ):
            serve.load(folder, by)
    save(tmp_path / "a", {**SPECS, "price": tf.TensorSpec([None, 2], tf.float32, name="price")})
    with pytest.raises(
        InputError, match=r"`--export` must be a folder .* or the same columns: .* Export the heads with such"
    ):
        serve.load(tmp_path, ["click"])


def test_the_benchmark_checks_what_is_ranked(folder, port):
    export = serve.load(folder, ["click", "purchase"])
    rows = serving.drawn_rows(export, 12)
    requests = [rows[start : start + 4] for start in range(9)]

    def ask_by(shift):
        connect = serving.over_http(port, lambda asked: [each | shift for each in export.answer(asked)], serving.ITEMS)
        return serving.measure(connect, requests, clients=3, seconds=20)

    assert len(ask_by({}).latencies) == 9
    with pytest.raises(RuntimeError, match="a client failed.*was answered by"):
        ask_by({"level": -1.0})


@pytest.mark.thorough
def test_the_benchmark_starts_the_command_and_ranks(folder, capsys):
    assert serving.main(["--export", str(folder), "--by", "click", "--quick", "--clients", "2"]) == 0
    printed = capsys.readouterr().out
    assert "| bare call |" in printed and "| HTTP, 2 clients |" in printed
    with pytest.raises(SystemExit):
        serving.main(["--export", str(folder), "--by", "nothing", "--quick"])
    assert "`--by` must name heads" in capsys.readouterr().err
