"""A call of `fit`: its arguments, its data in one form, and both as Keras takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import keras
import tensorflow as tf

from multihead._data.batch import open_batch_size, unpack
from multihead._data.data import Data, check_not_empty, num_examples
from multihead._data.reading import check_batched, read_arrays, read_iterable, read_sequence
from multihead._ground.keras import SEQUENCES_BEGIN_ANEW, spec_of_one_replica
from multihead._ground.random import without_global_seed
from multihead._ground.types import Callback, ClassWeight, Config, Dataset, Nested
from multihead._ground.validation import is_number, with_message


@dataclass(frozen=True, kw_only=True)
class FitCall:
    """The arguments of `MultiHeadTrainer.fit`; see there. `others` are those that only one version of Keras has.

    All but `validation_split` and `class_weight`, which Keras does not get, go on to it by their names: see `for_keras`.
    """

    x: Dataset
    y: Nested
    batch_size: int | None
    epochs: int
    verbose: int | str
    callbacks: Callback | Sequence[Callback]
    validation_split: float
    validation_data: Dataset
    shuffle: bool | str
    class_weight: ClassWeight | None
    sample_weight: Nested
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: int | Sequence[int]
    others: Mapping[str, object]

    def for_keras(self, data: Data, validation: Data | None) -> Config:
        """The arguments of Keras's `fit`, for data in place of those that were passed."""
        # Keras 3 would warn of its own default beside an iterable of batches.
        keeps_shuffle = data.is_arrays or isinstance(data.x, keras.utils.Sequence)
        held_out = None if validation is None else validation[:3] if validation.is_arrays else validation.x
        own = {
            name: value for name, value in vars(self).items() if name not in ("validation_split", "class_weight", "others")
        }
        replaced = {"x": data.x, "y": data.y, "sample_weight": data.sample_weight, "validation_data": held_out}
        return {**own, **replaced, "shuffle": self.shuffle if keeps_shuffle else False, **self.others}


def as_data(x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], batch_size: int | None = None) -> Data:
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


def read_call(call: FitCall, head_names: Sequence[str]) -> tuple[Data, Data | None]:
    """The data of a `fit`, checked, and its validation data, if any."""
    data = as_data(call.x, call.y, call.sample_weight, head_names, call.batch_size)
    fraction, validation = call.validation_split, call.validation_data
    if call.initial_epoch >= call.epochs:
        received = f"epochs={call.epochs}, initial_epoch={call.initial_epoch}"
        text = f"`epochs` must be above `initial_epoch` to train. Received: {received}. Pass more."
        warnings.warn(text, UserWarning, stacklevel=5)
    if validation is None:
        return data.split(fraction) if fraction else (data, None)
    if fraction:
        text = "`validation_split` has no effect with `validation_data`. Received: both. Pass one of them."
        warnings.warn(text, UserWarning, stacklevel=5)
    parts = tuple(validation) if isinstance(validation, (tuple, list)) else (validation, None, None)
    if len(parts) not in (2, 3):
        raise ValueError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or an iterable of batches. "
            f"Received: a {type(validation).__name__} of {len(parts)}. If the inputs are several, put them into one dict."
        )
    try:
        return data, as_data(parts[0], parts[1], parts[2] if len(parts) == 3 else None, head_names)
    except (ValueError, TypeError) as error:
        raise with_message(error, f"In `validation_data`: {error}") from error


class Source(NamedTuple):
    """Data as Keras's loop reads them, and the call with what they need."""

    data: Data
    call: FitCall


def as_batches(data: Data, call: FitCall, size: int, argument: str, seed: int | None) -> Source:
    """The data as a dataset of batches, of which `size` make one step, for the sake of an argument.

    With a `seed`, arrays are shuffled alike in every process.
    """
    number = None if call.steps_per_epoch is None else call.steps_per_epoch * size
    with nullcontext() if seed is None else without_global_seed():
        dataset = data.as_dataset(call.batch_size, number, call.shuffle, argument, seed)
    if SEQUENCES_BEGIN_ANEW and number is not None and data.batches is not None and data.length is not None:
        dataset = dataset.take(number)
    validation_batch_size = call.validation_batch_size or call.batch_size  # as Keras does with arrays
    batched_call = replace(call, batch_size=None, shuffle=False, validation_batch_size=validation_batch_size)
    return Source(Data(dataset, specs=data.specs), batched_call)


def read_batches(
    x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], batch_size: int | None
) -> Iterator[Nested]:
    """The batches of data as for `fit`, or of a list of batches, in order and outside of any graph."""
    if isinstance(x, list) and y is None and all(isinstance(batch, tuple) for batch in x):
        _refuse_beside_batches(x, y, sample_weight, batch_size)
        return iter(x)
    if y is None and not gives_batches(x):
        raise TypeError(
            "`x` must be an iterable of batches, a list of batches, or arrays together with `y`. "
            f"Received: x of type {type(x).__name__} and y=None. Pass what `fit` takes, or `[(inputs, targets)]`."
        )
    data = as_data(x, y, sample_weight, head_names, batch_size)
    return data.batches(False) if data.batches else iter(data.as_dataset(batch_size, None, False, "`diagnose`"))
