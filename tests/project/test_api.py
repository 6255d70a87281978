"""`docs/api.txt` lists the public API, so that a change of it is seen in review."""

from __future__ import annotations

from docs import api_list


def test_the_list_of_the_api_is_that_of_the_code() -> None:
    expected = list(api_list.lines())
    found = api_list.PATH.read_text(encoding="utf-8").splitlines()
    changed = sorted(set(expected).symmetric_difference(found))
    assert found == expected, f"run `python docs/api_list.py`; changed: {changed}"


def test_the_list_has_parameters_and_defaults_and_is_the_same_on_every_stack() -> None:
    lines = list(api_list.lines())
    assert "multihead.clipping.ByGlobalNorm(limit)" in lines
    assert "multihead.schedules.Sample(turns, *, seed=0)" in lines
    assert not [line for line in lines if "<" in line or " at 0x" in line]
