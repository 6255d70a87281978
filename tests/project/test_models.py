"""Keras's private names in the reference models: where they are used, and that they exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import keras
import pytest

from multihead.models import _recurrent

MODELS = Path(__file__).resolve().parents[2] / "models"
FILES = sorted(MODELS.glob("*.py"))

PROJECTIONS = {"_query_dense", "_key_dense", "_value_dense", "_output_dense"}
PRIVATE = {
    "_recurrent.py": {"_could_use_gpu_kernel", "_build_from_signature", *PROJECTIONS},
    "crf_tagger.py": {"_keras_mask"},
}
"""Keras's private names, by the file that uses them."""


def private_attributes(tree: ast.AST) -> list[ast.Attribute]:
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    return [node for node in nodes if re.match(r"_[a-z]", node.attr) and node.attr != "_replace"]


@functools.cache
def own_names() -> set[str]:
    """Private methods and attributes of `self` that this package defines."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
    methods = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    nodes = [node for tree in trees for node in private_attributes(tree) if isinstance(node.ctx, ast.Store)]
    return methods | {node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "self"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_private_names_of_keras_are_used_in_one_file(path):
    text = path.read_text(encoding="utf-8")
    used = {node.attr for node in private_attributes(ast.parse(text))} - own_names()
    used |= set(re.findall(r"(?:has|get|set)attr\([^)]*\"(_[a-z]\w+)\"", text))
    assert used == PRIVATE.get(path.name, set())


def test_private_names_of_keras_exist():
    layers = [_recurrent.attention_layer(2, 3, 0.0, dtype="float32")]
    _recurrent.build_attention(layers[0], 6, 4)
    names = set(PROJECTIONS)
    if keras.__version__.startswith("2."):
        names = PRIVATE["_recurrent.py"]
        layers.append(_recurrent.recurrent_layer("gru", 2, name="layer", dtype="float32"))
    for name in names:
        found = any(hasattr(layer, name) for layer in layers)
        assert found, f"Keras {keras.__version__} has no `{name}` any more; models/_recurrent.py uses it"
