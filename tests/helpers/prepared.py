"""TensorFlow as the tests want it, from the first import on: two logical CPUs, one thread, graphs as they were traced."""

from __future__ import annotations

import functools
import warnings

with warnings.catch_warnings():  # what TensorFlow's own imports deprecate is not ours to mend
    warnings.simplefilter("ignore")
    import keras  # noqa: F401 - before TensorFlow's other parts, as users import it
    import tensorflow as tf

    from tests.helpers import kernels

# Tests of replicas need two devices, and these must be asked for before TensorFlow starts; other tests use the first.
_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

# Nets as small as these gain nothing from threads, which take turns with those of the other processes of `pytest -n`.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

# To leave TensorFlow's own frames out of tracebacks takes three calls of Python for each of its functions.
tf.debugging.disable_traceback_filtering()

# Optimizing a graph (Grappler) takes half the time of its first run, and most tests run it once or twice.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})

# Each test seeds, and many of them several times.
kernels.seed_without_forgetting()
kernels.make_variables_of_one_kernel()
kernels.trace_without_stacks()
kernels.trace_with_plain_contexts()
kernels.read_without_tuning()
kernels.slice_arrays_by_one_trace()
kernels.trace_addons_as_it_is()
kernels.trace_recurrent_layers_for_the_cpu()


@functools.cache
def two_devices() -> tf.distribute.Strategy:
    """One strategy for all tests: a second one in a process numbers its collective operations as the first did."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
