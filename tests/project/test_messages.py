"""Every error that the package raises has a test that looks at its message."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.helpers.sources import sources

pytestmark = pytest.mark.mathematics  # of texts

ROOT = Path(__file__).parents[2]
ENOUGH = 12
"""So many characters of a message in a row, at least, must be in what a test looks for."""


def texts(node: ast.AST) -> list[str]:
    """The parts of a text that are written out, in order."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in texts(value)]
    if isinstance(node, ast.IfExp):
        return [*texts(node.body), *texts(node.orelse)]
    if isinstance(node, ast.BinOp):
        return [*texts(node.left), *texts(node.right)]
    return []


def raised(path: Path) -> list[tuple[str, list[str]]]:
    """The errors with a written message that a file raises: their place, and the parts of the message."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    named: dict[str, list[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            named.setdefault(node.targets[0].id, []).extend(texts(node.value))
    found = []
    for node in nodes:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            argument = node.exc.args[0]
            names = [each.id for each in ast.walk(argument) if isinstance(each, ast.Name)]
            parts = [*texts(argument), *(part for name in names for part in named.get(name, []))]
            if "".join(parts).strip():
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", parts))
    return found


@functools.cache
def looked_for() -> list[str]:
    """What the tests look for in messages: all their texts, without the escapes of regular expressions."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    written: list[str] = []
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Constant, ast.JoinedStr)):
                written += [re.sub(r"\\(.)", r"\1", part) for part in texts(node)]
    return [
        piece
        for text in written
        for piece in re.split(r"\.\*|\.\+|\[\^?[^\]]*\][+*]?|\|| ?Received: ", text)
        if len(piece) >= ENOUGH
    ]


def is_in_a_test(parts: list[str], pieces: list[str]) -> bool:
    message = "\0".join(parts).replace(" Received: ", "\0")
    message = re.sub(" must be (?!one of)", " must be\0", message)
    longest = max(re.split("\0", message), key=len)
    if len(longest) < ENOUGH:  # of which little is written out
        return any(longest.strip(" .:'`") in piece for piece in pieces)
    return any(piece[i : i + ENOUGH] in message for piece in pieces for i in range(len(piece) - ENOUGH + 1))


def test_every_message_is_looked_at_by_a_test() -> None:
    errors = [each for path in sources("multihead") for each in raised(path)]
    assert len(errors) > 100 and len(looked_for()) > 300
    assert [(place, "...".join(parts)[:100]) for place, parts in errors if not is_in_a_test(parts, looked_for())] == []
