"""How do you serve what heads predict over HTTP? An endpoint on exported heads, for texts or for rankings.

    python -m examples.seq2seq_price --orders 2000 --epochs 4 --export runs/exported
    python -m examples.serve --export runs/exported

`POST /predict` takes `{"texts": ["a text", ...]}` and returns `{"answers": [...]}`, an object for each text with an entry
for each head. With `{"text": "a text"}` it returns the object alone. Slots, as `examples.intents` exports them to the folder
`runs/intents/export`, are spans with the positions of their characters. Heads that read columns, as `examples.ranking`
exports them, rank the items of a request, best first, by the product of the heads that `--by` names:

    python -m examples.serve --export runs/ranking/export --by click purchase

`POST /rank` takes `{"request": {...}, "items": [{...}, ...]}`; the columns of an item are its own and those of `request`.
Requests that wait are answered by one call of
TensorFlow. What cannot be read is rejected with a status of 4xx and `{"error": "..."}`. `GET /health` names the exports. The
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
from typing import Any, NamedTuple

from examples._command_line import InputError, Parser, fail, what_to_install, whole
from examples._ranked import Columns, Refused, decoded, inputs_of, ranked, saved_models

PROGRAM = "examples.serve"
HOST = "127.0.0.1"
EXAMPLE = '{"texts": ["two oak chairs, please"]}'
# What TensorFlow takes for a word: between white space of ASCII. What it says ends before its punctuation, if it has more.
_WORD = re.compile(r"(?P<said>\S*[^\s.,:;!?]|\S+)\S*", re.ASCII)
Answers = list[dict[str, Any]]


class Export:
    """Exported heads: TensorFlow SavedModels in folders with the heads' names, whose input is named `inputs`.

    Args:
        folder: What was passed to `--export` of `examples.seq2seq_price`, or `export` in the folder of `examples.intents`.

    Raises:
        InputError: There are no such heads.
    """

    example = ("warm-up",)

    def __init__(self, folder: Path, models: Mapping[str, Any] | None = None) -> None:
        import tensorflow as tf

        self._constant = tf.constant
        self._models = saved_models(folder) if models is None else models
        self._heads = {name: model.signatures["serving_default"] for name, model in self._models.items()}
        self.heads = list(self._heads)  # the names of the exports, which for those of a single head are the heads' names
        takes = [inputs_of(model) for model in self._models.values()]
        if not takes or not all(map(takes_texts, self._models.values())):
            raise InputError(
                f"`--export` must be a folder of exported heads that take texts. Received: {str(folder)!r}, with {takes}. "
                "Pass what was passed to --export of examples.seq2seq_price, or runs/intents/export of examples.intents."
            )

    def answer(self, texts: Sequence[str]) -> Answers:
        """An answer for each text: by head a text or a number, or a dict of them."""
        batch = self._constant([text.encode() for text in texts])
        answers: Answers = [{} for _ in texts]
        for head, signature in self._heads.items():
            outputs = {name: tensor.numpy() for name, tensor in signature(inputs=batch).items()}
            for row, answer in enumerate(answers):
                values = {name: _plain(values[row]) for name, values in outputs.items()}
                if "slots" in values:
                    answer.update(values, slots=spans_of(texts[row], values["slots"]))
                else:
                    answer[head] = values[head] if set(values) == {head} else values
        return answers


def takes_texts(model: Any) -> bool:
    """Whether a SavedModel takes texts."""
    specs = inputs_of(model)
    return set(specs) == {"inputs"} and specs["inputs"].dtype.name == "string"


def load(folder: Path, by: Sequence[str]) -> "Export | Columns":
    """The exported heads of a folder, which take texts or columns.

    Raises:
        InputError: There are none, or `by` does not suit them.
    """
    models = saved_models(folder)
    if models and not any(map(takes_texts, models.values())):
        return Columns(models, by)
    export = Export(folder, models)
    if by:
        raise InputError(f"`--by` is for heads that read columns. Received: {', '.join(by)}, and texts. Leave it out.")
    return export


def _plain(value: Any) -> Any:
    """An element of an output as JSON has it: texts, numbers, and lists of them without the padding of texts."""
    if isinstance(value, bytes):
        return value.decode()
    return [_plain(each) for each in value if each != b""] if getattr(value, "shape", ()) else value.item()


def spans_of(text: str, tags: Sequence[str]) -> Answers:
    """The slots of a text: name, first character, the one after the last, and the text between, without punctuation behind.

    Each word between spaces has a tag: `O`, `B-x` at the first word of a slot `x`, `I-x` at its others.
    """
    found: Answers = []
    for word, tag in zip(_WORD.finditer(text), tags):
        mark, _, slot = tag.partition("-")
        if mark == "B":
            found.append({"slot": slot, "start": word.start()})
        if mark != "O":
            found[-1]["end"] = word.end("said")
    return [{**span, "text": text[span["start"] : span["end"]]} for span in found]


class Limits(NamedTuple):
    """What is accepted: texts per request and per call, characters per text, and requests that wait for an answer."""

    texts: int
    characters: int
    waiting: int

    @property
    def size(self) -> int:
        """Bytes of a request: a character is at most 12, escaped as a surrogate pair."""
        return 1024 + self.texts * (12 * self.characters + 8)


class Batches:
    """Answers the requests that wait, several by one call, oldest first."""

    def __init__(self, export: "Export | Columns", limits: Limits) -> None:
        self._export, self._most = export, limits.texts
        self._waiting: asyncio.Queue[tuple[list[Any], asyncio.Future[Answers]]] = asyncio.Queue(limits.waiting)

    async def answer(self, texts: list[Any]) -> Answers:
        """The answers to the texts, or rows, of one request.

        Raises:
            Refused: Too many requests wait.
        """
        future: asyncio.Future[Answers] = asyncio.get_running_loop().create_future()
        try:
            self._waiting.put_nowait((texts, future))
        except asyncio.QueueFull:
            raise Refused(503, f"{self._waiting.qsize()} requests wait already. Try again later.") from None
        return await future

    async def run(self) -> None:
        """Answers requests until it is cancelled."""
        following = await self._waiting.get()
        while True:
            group, texts = [], []
            while following and len(texts) + len(following[0]) <= self._most:
                group.append(following)
                texts += following[0]
                following = None if self._waiting.empty() else self._waiting.get_nowait()
            try:
                answers = iter(await asyncio.to_thread(self._export.answer, texts))
                for asked, future in group:
                    own = [next(answers) for _ in asked]
                    future.done() or future.set_result(own)  # done: the client has gone
            except Exception as error:  # noqa: BLE001 - the requests of this call fail, not the server
                for _, future in group:
                    future.done() or future.set_exception(error)
            following = following or await self._waiting.get()


def read_texts(body: bytes, limits: Limits) -> tuple[list[str], bool]:
    """The texts of a request's body, and whether it is a single one, without a list.

    Raises:
        Refused: It is not JSON, or neither `{"texts": [...]}` nor `{"text": ...}`, or its texts are out of the limits.
    """
    asked = decoded(body, EXAMPLE)
    received = f"Received: {json.dumps(asked)[:60]}"
    if not isinstance(asked, dict) or set(asked) not in ({"texts"}, {"text"}):
        raise Refused(422, f"The body must be an object with the key `texts`, or `text`, only. {received}. Send {EXAMPLE}.")
    texts = [asked["text"]] if "text" in asked else asked["texts"]
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(422, f"`texts` must be a list of strings, and `text` a string. {received}. Send {EXAMPLE}.")
    if not 1 <= len(texts) <= limits.texts:
        raise Refused(422, f"`texts` must hold 1 to {limits.texts} texts. Received: {len(texts)}. Send several requests.")
    for text in texts:
        if not text.strip() or len(text) > limits.characters or any("\ud800" <= each <= "\udfff" for each in text):
            rule = f"Each text must have 1 to {limits.characters} characters, not only spaces, no half of a surrogate pair."
            raise Refused(422, f"{rule} Received: {text[:20]!a}, {len(text)} characters. Leave it out, or shorten it.")
    return texts, "text" in asked


async def read_body(request: Any, most: int) -> bytes:
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
        if len(body) > most:
            raise Refused(413, f"The body must have at most {most} bytes. Received: more. Send several requests.")
    return bytes(body)


def create_server(export: "Export | Columns", limits: Limits, port: int) -> Any:
    """A server on the loopback address, whose `run` serves until it is interrupted."""
    import uvicorn
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException as StarletteError

    export.answer(export.example)
    path = "/rank" if isinstance(export, Columns) else "/predict"

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.batches = Batches(export, limits)
        answering = asyncio.create_task(app.state.batches.run())
        yield
        answering.cancel()

    app = FastAPI(title="Exported heads", lifespan=lifespan, docs_url=None, redoc_url=None)

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status, {"Retry-After": "1"} if error.status == 503 else None)

    @app.exception_handler(StarletteError)
    async def refuse_path(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.url.path}. Use POST {path} or GET /health."
        return JSONResponse({"error": message}, error.status_code, error.headers)

    @app.get("/health")
    async def health() -> Mapping[str, Any]:
        return {"status": "ok", "heads": export.heads}

    @app.post(path)
    async def predict(request: Request) -> Mapping[str, Any]:
        if isinstance(export, Columns):
            body = await read_body(request, limits.size * (1 + len(export.dtypes)))
            return {"items": ranked(await app.state.batches.answer(export.read(body, limits.texts, limits.characters)))}
        texts, is_single = read_texts(await read_body(request, limits.size), limits)
        answers = await app.state.batches.answer(texts)
        return answers[0] if is_single else {"answers": answers}

    return uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning", access_log=False))


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted, and returns the exit status."""
    parser = Parser(PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export", metavar="DIR", type=Path, required=True, help="folder of exported heads")
    parser.add_argument("--by", metavar="HEAD", nargs="+", default=[], help="of heads that read columns: those to rank by")
    parser.add_argument("--port", metavar="N", type=whole(1, below=65536), default=8000, help="port on 127.0.0.1")
    parser.add_argument(
        "--max-texts", metavar="N", type=whole(1), default=256, help="texts or items per request, and per call"
    )
    parser.add_argument(
        "--max-characters", metavar="N", type=whole(1), default=1000, help="characters per text, or per cell"
    )
    parser.add_argument("--max-waiting", metavar="N", type=whole(1), default=64, help="waiting requests; more get a 503")
    options = parser.parse_args(arguments)
    absent = what_to_install(("fastapi", "uvicorn"))
    if absent is not None:
        return fail(PROGRAM, absent)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        export = load(options.export, options.by)
    except (InputError, OSError) as error:
        return fail(PROGRAM, str(error))
    server = create_server(export, Limits(options.max_texts, options.max_characters, options.max_waiting), options.port)
    print(f"serving {', '.join(export.heads)} on http://{HOST}:{options.port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
