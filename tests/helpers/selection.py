"""Which tests run where no test is named."""

from __future__ import annotations

import pytest

QUICK = "not programs and not thorough"


def pytest_configure(config: pytest.Config) -> None:
    """Leaves whole programs and long repetitions out of a run for which no path, no `-k` and no `-m` is given.

    A path, be it `tests`, asks for all that lies there. The processes of pytest-xdist get the expression with the options.
    """
    asked = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if not (asked or config.option.keyword or config.option.markexpr or config.getoption("lf", False)):
        config.option.markexpr = QUICK
