"""Generates the tables of methods in `docs/choosing.md` from the docstrings and attributes of the methods.

`python docs/methods_table.py` rewrites them; a test checks that they are up to date.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
BASELINES = ("DWA", "ExcessMTL", "GeometricMean", "GradDrop", "MoCo", "RandomLossWeighting")
FOOTNOTE = """\
† A baseline: we know of no independent study in which it beats a plain sum with tuned weights. `RandomLossWeighting` and
`GradDrop` were compared by [Kurin et al., 2022](https://arxiv.org/abs/2201.04122), and again in [Uniform loss vs.
specialized optimization, 2025](https://arxiv.org/abs/2505.10347), where both are behind the plain sum on MultiMNIST.
"""
BEGIN, END = "<!-- methods: begin -->\n", "<!-- methods: end -->\n"


def said(method: type, start: str, stop: str, *, with_asides: bool = True) -> str:
    """The text of a docstring between `start` and the pattern `stop`; empty if `start` does not occur."""
    text = " ".join((inspect.getdoc(method) or "").split())
    if not with_asides:
        text = re.sub(r" \([^)]*\)", "", text)
    found = re.search(re.escape(start) + r" (.*?)(?:" + stop + r")", text + " ")
    return found.group(1) if found else ""


def paper(method: type) -> str:
    """Authors and year."""
    source = said(method, "Source:", r"\. |\.$| $")
    whole = " ".join((inspect.getdoc(method) or "").split()).partition("Source: ")[2]
    if not whole:
        return "ours"
    if " et al." in whole[:60]:
        authors = whole[: whole.index(" et al.") + 7]
    elif " and " in source[:40]:
        authors = source[: source.index(",", source.index(" and "))]
    else:
        authors = source.partition(",")[0]
    years = re.findall(r"\b(?:19|20)\d\d\b(?!\.\d)", whole)
    return f"{authors.removeprefix('the scale-invariant baseline of ')}, {years[0]}"


def name_of(method: type) -> str:
    """The name, with a mark if no independent study supports the method."""
    return f"`{method.__name__}`" + (" †" if method.__name__ in BASELINES else "")


def balancer_row(method: Any) -> list[str]:
    """Name, what it fixes, extra passes, paper."""
    levels = method().levels
    cost = "none" if "representation" in levels else "one backward pass per head"
    if any(base.__name__ == "RunningBalancer" for base in method.__mro__):
        cost += ", and one stored gradient"
    return [
        name_of(method),
        said(method, "What it fixes:", r"[.;:] |, (?!increasingly)|,? and, ", with_asides=False),
        cost,
        paper(method),
    ]


def weighting_row(method: Any) -> list[str]:
    """Name, what it fixes, its state, extra passes, paper."""
    weighting = method()
    weighting([1.0, 1.0])
    kinds = {True: "learned", False: "tracked across updates" if weighting.variables else "none"}
    cost = "one more forward pass" if "losses_after" in weighting.uses else "none"
    return [
        name_of(method),
        said(method, "What it fixes:", r"[.;:] "),
        kinds[bool(weighting.trainable_variables)],
        cost,
        paper(method),
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def tables() -> str:
    """Both tables, as they appear on the page."""
    from multihead import balancing, weighting
    from multihead._method import methods

    balancers = table(
        ["`balancing.`", "fixes", "extra passes", "paper"],
        [balancer_row(method) for method in methods(balancing.Balancer).values()],
    )
    weightings = table(
        ["`weighting.`", "fixes", "state", "extra passes", "paper"],
        [weighting_row(method) for method in methods(weighting.Weighting).values()],
    )
    return f"\n{balancers}\n{weightings}\n{FOOTNOTE}\n"


def main() -> None:
    """Writes the tables into the page."""
    page = ROOT / "docs" / "choosing.md"
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    page.write_text(before + BEGIN + tables() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
