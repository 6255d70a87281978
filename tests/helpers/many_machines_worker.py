"""One of two workers of `examples.many_machines`."""

from __future__ import annotations

import tensorflow as tf

from examples import many_machines


def main(index, arguments):
    """Runs the program."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    many_machines.main(arguments)
