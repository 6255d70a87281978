"""The arguments of the trainer's methods as Keras takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import keras
import tensorflow as tf

from multihead._data.arrays import read_arrays
from multihead._data.batch import open_batch_size, unpack
from multihead._data.batches import check_batched, read_iterable, read_sequence
from multihead._data.data import Data
from multihead._data.windows import in_windows
from multihead._ground.keras import SEQUENCES_BEGIN_ANEW, spec_of_one_replica, validates_during_fit
from multihead._ground.types import Config, Dataset, Given, Nested
from multihead._ground.validation import is_number


def read(x: Dataset, y: Nested, sample_weight: Nested, head_names: Sequence[str], batch_size: int | None = None) -> Data:
    """Brings arrays of inputs, targets and sample weights, or an iterable of batches `x`, to one form, and checks them."""
    if not gives_batches(x):
        return read_arrays(x, y, sample_weight, head_names)
    _refuse_beside_batches(x, y, sample_weight, batch_size)
    if hasattr(x, "element_spec"):
        specs = tf.nest.map_structure(spec_of_one_replica, x.element_spec)
        batch = unpack(specs, head_names)
        check_batched(specs, f"a {type(x).__name__} of")
        return Data(x, specs=open_batch_size(batch))
    if isinstance(x, keras.utils.Sequence):
        return read_sequence(x, head_names)
    if isinstance(x, Iterable):
        return read_iterable(x, head_names)
    return Data(x)  # what Keras makes datasets of, by itself


def _refuse_beside_batches(x: Dataset, y: Nested, sample_weight: Nested, batch_size: int | None) -> None:
    for name, value in (("y", y), ("sample_weight", sample_weight), ("batch_size", batch_size)):
        if value is not None:
            remedy = "Set the size where its batches are made." if name == "batch_size" else "Put them into its batches."
            raise ValueError(
                f"`{name}` must be left out if `x` yields batches by itself. "
                f"Received: {name} of type {type(value).__name__} with x of type {type(x).__name__}. {remedy}"
            )


def gives_batches(x: Dataset) -> bool:
    """Whether this yields batches of whatever it holds, and is no array, or structure of arrays, of all examples."""
    if x is None or tf.is_tensor(x) or isinstance(x, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(x, "element_spec") or not (hasattr(x, "shape") or hasattr(x, "__array__") or is_number(x))


class Call(NamedTuple):
    """A call of `fit` or `evaluate`, on its way to Keras: its data, other arguments by name, and validation data if any."""

    data: Data
    others: Config
    validation: Data | None = None

    def with_others(self, **others: Nested) -> Call:
        """The call with other arguments."""
        return self._replace(others={**self.others, **others})

    def for_keras(self) -> Config:
        """The arguments as Keras takes them."""
        x, y, sample_weight = self.data[:3]
        arguments = {**self.others, "x": x, "y": y, "sample_weight": sample_weight}
        if "shuffle" in arguments and not self.data.is_arrays and not isinstance(x, keras.utils.Sequence):
            arguments["shuffle"] = False  # Keras 3 would warn of its own default
        if self.validation is not None:
            arguments["validation_data"] = self.validation[:3] if self.validation.is_arrays else self.validation.x
        return arguments

    def in_fixed_order(self, seed: int, batches_per_step: int) -> Call:
        """The call with batches that come in the same order in each process, each made when it is needed."""
        call, validation = self, self.validation
        if validation is not None and validation.batches is not None:
            dataset = validation.as_dataset(None, None, False, "`Checkpoint`")
            call = call._replace(validation=Data(dataset, specs=validation.specs))
        if not self.data.is_arrays and self.data.batches is None:
            return call
        return call._as_dataset(batches_per_step, "`Checkpoint`", seed)

    def in_windows(self, size: int, strategy: tf.distribute.Strategy, ahead: int) -> Call:
        """The call with windows of `size` batches, each of which is one step for Keras; `ahead` of them are made early."""
        if size == 1:
            return self
        call = self._as_dataset(size, "gradient_accumulation_steps")
        windows, steps = in_windows(call.data.x, size, ahead, strategy, self.others.get("steps_per_epoch"))
        return call._replace(data=call.data._replace(x=windows)).with_others(steps_per_epoch=steps)

    def _as_dataset(self, batches_per_step: int, argument: str, seed: int | None = None) -> Call:
        """The call with its data as a dataset of batches, for the sake of an argument."""
        others = dict(self.others)
        batch_size, shuffle, steps = others.pop("batch_size", None), others["shuffle"], others["steps_per_epoch"]
        others["shuffle"] = False
        number = None if steps is None else steps * batches_per_step
        if batch_size is not None and others.get("validation_batch_size") is None:  # as Keras does with arrays
            others["validation_batch_size"] = batch_size
        dataset = self.data.as_dataset(batch_size, number, shuffle, argument, seed)
        if SEQUENCES_BEGIN_ANEW and number is not None and self.data.batches is not None and self.data.length is not None:
            dataset = dataset.take(number)
        return self._replace(data=Data(dataset, specs=self.data.specs), others=others)


def read_call(arguments: Config, head_names: Sequence[str]) -> Call:
    """A call of `fit` or `evaluate`, with its data in one form and checked."""
    others = dict(arguments)
    x, y, sample_weight = (others.pop(name) for name in ("x", "y", "sample_weight"))
    fraction, given = others.pop("validation_split", 0.0), others.pop("validation_data", None)
    # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
    batch_size = None if validates_during_fit(others) else others["batch_size"]
    data = read(x, y, sample_weight, head_names, batch_size)
    first, end = others.get("initial_epoch", 0), others.get("epochs", 1)
    text = f"`epochs` must be above `initial_epoch` to train. Received: epochs={end}, initial_epoch={first}. Pass more."
    if fraction and given is not None:
        text = "`validation_split` has no effect with `validation_data`. Received: both. Pass one of them."
    if first >= end or (fraction and given is not None):
        warnings.warn(text, UserWarning, stacklevel=4)
    if given is not None:
        return Call(data, others, _read_validation(given, head_names))
    data, held_out = data.split(fraction) if fraction else (data, None)
    return Call(data, others, held_out)


def _read_validation(given: Given, head_names: Sequence[str]) -> Data:
    is_tuple = isinstance(given, (tuple, list))
    if is_tuple and len(given) not in (2, 3):
        raise ValueError(
            "`validation_data` must be (x, y), (x, y, sample_weight) or an iterable of batches. "
            f"Received: a {type(given).__name__} of {len(given)}. If the inputs are several, put them into one dict."
        )
    try:
        x, y, sample_weight = (*given, None)[:3] if is_tuple else (given, None, None)
        return read(x, y, sample_weight, head_names)
    except (ValueError, TypeError) as error:
        raise type(error)(f"In `validation_data`: {error}") from error


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
