"""How do you serve what heads predict for texts over HTTP? An endpoint on exported heads.

    python -m examples.seq2seq_price --orders 2000 --epochs 4 --export runs/exported
    python -m examples.serve --export runs/exported

`POST /predict` takes `{"texts": ["a text", ...]}` and returns `{"answers": [...]}`, an object for each text with an entry
for each head. With `{"text": "a text"}` it returns the object alone. Slots, as `examples.intents` exports them to the folder
`runs/intents/export`, are spans with the positions of their characters. Requests that wait are answered by one call of
TensorFlow. What cannot be read is refused with a status of 4xx and `{"error": "..."}`. `GET /health` names the exports. The
server listens on 127.0.0.1 only: it has no authentication and no TLS, which are a proxy's task. `python -m
benchmarks serving` measures it.
"""

# Without `from __future__ import annotations`: FastAPI reads the annotations, some of them of names in a function.
import argparse
import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from examples._command_line import InputError, Parser, fail, what_to_install, whole

PROGRAM = "examples.serve"
HOST = "127.0.0.1"
EXAMPLE = '{"texts": ["two oak chairs, please"]}'
# What TensorFlow takes for a word: between white space of ASCII. What it says ends before its punctuation, if it has more.
_WORD = re.compile(r"(?P<said>\S*[^\s.,:;!?]|\S+)\S*", re.ASCII)


