"""A number in prose that states a result has a row: in a table of its page, or in a section that its paragraph links to.

Tables, code, what programs print, and what is written from recorded lines are rows themselves; what is left is prose, of pages
and of public docstrings.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from tests.helpers.sources import ROOT

pytestmark = pytest.mark.mathematics  # of texts

PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = (
    *("multihead", "multihead.balancing", "multihead.weighting", "multihead.schedules", "multihead.losses"),
    *("multihead.scaling", "multihead.clipping", "multihead.accumulation", "multihead.callbacks", "multihead.diagnosis"),
    *("multihead.comparison", "multihead.plots", "multihead.models", "multihead.testing"),
)
NUMBER = r"(?<![\w.,:/^-])\d+(?:\.\d+)?(?![\w.]\d)"
RESULT = re.compile(
    rf"(?P<share>{NUMBER}(?:(?: to | and | or |, ){NUMBER})*)(?: ?%| percent\b)"
    rf"|{NUMBER}(?:(?: to | and | or |, ){NUMBER})* (?:times|ms|MB|s|points?)\b"
    r"|(?<![\w.,:/^-])\d+\.\d+(?![\w.]\d)|\b\d+ of \d+\b"
)
"""Percentages; ratios, times and sizes; decimals; and so many of so many."""

NEVER = re.compile(
    r"\b(?:Python|TensorFlow|Keras|wandb|MLflow|TorchJD) \d[\d.]*(?:(?: to| and) \d[\d.]*)?"
    r"|\b(?:section|claim|equation) [\d.]+|\barXiv[: ]\S+|\b95 %(?: confidence)? intervals?"
)
"""What has a number and is no result: versions, places in papers, the level of intervals."""
NO_RESULTS = {
    "README.md": {"NormFloor(1.0)": "a setting"},
    "benchmarks/README.md": {
        "adds 36 percent to the floating-point operations": "computed from the sizes of the model",
        "a ratio of about 1.36": "follows from it",
    },
    "docs/faq.md": {"predicts 0.3 instead of 30,000": "an example of a prediction in the wrong units"},
    "docs/index.md": {"NormFloor(1.0)": "a setting"},
    "docs/reliability.md": {"a representation of 50 MB": "a limit that is tested"},
    "docs/tutorials/ranking.md": {
        "3 % are clicked, and 8 % of these bought": "settings of the data",
        "6 % of the rows": "counted in the data",
        "college (33 %), and never married (43 %)": "counted in the data",
    },
    "multihead.telemetry": {"a decay of 0.98": "a setting"},
    "multihead.balancing.NormBudget": {"30 percent of the encoder's update": "explains the example's setting"},
    "multihead.weighting.GradNorm": {"at least 0.001": "a setting"},
    "multihead.callbacks.HeadEarlyStopping": {"0.05 is 5%": "explains the unit"},
    "multihead.comparison.Comparison.delta_m": {"0.05 is 5 % better": "explains the unit"},
}
"""By page or public name, what else has a number and states no result, and why."""


WRITTEN = re.compile(r"^<!-- python -m [^>]*-->\n(.*?)^<!-- end -->\n", re.DOTALL | re.MULTILINE)
"""What a program writes into a page from recorded lines."""


def prose(text: str) -> str:
    """A text without code, tables, what programs print, and what is written from recorded lines."""
    text = WRITTEN.sub("", text)
    text = re.sub(r"^( *)```.*?^\1```|^ *>>> .*?(?=^ *$|\Z)|`[^`]*`|<!--.*?-->", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not line.startswith(("|", "> ")))


def paragraphs(text: str) -> list[str]:
    """The paragraphs, and the items of lists, each in one line."""
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text)
    return [" ".join(part.split()) for part in parts if part.strip()]


def results_in(name: str, paragraph: str) -> list[str]:
    """The numbers of a paragraph that state results."""
    text = NEVER.sub("", re.sub(r"\]\([^)]*\)", "]", paragraph))
    for fragment in NO_RESULTS.get(name, ()):
        text = text.replace(fragment, "")
    return [match[0] for match in RESULT.finditer(text)]


def section(page: str, anchor: str) -> str:
    """What stands below the heading with an anchor, or the whole page without one."""
    kept, level = [], 0 if anchor else 7
    for line in page.splitlines():
        marks, _, title = line.partition(" ")
        if set(marks) == {"#"}:
            is_wanted = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") == anchor
            level = len(marks) if is_wanted else 0 if level and len(marks) <= level < 7 else level
        if level:
            kept.append(line)
    return "\n".join(kept)


def rows_for(page: Path, paragraph: str) -> str:
    """What a paragraph may take its numbers from: the tables and outputs of its page, and the sections that it links to."""
    text = page.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith(("|", "> "))]
    written = "".join(WRITTEN.findall(text)).splitlines()
    rows += [line for line in written if not line.startswith("`python -m ")]  # which has the commit and the versions
    rows += re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for target, anchor in re.findall(r"\]\(([^)#:\s]*\.md)?(?:#([\w-]+))?\)", paragraph):
        rows.append(section((page.parent / target if target else page).read_text(encoding="utf-8"), anchor))
    return "\n".join(rows)


def is_in(result: str, rows: str) -> bool:
    """Whether each number of a result is in the rows, rounded as it is written; a percentage may be a fraction there."""
    values = [float(value) for value in re.findall(r"\d+(?:\.\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", rows))]
    values += [100 * value for value in values] if re.search("%|percent", result) else []
    written = re.findall(r"\d+(?:\.\d+)?", result)
    return all(any(f"{value:.{len(number.partition('.')[2])}f}" == number for value in values) for number in written)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_result_in_a_page_has_a_row(page: Path) -> None:
    parts = paragraphs(prose(page.read_text(encoding="utf-8")))
    lacking = {
        result: part
        for part in parts
        for result in results_in(name_of(page), part)
        if not is_in(result, rows_for(page, part))
    }
    assert not lacking, f"link to the section with the row, or enter what is no result in `NO_RESULTS`: {lacking}"


def docstrings() -> dict[str, str]:
    """The docstrings of all public classes and functions, and of the public methods."""
    found = {}
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            found[f"{module.__name__}.{name}"] = inspect.getdoc(value) or ""
            for method, inner in vars(value).items() if isinstance(value, type) else ():
                if not method.startswith("_") and callable(inner):
                    found[f"{module.__name__}.{name}.{method}"] = inspect.getdoc(inner) or ""
    return found


def test_public_docstrings_state_no_results() -> None:
    """They have no tables and cannot link to one: results belong on pages."""
    lacking = {
        name: results
        for name, text in docstrings().items()
        for part in paragraphs(prose(text))
        if (results := results_in(name, part))
    }
    assert not lacking


def test_what_is_no_result_is_still_written() -> None:
    texts = {**docstrings(), **{name_of(page): page.read_text(encoding="utf-8") for page in PAGES}}
    for name, fragments in NO_RESULTS.items():
        joined = " ".join(paragraphs(prose(texts[name])))
        assert [each for each in fragments if each not in joined] == [], name


@pytest.mark.parametrize(
    ("result", "rows", "expected"),
    [
        ("64 %", "| 0.644 ± 0.010 |", True),
        ("65 %", "| 0.644 ± 0.010 |", False),
        ("1.06 to 1.09 times", "| 1.06 | 1.09 |", True),
        ("1.06 to 1.19 times", "| 1.06 | 1.09 |", False),
        ("25 of 79", "| 16 of 42 | 9 of 37 |", False),
        ("0.02", "| 0.021 |", True),
    ],
)
def test_a_number_is_in_a_row_as_it_is_rounded(result: str, rows: str, expected: bool) -> None:
    assert results_in("", f"about {result} here") == [result] and is_in(result, rows) == expected


def test_a_section_ends_where_the_next_one_begins() -> None:
    page = "# A\n1\n## One step, measured\n2\n### Inner\n3\n## Next\n4"
    assert section(page, "one-step-measured") == "## One step, measured\n2\n### Inner\n3"
    assert section(page, "") == page and section(page, "absent") == ""
