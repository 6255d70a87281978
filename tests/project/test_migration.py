"""Both sides of each migration page run, and train the same; so do both sides of each entry of the page on Addons."""

from __future__ import annotations

import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from multihead.models import _addons_loops
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs

PAGES = [
    page for page in sorted((ROOT / "docs" / "migration").glob("*.md")) if "```diff" in page.read_text(encoding="utf-8")
]


def side_of(block: str, mark: str) -> str:
    """The program before (`-`) or after (`+`) the change."""
    return "\n".join(line[1:] for line in block.splitlines() if line[:1] in ("", " ", mark))


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```diff\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


ADDONS = (ROOT / "docs" / "migration" / "addons.md").read_text(encoding="utf-8")
PROGRAM, PRELUDE, *ENTRIES = blocks_of(ADDONS)
HEADINGS = re.findall(r"^### (.+)$", ADDONS, re.MULTILINE)


def run(code: str, name: str) -> Any:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, name, "exec"), namespace)
    return namespace["result"]


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.addons] * (page.stem == "addons"), id=page.stem) for page in PAGES]
)
def test_both_sides_of_a_migration_give_the_same(page: Path) -> None:
    program, *entries = blocks_of(page.read_text(encoding="utf-8"))
    after = run(side_of(program, "+"), page.name)
    if page.stem == "addons":
        source = np.array([[4, 5, 6, 3], [7, 8, 3, 0], [5, 3, 0, 0]] * 8)
        np.testing.assert_array_equal(after, source)
        if not _addons_loops.is_installed():
            return
        before = np.asarray(run(side_of(program, "-"), page.name))
        np.testing.assert_array_equal(np.where(source != 0, before, 0), source)
        return
    assert entries == []
    before = run(side_of(program, "-"), page.name)
    assert len(before) == len(after) > 2
    for one, other in zip(before, after):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_pages_are_found() -> None:
    assert {page.stem for page in PAGES} == {"addons", "gradient_tape", "keras", "two_optimizers"}


# The page on Addons


@pytest.mark.addons
@pytest.mark.parametrize("heading, entry", list(zip(HEADINGS, ENTRIES)), ids=HEADINGS)
def test_an_entry_computes_what_addons_computes(heading: str, entry: str) -> None:
    after = tf.nest.flatten(run(f"{side_of(PRELUDE, '+')}\n{side_of(entry, '+')}", heading))
    assert all(np.isfinite(each).all() and np.size(each) for each in after)
    if not _addons_loops.is_installed():
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = tf.nest.flatten(run(f"{side_of(PRELUDE, '-')}\n{side_of(entry, '-')}", heading))
    assert len(before) == len(after)
    for one, other in zip(before, after):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_every_entry_has_one_heading_and_uses_what_it_names() -> None:
    assert len(HEADINGS) == len(ENTRIES) > 35
    names = [re.findall(r"`(\w+)`", heading) for heading in HEADINGS]
    assert len(set(sum(names, []))) == len(sum(names, []))
    of_results = {"BasicDecoderOutput", "BeamSearchDecoderOutput", "BeamSearchDecoderState", "FinalBeamSearchDecoderOutput"}
    bases = {"Sampler", "BaseDecoder", "Decoder", "AttentionMechanism", "AttentionWrapperState"}
    for entry, named in zip(ENTRIES, names):
        used = set(re.findall(r"tfa\.\w+\.(\w+)", side_of(entry, "-")))
        assert set(named) - used <= of_results | bases, named
        assert "tfa" not in side_of(entry, "+")


@pytest.mark.addons
@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
def test_every_public_name_of_addons_has_an_entry() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_addons as addons
    public = set()
    for module in (addons.seq2seq, addons.rnn, addons.losses):
        public |= {name for name, each in vars(module).items() if name[0] != "_" and not inspect.ismodule(each)}
    public |= {"crf_log_likelihood", "crf_decode", "CRF"}  # the other functions for such models are steps of these
    assert len(public) > 55
    assert set(re.findall(r"`(\w+)`", " ".join(HEADINGS))) == public
