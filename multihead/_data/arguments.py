"""The arguments of the trainer's methods as Keras takes them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from multihead._data.arrays import as_arrays, read_arrays
from multihead._data.batches import read_iterable, read_sequence, specs_of_dataset
from multihead._data.data import Data
from multihead._data.windows import Windows
from multihead._ground.keras import SEQUENCES_BEGIN_ANEW, validates_during_fit
from multihead._ground.random import RandomStream
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
    _refuse_beside_batches(x, {"y": y, "sample_weight": sample_weight, **others})
    if hasattr(x, "element_spec"):
        return Data(x, specs=specs_of_dataset(x, head_names))
    if isinstance(x, keras.utils.Sequence):
        return read_sequence(x, head_names)
    if isinstance(x, Iterable):
        return read_iterable(x, head_names)
    return Data(x)  # what Keras makes datasets of, by itself


def _refuse_beside_batches(x: Any, others: Mapping[str, Any]) -> None:
    for name, value in others.items():
        if value is not None:
            remedy = "Set the size where its batches are made." if name == "batch_size" else "Put them into its batches."
            raise ValueError(
                f"`{name}` must be left out if `x` yields batches by itself. "
                f"Received: {name} of type {type(value).__name__} with x of type {type(x).__name__}. {remedy}"
            )


def read_inputs(x: Any) -> Any:
    """The inputs of `predict` in the form of those of `fit`."""
    return x if gives_batches(x) else as_arrays("x", x)


def gives_batches(x: Any) -> bool:
    """Whether this yields batches of whatever it holds, and is no array, or structure of arrays, of all examples."""
    if x is None or tf.is_tensor(x) or isinstance(x, (str, bytes, list, tuple, Mapping)):
        return False
    return hasattr(x, "element_spec") or not (hasattr(x, "shape") or hasattr(x, "__array__") or is_number(x))


class Call(NamedTuple):
    """A call of `fit` or `evaluate`, on its way to Keras.

    Attributes:
        data: The data.
        others: The other arguments by name.
        validation: The validation data of `fit`, if there are any.
    """

    data: Data
    others: Mapping[str, Any]
    validation: Data | None = None

    def with_others(self, **others: Any) -> Call:
        """The call with other arguments."""
        return self._replace(others={**self.others, **others})

    def for_keras(self) -> dict[str, Any]:
        """The arguments as Keras takes them."""
        x, y, sample_weight = self.data[:3]
        arguments = {**self.others, "x": x, "y": y, "sample_weight": sample_weight}
        if self.validation is not None:
            x, y, sample_weight = self.validation[:3]
            arguments["validation_data"] = (x, y, sample_weight) if self.validation.is_arrays else x
        return arguments

    def for_fit(self) -> dict[str, Any]:
        """The arguments as Keras's `fit` takes them."""
        arguments, x = self.for_keras(), self.data.x
        if not self.data.is_arrays and not isinstance(x, keras.utils.Sequence):
            arguments["shuffle"] = False  # Keras 3 would warn of its own default
        return arguments

    def as_dataset(self, num_batches: int | None, argument: str, seed: int | None = None) -> Call:
        """The call with its data as a dataset of batches.

        Args:
            num_batches: The number of batches of an epoch, if it is given; arrays without a batch size become so many.
            argument: Why it is needed, for messages.
            seed: The seed of the shuffle of arrays.
        """
        others = dict(self.others)
        batch_size, shuffle = others.pop("batch_size", None), others.pop("shuffle", True)
        if batch_size is not None and others.get("validation_batch_size") is None:  # as Keras does with arrays
            others["validation_batch_size"] = batch_size
        dataset = self.data.as_dataset(batch_size, num_batches, shuffle, argument, seed)
        if SEQUENCES_BEGIN_ANEW and num_batches is not None and self.is_made_by_python and self.data.length is not None:
            dataset = dataset.take(num_batches)
        return self._replace(data=Data(dataset, specs=self.data.specs), others=others)

    @property
    def is_made_by_python(self) -> bool:
        """Whether Python makes the batches of training."""
        return self.data.batches is not None

    def drawing_from(self, stream: RandomStream) -> Call:
        """The call whose batches draw global random numbers from a stream, if Python makes them."""
        validation = None if self.validation is None else self.validation.drawing_from(stream)
        return self._replace(data=self.data.drawing_from(stream), validation=validation)

    def in_fixed_order(self, seed: int, batches_per_step: int) -> Call:
        """The call with batches that come in the same order in each process, each made when it is needed.

        Args:
            seed: The seed of the shuffle of arrays.
            batches_per_step: The number of batches of a step, `gradient_accumulation_steps`.
        """
        call, validation = self, self.validation
        if validation is not None and validation.batches is not None:
            dataset = validation.as_dataset(None, None, False, "`Checkpoint`")
            call = call._replace(validation=Data(dataset, specs=validation.specs))
        if not self.data.is_arrays and not self.is_made_by_python:
            return call
        steps = self.others.get("steps_per_epoch")
        return call.as_dataset(None if steps is None else steps * batches_per_step, "`Checkpoint`", seed)

    def in_windows(self, windows: Windows) -> Call:
        """The call with windows of batches, each of which is one step for Keras."""
        steps = self.others.get("steps_per_epoch")
        call = self.as_dataset(None if steps is None else steps * windows.steps, "gradient_accumulation_steps")
        arguments = windows.arguments_of_fit(call.data.x, steps)
        data = Data(arguments.pop("x"), specs=call.data.specs)
        return call._replace(data=data).with_others(**arguments)


