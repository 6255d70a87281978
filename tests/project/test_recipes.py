"""The balancer and the schedule that docs/developing/recipes.md shows keep the contracts of the library's own."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from types import ModuleType

import keras
import numpy as np
import pytest

from multihead import schedules
from multihead.testing import check_balancer, check_schedule
from tests.helpers.sources import ROOT


@pytest.fixture(autouse=True)
def _registered_for_now() -> Iterator[None]:
    registered = keras.saving.get_custom_objects()
    before = dict(registered)
    yield
    registered.clear()
    registered.update(before)


def module_of(heading: str, start: ModuleType | None = None) -> ModuleType:
    """The first block of Python under a heading, as a module."""
    text = (ROOT / "docs" / "developing" / "recipes.md").read_text(encoding="utf-8").partition(f"## {heading}\n")[2]
    source = textwrap.dedent(re.search(r"^ *```python\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL).group(1))
    module = ModuleType("shown")
    vars(module).update(vars(start) if start else {}, __name__="shown")
    exec(compile(source, f"recipes.md, {heading}", "exec"), vars(module))
    return module


def test_the_balancer_that_is_shown_keeps_the_contract() -> None:
    balancer = module_of("A balancer").RootNorms
    check_balancer(balancer(), num_heads=(1, 3))
    assert all(part in balancer.__doc__ for part in ("Formula", "What it fixes:", "Size of the update:"))
    assert np.isfinite(balancer()([[3.0, 4.0], [0.0, 1.0]])).all()


def test_the_schedule_that_is_shown_works() -> None:
    shown = module_of("A schedule", schedules).Rarely
    schedule = shown("price", every=3)
    schedule.bind(["price", "reply"])
    check_schedule(schedule)
    for message, call in {
        "`head` must not be the only head": lambda: schedule.bind(["price"]),
        "`every` must be a whole number of at least 1": lambda: shown("price", every=0),
        "`head`": lambda: shown("price", every=2).bind(["reply"]),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
