"""The one place where Keras 2 and Keras 3 differ, and the private names of Keras that it relies on."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from multihead import _keras
from tests.helpers.sources import ROOT, sources


@pytest.mark.parametrize("name", sorted({name for names in _keras.PRIVATE_NAMES.values() for name in names}))
def test_every_private_name_of_keras_that_is_used_still_exists(name):
    owners = [owner for owner, names in _keras.PRIVATE_NAMES.items() if name in names]
    for owner in owners:
        made = {
            "Layer": lambda: keras.layers.Dense(1),
            "Model": keras.Model,
            "Tensor": lambda: keras.layers.Masking()(np.ones((2, 3, 1), "float32")),
            "LossScaleOptimizer": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD()),
        }[owner]()
        assert hasattr(made, name), f"Keras {keras.__version__} dropped `{owner}.{name}`: find its successor in _keras.py"


def test_private_names_of_keras_stand_in_one_file():
    names = {name for names in _keras.PRIVATE_NAMES.values() for name in names}
    for path in sources("multihead"):
        if path != ROOT / "multihead" / "_keras.py":
            used = set(re.findall(r"\w+", path.read_text(encoding="utf-8"))) & names
            assert used == set(), f"{path}: use these through `_keras`: {used}"