def read_fit(arguments: Mapping[str, Any], head_names: Sequence[str]) -> Call:
    """A call of `fit`, with its data in one form and checked."""
    call = _read_call(arguments, head_names)
    others = dict(call.others)
    fraction, given = others.pop("validation_split", 0.0), others.pop("validation_data", None)
    _warn_of_idle(others, splits=bool(fraction) and given is not None)
    if given is not None:
        return Call(call.data, others, _read_validation(given, head_names))
    data, held_out = call.data.split(fraction) if fraction else (call.data, None)
    return Call(data, others, held_out)


def _warn_of_idle(others: Mapping[str, Any], *, splits: bool) -> None:
    """Warns of arguments of `fit` that have no effect with the others."""
    if splits:
        text = "`validation_split` has no effect with `validation_data`. Received: both. Pass one of them."
        warnings.warn(text, UserWarning, stacklevel=5)
    first, end = others.get("initial_epoch", 0), others.get("epochs", 1)
    if first >= end:
        text = f"`epochs` must be above `initial_epoch` to train. Received: epochs={end}, initial_epoch={first}. Pass more."
        warnings.warn(text, UserWarning, stacklevel=5)


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


def read_evaluate(arguments: Mapping[str, Any], head_names: Sequence[str]) -> Call:
    """A call of `evaluate`, with its data in one form and checked."""
    # Within a `fit`, Keras passes the batch size of the training data, whatever the validation data are.
    return _read_call(arguments, head_names, checks_batch_size=not validates_during_fit(arguments))


def _read_call(arguments: Mapping[str, Any], head_names: Sequence[str], *, checks_batch_size: bool = True) -> Call:
    others = dict(arguments)
    x, y, sample_weight = (others.pop(name, None) for name in ("x", "y", "sample_weight"))
    only_arrays = {"batch_size": others.get("batch_size")} if checks_batch_size else {}
    return Call(read(x, y, sample_weight, head_names, **only_arrays), others)


def read_batches(x: Any, y: Any, sample_weight: Any, head_names: Sequence[str], batch_size: int | None) -> Iterator[Any]:
    """The batches of data as for `fit`, or of a list of batches, in order and outside of any graph."""
    if isinstance(x, list) and y is None and all(isinstance(each, tuple) for each in x):
        _refuse_beside_batches(x, {"sample_weight": sample_weight, "batch_size": batch_size})
        return iter(x)
    if y is None and not gives_batches(x):
        raise TypeError(
            "`x` must be what yields batches, a list of batches, or arrays together with `y`. "
            f"Received: x of type {type(x).__name__} and y=None. Pass what `fit` takes, or `[(inputs, targets)]`."
        )
    return read(x, y, sample_weight, head_names, batch_size=batch_size).each(batch_size)
