"""`benchmarks.fit_options`: options of `compile` for small steps."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import fit_options

pytestmark = pytest.mark.programs


@pytest.mark.thorough
def test_quick_prints_a_row_for_each_option(capsys):
    fit_options.main(["--quick"])
    rows = [line.strip("|").split(" | ") for line in capsys.readouterr().out.splitlines()][2:]
    assert [row[0].strip() for row in rows] == list(fit_options.OPTIONS)
    assert rows[0][1] == "1.00" and all(float(cell.strip(" |")) > 0 for row in rows for cell in row[1:])


def test_the_models_are_the_same_and_times_are_relative_to_the_first():
    made = [make(4, run_eagerly=True) for make in fit_options.COLUMNS.values()]
    x, y = (
        np.zeros([2, fit_options.FEATURES], "float32"),
        {"kind": np.zeros(2, "int64"), "size": np.zeros([2, 1], "float32")},
    )
    for model in made:
        model.evaluate(x, y, verbose=0)
    sizes = [sorted(tuple(weight.shape) for weight in model.trainable_weights) for model in made]
    assert sizes[0] == sizes[1] == sizes[2]
    times = {(c, r): 2.0 * (i + 1) for i, c in enumerate(fit_options.COLUMNS) for r in fit_options.OPTIONS}
    assert "1.00 is 2.00 ms" in fit_options.table(times) and "| defaults | 1.00 | 2.00 | 3.00 |" in fit_options.table(times)
