"""What the tests of `diagnose` share."""

from __future__ import annotations

import pytest
import tensorflow as tf


@pytest.fixture
def eagerly(request):
    """Functions run without a graph, except in cases about one: tracing tiny models takes longer than running them."""
    tf.config.run_functions_eagerly("graph" not in request.node.name)
    yield
    tf.config.run_functions_eagerly(False)
