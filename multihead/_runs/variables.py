"""What a checkpoint holds of a run: every variable that training changes, by a name that does not depend on the process.

And what must be the same when the run is resumed, as text by name: of the trainer, and of the data.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import keras
import numpy as np
import tensorflow as tf

from multihead._data.call import FitCall
from multihead._data.data import Data, num_examples
from multihead._ground.keras import OPTIONS_OF_COMPILE, SCALING, STACK, tensor_variable
from multihead._ground.layers import all_layers, module_variables, seed_variables, state_variables, use_seed_variables
from multihead._ground.optimizers import optimizer_core, optimizer_state, variables_held_by
from multihead._ground.types import Config, Layer, Trainer, Variable

_METHODS = ("weighting", "balancer", "head_schedule")
_HOLDERS = (keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss, keras.optimizers.Optimizer, tf.Module)
_OF_THE_CALL = ("batch_size", "steps_per_epoch", "validation_batch_size", "validation_steps", "validation_freq")
_NOT_DESCRIBED = {"name", "dtype", "trainable", "seed", "batch_input_shape", "batch_shape", "initial_scale"}


def _modules(trainer: Trainer) -> dict[str, Layer]:
    return {"encoder": trainer.encoder, **{f"head {name!r}": head.module for name, head in trainer.heads.items()}}


def variables_of(trainer: Trainer) -> dict[str, tf.Variable]:
    """The variables of a built trainer that training changes, each once.

    Their names are made of the part that they belong to and a number, because names of layers differ between two trainers
    in one process.
    """
    parts: dict[str, Iterable[Variable]] = {
        name: [*module_variables(module), *state_variables(module), *seed_variables(module)]
        for name, module in _modules(trainer).items()
    }
    parts.update({name: getattr(trainer, name).variables for name in _METHODS if getattr(trainer, name) is not None})
    scalings = {name: getattr(trainer, SCALING + name, None) for name in trainer.heads}
    parts.update({f"target scaling {name!r}": scaling.variables for name, scaling in scalings.items() if scaling})
    parts["head weights"] = trainer.head_weights.variables
    parts["optimizer"] = optimizer_state(trainer.optimizer)
    parts["metrics"] = [variable for metric in trainer.metrics for variable in metric.variables]
    running = trainer.update_spec.running
    parts["trainer"] = [trainer.updates_before, running.enabled, *running.faults.state, *trainer.log_metrics.counters]
    # Of what the optimizer has besides, for heads that the trainer no longer has, nothing is saved.
    of_optimizer = {id(tensor_variable(variable)) for variable in variables_held_by(trainer.optimizer)}
    parts["others"] = [variable for variable in found_in(trainer) if id(tensor_variable(variable)) not in of_optimizer]
    found: dict[str, tf.Variable] = {}
    seen: set[int] = set()
    for part, variables in parts.items():
        new = {id(variable): variable for variable in map(tensor_variable, variables) if id(variable) not in seen}
        seen.update(new)
        found.update({f"{part}/{place}": variable for place, variable in enumerate(new.values())})
    return found


def found_in(root: Trainer) -> list[Variable]:
    """The variables in the attributes of an object, and in those of the Keras and TensorFlow objects that it holds.

    Keras lists some of them only: it leaves out those that a class holds as random generators and, on Keras 3, as plain
    TensorFlow variables or as metrics.
    """
    found, seen, left = [], set(), [root]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, tf.Variable) or isinstance(tensor_variable(each), tf.Variable):
            found.append(each)
        elif isinstance(each, tf.random.Generator):
            left.append(each.state)
        elif isinstance(each, Mapping):
            left.extend(reversed(list(each.values())))
        elif isinstance(each, (list, tuple, set)):
            left.extend(reversed(list(each)))
        elif isinstance(each, _HOLDERS):
            left.extend(value for name, value in reversed(list(vars(each).items())) if name not in OPTIONS_OF_COMPILE)
    return found


def draw_from_variables(trainer: Trainer) -> None:
    """Makes the layers of a trainer draw random numbers from variables; what was traced before would not."""
    for module in _modules(trainer).values():
        if use_seed_variables(module):
            trainer.train_function = None


def describe(trainer: Trainer, variables: Mapping[str, tf.Variable]) -> dict[str, str]:
    """What a checkpoint and the trainer must have in common, as text by name; of methods and layers, the options."""
    optimizer = type(optimizer_core(trainer.optimizer)).__name__
    parts = {"stack": STACK, "heads": ", ".join(trainer.heads), "optimizer": optimizer}
    for name in ("balance_at", "gradient_accumulation_steps"):
        parts[name] = str(getattr(trainer.options, name))
    configured = {name: getattr(trainer, name) for name in _METHODS}
    for name, module in _modules(trainer).items():
        configured.update({f"{name}, layer {place}": layer for place, layer in enumerate(all_layers(module))})
    for name, each in configured.items():
        config: Config = {}
        with suppress(NotImplementedError):  # a class of the user's own
            config = {} if each is None else each.get_config()
        options = [
            f"{option}={value}"
            for option, value in sorted(config.items())
            if option not in _NOT_DESCRIBED and isinstance(value, (bool, int, float, str))
        ]
        parts[name] = "none" if each is None else f"{type(each).__name__}({', '.join(options)})"
    for name, variable in variables.items():
        # The optimizer names its variables after layers, whose names differ between two trainers in one process.
        label = "" if name.startswith("optimizer/") else variable.name.rpartition("/")[2].removesuffix(":0") + " "
        parts[name] = f"{label}{variable.dtype.name} {list(variable.shape)}"
    return parts


def values_of(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """The values of variables, in dtypes that NumPy can write; those of each replica where they differ."""
    found = {}
    for name, variable in variables.items():
        parts = [_written(part) for part in _of_replicas(variable)]
        is_summed = variable.synchronization == tf.VariableSynchronization.ON_READ  # by a read, of its copies
        if parts and (is_summed or len({part.tobytes() for part in parts}) > 1):
            found[f"replicas/{name}"] = np.stack(parts)
        else:
            found[f"variable/{name}"] = _written(variable)
    return found


def assign(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives variables the values that `values_of` has written."""
    for name, variable in variables.items():
        stacked, parts = arrays.get(f"replicas/{name}"), _of_replicas(variable)
        value = arrays[f"variable/{name}"] if stacked is None else stacked
        value = value.view(variable.dtype.as_numpy_dtype) if variable.dtype == tf.bfloat16 else value
        if stacked is not None and len(parts) == len(stacked):
            for part, of_part in zip(parts, value):
                part.assign(of_part)
            continue
        if stacked is not None:  # saved on another number of replicas
            value = value.sum(axis=0) if name.startswith("metrics/") else value.mean(axis=0, dtype=value.dtype)
        if isinstance(variable, tf.distribute.DistributedValues):
            # TensorFlow crashes if several workers reduce a variable whose memory is that of an array.
            value = tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(value))
        variable.assign(value)


