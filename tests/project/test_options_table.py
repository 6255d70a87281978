"""`docs/developing/options.md` says where each option is checked and acts, and the way there is short."""

from __future__ import annotations

import importlib.util
import inspect

import pytest

from multihead import Head, MultiHeadTrainer
from tests.helpers.sources import ROOT

SPECIFICATION = importlib.util.spec_from_file_location("options_table", ROOT / "docs" / "options_table.py")
TABLE = importlib.util.module_from_spec(SPECIFICATION)
SPECIFICATION.loader.exec_module(TABLE)
BY_METHOD = {"optimizer": "trainer.py", "target_scaling": "trainer.py"}
"""Arguments of `compile` that are no option of later steps: an object of Keras, and a replaced field of heads."""


def test_the_page_is_up_to_date():
    assert TABLE.PAGE.read_text(encoding="utf-8") == TABLE.page(), "run `python docs/options_table.py`"


@pytest.mark.parametrize(("classes", "method"), [(TABLE.COMPILE, MultiHeadTrainer.compile), (TABLE.HEAD, Head)])
def test_every_argument_has_a_row(classes, method):
    arguments = [name for name in inspect.signature(method).parameters if name not in ("self", *BY_METHOD)]
    assert set(TABLE.fields(*classes[:2])) - {"target_scaling"} == set(arguments)


@pytest.mark.parametrize("option", TABLE.fields(*TABLE.COMPILE[:2]))
def test_the_way_of_an_option_of_compile_has_at_most_five_files(option):
    files = {place for place in TABLE.uses(*TABLE.COMPILE)[option] if not place.startswith(TABLE.SHOWN)}
    assert TABLE.COMPILE[0] in files
    assert 1 <= len(files - {TABLE.COMPILE[0]}) + 1 <= 5
    assert files - {TABLE.COMPILE[0]} or option in ("run_eagerly", "steps_per_execution"), "an option that acts nowhere"
