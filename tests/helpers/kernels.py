"""Less work of TensorFlow's own in tests: seeding that forgets no more kernels than it must, variables of one kernel, operations
without a stack, plain context managers, iterators over data that nothing tunes, functions of Keras's over arrays that are traced once,
libraries whose source AutoGraph does not read, and recurrent layers for the CPU alone.

TensorFlow keeps the kernel of each operation that runs outside of a graph, and forgets all of them at every
`tf.random.set_seed`, because those of random operations count their draws. Making all others again takes longer than the update
that a test runs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import random
import types

import keras
import tensorflow as tf
from tensorflow.python.autograph.core import config
from tensorflow.python.data.ops import dataset_ops, debug_mode, structured_function
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import eager_function_run as eager_functions
from tensorflow.python.framework import ops, random_seed
from tensorflow.python.ops import gen_resource_variable_ops
from tensorflow.python.util import tf_contextlib

if keras.__version__ < "3":
    from keras.src.engine import data_adapter
else:
    from keras.src.trainers.data_adapters import array_data_adapter as data_adapter

create_operation = ops._create_c_op
_drawn = {"eagerly": False, "in a graph": False}
_ADAPTER = inspect.getfile(data_adapter)
_slicing: dict[str, structured_function.StructuredFunctionWrapper] = {}


def seed_without_forgetting() -> None:
    """From here on, a seed forgets kernels only if random operations with a state were made since it was last done.

    A graph with such operations may run again without being made again: `clear_session` says when no graph is left. Those of a
    data set do not count: each iterator has kernels of its own.
    """
    context.Context._set_global_seed = _set_global_seed
    random_seed.get_seed = _noted(random_seed.get_seed)


def make_variables_of_one_kernel() -> None:
    """From here on, variables of one shape and dtype share the kernel that makes them, whatever their names.

    TensorFlow gives the kernel the variable's name for messages, and so makes one for each variable: ten times the work.
    """
    make = gen_resource_variable_ops.var_handle_op
    gen_resource_variable_ops.var_handle_op = lambda *args, debug_name=None, **options: make(*args, **options)


def trace_without_stacks() -> None:
    """From here on, operations of graphs do not note where they were made, which takes a tenth of a trace and more.

    TensorFlow adds the place to its messages. The fixture `noted_stacks` undoes it.
    """
    ops._create_c_op = functools.partial(create_operation, extract_traceback=False)


def trace_with_plain_contexts() -> None:
    """From here on, a graph that is entered, which happens for most operations of a trace, decorates no new function.

    TensorFlow's decorator keeps the signature of what it decorates, for messages; to find that takes 8 percent of a trace.
    """
    tf_contextlib.contextmanager = contextlib.contextmanager


def read_without_tuning() -> None:
    """From here on, no thread tunes an iterator's buffers: whoever frees an iterator waits for that thread to end.

    The wait is some hundredths of a second, after each of thousands of calls of `fit`, `evaluate` and `predict`.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    dataset_ops.DatasetV2._apply_debug_options = lambda self: dataset_ops._OptionsDataset(self, options)


def trace_addons_as_it_is() -> None:
    """From here on, AutoGraph reads neither TensorFlow Addons nor its checks of types, which takes most of a trace of them."""
    rules = [config.DoNotConvert(name) for name in ("tensorflow_addons", "typeguard")]
    config.CONVERSION_RULES = (*rules, *config.CONVERSION_RULES)


def slice_arrays_by_one_trace() -> None:
    """From here on, what Keras takes the rows of arrays by is traced once for all arrays of a structure, until `clear_session`.

    Keras traces three functions for each call of `fit`, `evaluate` and `predict`, which is a quarter of such a call in a test.
    """
    make = structured_function.StructuredFunctionWrapper

    def make_or_share(function, transformation, dataset=None, **options):
        code = getattr(function, "__code__", None)
        changed = debug_mode.DEBUG_MODE or eager_functions.functions_run_eagerly() or context.context().op_callbacks
        if code is None or code.co_filename != _ADAPTER or changed or not context.executing_eagerly():
            return make(function, transformation, dataset=dataset, **options)
        closure = inspect.getclosurevars(function).nonlocals
        if "self" in closure:  # of which the functions use this number
            closure["self"] = closure["self"]._partial_batch_size
        if not all(value is None or isinstance(value, (int, str, types.ModuleType)) for value in closure.values()):
            return make(function, transformation, dataset=dataset, **options)
        settings = context.global_seed(), context.context().device_name
        key = repr((code.co_name, transformation, closure, dataset.element_spec, options, settings))
        if key not in _slicing:
            _slicing[key] = make(function, transformation, dataset=dataset, **options)
        return _slicing[key]

    structured_function.StructuredFunctionWrapper = make_or_share


def trace_recurrent_layers_for_the_cpu() -> None:
    """From here on, Keras 2 traces LSTMs and GRUs, with their gradients, once: not a second time for a GPU."""
    if keras.__version__ < "3":
        from keras.src.layers.rnn import gru_lstm_utils  # noqa: PLC0415 - Keras 3 has none

        gru_lstm_utils.function_register = lambda function, *args, **options: None


def clear_session() -> None:
    """Keras's function of this name. Of kernels, it forgets those of functions that are gone, and all if graphs drew random
    numbers; such graphs must not run any more.

    Keras forgets all of them. The next file needs most of them again: to make them takes as long as its first test.
    """
    _slicing.clear()
    clear = context.Context.clear_kernel_cache
    context.Context.clear_kernel_cache = lambda self: None
    try:
        keras.backend.clear_session()  # that of Keras 3 collects garbage, too
    finally:
        context.Context.clear_kernel_cache = clear
    if any(_drawn.values()):
        context.context().clear_kernel_cache()
    _drawn.update({"eagerly": False, "in a graph": False})


def _noted(get_seed):
    """Every random operation with a state asks this function for its seed when it is made."""

    @functools.wraps(get_seed)
    def noted(op_seed):
        if context.executing_eagerly():
            _drawn["eagerly"] = True
        elif not ops.get_default_graph().name.startswith("Dataset_"):
            _drawn["in a graph"] = True
        return get_seed(op_seed)

    return noted


def _set_global_seed(self, seed) -> None:
    self._seed = seed
    self._rng = random.Random(None if seed is None else int(seed))
    if any(_drawn.values()):
        self.clear_kernel_cache()
        _drawn["eagerly"] = False
