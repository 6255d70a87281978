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


def _modules_by_name(trainer: Trainer) -> dict[str, Layer]:
    return {"encoder": trainer.encoder, **{f"head {name!r}": head.module for name, head in trainer.heads.items()}}


def variables_of(trainer: Trainer) -> dict[str, tf.Variable]:
    """The variables of a built trainer that training changes, without duplicates.

    Their names are made of the part that they belong to and a number, because names of layers differ between two trainers
    in one process.
    """
    parts: dict[str, Iterable[Variable]] = {
        name: [*module_variables(module), *state_variables(module), *seed_variables(module)]
        for name, module in _modules_by_name(trainer).items()
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
    optimizer_ids = {id(tensor_variable(variable)) for variable in variables_held_by(trainer.optimizer)}
    parts["others"] = [variable for variable in variables_in(trainer) if id(tensor_variable(variable)) not in optimizer_ids]
    by_name: dict[str, tf.Variable] = {}
    seen: set[int] = set()
    for part, variables in parts.items():
        new = {id(variable): variable for variable in map(tensor_variable, variables) if id(variable) not in seen}
        seen.update(new)
        by_name.update({f"{part}/{place}": variable for place, variable in enumerate(new.values())})
    return by_name


def variables_in(root: Trainer) -> list[Variable]:
    """The variables in the attributes of an object, and in those of the Keras and TensorFlow objects that it holds.

    Keras lists some of them only: it leaves out those that a class holds as random generators and, on Keras 3, as plain
    TensorFlow variables or as metrics.
    """
    variables, seen, waiting = [], set(), [root]
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, tf.Variable) or isinstance(tensor_variable(part), tf.Variable):
            variables.append(part)
        elif isinstance(part, tf.random.Generator):
            waiting.append(part.state)
        elif isinstance(part, Mapping):
            waiting.extend(reversed(list(part.values())))
        elif isinstance(part, (list, tuple, set)):
            waiting.extend(reversed(list(part)))
        elif isinstance(part, _HOLDERS):
            waiting.extend(value for name, value in reversed(list(vars(part).items())) if name not in OPTIONS_OF_COMPILE)
    return variables


def draw_from_variables(trainer: Trainer) -> None:
    """Makes the layers of a trainer draw random numbers from variables; what was traced before would not."""
    for module in _modules_by_name(trainer).values():
        if use_seed_variables(module):
            trainer.train_function = None


def describe(trainer: Trainer, variables: Mapping[str, tf.Variable]) -> dict[str, str]:
    """What must be the same in a checkpoint and the trainer, as text by name; of methods and layers, the options."""
    optimizer = type(optimizer_core(trainer.optimizer)).__name__
    parts = {"stack": STACK, "heads": ", ".join(trainer.heads), "optimizer": optimizer}
    for name in ("balance_at", "gradient_accumulation_steps"):
        parts[name] = str(getattr(trainer.options, name))
    configured = {name: getattr(trainer, name) for name in _METHODS}
    for name, module in _modules_by_name(trainer).items():
        configured.update({f"{name}, layer {place}": layer for place, layer in enumerate(all_layers(module))})
    for name, configurable in configured.items():
        config: Config = {}
        with suppress(NotImplementedError):  # a class of the user's own
            config = {} if configurable is None else configurable.get_config()
        options = [
            f"{option}={value}"
            for option, value in sorted(config.items())
            if option not in _NOT_DESCRIBED and isinstance(value, (bool, int, float, str))
        ]
        parts[name] = "none" if configurable is None else f"{type(configurable).__name__}({', '.join(options)})"
    for name, variable in variables.items():
        # The optimizer names its variables after layers, whose names differ between two trainers in one process.
        label = "" if name.startswith("optimizer/") else variable.name.rpartition("/")[2].removesuffix(":0") + " "
        parts[name] = f"{label}{variable.dtype.name} {list(variable.shape)}"
    return parts


def values_of(variables: Mapping[str, tf.Variable]) -> dict[str, np.ndarray]:
    """The values of variables, in dtypes that NumPy can write; those of all replicas where they differ."""
    values = {}
    for name, variable in variables.items():
        parts = [_written(part) for part in _replica_copies(variable)]
        is_summed = variable.synchronization == tf.VariableSynchronization.ON_READ  # by a read, of its copies
        if parts and (is_summed or len({part.tobytes() for part in parts}) > 1):
            values[f"replicas/{name}"] = np.stack(parts)
        else:
            values[f"variable/{name}"] = _written(variable)
    return values


def assign_values(variables: Mapping[str, tf.Variable], arrays: Mapping[str, np.ndarray]) -> None:
    """Gives variables the values that `values_of` has written."""
    for name, variable in variables.items():
        stacked, parts = arrays.get(f"replicas/{name}"), _replica_copies(variable)
        value = arrays[f"variable/{name}"] if stacked is None else stacked
        value = value.view(variable.dtype.as_numpy_dtype) if variable.dtype == tf.bfloat16 else value
        if stacked is not None and len(parts) == len(stacked):
            for part, part_value in zip(parts, value):
                part.assign(part_value)
            continue
        if stacked is not None:  # saved on another number of replicas
            value = value.sum(axis=0) if name.startswith("metrics/") else value.mean(axis=0, dtype=value.dtype)
        if isinstance(variable, tf.distribute.DistributedValues):
            # TensorFlow crashes if several workers reduce a variable whose memory is that of an array.
            value = tf.raw_ops.DeepCopy(x=tf.convert_to_tensor(value))
        variable.assign(value)


def _replica_copies(variable: Variable) -> Sequence[tf.Variable]:
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
    description = {name: str(value) for name in _OF_THE_CALL if (value := getattr(call, name)) is not None}
    if x.is_arrays or x.batches is not None:
        description["shuffle"] = str(call.shuffle)
    sources = {"x": x} if validation is None else {"x": x, "validation_data": validation}
    for argument, data in sources.items():
        description[argument] = type(data.x).__name__
        if data.is_arrays:
            description[argument] = f"arrays of {num_examples(data.x)} examples"
        elif data.batches is not None:
            description[argument] = f"batches from Python, {'unknown' if data.length is None else data.length} per epoch"
        elif isinstance(data.x, tf.data.Dataset):
            number = int(data.x.cardinality())
            description[argument] = f"a dataset of {number if number >= 0 else 'unknown or infinite'} batches"
            for place, (kind, numbers) in enumerate(_transformations(data.x)):
                options = ", ".join(f"{name}={value}" for name, value in sorted(numbers.items()))
                description[f"{argument}, part {place}"] = f"{kind}({options})"
                if numbers.get("seed") == 0 and numbers.get("seed2") == 0:
                    warnings.warn(
                        f"`{argument}` is shuffled without a seed. If this run is stopped and continued, its batches come "
                        "in another order. Pass `seed=` to `shuffle`, or call `keras.utils.set_random_seed` before.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
    return description


def _transformations(dataset: tf.data.Dataset) -> list[tuple[str, dict[str, int]]]:
    """The transformations of a dataset, the last one first: their classes, and whole numbers by name, as a batch size."""
    datasets, transformations = [dataset], []
    for part in datasets:
        datasets.extend(part._inputs())
        numbers = {}
        for name, value in sorted(vars(part).items()):
            is_scalar = tf.is_tensor(value) and value.dtype.is_integer and value.shape.rank == 0
            if isinstance(value, (bool, int)) or (is_scalar and hasattr(value, "numpy")):
                numbers[name.lstrip("_")] = int(value)
        transformations.append((type(part).__name__.lstrip("_"), numbers))
    return transformations
