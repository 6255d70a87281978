"""Both sides of the pages that say what to write instead run, and train the same; so do those of each row on Addons."""

from __future__ import annotations

import inspect
import re
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead.models import _addons_loops
from tests.helpers.sources import ROOT

pytestmark = pytest.mark.programs
FOLDER = ROOT / "docs" / "migration"


def run(code: str, name: str) -> dict[str, Any]:
    namespace: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, name, "exec"), namespace)
    return namespace


# Pages with two blocks, before and after


def sides_of(page: str, heading: str) -> list[tuple[str, str]]:
    """The programs before and after, for each pair of blocks below a heading: the blocks above the pair, and the side's own."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    found, above = [], ""
    for label, block in re.findall(r"^(Before:|After:|)\n*```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if label == "Before:":
            before = above + block
        elif label == "After:":
            found.append((before, above + block))
        else:
            above += block
    return found


@pytest.mark.parametrize(
    ("page", "heading", "number"),
    [("migration/keras.md", "## The model you have", 1), ("howto/own_loop.md", "## From a loop to `fit`", 1)],
    ids=["keras", "own_loop"],
)
def test_both_sides_of_a_page_train_the_same(page: str, heading: str, number: int) -> None:
    programs = sides_of(page, heading)
    assert len(programs) == number
    for program in programs:
        found = []
        for side in program:
            keras.utils.set_random_seed(0)
            namespace = run(side.replace("keras.utils.set_random_seed(0)", ""), page)
            weights = [weight for layer in namespace["layers"] for weight in layer.get_weights()]
            history = namespace.get("history", {})
            found.append([*weights, *(history[name] for name in sorted(history) if re.search("loss|mae|accuracy", name))])
        before, after = found
        assert len(before) == len(after) >= 6
        for one, other in zip(before, after):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# The page on Addons


def cells_of(name: str) -> tuple[str, dict[str, str]]:
    """What all cells of a file begin with, and the cells by their headings."""
    beginning, *cells = (FOLDER / name).read_text(encoding="utf-8").split("\n# %% ")
    return beginning, dict(cell.split("\n", 1) for cell in cells)


BEGINNINGS, CELLS = zip(*map(cells_of, ("addons_before.py", "addons_after.py")))
(PROGRAM,) = CELLS[0].keys() - CELLS[1].keys()


def result_of(side: int, cell: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tf.nest.flatten(run(f"{BEGINNINGS[side]}\n{CELLS[side][cell]}", cell)["result"])


@pytest.mark.addons
@pytest.mark.parametrize("cell", CELLS[1])
def test_a_cell_computes_what_addons_computes(cell: str) -> None:
    after = result_of(1, cell)
    assert all(np.isfinite(each).all() and np.size(each) for each in after)
    if not _addons_loops.is_installed():
        return
    before = result_of(0, cell)
    assert len(before) == len(after)
    for one, other in zip(before, after):
        assert np.shape(one) == np.shape(other)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.addons
@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
def test_the_program_of_addons_learns_what_that_of_the_page_learns() -> None:
    source = np.array([[4, 5, 6, 3], [7, 8, 3, 0], [5, 3, 0, 0]] * 8)
    (found,) = result_of(0, PROGRAM)
    np.testing.assert_array_equal(np.where(source != 0, found, 0), source)


def test_every_row_of_the_page_is_a_cell_that_uses_what_it_names() -> None:
    page = (FOLDER / "addons.md").read_text(encoding="utf-8").partition("## Every name")[2]
    firsts = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in page.splitlines() if line.startswith("| `")]
    rows = [", ".join(names) for names in firsts if names]
    assert rows == list(CELLS[1]) == [cell for cell in CELLS[0] if cell != PROGRAM]
    names = sum((row.split(", ") for row in rows), [])
    assert len(set(names)) == len(names)
    of_results = {"BasicDecoderOutput", "BeamSearchDecoderOutput", "BeamSearchDecoderState", "FinalBeamSearchDecoderOutput"}
    bases = {"Sampler", "BaseDecoder", "Decoder", "AttentionMechanism", "AttentionWrapperState"}
    for row in rows:
        used = set(re.findall(r"tfa\.\w+\.(\w+)", CELLS[0][row]))
        assert set(row.split(", ")) - used <= of_results | bases, row
        assert "tfa" not in CELLS[1][row]


@pytest.mark.addons
@pytest.mark.skipif(not _addons_loops.is_installed(), reason="needs TensorFlow Addons")
def test_every_public_name_of_addons_has_a_cell() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow_addons as addons
    public = set()
    for module in (addons.seq2seq, addons.rnn, addons.losses):
        public |= {name for name, each in vars(module).items() if name[0] != "_" and not inspect.ismodule(each)}
    public |= {"crf_log_likelihood", "crf_decode", "CRF"}  # the other functions for such models are steps of these
    assert len(public) > 55
    assert set(", ".join(CELLS[1]).split(", ")) == public
