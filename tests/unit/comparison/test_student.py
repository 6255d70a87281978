"""Intervals of means against SciPy, and delta-m in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from multihead.comparison._findings import difference_of, relative_changes
from multihead.diagnosis._statistics import student_quantile

pytestmark = pytest.mark.mathematics


@pytest.mark.parametrize("degrees", [*range(1, 31), 99, 100, 1001])
def test_quantiles_of_student(degrees):
    for probability in (0.5, 0.6, 0.75, 0.9, 0.95, 0.975, 0.995, 0.9995):
        assert student_quantile(probability, degrees) == pytest.approx(stats.t.ppf(probability, degrees), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(
    ("values", "verdict", "seeds"),
    [
        ([1.0, 1.1, 0.9], "better", 3),
        ([-1.0, -1.1, -0.9], "worse", 3),
        ([1.0, -1.0, 0.5], "within noise", 3),
        ([1.0], "unknown", 1),
        ([np.nan, np.nan], "unknown", 0),
        ([1.0, np.nan, 1.1, np.inf, 0.9], "better", 3),
    ],
)
def test_verdicts(values, verdict, seeds):
    found = difference_of(np.array(values), 0.95)
    assert (found.verdict, found.seeds) == (verdict, seeds)
    assert math.isnan(found.mean) == (seeds == 0) and math.isnan(found.low) == (seeds < 2)


@pytest.mark.parametrize("confidence", [0, 1, -0.1, 95])
def test_confidence_is_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="`confidence` must be a finite number above 0 and below 1. Received"):
        difference_of(np.ones(3), confidence)


def test_delta_m_in_closed_form():
    values, baselines = np.array([[0.9, 0.8], [2.0, 4.0]]), np.array([[0.6, 0.8], [4.0, 2.0]])
    # The first is better when higher: + 0.3 / 0.6 and 0; the second when lower: + 2 / 4 and - 2 / 2.
    assert relative_changes(values, baselines, np.array([1.0, -1.0])) == pytest.approx([0.5, -0.5])
    # A metric below 0 keeps its direction: from -2 to -1 is better by half of 2.
    assert relative_changes(np.array([[-1.0]]), np.array([[-2.0]]), np.array([1.0])) == pytest.approx([0.5])
    assert np.isnan(relative_changes(np.array([[1.0]]), np.array([[0.0]]), np.array([1.0]))).all()
