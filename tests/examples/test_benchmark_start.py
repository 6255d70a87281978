"""`benchmarks.start`: what a first `fit` costs beside Keras."""

from __future__ import annotations

import re

import pytest

from benchmarks import start

pytestmark = [pytest.mark.programs, pytest.mark.thorough]


def test_it_prints_the_import_and_the_first_fit_beside_keras(capsys):
    start.main(["--quick"])
    printed = capsys.readouterr().out
    assert re.search(r"import of multihead: \d+\.\d percent", printed)
    ratio = re.search(r"\| plain sum \| (\d+\.\d\d) \|", printed)
    assert ratio and float(ratio.group(1)) > 0
