"""The arguments of the trainer's methods as Keras takes them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from multihead._data.arrays import as_arrays, read_arrays
from multihead._data.batches import read_iterable, read_sequence, specs_of_dataset
from multihead._data.data import Data
from multihead._data.windows import Windows
from multihead._ground.keras import validates_during_fit
from multihead._ground.validation import is_number


def read(x: Any, y: Any, sample_weight: Any, head_names: Sequence[str], **others: Any) -> Data:
    """Brings inputs, targets and sample weights to one form, and checks them.

    Args:
        x: Inputs, or something that yields batches.
        y: Targets, if the inputs are arrays.
        sample_weight: Sample weights, if the inputs are arrays.
        head_names: The registered heads.
        **others: Further arguments that only arrays can have, by name.

    Raises:
        ValueError: Targets or weights are missing, superfluous, of another length, or keyed by an unknown head.
        TypeError: Something is of a type or dtype that cannot be trained on.
    """
    if not gives_batches(x):
        return read_arrays(x, y, sample_weight, head_names)
    for name, value in {"y": y, "sample_weight": sample_weight, **others}.items():
        if value is not None:
            remedy = "Set the size where its batches are made." if name == "batch_size" else "Put them into its batches."
            raise ValueError(
                f"`{name}` must be left out if `x` yields batches by itself. "
                f"Received: {name} of type {type(value).__name__} with x of type {type(x).__name__}. {remedy}"
            )
    if hasattr(x, "element_spec"):
        return Data(x, specs=specs_of_dataset(x, head_names))
    if isinstance(x, keras.utils.Sequence):
        return read_sequence(x, head_names)
    if isinstance(x, Iterable):
        return read_iterable(x, head_names)
    return Data(x)  # what Keras makes datasets of, by itself


def read_inputs(x: Any) -> Any:
    """The inputs of `predict` in the form of those of `fit`."""
    return x if gives_batches(x) else as_arrays("x", x)


def gives_batches(x: Any) -> bool:
    """Whether this yields batches of whatever it holds, and is no array, or structure of arrays, of all examples."""
    if x is None or tf.is_tensor(x) or isinstance(x, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(x, "element_spec") or not (hasattr(x, "shape") or hasattr(x, "__array__") or is_number(x))


def named_arguments(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a method of `keras.Model` after `x` and `y` by name."""
    names = [name for name in inspect.signature(method).parameters if name not in ("self", "x", "y")]
    return {**dict(zip(names, args)), **kwargs}


def prepare_fit(arguments: Mapping[str, Any], head_names: Sequence[str]) -> tuple[dict[str, Any], Data, Data | None]:
    """The arguments of a `fit` as Keras takes them, checked, its data and its validation data, if there are any."""
    arguments = dict(arguments)
    others = {"batch_size": arguments.get("batch_size")}
    data = read(arguments["x"], arguments["y"], arguments.get("sample_weight"), head_names, **others)
    fraction = arguments.pop("validation_split", 0.0)
    given = arguments.get("validation_data")
    if given is not None:
        held_out = _read_validation(given, head_names)
    elif fraction:
        data, held_out = data.split(fraction)
    else:
        held_out = None
    return {**arguments, **_as_arguments(data)}, data, held_out


def as_validation_data(data: Data) -> Any:
    """Data in the form of Keras's `validation_data`."""
    return (data.x, data.y, data.sample_weight) if data.is_arrays else data.x


def _as_arguments(data: Data) -> dict[str, Any]:
    return {"x": data.x, "y": data.y, "sample_weight": data.sample_weight}


def _read_validation(given: Any, head_names: Sequence[str]) -> Data:
    is_tuple = isinstance(given, (tuple, list))
    if is_tuple and len(given) not in (2, 3):
        raise ValueError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or what yields batches. "
            f"Received: a {type(given).__name__} of {len(given)}. If the inputs are several, put them into one dict."
        )
    try:
        x, y, sample_weight = (*given, None)[:3] if is_tuple else (given, None, None)
        return read(x, y, sample_weight, head_names)
    except (ValueError, TypeError) as error:
        raise type(error)(f"In `validation_data`: {error}") from error


def prepare_evaluate(arguments: Mapping[str, Any], head_names: Sequence[str]) -> tuple[dict[str, Any], Data]:
    """The arguments of an `evaluate` as Keras takes them, checked, and its data."""
    # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
    others = {} if validates_during_fit(arguments) else {"batch_size": arguments.get("batch_size")}
    data = read(arguments["x"], arguments["y"], arguments.get("sample_weight"), head_names, **others)
    return {**arguments, **_as_arguments(data)}, data


def prepare_windows(arguments: Mapping[str, Any], data: Data, windows: Windows) -> dict[str, Any]:
    """The arguments of a `fit` on windows of batches, from those of a `fit` on the batches."""
    arguments = dict(arguments)
    for name in ("y", "sample_weight"):
        arguments.pop(name)
    steps = arguments.get("steps_per_epoch")
    num_batches = None if steps is None else steps * windows.steps
    batch_size, shuffle = arguments.pop("batch_size", None), arguments.pop("shuffle", True)
    if batch_size is not None:  # Keras would use it for the validation data, too
        arguments.setdefault("validation_batch_size", batch_size)
    batches = data.as_dataset(batch_size, num_batches, shuffle, "accumulate_steps")
    return {**arguments, **windows.arguments_of_fit(batches, steps)}


def read_batches(x: Any, y: Any, sample_weight: Any, head_names: Sequence[str], batch_size: int | None) -> Iterator[Any]:
    """The batches of data as for `fit`, or of a list of batches, in order and outside of any graph."""
    if isinstance(x, list) and y is None and all(isinstance(each, tuple) for each in x):
        return iter(x)
    if y is None and not gives_batches(x):
        raise TypeError(
            "`x` must be what yields batches, a list of batches, or arrays together with `y`. "
            f"Received: x of type {type(x).__name__} and y=None. Pass what `fit` takes, or `[(inputs, targets)]`."
        )
    return read(x, y, sample_weight, head_names, batch_size=batch_size).each(batch_size)
