"""The arguments of the trainer's methods as Keras takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras
import tensorflow as tf

from multihead._data.arrays import read_arrays
from multihead._data.batch import open_batch_size, unpack
from multihead._data.batches import check_batched, read_iterable, read_sequence
from multihead._data.data import Data, check_not_empty, num_examples
from multihead._ground.keras import SEQUENCES_BEGIN_ANEW, spec_of_one_replica, validates_during_fit
from multihead._ground.types import Config, Dataset, Nested
from multihead._ground.validation import is_number, with_message


def read(x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], batch_size: int | None = None) -> Data:
    """Brings arrays of inputs, targets and sample weights, or an iterable of batches `x`, to one form, and checks them."""
    if not gives_batches(x):
        data = read_arrays(x, y, sample_weight, head_names)
        check_not_empty(x, num_examples(data.x))
        return data._replace(batch_size=batch_size if isinstance(batch_size, int) else None)
    _refuse_beside_batches(x, y, sample_weight, batch_size)
    if hasattr(x, "element_spec"):
        specs = tf.nest.map_structure(spec_of_one_replica, x.element_spec)
        batch = unpack(specs, head_names)
        check_batched(specs, f"a {type(x).__name__} of")
        check_not_empty(x, int(x.cardinality()) if isinstance(x, tf.data.Dataset) else None)
        return Data(x, specs=open_batch_size(batch))
    if isinstance(x, keras.utils.Sequence):
        return read_sequence(x, head_names)
    if isinstance(x, Iterable):
        return read_iterable(x, head_names)
    return Data(x)  # what Keras makes datasets of, by itself


def _refuse_beside_batches(x: Dataset, y: Nested, sample_weight: Nested, batch_size: int | None) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight), ("batch_size", batch_size)):
        if value is not None:
            raise ValueError(
                f"`{name}` must be left out if `x` yields batches by itself. Received: {name} of type "
                f"{type(value).__name__} with x of type {type(x).__name__}. Set it where the batches are made."
            )


def gives_batches(x: Dataset) -> bool:
    """Whether this yields batches of whatever it holds, and is no array, or structure of arrays, of all examples."""
    if x is None or tf.is_tensor(x) or isinstance(x, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(x, "element_spec") or not (hasattr(x, "shape") or hasattr(x, "__array__") or is_number(x))


def read_call(arguments: Config, head_names: Sequence[str]) -> tuple[Data, Data | None, Config]:
    """A call of `fit` or `evaluate`: its data, checked, its validation data if any, and the other arguments by name."""
    loop = dict(arguments)
    x, y, sample_weight = (loop.pop(name) for name in ("x", "y", "sample_weight"))
    fraction, given = loop.pop("validation_split", 0.0), loop.pop("validation_data", None)
    # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
    batch_size = None if validates_during_fit(loop) else loop["batch_size"]
    data = read(x, y, sample_weight, head_names, batch_size)
    first, end = loop.get("initial_epoch", 0), loop.get("epochs", 1)
    text = f"`epochs` must be above `initial_epoch` to train. Received: epochs={end}, initial_epoch={first}. Pass more."
    if fraction and given is not None:
        text = "`validation_split` has no effect with `validation_data`. Received: both. Pass one of them."
    if first >= end or (fraction and given is not None):
        warnings.warn(text, UserWarning, stacklevel=4)
    if given is None:
        return (*data.split(fraction), loop) if fraction else (data, None, loop)
    is_tuple = isinstance(given, (tuple, list))
    if is_tuple and len(given) not in (2, 3):
        raise ValueError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or an iterable of batches. "
            f"Received: a {type(given).__name__} of {len(given)}. If the inputs are several, put them into one dict."
        )
    try:
        x, y, sample_weight = (*given, None)[:3] if is_tuple else (given, None, None)
        return data, read(x, y, sample_weight, head_names), loop
    except (ValueError, TypeError) as error:
        raise with_message(error, f"In `validation_data`: {error}") from error


def for_keras(data: Data, validation: Data | None, loop: Config) -> Config:
    """The arguments of a call of `fit` or `evaluate` as Keras takes them."""
    arguments = {**loop, "x": data.x, "y": data.y, "sample_weight": data.sample_weight}
    if "shuffle" in loop and not data.is_arrays and not isinstance(data.x, keras.utils.Sequence):
        arguments["shuffle"] = False  # Keras 3 would warn of its own default
    if validation is not None:
        arguments["validation_data"] = validation[:3] if validation.is_arrays else validation.x
    return arguments


def as_batches(data: Data, loop: Config, size: int, argument: str, seed: int | None) -> tuple[Data, Config]:
    """The data of a call as a dataset of batches, of which `size` make one step, for the sake of an argument."""
    batch_size, steps = loop["batch_size"], loop["steps_per_epoch"]
    number = None if steps is None else steps * size
    dataset = data.as_dataset(batch_size, number, loop["shuffle"], argument, seed)
    if SEQUENCES_BEGIN_ANEW and number is not None and data.batches is not None and data.length is not None:
        dataset = dataset.take(number)
    of_validation = loop["validation_batch_size"] or batch_size  # as Keras does with arrays
    changed = {"batch_size": None, "shuffle": False, "validation_batch_size": of_validation}
    return Data(dataset, specs=data.specs), {**loop, **changed}


def read_batches(
    x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], batch_size: int | None
) -> Iterator[Nested]:
    """The batches of data as for `fit`, or of a list of batches, in order and outside of any graph."""
    if isinstance(x, list) and y is None and all(isinstance(each, tuple) for each in x):
        _refuse_beside_batches(x, y, sample_weight, batch_size)
        return iter(x)
    if y is None and not gives_batches(x):
        raise TypeError(
            "`x` must be an iterable of batches, a list of batches, or arrays together with `y`. "
            f"Received: x of type {type(x).__name__} and y=None. Pass what `fit` takes, or `[(inputs, targets)]`."
        )
    data = read(x, y, sample_weight, head_names, batch_size)
    return data.batches(False) if data.batches else iter(data.as_dataset(batch_size, None, False, "`diagnose`"))