def _of_replicas(variable: Variable) -> Sequence[tf.Variable]:
    """The copies of a variable on the replicas; none if there is only one, or they are on several workers.

    Keras 3's layers change the copies of mirrored variables separately, such as moving averages.
    """
    if not isinstance(variable, tf.distribute.DistributedValues):
        return []
    strategy = variable.distribute_strategy
    parts = strategy.experimental_local_results(variable)
    return parts if 1 < len(parts) == strategy.num_replicas_in_sync else []


def _written(variable: tf.Variable) -> np.ndarray:
    value = np.asarray(tf.convert_to_tensor(variable))
    return value.view(np.uint16) if value.dtype.name == "bfloat16" else value


def describe_data(x: Data, validation: Data | None, call: FitCall) -> dict[str, str]:
    """What decides which batches come in which order, as text by name; a warning where a shuffle has no seed."""
    found = {name: str(value) for name in _OF_THE_CALL if (value := getattr(call, name)) is not None}
    if x.is_arrays or x.batches is not None:
        found["shuffle"] = str(call.shuffle)
    given = {"x": x} if validation is None else {"x": x, "validation_data": validation}
    for argument, data in given.items():
        found[argument] = type(data.x).__name__
        if data.is_arrays:
            found[argument] = f"arrays of {num_examples(data.x)} examples"
        elif data.batches is not None:
            found[argument] = f"batches from Python, {'unknown' if data.length is None else data.length} per epoch"
        elif isinstance(data.x, tf.data.Dataset):
            number = int(data.x.cardinality())
            found[argument] = f"a dataset of {number if number >= 0 else 'unknown or infinite'} batches"
            for place, (kind, numbers) in enumerate(_parts(data.x)):
                options = ", ".join(f"{name}={value}" for name, value in sorted(numbers.items()))
                found[f"{argument}, part {place}"] = f"{kind}({options})"
                if numbers.get("seed") == 0 and numbers.get("seed2") == 0:
                    warnings.warn(
                        f"`{argument}` is shuffled without a seed. If this run is stopped and continued, its batches come "
                        "in another order. Pass `seed=` to `shuffle`, or call `keras.utils.set_random_seed` before.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
    return found


def _parts(dataset: tf.data.Dataset) -> list[tuple[str, dict[str, int]]]:
    """The transformations of a dataset, the last one first: their classes, and whole numbers by name, as a batch size."""
    datasets, found = [dataset], []
    for part in datasets:
        datasets.extend(part._inputs())
        numbers = {}
        for name, value in sorted(vars(part).items()):
            is_scalar = tf.is_tensor(value) and value.dtype.is_integer and value.shape.rank == 0
            if isinstance(value, (bool, int)) or (is_scalar and hasattr(value, "numpy")):
                numbers[name.lstrip("_")] = int(value)
        found.append((type(part).__name__.lstrip("_"), numbers))
    return found
