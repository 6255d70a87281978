"""Private names of Keras are used in one place only, where the stacks differ."""

from __future__ import annotations

import ast
import re

import pytest

from tests.helpers.sources import sources

pytestmark = pytest.mark.mathematics

GROUND = ("keras.py", "calls.py", "layers.py", "optimizers.py")
"""The files of `multihead/_ground/` that may use private names of Keras."""

OF_TENSORFLOW = set(
    "_get_control_flow_context _get_function _in_multi_worker_mode _inputs _noinline _read_only_resource_inputs _seed _value_specs "
    "_watched_variables".split()
)
"""Private names of TensorFlow, which may be used in other files, too."""

NO_NAMES = {"_cosine", "_counted", "_every_", "_loss", "_loss_average", "_plots", "_ratio", "_share", "_update_cosine"}
"""Parts of the names of layers, logs and folders."""


def private_names(path):
    """The private names that a file uses (as attributes, or in strings) and those that it defines."""
    used, defined = set(), {"_replace", "_fields", "_asdict"}  # of named tuples
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            defined.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            defined.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Attribute):
            (defined if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self" else used).add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[a-z]\w+[a-z]", node.value):
            used.add(node.value)
    return {name for name in used if re.match(r"_[a-z]", name)}, defined


def test_private_names_of_keras_stand_where_the_stacks_differ():
    files = {path: private_names(path) for path in sources("multihead")}
    ours = set().union(*(defined for _, defined in files.values()))
    for path, (used, _) in files.items():
        foreign = used - ours - OF_TENSORFLOW - NO_NAMES
        assert (path.parent.name == "_ground" and path.name in GROUND) or not foreign, (
            f"{path}: use through `_ground`: {foreign}"
        )
