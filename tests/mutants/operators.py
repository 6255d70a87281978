"""Mutants: small changes of the source, each a piece of text that replaces another."""

from __future__ import annotations

import ast
import dataclasses
import random
from pathlib import Path

FOLDERS = ("_update", "balancing", "weighting", "heads", "telemetry")
"""The folders of the package that are mutated."""

COMPARISONS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
ARITHMETIC = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.Pow: "*",
    ast.BitAnd: "|", ast.BitOr: "&",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        path: The file, from the root of the repository.
        line: The line at which the change begins.
        statement: The line of the innermost statement inside a function that contains the change, or 0 outside of functions.
        kind: The operator.
        start, end: Where the replaced text begins and ends, in bytes of the file.
        new: What replaces it.
        text: The change in words, `old -> new`.
    """

    path: str
    line: int
    statement: int
    kind: str
    start: int
    end: int
    new: str
    text: str

    def apply(self, root: Path) -> None:
        """Changes the file below `root`."""
        file = root / self.path
        source = file.read_bytes()
        file.write_bytes(source[: self.start] + self.new.encode() + source[self.end :])


def choose(root: Path, number: int, seed: int) -> list[Mutant]:
    """Mutants at random, at most one per line."""
    found = [mutant for path in sources(root) for mutant in mutants(root, path)]
    random.Random(seed).shuffle(found)
    first_of_line = {}
    for mutant in found:
        first_of_line.setdefault((mutant.path, mutant.line), mutant)
    return list(first_of_line.values())[:number]


def sources(root: Path) -> list[str]:
    """The files that are mutated, from the root of the repository."""
    files = [file for folder in FOLDERS for file in (root / "multihead" / folder).rglob("*.py")]
    return sorted(file.relative_to(root).as_posix() for file in files)


def mutants(root: Path, path: str) -> list[Mutant]:
    """All mutants of a file."""
    source = (root / path).read_bytes()
    tree = ast.parse(source)
    finder = _Finder(path, source, {each.lineno for each in statements(tree, source.decode().split("\n"))})
    finder.visit(tree)
    return finder.found


class _Finder(ast.NodeVisitor):
    """Collects the mutants of a file. Docstrings, annotations, messages, decorators, imports and `__all__` are left as they are."""

    def __init__(self, path: str, source: bytes, marked: set[int]) -> None:
        self.path, self.source, self.marked = path, source, marked
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.depth, self.statement = 0, 0
        self.found: list[Mutant] = []

    def add(self, kind: str, first: ast.AST, new: str, last: ast.AST | None = None) -> None:
        self.replace(kind, self.offset(first), self.offset(last or first, end=True), new)

    def replace(self, kind: str, start: int, end: int, new: str) -> None:
        line = self.source.count(b"\n", 0, start) + 1
        text = f"{' '.join(self.source[start:end].decode().split())} -> {' '.join(new.split())}"
        self.found.append(Mutant(self.path, line, self.statement, kind, start, end, new, text))

    def offset(self, node: ast.AST, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        return self.starts[line - 1] + column

    def text(self, node: ast.AST) -> str:
        return self.source[self.offset(node) : self.offset(node, end=True)].decode()

    def between(self, kind: str, left: ast.AST, right: ast.AST, new: str) -> None:
        """Replaces the operator between two operands; parentheses and line breaks around it stay."""
        start, end = self.offset(left, end=True), self.offset(right)
        gap = self.source[start:end].decode()
        operator = gap.strip("() \n\t\\")
        if "#" not in gap and operator:
            at = start + gap.index(operator)
            self.replace(kind, at, at + len(operator), new)

    # ------------------------------------------------------------------------------------------ statements

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt) and self.depth and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            before = self.statement
            self.statement = node.lineno if node.lineno in self.marked else before
            super().visit(node)
            self.statement = before
        else:
            super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        before = self.statement
        self.statement = before or min(
            (n.lineno for n in ast.walk(node) if getattr(n, "lineno", 0) in self.marked), default=0
        )
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self.depth += 1
        for statement in node.body:
            self.visit(statement)
        self.depth -= 1
        self.statement = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Assign(self, node: ast.Assign) -> None:
        if ast.unparse(node.targets[0]) != "__all__":
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("removed statement", node, "pass")
        if type(node.op) in ARITHMETIC:
            self.between("arithmetic", node.target, node.value, ARITHMETIC[type(node.op)] + "=")
        self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and not _is_message(node.value):
            self.add("removed statement", node, "pass")
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("removed statement", node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add("return value", node.value, "None")
            self.visit(node.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) == "TYPE_CHECKING":
            return
        self.add("negation", node.test, f"not ({self.text(node.test)})")
        self.generic_visit(node)

    def visit_Import(self, node: ast.AST) -> None:
        pass

    visit_ImportFrom = visit_Assert = visit_JoinedStr = visit_Import

    # ------------------------------------------------------------------------------------------ expressions

    def visit_Compare(self, node: ast.Compare) -> None:
        for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators):
            self.between("comparison", left, right, COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(
            isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", 0), str) for n in (node.left, node.right)
        )
        if type(node.op) in ARITHMETIC and not is_text:
            self.between("arithmetic", node.left, node.right, ARITHMETIC[type(node.op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for left, right in zip(node.values, node.values[1:]):
            self.between("boolean", left, right, "or" if isinstance(node.op, ast.And) else "and")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if not isinstance(node.op, ast.UAdd):
            self.add("negation", node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.add("negation", node.test, f"(not ({self.text(node.test)}))")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, str(not node.value))
        elif isinstance(node.value, (int, float)):
            self.add("constant", node, f"({node.value!r} + 1)")

    def visit_Call(self, node: ast.Call) -> None:
        if _is_message(node):
            return
        if len(node.args) > 1 and not any(isinstance(each, ast.Starred) for each in node.args[:2]):
            first, second = node.args[:2]
            if self.text(first) != self.text(second):
                between = self.source[self.offset(first, end=True) : self.offset(second)].decode()
                self.add("swapped arguments", first, self.text(second) + between + self.text(first), second)
        self.generic_visit(node)


def _is_message(call: ast.Call) -> bool:
    """Whether a call makes an error or a warning, whose text is not mutated."""
    name = ast.unparse(call.func).split(".")[-1]
    return name in ("warn", "print") or name.endswith(("Error", "Warning"))


def statements(tree: ast.Module, lines: list[str]) -> list[ast.stmt]:
    """The statements inside functions that begin a line, so that one can be inserted before them."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found = []
    while bodies:
        for each in bodies.pop():
            text = lines[each.lineno - 1]
            is_docstring = isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
            is_definition = isinstance(each, (ast.FunctionDef, ast.ClassDef, ast.Nonlocal))
            begins_line = not text[: each.col_offset].strip() and not text.strip().startswith("elif ")
            if begins_line and not is_docstring and not is_definition:
                found.append(each)
            if not isinstance(each, (ast.FunctionDef, ast.ClassDef)):
                bodies += [getattr(each, name) for name in ("body", "orelse", "finalbody") if getattr(each, name, None)]
                bodies += [handler.body for handler in getattr(each, "handlers", [])]
    return found
