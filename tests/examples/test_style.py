"""The style of the examples' figures."""

from __future__ import annotations

import matplotlib
import pytest

from examples import _style

pytestmark = pytest.mark.programs


def test_names_at_the_ends_of_lines_do_not_overlap_and_stay_in_the_axis():
    figure, axis = _style.new_figure(1, 1, 3)
    ends = [(1.0, "one", "C0"), (1.001, "other", "C1"), (0.2, "third", "C2")]
    for value, _, color in ends:
        axis.plot([0, 1], [0, value], color=color)
    _style.label_ends(axis, 1, ends, gap=0.1)
    heights = {text.get_text(): text.xy[1] for text in axis.texts}
    assert heights["third"] < heights["one"] < heights["other"] <= 1
    assert heights["other"] - heights["one"] == pytest.approx(0.1)


def test_the_style_ends_with_the_drawing():
    before = matplotlib.rcParams["axes.spines.top"]
    inside = _style.styled(lambda: matplotlib.rcParams["axes.spines.top"])()
    assert not inside and matplotlib.rcParams["axes.spines.top"] == before
