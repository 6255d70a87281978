"""Pages, programs and tests use the names of the API as it is, not those that it had before; only the changes list them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.sources import ROOT

OLD = (
    r"accumulate_steps|drop_head|encoder_(?:learning_rate|weight_decay)\b(?=[=`\"'])|PerHead|Ledger|TensorBoardByHead"
    r"|Abstract(?:Schedule|Clipping|Scaling)|tuning_seed"
)
OF_HEADS = {"learning_rate", "weight_decay"}
OLD_ARGUMENTS = {"add_head": OF_HEADS, "Head": OF_HEADS, "compile": {"schedule"}, "export": {"head"}}
FOLDERS = (".github", "benchmarks", "docs", "examples", "models", "multihead", "tests")
SUFFIXES = {".cfg", ".ipynb", ".md", ".py", ".toml", ".txt", ".yml"}
FILES = sorted(
    path
    for path in (*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*")))
    if path.suffix in SUFFIXES and path.name != "CHANGELOG.md" and path != Path(__file__)
)


def old_names(text: str) -> list[str]:
    """The old names in a text, and the old arguments of its calls."""
    found = re.findall(rf"\b(?:{OLD})\b", text)

    def check(call: re.Match[str]) -> str:
        name, arguments = call.groups()
        given = set(re.findall(r"\b(\w+)=(?!=)", arguments))
        found.extend(f"{name}({each}=)" for each in sorted(given & OLD_ARGUMENTS.get(name, set())))
        return name

    number = 1
    while number:  # from the inner calls to the outer ones
        text, number = re.subn(r"(\w*)\(([^()]*)\)", check, text)
    return found


def test_no_old_name_is_left() -> None:
    found = {path.relative_to(ROOT).as_posix(): old_names(path.read_text(encoding="utf-8")) for path in FILES}
    assert len(found) > 500 and {path: names for path, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "text, expected",
    [
        ("trainer.add_head('price', dense(1), 'mse',\n learning_rate=0.1)", ["add_head(learning_rate=)"]),
        ("compile(Adam(learning_rate=0.1), schedule=Alternate({'a': 1}))", ["compile(schedule=)"]),
        ("compile(AdamW(0.1, weight_decay=0.1), head_schedule=Alternate({'a': 1}))", []),
        ("compile(accumulate_steps=2, encoder_learning_rate=0.1)", ["accumulate_steps", "encoder_learning_rate"]),
        ("compile(gradient_accumulation_steps=2, encoder_learning_rate_multiplier=0.1)", []),
        ('trainer.export(folder, head=["a"])', ["export(head=)"]),
        ("trainer.export(folder, heads=['a']); PassPerHead", []),
        ("callbacks.PerHead(), `tuning_seed`", ["PerHead", "tuning_seed"]),
    ],
)
def test_old_names_are_found(text: str, expected: list[str]) -> None:
    assert old_names(text) == expected
