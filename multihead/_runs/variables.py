"""What a checkpoint holds of a run: every variable that training changes, by a name that does not depend on the process.

And what must be the same when the run is resumed, as text by name: of the trainer, and of the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from multihead._data.arguments import Call
from multihead._data.data import Data, num_examples
from multihead._ground.keras import OPTIONS_OF_COMPILE, SCALING, STACK, tensor_variable
from multihead._ground.layers import all_layers, module_variables, random_states, state_variables, use_seed_variables
from multihead._ground.optimizers import optimizer_core, optimizer_state
from multihead._ground.types import Layer, Trainer, Variable

_NOT_DESCRIBED = {"name", "dtype", "trainable", "seed", "batch_input_shape", "batch_shape", "initial_scale"}


def variables_of(trainer: Trainer) -> dict[str, tf.Variable]:
    """The variables of a built trainer that training changes, each once.

    Their names are made of the part that they belong to and a number, because names of layers differ between two trainers
    in one process.
    """
    parts: dict[str, Iterable[Variable]] = {"encoder": _of_module(trainer.encoder)}
    parts.update({f"head {name!r}": _of_module(head.module) for name, head in trainer.heads.items()})
    parts.update({name: getattr(trainer, name).variables for name in _METHODS if getattr(trainer, name) is not None})
    scalings = {name: getattr(trainer, SCALING + name, None) for name in trainer.heads}
    parts.update({f"target scaling {name!r}": scaling.variables for name, scaling in scalings.items() if scaling})
    parts["head weights"] = trainer.head_weights.variables
    parts["optimizer"] = optimizer_state(trainer.optimizer)
    parts["metrics"] = [variable for metric in trainer.metrics for variable in metric.variables]
    spec = trainer.update_spec
    parts["trainer"] = [trainer.updates_before, spec.awake, *spec.faults.state, *trainer.log_metrics.counters]
    parts["others"] = found_in(trainer)
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


_HOLDERS = (keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss, keras.optimizers.Optimizer, tf.Module)


def draw_from_variables(trainer: Trainer) -> None:
    """Makes the layers of a trainer draw random numbers from variables; what was traced before would not."""
    for module in (trainer.encoder, *(head.module for head in trainer.heads.values())):
        if use_seed_variables(module):
            trainer.train_function = None


_METHODS = ("weighting", "balancer", "head_schedule")


def _of_module(module: Layer) -> list[Variable]:
    return [*module_variables(module), *state_variables(module), *random_states(module)]


def describe(trainer: Trainer, variables: Mapping[str, tf.Variable]) -> dict[str, str]:
    """The properties that a checkpoint and the trainer must have in common, as text by name."""
    optimizer = type(optimizer_core(trainer.optimizer)).__name__
    parts = {"stack": STACK, "heads": ", ".join(trainer.heads), "optimizer": optimizer}
    for name in ("balance_at", "gradient_accumulation_steps"):
        parts[name] = str(getattr(trainer.options, name))
    for name in _METHODS:
        parts[name] = "none" if getattr(trainer, name) is None else _in_words(getattr(trainer, name))
    modules = {"encoder": trainer.encoder, **{f"head {name!r}": head.module for name, head in trainer.heads.items()}}
    for name, module in modules.items():
        layers = all_layers(module)
        parts.update({f"{name}, layer {place}": _in_words(layer) for place, layer in enumerate(layers)})
    for name, variable in variables.items():
        # The optimizer names its variables after layers, whose names differ between two trainers in one process.
        label = "" if name.startswith("optimizer/") else variable.name.rpartition("/")[2].removesuffix(":0") + " "
        parts[name] = f"{label}{variable.dtype.name} {list(variable.shape)}"
    return parts


def _in_words(layer: Layer) -> str:
    """A layer's class and the options that are numbers or words."""
    try:
        config = layer.get_config()
    except NotImplementedError:  # a class of the user's own
        config = {}
    options = [
        f"{name}={value}"
        for name, value in sorted(config.items())
        if name not in _NOT_DESCRIBED and isinstance(value, (bool, int, float, str))
    ]
    return f"{type(layer).__name__}({', '.join(options)})"


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
        if stacked is not None and len(parts) == len(stacked):
            for part, value in zip(parts, stacked):
                part.assign(_read(value, variable))
            continue
        if stacked is None:
            value = _read(arrays[f"variable/{name}"], variable)
        else:  # saved on another number of replicas
            values = _read(stacked, variable)
            value = values.sum(axis=0) if name.startswith("metrics/") else values.mean(axis=0, dtype=values.dtype)
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


def _read(value: np.ndarray, variable: tf.Variable) -> np.ndarray:
    return value.view(variable.dtype.as_numpy_dtype) if variable.dtype == tf.bfloat16 else value


# The data

_OF_THE_LOOP = ("batch_size", "steps_per_epoch", "validation_batch_size", "validation_steps", "validation_freq")


def describe_data(call: Call) -> dict[str, str]:
    """What decides which batches come in which order, as text by name.

    Sizes, the options of loops and, of a `tf.data.Dataset`, the numbers of its transformations, such as a shuffle's seed.
    """
    found = {name: str(call.others[name]) for name in _OF_THE_LOOP if call.others.get(name) is not None}
    if call.data.is_arrays or call.data.batches is not None:
        found["shuffle"] = str(call.others.get("shuffle", True))
    found.update(_of_data("x", call.data))
    if call.validation is not None:
        found.update(_of_data("validation_data", call.validation))
    return found


def _of_data(argument: str, data: Data) -> dict[str, str]:
    if data.is_arrays:
        return {argument: f"arrays of {num_examples(data.x)} examples"}
    if data.batches is not None:
        return {argument: f"batches from Python, {'unknown' if data.length is None else data.length} per epoch"}
    if not isinstance(data.x, tf.data.Dataset):
        return {argument: type(data.x).__name__}
    number = int(data.x.cardinality())
    found = {argument: f"a dataset of {number if number >= 0 else 'unknown or infinite'} batches"}
    for place, (kind, numbers) in enumerate(_parts(data.x)):
        options = ", ".join(f"{name}={value}" for name, value in sorted(numbers.items()))
        found[f"{argument}, part {place}"] = f"{kind}({options})"
    return found


def has_unseeded_shuffle(data: Data | None) -> bool:
    """Whether the data are a `tf.data.Dataset` that is shuffled in another order in each process."""
    if data is None or not isinstance(data.x, tf.data.Dataset):
        return False
    return any(numbers.get("seed") == 0 and numbers.get("seed2") == 0 for _, numbers in _parts(data.x))


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
