"""What SECURITY.md promises about files: nothing here unpickles, evaluates or turns a check off, and Keras refuses code."""

from __future__ import annotations

import ast
from pathlib import Path

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer
from tests.helpers.sources import sources

FILES = [path for folder in ("multihead", "models", "examples") for path in sources(folder)]
PICKLERS = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
DOWNLOADERS = {"http", "requests", "socket", "urllib", "ftplib"}


def dangers(source: str) -> list[str]:
    """What a program does that SECURITY.md promises it does not, with line numbers."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            for name in {module.split(".")[0] for module in modules} & (PICKLERS | DOWNLOADERS):
                found.append(f"line {node.lineno}: imports {name}")
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in ("enable_unsafe_deserialization", "get_file") or (
                name in ("eval", "exec", "__import__") and isinstance(node.func, ast.Name)
            ):
                found.append(f"line {node.lineno}: calls {name}")
            for keyword in node.keywords:
                value = getattr(keyword.value, "value", None)
                if (keyword.arg, value) in (("safe_mode", False), ("allow_pickle", True)):
                    found.append(f"line {node.lineno}: {keyword.arg}={value}")
    return found


def test_no_file_unpickles_evaluates_downloads_or_turns_a_check_off() -> None:
    assert len(FILES) > 50
    assert {path: found for path in FILES if (found := dangers(path.read_text(encoding="utf-8")))} == {}


def saved_trainer(path: Path, *, encoder: keras.layers.Layer, weight: object = 1.0) -> Path:
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("size", keras.layers.Dense(1), "mse", weight=weight)
    trainer.compile("sgd")
    inputs = np.ones([4, 3], np.float32)
    trainer.fit(inputs, {"size": np.ones([4, 1], np.float32)}, batch_size=4, verbose=0)
    trainer.save(str(path))
    return path


def test_a_saved_trainer_without_code_loads(tmp_path: Path) -> None:
    path = saved_trainer(tmp_path / "plain.keras", encoder=keras.layers.Dense(2))
    assert keras.models.load_model(str(path)).predict(np.ones([4, 3], np.float32), verbose=0)["size"].shape == (4, 1)


def test_code_in_a_saved_encoder_is_refused(tmp_path: Path) -> None:
    encoder = keras.Sequential([keras.layers.Dense(2), keras.layers.Lambda(lambda values: 2 * values)])
    path = saved_trainer(tmp_path / "lambda.keras", encoder=encoder)
    with pytest.raises((ValueError, TypeError), match="safe_mode|unsafe"):
        keras.models.load_model(str(path))


def test_code_in_a_saved_weight_is_refused(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="lambda"):  # Keras says on saving, too, that this is unsafe
        path = saved_trainer(tmp_path / "weight.keras", encoder=keras.layers.Dense(2), weight=lambda step: 0.5)
    with pytest.raises((ValueError, TypeError), match="safe_mode|unsafe"):
        keras.models.load_model(str(path))
