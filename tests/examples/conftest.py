"""What the tests of the examples share."""

from __future__ import annotations

import contextlib
import io
import warnings

import pytest
import tensorflow as tf

from examples.seq2seq_price import command, run


@pytest.fixture
def stop_tracing():
    """After a call of it functions run without a graph: where each runs too few times for tracing to be worth it."""
    with warnings.catch_warnings():
        # Those of tf.data are traced nevertheless.
        warnings.filterwarnings("ignore", "Even though the `tf.config.experimental_run_functions_eagerly`")
        yield lambda: tf.config.run_functions_eagerly(True)
        tf.config.run_functions_eagerly(False)


@pytest.fixture
def without_graphs(stop_tracing):
    """Functions run without a graph during the whole test."""
    stop_tracing()


@pytest.fixture(scope="session")
def ask():
    """Runs the command on a finished run.

    It returns the model that the command has loaded, so that a test need not load and trace it again, the names of its
    columns, and what was printed.
    """
    load_model = run.load_model

    def ask_finished_run(folder, *arguments):
        loaded = []

        def load(path):
            loaded.append(load_model(path))
            return loaded[-1]

        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as told:
            patch.setattr(run, "load_model", load)
            assert command.main(["--load", str(folder), *arguments]) == 0
        ((model, columns),) = loaded
        return model, columns, told.getvalue()

    return ask_finished_run
