"""What the README says is run, or looked up."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from examples import two_gradients
from multihead import balancing, weighting

ROOT = Path(__file__).resolve().parents[2]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_tables_of_methods_are_those_of_the_docstrings() -> None:
    specification = importlib.util.spec_from_file_location("methods_table", ROOT / "docs" / "methods_table.py")
    maker = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(maker)
    written = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8").partition(maker.BEGIN)[2].partition(maker.END)[0]
    assert written == maker.tables(), "run `python docs/methods_table.py`"
    rows = [line for line in written.splitlines() if line.startswith("| `") and not line.endswith(("cost | paper |",))]
    assert all(cell.strip() for line in rows for cell in line.strip("|").replace("\\|", "").split("|"))
    named = {line.split("`")[1] for line in rows} - {"balancing.", "weighting."}
    classes = [getattr(package, name) for package in (balancing, weighting) for name in package.__all__]
    bases = (balancing.Balancer, weighting.Weighting)
    assert named == {each.__name__ for each in classes if isinstance(each, type) and each not in bases}


@pytest.mark.programs
@pytest.mark.filterwarnings("ignore:The model .* of which this trainer was made:UserWarning")
def test_code_of_the_readme_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Numbers differ between the two versions of Keras, so the words are compared, and that the suggestion helps both heads."""
    namespace: dict[str, Any] = {"__name__": "README"}
    keras.utils.set_random_seed(0)
    for number, block in enumerate(blocks(ROOT / "README.md", "python")):
        exec(compile(block.replace("epochs=40", "epochs=12"), f"README.md, block {number}", "exec"), namespace)
    printed = capsys.readouterr().out
    written = [block for block in blocks(ROOT / "README.md", "text") if "─>" not in block]  # not the diagram
    assert words("".join(written)) == words(printed)
    found = [(float(right), float(error)) for right, error in re.findall(r"(0\.\d+) (\d+\.\d+)$", printed, re.MULTILINE)]
    (right, error), *_, (right_suggested, error_suggested) = found
    assert len(found) == 4 and right_suggested > right + 0.02 and error_suggested < 0.5 * error


def test_code_of_the_readme_needs_nothing_but_the_package() -> None:
    imported = set(re.findall(r"^(?:import|from) (\w+)", "\n".join(blocks(ROOT / "README.md", "python")), re.MULTILINE))
    assert imported == {"keras", "numpy", "multihead"}


def words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z]{2,}", text)


@pytest.mark.programs
def test_picture_is_of_the_numbers_that_the_library_gives(tmp_path: Path) -> None:
    updates = two_gradients.updates()
    assert np.min(two_gradients.GRADIENTS @ updates["plain sum"]) < 0
    assert np.min(two_gradients.GRADIENTS @ updates["UPGrad"]) > -1e-4
    # By hand: each gradient less its part along the other, summed (the two conflict, so both are projected).
    first, second = two_gradients.GRADIENTS.astype(np.float64)
    inner = first @ second
    projected = first - inner / (second @ second) * second + second - inner / (first @ first) * first
    np.testing.assert_allclose(updates["UPGrad"], projected, rtol=1e-5)
    assert two_gradients.main([str(tmp_path / "picture.png")]) == 0
    assert (tmp_path / "picture.png").stat().st_size > 5000


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def test_readme_is_short() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.split()) <= 700 and len(readme.splitlines()) <= 120


def test_the_pages_are_few_and_short() -> None:
    """The pages of `docs/`, with their code and tables; the lines between cells are no words."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    words_of_pages = [word for page in pages for word in page.read_text(encoding="utf-8").split() if re.search(r"\w", word)]
    assert len(pages) <= 32 and len(words_of_pages) <= 25_000
