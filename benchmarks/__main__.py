"""Lists the benchmarks of speed, or runs one: `python -m benchmarks step --quick`.

`python -m benchmarks step --record` records what it measures, and `python -m benchmarks write` writes the tables of what is
recorded into the pages.
"""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "benchmarks" / "speed"
PAGES = (ROOT / "benchmarks" / "README.md", ROOT / "docs" / "howto" / "speed.md")


def programs() -> dict[str, str]:
    """The first sentence of each benchmark's docstring, by name. None is imported."""
    texts = {}
    for path in sorted(FOLDER.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        texts[path.stem] = text.split("\n\n")[0].replace("\n", " ")
    return texts


def with_tables() -> dict[Path, str]:
    """The pages with the tables of the recorded lines.

    Raises:
        ValueError: No page has a place for the tables of a benchmark.
    """
    from benchmarks.speed import _record
    from benchmarks.speed._shared import filled

    pages = {path: path.read_text(encoding="utf-8") for path in PAGES}
    for name in programs():
        lines, command = _record.read(_record.path_of(name)), f"python -m benchmarks {name}"
        if lines:
            table = _record.page_of(importlib.import_module(f"benchmarks.speed.{name}").tables(lines))
            places = [path for path, page in pages.items() if f"<!-- {command} -->" in page]
            if not places:
                raise ValueError(f"`<!-- {command} -->` and `<!-- end -->` must stand on a page, for the tables of {name}.")
            pages |= {path: filled(pages[path], command, table) for path in places}
    return pages


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the list, or runs the benchmark that is named, and returns the exit status."""
    name, *others = [*(sys.argv[1:] if arguments is None else arguments), ""]
    known = programs()
    if name in known:
        return importlib.import_module(f"benchmarks.speed.{name}").main(others[:-1]) or 0
    if name == "write":
        for path, page in with_tables().items():
            path.write_text(page, encoding="utf-8")
        return 0
    if name not in ("", "-h", "--help"):
        print(
            f"benchmarks: error: there is no benchmark {name!r}. Choose among {', '.join([*known, 'write'])}.",
            file=sys.stderr,
        )
        return 2
    print("Run a benchmark with `python -m benchmarks NAME`; `--quick` shows that it runs, `--help` lists its options.")
    print("`--record` records what it measures, and `python -m benchmarks write` writes the tables of the pages.\n")
    for each, text in known.items():
        print(each)
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))
    print("\nWhat sharing an encoder costs or gives is measured by `python -m benchmarks.research`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
