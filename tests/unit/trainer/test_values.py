"""What is built, without a trainer."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from multihead._trainer.building import Built, Setup


@pytest.mark.parametrize("value", [Built(None, None), Setup()], ids=lambda value: type(value).__name__)
def test_values_do_not_change(value):
    with pytest.raises(FrozenInstanceError):
        value.spec = None
