"""`python -m examples` lists every program with the first line of its docstring, and imports none."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from examples import __main__ as listing

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[2]


def test_every_program_is_listed():
    found = listing.programs()
    assert list(found) == sorted(found)
    runnable = {path.stem for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")}
    assert set(found) == (runnable - {"__main__"}) | {"seq2seq_price"}
    assert {"two_gradients", "mean_loss_or_mean_gradient"} <= set(found)


def test_lines_are_those_of_the_docstrings():
    for name, line in listing.programs().items():
        module = importlib.import_module(f"examples.{name}")
        assert line and line == module.__doc__.strip().split("\n\n")[0].replace("\n", " ")


def test_listing_needs_no_tensorflow():
    code = (
        "import runpy, sys\nsys.argv = ['examples']\n"
        "try: runpy.run_module('examples', run_name='__main__')\n"
        "except SystemExit as left: print(left.code, 'tensorflow' in sys.modules, 'keras' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert output.endswith("0 False False\n")
    for name in listing.programs():
        assert f"\n{name}\n    " in output
