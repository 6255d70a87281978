"""What every test starts from: the CPU only, as two logical devices, fixed seeds, single precision."""

from __future__ import annotations

import gc
import importlib
import os
import sys

import pytest

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("MPLBACKEND", "Agg")
# What XLA compiles here runs once or twice; LLVM's optimizations take up to two thirds of the time to compile it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


def pytest_configure(config):
    """Prepares TensorFlow, but not in the process that only hands out tests to those of pytest-xdist."""
    if hasattr(config, "workerinput") or not getattr(config.option, "tx", None):
        importlib.import_module("tests.helpers.prepared")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """As many processes as cores that this one may use: each takes a dozen seconds to import and collect what it runs."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def pytest_collection_finish():
    """Takes what is there permanently, TensorFlow and the tests, out of the rounds of the garbage collector.

    Tracing makes so many objects that the usual threshold of 700 starts rounds all the time, which find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 1000)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef):
    """Seeds what several tests share, so that it is the same whichever of them comes first."""
    if fixturedef.scope != "function":
        import keras  # noqa: PLC0415 - as below, only where tests run

        keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def two_replicas():
    """A strategy of two replicas, the same for all tests."""
    from tests.helpers.prepared import two_devices  # noqa: PLC0415

    return two_devices()


@pytest.fixture(scope="module", autouse=True)
def _free_memory():
    """Frees the graphs of each file's models, which would add up to gigabytes and slow down what follows.

    TensorFlow keeps the gradient of every call of a `tf.custom_gradient` permanently, and with it the graph of the call.
    """
    import keras  # noqa: PLC0415
    from tensorflow.python.framework import ops  # noqa: PLC0415

    from tests.helpers import kernels  # noqa: PLC0415

    gradients = ops.gradient_registry._registry
    before = set(gradients)
    yield
    for name in set(gradients) - before:
        del gradients[name]
    kernels.clear_session()
    if keras.__version__ < "3":
        gc.collect()
    gc.freeze()  # what is left stays, and would be looked at after each file


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
    import tensorflow as tf  # noqa: PLC0415

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    yield
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


@pytest.fixture
def noted_stacks(monkeypatch):
    """Operations of graphs note where they were made, as outside of these tests."""
    from tensorflow.python.framework import ops  # noqa: PLC0415

    from tests.helpers import kernels  # noqa: PLC0415

    monkeypatch.setattr(ops, "_create_c_op", kernels.create_operation)


@pytest.fixture(autouse=True)
def _same_start():
    """Seeds Python, NumPy and Keras, and undoes what a test set globally in Keras and Matplotlib."""
    import keras  # noqa: PLC0415

    keras.utils.set_random_seed(0)
    yield
    keras.mixed_precision.set_global_policy("float32")
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
