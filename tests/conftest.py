"""What every test starts from: the CPU only, as two logical devices, fixed seeds, single precision."""

from __future__ import annotations

import gc
import os
import sys
import warnings

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
# What XLA compiles here runs once or twice; LLVM's optimizations take up to two thirds of the time to compile it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

with warnings.catch_warnings():  # what TensorFlow's own imports deprecate is not ours to mend
    warnings.simplefilter("ignore")
    import keras
    import pytest
    import tensorflow as tf
    from tensorflow.python.framework import ops

    from tests.helpers import kernels

# Tests of replicas need two devices, and these must be asked for before TensorFlow starts; other tests use the first.
_CPU = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(_CPU, [tf.config.LogicalDeviceConfiguration()] * 2)

# Nets as small as these gain nothing from threads, which take turns with those of the other processes of `pytest -n`.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)

# Optimizing a graph (Grappler) takes half the time of its first run, and most tests run it once or twice.
tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


# Each test seeds, and many of them several times.
kernels.seed_without_forgetting()
kernels.trace_with_plain_contexts()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """As many processes as cores that this one may use: each takes a dozen seconds to import and collect what it runs."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def pytest_collection_finish():
    """Takes what is there for good, TensorFlow and the tests, out of the rounds of the garbage collector.

    Tracing makes so many objects that the usual threshold of 700 starts rounds all the time, which find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 1000)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """Seeds what several tests share, so that it is the same whichever of them comes first."""
    if fixturedef.scope != "function":
        keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def two_replicas():
    """One strategy for all tests: a second one in a process numbers its collective operations as the first did."""
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


_GRADIENTS = ops.gradient_registry._registry


@pytest.fixture(scope="module", autouse=True)
def _free_memory():
    """Frees the graphs of each file's models, which would add up to gigabytes and slow down what follows.

    TensorFlow keeps the gradient of every call of a `tf.custom_gradient` for good, and with it the graph of the call.
    """
    before = set(_GRADIENTS)
    yield
    added = set(_GRADIENTS) - before
    for name in added:
        del _GRADIENTS[name]
    keras.backend.clear_session()
    kernels.forget()
    gc.collect()


@pytest.fixture(scope="module")
def eager_updates():
    """Updates run without a graph, unless a test asks for one: tracing takes longer than the one or two updates of a test.

    For files whose subject is not the graph: what data may be, what is saved, what is logged.
    """
    from multihead import MultiHeadTrainer

    compile_trainer = MultiHeadTrainer.compile

    def compile_eagerly(self, *args, run_eagerly=None, **options):
        in_graph = options.get("jit_compile") or options.get("steps_per_execution", 1) > 1
        compile_trainer(self, *args, run_eagerly=not in_graph if run_eagerly is None else run_eagerly, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MultiHeadTrainer, "compile", compile_eagerly)
        yield


@pytest.fixture
def optimized_graphs():
    """Graphs are optimized, as outside of these tests."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture(autouse=True)
def _same_start():
    """Seeds Python, NumPy and Keras, and undoes what a test set globally in Keras and Matplotlib."""
    keras.utils.set_random_seed(0)
    yield
    keras.mixed_precision.set_global_policy("float32")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
