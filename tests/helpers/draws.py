"""What a function of the step gives at many steps, in one call of one graph."""

from __future__ import annotations

import tensorflow as tf


def at_steps(function, count, dtype=tf.float32, **options):
    """The values at the steps from 0 to `count - 1`, stacked in an array; `options` are those of `tf.function`."""
    steps = tf.range(count, dtype=tf.int64)
    signature = tf.TensorSpec(None, dtype)
    return tf.function(lambda: tf.map_fn(function, steps, fn_output_signature=signature), **options)().numpy()
