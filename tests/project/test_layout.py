"""How the tests are laid out, and what each of them starts from."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tests.helpers.sources import imported, sources


def test_no_test_imports_from_another_test() -> None:
    """What tests share lives in `tests/helpers`."""
    files = sources("tests")
    names = {path.stem for path in files if path.stem.startswith("test_")}
    assert len(names) > 30
    for path in files:
        for name in imported(path):
            parts = name.split(".")
            folder = path.parent.name
            allowed = ["helpers", folder] if folder == "pairs" else ["helpers"]  # whose programs are among the tests
            assert parts[0] != "tests" or parts[1] in allowed, (path, name)
            assert not names & set(parts[:-1]) and parts != ["conftest"], (path, name)


def test_seeds_are_fixed_for_every_test() -> None:
    first = (tf.random.uniform([]).numpy(), np.random.rand())
    keras.utils.set_random_seed(0)
    assert (tf.random.uniform([]).numpy(), np.random.rand()) == first
