"""Generates tables and figures of `docs/results.md` and `benchmarks/README.md` from the lines in `benchmarks/results`.

`python docs/results_tables.py` rewrites them; a test checks that the tables are up to date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
FIGURES = ROOT / "docs" / "results"
PAGES = (ROOT / "docs" / "results.md", ROOT / "benchmarks" / "README.md")


def tables() -> dict[str, str]:
    """The tables by the command that prints them."""
    from benchmarks import _equal_cost_lines, _equal_cost_table, _molecules_table, _multimnist_table, _peers_table
    from benchmarks._published import RESULTS

    return {
        "benchmarks.equal_cost": _equal_cost_table.tables(_equal_cost_lines.LINES),
        "benchmarks.molecules": _molecules_table.tables(RESULTS, list(_molecules_table.NAMES)),
        "benchmarks.multimnist": _multimnist_table.tables(RESULTS, list(_multimnist_table.TASKS)),
        "benchmarks.peers": _peers_table.table(_peers_table.LINES) + _peers_table.link(_peers_table.LINES),
    }


def filled(text: str) -> str:
    """The page with its tables replaced by those of the lines.

    Args:
        text: The page, with `<!-- python -m COMMAND --table -->` before and `<!-- end -->` after each command's tables.
    """
    for command, table in tables().items():
        begin, end = f"<!-- python -m {command} --table -->\n", "<!-- end -->\n"
        text = re.sub(f"{re.escape(begin)}.*?{end}", lambda _, made=f"{begin}\n{table}\n{end}": made, text, flags=re.DOTALL)
    return text


def main() -> None:
    """Writes the tables into the pages, and draws the figures."""
    from benchmarks import (
        _equal_cost_front,
        _equal_cost_lines,
        _equal_cost_table,
        _molecules_table,
        _multimnist_table,
        _peers_table,
    )
    from benchmarks._published import RESULTS

    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    FIGURES.mkdir(exist_ok=True)
    drawn = {
        "molecules.png": _molecules_table.draw(RESULTS),
        "multimnist.png": _multimnist_table.draw(RESULTS),
        "equal_cost.png": _equal_cost_table.draw(_equal_cost_lines.LINES),
        "study_front.png": _equal_cost_front.draw_front_of(_equal_cost_lines.LINES, _equal_cost_front.STUDY),
        "digits_front.png": _equal_cost_front.draw_front_of(_equal_cost_lines.LINES, _equal_cost_front.DIGITS),
        "peers.png": _peers_table.draw(_peers_table.LINES),
    }
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(FIGURES / name, dpi=80)


if __name__ == "__main__":
    main()
