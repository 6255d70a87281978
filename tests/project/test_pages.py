"""Every page's code runs, top to bottom, and prints what the test expects of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.sources import ROOT

WRITTEN = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in WRITTEN if "```python" in page.read_text(encoding="utf-8")]
PRINTED = {
    "finetuning": ["[0.005, 0.025]", "1 True", "2 [1.0, 1.0, 0.1, 0.1]", "[0.0, 0.05, 0.1]", "2", "0.25", "[0.0, 1.0] True"],
    "labels": ["True", "{0: 1.5, 2: 0.75}"],
    "custom_loop": ["True 3", "True", "[0.0, 1.0, 1.0]", "[0.6, 0.4]"],
    "watching": ["True"],
    "exporting": ["['price', 'size'] True", "True"],
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    namespace = {"__name__": page.stem}
    for block in blocks:
        exec(compile(block, str(page), "exec"), namespace)
    if page.stem in PRINTED:
        assert capsys.readouterr().out.split("\n")[:-1] == PRINTED[page.stem]
