"""Lists the example programs: `python -m examples`."""

from __future__ import annotations

import argparse
import ast
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def programs() -> dict[str, str]:
    """The first line of each program's docstring, by program name. No program is imported."""
    found = {path.parent if path.name == "__main__.py" else path for path in FOLDER.glob("*/__main__.py")}
    found |= {path for path in FOLDER.glob("*.py") if not path.name.startswith("_")}
    lines = {}
    for path in sorted(found):
        source = path / "__init__.py" if path.is_dir() else path
        text = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or ""
        lines[path.stem] = text.split("\n\n")[0].replace("\n", " ")
    return lines


def main(arguments: list[str] | None = None) -> int:
    """Prints the list and returns the exit status."""
    argparse.ArgumentParser(prog="python -m examples", description=__doc__, allow_abbrev=False).parse_args(arguments)
    print("Run a program with `python -m examples.NAME`; --help lists its options.\n")
    for name, line in programs().items():
        print(name)
        print(textwrap.fill(line, 100, initial_indent="    ", subsequent_indent="    "))
    return 0


if __name__ == "__main__":
    sys.exit(main())
