"""Words that must not come back: the field has a plainer one. The list is short, and each has what to write instead.

And names: no two functions or classes of the package have one.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest

from tests.helpers.sources import ROOT, sources

pytestmark = pytest.mark.mathematics  # of texts

INSTEAD = {
    r"sat out": "was skipped",
    r"see to it": "a verb",
    r"for good\b(?! reason)": "permanently",
    r"(?<![\w\"] )in words(?! if)|[a-z]+ings? in words": "as text",
    r"the luck of": "variance between seeds",
    r"(?:has|have) (?:the folder|it) for itself": "locks",
    r"of its own says": "the error includes",
    r"begins? anew": "restarts",
    r"(?<!\w)arms?\b(?=[ ,.'`\"])(?! of a)": "variant",
    r"\b(?:the|law of the|its) pace\b(?! with)": "relative learning speed",
    r"anew\b": "again",
    r"the heads together": "the combined gradient",
    r"two figures\b|figures? on (?:the|a) (?:test|validation|training)|the figures? (?:is|are) (?:\d|noise)": "metric, value",
    r"labels that cannot be": "invalid labels",
    r"what yields": "an iterable",
    r"goes round in circles": "cycles",
    r"to be had\b": "available",
    r"in the midst of": "while ... runs",
    r"present weights": "current weights",
    r"for some heads only": "for only some heads",
    r"\ban own [a-z]+": "its own",
    r"\b(?:is|are) refused\b": "rejected",
    r"found by hand": "hand-tuned",
    r"changes? by 0\b": "does not change at all",
    r"beside another one": "together with another",
    r"a program of the repository": "in the repository",
    r"the library began with|library that began": "from which the library started",
    r"[Ss]pend what": "reinvest",
    r"(?:must|to) leave (?:the )?padding out": "ignore padding",
    r"encoder that has been trained before": "pretrained encoder",
    r"go(?:es)? when the (?:head|module) is dropped": "is removed with it",
    r"[Ww]hat holds what": "who owns what",
}
"""Patterns, and what to write instead."""
NOT_IN = ("benchmarks/research", "tests/project/test_words.py")
FOLDERS = ("benchmarks", "docs", "examples", "models", "multihead", "tests")
FILES = [
    path
    for path in sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))])
    if path.suffix in {".md", ".py", ".ipynb"} and not path.relative_to(ROOT).as_posix().startswith(NOT_IN)
]


def words_of(text: str) -> list[str]:
    """The words that must not come back in a text."""
    return [found[0] for pattern in INSTEAD for found in re.finditer(pattern, text)]


@pytest.mark.parametrize("pattern", INSTEAD)
def test_words_do_not_come_back(pattern: str) -> None:
    found = {
        f"{path.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}": match[0]
        for path, text in ((path, path.read_text(encoding="utf-8")) for path in FILES)
        for match in re.finditer(pattern, text)
    }
    assert not found, f"write {INSTEAD[pattern]!r}: {found}"


OF_SEVERAL_MODULES = {"get", "read"}
"""Public functions that modules have under one name, as Keras's do."""


def test_no_two_functions_or_classes_have_one_name() -> None:
    files = defaultdict(list)
    for path in sources("multihead"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name not in OF_SEVERAL_MODULES:
                files[node.name].append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in files.items() if len(paths) > 1}
    assert not twice, f"rename the less public one of {twice}"