class Refused(Exception):
    """A request that is not answered.

    Args:
        status: The HTTP status.
        message: What is wrong, and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Export:
    """Exported heads: TensorFlow SavedModels in folders with the heads' names, whose input is named `inputs`.

    Args:
        folder: What was passed to `--export` of `examples.seq2seq_price`, or `export` in the folder of `examples.intents`.

    Raises:
        InputError: There are no such heads.
    """

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._constant = tf.constant
        found = sorted(path.parent for path in folder.glob("*/saved_model.pb"))
        if not found:
            raise InputError(
                f"`--export` must be a folder of exported heads. Received: {str(folder)!r}, without any */saved_model.pb. "
                "Pass what was passed to --export of examples.seq2seq_price, or runs/intents/export of examples.intents."
            )
        self._loaded = {path.name: tf.saved_model.load(str(path)) for path in found}
        self._heads = {name: loaded.signatures["serving_default"] for name, loaded in self._loaded.items()}
        for name, signature in self._heads.items():
            specs = signature.structured_input_signature[1]
            if set(specs) != {"inputs"} or specs["inputs"].dtype != tf.string:
                raise InputError(
                    f"`--export` must be a folder of heads that take texts. Received: {name!r}, which takes {specs}. Export "
                    "it with a `preprocess`."
                )

    @property
    def heads(self) -> list[str]:
        """The names of the exports, which for those of a single head are the heads' names."""
        return list(self._heads)

    def answer(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """An answer for each text: by head a text or a number, or a dict of them."""
        batch = self._constant([text.encode() for text in texts])
        answers: list[dict[str, Any]] = [{} for _ in texts]
        for head, signature in self._heads.items():
            outputs = {name: tensor.numpy() for name, tensor in signature(inputs=batch).items()}
            for row, answer in enumerate(answers):
                values = {name: _plain(values[row]) for name, values in outputs.items()}
                if "slots" in values:
                    answer.update(values, slots=spans_of(texts[row], values["slots"]))
                else:
                    answer[head] = values[head] if set(values) == {head} else values
        return answers


def _plain(value: Any) -> Any:
    """An element of an output as JSON has it: texts, numbers, and lists of them without the padding of texts."""
    if isinstance(value, bytes):
        return value.decode()
    if getattr(value, "shape", ()):
        return [_plain(each) for each in value if each != b""]
    return value.item()


def spans_of(text: str, tags: Sequence[str]) -> list[dict[str, Any]]:
    """The slots of a text.

    Args:
        text: The text.
        tags: A tag for each word between spaces: `O`, `B-x` at the first word of a slot `x`, `I-x` at its others.

    Returns:
        By slot its name, its first character, the one after its last, and the text between them. Punctuation after a slot is
        not a part of it.
    """
    found: list[dict[str, Any]] = []
    for word, tag in zip(_WORD.finditer(text), tags):
        mark, _, slot = tag.partition("-")
        if mark == "B":
            found.append({"slot": slot, "start": word.start()})
        if mark != "O":
            found[-1]["end"] = word.end("said")
    return [{**span, "text": text[span["start"] : span["end"]]} for span in found]


class Limits:
    """What is accepted.

    Args:
        texts: Texts per request.
        characters: Characters per text.
        waiting: Requests that wait for an answer.
    """

    def __init__(self, texts: int, characters: int, waiting: int) -> None:
        self.texts, self.characters, self.waiting = texts, characters, waiting
        self.size = 1024 + texts * (12 * characters + 8)  # bytes: a character is at most 12, escaped as a surrogate pair


class Batches:
    """Answers the requests that wait, several by one call.

    Args:
        export: The heads.
        limits: What is accepted; a call has at most `limits.texts` texts.
    """

    def __init__(self, export: Export, limits: Limits) -> None:
        self._export, self._limits = export, limits
        self._waiting: list[tuple[list[str], asyncio.Future[list[dict[str, Any]]]]] = []
        self._arrived = asyncio.Event()

    async def answer(self, texts: list[str]) -> list[dict[str, Any]]:
        """The answers to the texts of one request.

        Raises:
            Refused: Too many requests wait.
        """
        if len(self._waiting) >= self._limits.waiting:
            raise Refused(503, f"{len(self._waiting)} requests wait already. Try again later.")
        future: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, future))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Answers requests until it is cancelled."""
        while True:
            await self._arrived.wait()
            group = self._next()
            texts = [text for asked, _ in group for text in asked]
            try:
                answers = iter(await asyncio.to_thread(self._export.answer, texts))
            except Exception as error:  # noqa: BLE001 - the requests of this call fail, not the server
                for _, future in group:
                    future.done() or future.set_exception(error)
                continue
            for asked, future in group:
                own = [next(answers) for _ in asked]
                future.done() or future.set_result(own)  # done: the client has gone

    def _next(self) -> list[tuple[list[str], asyncio.Future[list[dict[str, Any]]]]]:
        """The requests of the next call, oldest first."""
        count, number = 0, 0
        while number < len(self._waiting) and count + len(self._waiting[number][0]) <= self._limits.texts:
            count += len(self._waiting[number][0])
            number += 1
        group, self._waiting = self._waiting[:number], self._waiting[number:]
        if not self._waiting:
            self._arrived.clear()
        return group


def read_texts(body: bytes, limits: Limits) -> tuple[list[str], bool]:
    """The texts of a request's body, and whether it is a single one, without a list.

    Raises:
        Refused: It is not JSON, or has neither the form `{"texts": [...]}` nor `{"text": ...}`, or its texts are out of the
            limits.
    """
    try:
        asked = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"The body must be JSON in UTF-8: {error}. Send, for example, {EXAMPLE}.") from error
    if isinstance(asked, dict) and set(asked) == {"text"}:
        if not isinstance(asked["text"], str):
            raise Refused(422, f"`text` must be a string. Received: a {_kind(asked['text'])}. Send a string, or `texts`.")
        _check_text("text", asked["text"], limits)
        return [asked["text"]], True
    if not isinstance(asked, dict) or set(asked) != {"texts"}:
        received = f"an object with the keys {sorted(asked)}" if isinstance(asked, dict) else f"a {_kind(asked)}"
        raise Refused(
            422, f"The body must be an object with the key `texts`, or `text`, only. Received: {received}. Send {EXAMPLE}."
        )
    texts = asked["texts"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        other = next((text for text in texts if not isinstance(text, str)), None) if isinstance(texts, list) else texts
        where = "a list with a" if isinstance(texts, list) else "a"
        raise Refused(422, f"`texts` must be a list of strings. Received: {where} {_kind(other)}. Send {EXAMPLE}.")
    if not 1 <= len(texts) <= limits.texts:
        remedy = "Send several requests." if texts else f"Send {EXAMPLE}."
        raise Refused(422, f"`texts` must hold 1 to {limits.texts} texts. Received: {len(texts)}. {remedy}")
    for place, text in enumerate(texts):
        _check_text(f"texts[{place}]", text, limits)
    return texts, False


def _check_text(place: str, text: str, limits: Limits) -> None:
    if not text.strip():
        raise Refused(422, f"`{place}` must not be empty. Received: {text[:20]!r}. Leave it out.")
    if len(text) > limits.characters:
        raise Refused(
            422,
            f"`{place}` must have at most {limits.characters} characters. Received: {len(text)}. Shorten the text.",
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise Refused(422, f"`{place}` must consist of characters. Received: half of a surrogate pair. Escape both halves.")


def _kind(value: Any) -> str:
    """The type of a value in the words of JSON."""
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return kinds.get(type(value), "number")


async def read_body(request: Any, limits: Limits) -> bytes:
    """The body of a request.

    Raises:
        Refused: It is not declared as JSON, or is larger than any that would be accepted.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(415, f"`Content-Type` must be application/json. Received: {kind!r}. Set the header, and send JSON.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limits.size:
            raise Refused(413, f"The body must have at most {limits.size} bytes. Received: more. Send several requests.")
    return bytes(body)


def create_app(export: Export, limits: Limits) -> Any:
    """The FastAPI application."""
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException as StarletteError

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batches = Batches(export, limits)
        answering = asyncio.create_task(app.state.batches.run())
        yield
        answering.cancel()

    app = FastAPI(title="Answers to texts", lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> JSONResponse:
        headers = {"Retry-After": "1"} if error.status == 503 else None
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(StarletteError)
    async def refuse_path(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.url.path}. Use POST /predict or GET /health."
        return JSONResponse({"error": message}, error.status_code, error.headers)

    @app.get("/health")
    async def health() -> Mapping[str, Any]:
        return {"status": "ok", "heads": export.heads}

    @app.post("/predict")
    async def predict(request: Request) -> Mapping[str, Any]:
        texts, is_single = read_texts(await read_body(request, limits), limits)
        answers = await app.state.batches.answer(texts)
        return answers[0] if is_single else {"answers": answers}

    return app


def create_server(export: Export, limits: Limits, port: int) -> Any:
    """A server on the loopback address, whose `run` serves until it is interrupted."""
    import uvicorn

    export.answer(["warm-up"])
    config = uvicorn.Config(create_app(export, limits), host=HOST, port=port, log_level="warning", access_log=False)
    return uvicorn.Server(config)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", metavar="DIR", required=True, help="folder of exported heads")
    parser.add_argument("--port", metavar="N", type=whole(1, below=65536), default=8000, help="port on 127.0.0.1")
    parser.add_argument("--max-texts", metavar="N", type=whole(1), default=256, help="texts per request, and per call")
    parser.add_argument("--max-characters", metavar="N", type=whole(1), default=1000, help="characters per text")
    parser.add_argument("--max-waiting", metavar="N", type=whole(1), default=64, help="waiting requests; more get a 503")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted, and returns the exit status."""
    options = build_parser().parse_args(arguments)
    absent = what_to_install(("fastapi", "uvicorn"))
    if absent is not None:
        return fail(PROGRAM, absent)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        export = Export(Path(options.export))
    except (InputError, OSError) as error:
        return fail(PROGRAM, str(error))
    server = create_server(export, Limits(options.max_texts, options.max_characters, options.max_waiting), options.port)
    print(f"serving {', '.join(export.heads)} on http://{HOST}:{options.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
