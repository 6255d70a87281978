"""Generates `docs/developing/options.md`: where each option of `compile` and of `Head` is checked, and where it acts.

`python docs/options_table.py` writes it from the code; a test checks that it is up to date.
"""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "multihead"
PAGE = ROOT / "docs" / "developing" / "options.md"
SHOWN = ("_display/", "_formats/saving.py", "comparison/", "testing/")
"""Where options are only shown, saved or compared: no part of their way."""

COMPILE = ("_trainer/options.py", "CompileOptions", ("options", "requested", "checked"))
HEAD = ("heads/_value.py", "Head", ("head", "value"))
"""The file and the class that have the options as fields, which checks them, and what its instances are called elsewhere."""

Uses = dict[str, dict[str, list[str]]]


def fields(file: str, name: str) -> list[str]:
    """The fields of a data class, in order."""
    (body,) = (node.body for node in ast.parse((PACKAGE / file).read_text()).body if getattr(node, "name", "") == name)
    names = [node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
    return [name for name in names if name != "_"]


@functools.cache
def uses(file: str, name: str, receivers: tuple[str, ...]) -> Uses:
    """By option and file, the functions that read the option, of `self` in its class or of a variable of these names."""
    known, found = fields(file, name), defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for path in sorted(PACKAGE.rglob("*.py")):
        where = path.relative_to(PACKAGE).as_posix()
        for node, scope in _attributes(ast.parse(path.read_text()), ()):
            receiver = getattr(node.value, "id", getattr(node.value, "attr", ""))
            is_own = receiver == "self" and where == file and scope[:1] == (name,)
            if node.attr in known and (is_own or receiver in receivers) and scope[-1] not in found[node.attr][where]:
                found[node.attr][where].append(scope[-1])
    return found


def _attributes(tree: ast.AST, scope: tuple[str, ...]) -> Iterator[tuple[ast.Attribute, tuple[str, ...]]]:
    for node in ast.iter_child_nodes(tree):
        inner = (*scope, node.name) if isinstance(node, (ast.FunctionDef, ast.ClassDef)) else scope
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and inner:
            yield node, inner
        yield from _attributes(node, inner)


def rows(file: str, name: str, receivers: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """By option, where it is checked and where it acts, in Markdown."""
    found, table = uses(file, name, receivers), {}
    for option in fields(file, name):
        checked = [f"`{function}`" for function in found[option].get(file, [])]
        acting = {place: names for place, names in found[option].items() if place != file and not place.startswith(SHOWN)}
        texts = [f"`{place}`: {', '.join(f'`{function}`' for function in names)}" for place, names in acting.items()]
        table[option] = ", ".join(checked), "; ".join(texts)
    return table


def page() -> str:
    """The page."""
    lines = [
        "# Where options act",
        "",
        "Each option is a field of a data class, which checks it; other files read the field where the option acts. Written",
        "by `docs/options_table.py`; `tests/project/test_options_table.py` keeps it up to date. Displays, saved files,",
        "`compare` and `multihead.testing` read options as well; they are left out.",
    ]
    for (file, name, receivers), title in ((COMPILE, "Options of `compile`"), (HEAD, "Options of `Head`")):
        lines += ["", f"## {title}", "", f"Checked in `{file}`, by `{name}`.", "", "| option | checked | acts |"]
        lines += ["| --- | --- | --- |"]
        lines += [f"| `{option}` | {checked} | {acts} |" for option, (checked, acts) in rows(file, name, receivers).items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
