"""What the README says is run, or looked up."""

from __future__ import annotations

import configparser
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import two_gradients
from multihead import balancing, weighting

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_tables_of_methods_are_those_of_the_docstrings() -> None:
    specification = importlib.util.spec_from_file_location("methods_table", ROOT / "docs" / "methods_table.py")
    maker = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(maker)
    written = (ROOT / "README.md").read_text(encoding="utf-8").partition(maker.BEGIN)[2].partition(maker.END)[0]
    assert written == maker.tables(), "run `python docs/methods_table.py`"
    rows = [line for line in written.splitlines() if line.startswith("| `") and not line.endswith(("cost | paper |",))]
    assert all(cell.strip() for line in rows for cell in line.strip("|").replace("\\|", "").split("|"))
    named = {line.split("`")[1] for line in rows} - {"balancing.", "weighting."}
    classes = [getattr(package, name) for package in (balancing, weighting) for name in package.__all__]
    bases = (balancing.Balancer, weighting.Weighting)
    assert named == {each.__name__ for each in classes if isinstance(each, type) and each not in bases}


def run_quick_start(balancer: str) -> dict[str, Any]:
    (source,) = blocks(ROOT / "README.md", "python")
    assert source.count("balancing.EqualNorms()") == 1
    namespace: dict[str, Any] = {"__name__": "README"}
    exec(compile(source.replace("balancing.EqualNorms()", balancer), "README.md", "exec"), namespace)
    return namespace


def test_quick_start_gives_what_the_readme_says(capsys: pytest.CaptureFixture[str]) -> None:
    balanced = run_quick_start("balancing.EqualNorms()")
    assert balanced["predictions"]["band"].shape == (512, 3)
    assert balanced["predictions"]["size"].shape == (512, 1)
    assert "accuracy 0.99" in capsys.readouterr().out
    with_balancer, without = (
        {name: values[-1] for name, values in result["history"].history.items()}
        for result in (balanced, run_quick_start("None"))
    )
    assert with_balancer["band_accuracy"] == pytest.approx(0.99, abs=0.01)
    assert without["band_accuracy"] == pytest.approx(0.68, abs=0.03)
    assert with_balancer["size_share"] == pytest.approx(0.5, abs=1e-3)
    assert without["band_share"] == pytest.approx(0.02, abs=0.005)
    assert (with_balancer["size_loss"], without["size_loss"]) == pytest.approx((50, 42), rel=0.05)


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose)
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_two_commands_come_before_the_quick_start() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    example = text.index(".venv/bin/python -m examples.seq2seq_price\n```")
    assert example < text.index(".venv/bin/python -m pytest -n auto --dist loadfile\n```") < text.index("```python")


def test_extras_that_are_named_exist() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    for page in PAGES:
        for extras in re.findall(r"-e \"?\.\[([\w,]+)\]", page.read_text(encoding="utf-8")):
            assert set(extras.split(",")) <= set(parser["options.extras_require"]), page


def test_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    tables = text[text.index("<!-- methods: begin") : text.index("<!-- methods: end")]
    assert len(text.replace(tables, "").split()) <= 900
