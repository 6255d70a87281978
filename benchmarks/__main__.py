"""Lists the benchmarks of speed, or runs one: `python -m benchmarks step --quick`."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "speed"


def programs() -> dict[str, str]:
    """The first sentence of each benchmark's docstring, by name. None is imported."""
    texts = {}
    for path in sorted(FOLDER.glob("[!_]*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        texts[path.stem] = text.split("\n\n")[0].replace("\n", " ")
    return texts


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the list, or runs the benchmark that is named, and returns the exit status."""
    name, *others = [*(sys.argv[1:] if arguments is None else arguments), ""]
    known = programs()
    if name in known:
        return importlib.import_module(f"benchmarks.speed.{name}").main(others[:-1]) or 0
    if name not in ("", "-h", "--help"):
        print(f"benchmarks: error: there is no benchmark {name!r}. Choose among {', '.join(known)}.", file=sys.stderr)
        return 2
    print("Run a benchmark with `python -m benchmarks NAME`; `--quick` shows that it runs, `--help` lists its options.\n")
    for each, text in known.items():
        print(each)
        print(textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    "))
    print("\nWhat sharing an encoder costs or gives is measured by `python -m benchmarks.research`.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
