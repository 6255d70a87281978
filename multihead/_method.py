"""The common base of balancers, weightings and schedules, with head names, needs, state and copies; their lookup by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import keras
import tensorflow as tf

from multihead._ground.calls import convert_user_function, no_autograph
from multihead._ground.keras import Untracked, add_state
from multihead._ground.layers import check_initialized
from multihead._ground.types import Config, Function, Nested, Shape, Variable
from multihead._ground.validation import did_you_mean, in_short, normalized, quoted

_CALLED_IN_GRAPHS = "coefficients combine rescale total objective regularizer active passed_on observe".split()
"""The methods that users write, whose Python control flow may depend on tensors."""

_RESULTS = {
    "coefficients": "one number per head, a tensor of shape [num_heads]",
    "active": "one boolean per head, a tensor of shape [num_heads]",
    "passed_on": "one boolean per head, a tensor of shape [num_heads]",
    "combine": "a list with one tensor [n] per tensor [num_heads, n] that it got",
    "rescale": "a list with one tensor [num_heads, n] per tensor that it got",
    "total": "the total loss, a floating-point scalar",
    "objective": "what to minimize, a floating-point scalar",
    "regularizer": "a floating-point scalar or None",
}
"""What these methods must return."""

Kind = TypeVar("Kind", bound="Method")


class Observation(NamedTuple):
    """The results of an update that methods can observe, equal on all replicas.

    Attributes:
        step: The number of updates applied before this one, an int64 scalar.
        active: `[num_heads]` booleans: which heads the update trains.
        losses: `[num_heads]` mean losses over the labelled elements of the whole update, times the weights of the heads; 0
            for idle heads. None without a weighting, unless a method uses `"losses"`.
        norms: `[num_heads]` norms of the heads' weighted gradients at the level where they are combined, or None; NaN in
            updates that reuse coefficients at the parameters.
        gramian: `[num_heads, num_heads]` inner products of the heads' weighted representation gradients. It may be only the
            diagonal, or None, unless a method uses `"gramian"`.
        losses_after: Like `losses`, on the same examples after the update; None unless a method uses `"losses_after"`.
    """

    step: tf.Tensor
    active: tf.Tensor
    losses: tf.Tensor | None = None
    norms: tf.Tensor | None = None
    gramian: tf.Tensor | None = None
    losses_after: tf.Tensor | None = None


class Method(keras.layers.Layer):
    """A layer that the trainer binds to the heads' names and builds for the number of heads.

    Attributes:
        uses: What the method needs from an update. `"step"` (the number of updates applied so far, an int64 scalar),
            `"losses"` are passed as keyword arguments, as documented for the kinds of methods; `"gradients"`,
            `"norms"`, `"gramian"` and `"losses_after"` are computed only if a method uses them.
        scale_invariant: Whether the direction of the encoder's update does not depend on the weights of the heads, because
            the method makes up for the scales of the heads' losses.
        head_names: The heads' names after `bind` has been called, otherwise None.
    """

    uses: tuple[str, ...] = ()
    scale_invariant: bool = False
    _may_use: tuple[str, ...] = ()
    _argument: str | None = None  # the argument of `compile`, for methods whose state belongs to heads by name

    def __init__(self, *, name: str | None, trainable: bool) -> None:
        super().__init__(name=name, dtype="float32", trainable=trainable, autocast=False)
        self.head_names: tuple[str, ...] | None = None
        self._built_for: Untracked[Shape] = Untracked(None)

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        for name in _CALLED_IN_GRAPHS:
            method = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
            if inspect.isfunction(method) and convert_user_function(method) is not method:
                setattr(cls, name, _checked(name, convert_user_function(method)))
            elif isinstance(method, tf.types.experimental.PolymorphicFunction):  # which converts itself
                setattr(cls, name, _checked(name, _bound(method)))

    def bind(self, head_names: Sequence[str]) -> None:
        """Sets the heads' names, in order, so that options can refer to heads by name.

        Raises:
            ValueError: An option names an unknown head, `uses` contains an unknown name, or the method has state for other
                heads.
        """
        # A balancer that was called on a matrix has state for rows without names.
        is_other = self.head_names != tuple(head_names) and (self.head_names is not None or self._argument != "balancer")
        if self._argument and self.variables and is_other:
            raise ValueError(
                f"`{self._argument}` has state for the heads {quoted(self.head_names or ())}. Received: the heads "
                f"{quoted(head_names)}. Create a new one."
            )
        unknown = set(self.uses) - set(self._may_use)
        if unknown:
            raise ValueError(
                f"`uses` of {type(self).__name__} may contain {quoted(self._may_use)}. Received: {quoted(sorted(unknown))}. "
                f"{did_you_mean(sorted(unknown), self._may_use, 'Omit it.')}"
            )
        self.head_names = tuple(head_names)

    def build(self, input_shape: Shape) -> None:
        """Creates the state for `(num_heads,)`, once. A second call does nothing."""
        if self.built:
            return
        self.create_state(int(input_shape[0]))
        self._built_for.value = input_shape
        super().build(input_shape)

    def build_for_heads(self) -> None:
        """Builds the method if its state depends on the heads alone, and not on the shapes of gradients."""
        if self.head_names is not None and "gradients" not in self.uses:
            self.build((len(self.head_names), None))

    def create_state(self, num_heads: int) -> None:
        """Creates the method's variables with `add_state`; called once, when the heads are known. By default none."""

    def add_state(self, name: str, shape: Sequence[int], initializer: object = "zeros", dtype: str = "float32") -> Variable:
        """Creates a Keras variable of the method; to be called in `create_state`.

        It is saved with the trainer, equal on every replica, not trained, and restored if an update is skipped.
        Read it with `tf.convert_to_tensor(variable)` and set it with `variable.assign(value)`, in `observe` or, for a
        balancer, in `coefficients` or `combine`.

        Args:
            name: Name of the variable.
            shape: Its full shape; `(num_heads,)` for one value per head, `()` for a scalar.
            initializer: Anything that Keras accepts as an initializer.
            dtype: Its dtype.
        """
        return add_state(self, name, shape, initializer, dtype)

    def used(self, **known: Any) -> Config:
        """The keyword arguments that the method uses, as tensors; a value passed as a function is computed only if used."""
        values = {name: known[name] for name in self.uses if known.get(name) is not None}
        computed = {name: value() if callable(value) else value for name, value in values.items()}
        return {name: tf.cast(value, tf.int64 if name == "step" else tf.float32) for name, value in computed.items()}

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        """Called once after every update, on every replica with the same arguments. By default it does nothing.

        Assignments made here are not undone: the state must not change if `applied` is False.

        Args:
            update: The results of the update.
            applied: Whether it was applied, a boolean scalar; an update with a non-finite gradient is skipped.
        """

    @property
    def observes(self) -> bool:
        """Whether the method has an `observe` of its own."""
        return type(self).observe is not Method.observe

    def copy(self: Kind) -> Kind:
        """An unbuilt copy with the same configuration and head names."""
        fresh: Kind = type(self).from_config(self.get_config())
        if self.head_names is not None:
            fresh.bind(self.head_names)
        return fresh

    def reset(self) -> None:
        """Resets the state to its initial values."""
        if not self.built or not self.variables:
            return
        fresh = self.copy()
        fresh.build(self._built_for.value)
        for variable, first in zip(self.variables, fresh.variables):
            variable.assign(tf.convert_to_tensor(first))

    def get_build_config(self) -> None:
        """None, so that Keras does not treat a copy as built."""

    def build_from_config(self, config: Config) -> None:
        """Does nothing: the trainer or the first direct call, which know the heads, build the method."""

    def get_config(self) -> Config:
        """The constructor's arguments that are attributes of the same name, with the name if it takes one."""
        parameters = inspect.signature(type(self).__init__).parameters
        is_named = "name" in parameters or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        return {**({"name": self.name} if is_named else {}), **self._options()}

    def _options(self) -> Config:
        arguments = [name for name in inspect.signature(type(self).__init__).parameters if name != "name"]
        # Attributes of every layer, such as `weights`, are not arguments of this class.
        own = [name for name in arguments if hasattr(self, name) and not hasattr(keras.layers.Layer, name)]
        return {name: _as_plain(getattr(self, name)) for name in own}


def has_state(method: Method) -> bool:
    """Whether a method has variables once it is built."""
    return type(method).create_state is not Method.create_state


def _checked(name: str, method: Function) -> Function:
    """A user's method, which raises an error if it does not return what it must."""
    if name not in _RESULTS:
        return method
    gives_list, may_be_none = name in ("combine", "rescale"), name == "regularizer"

    def shapes(self: Method, argument: Any) -> list[tf.TensorShape]:
        if gives_list:
            return [tf.TensorShape(tensor.shape[name == "combine" :]) for tensor in argument]
        if name not in ("coefficients", "active", "passed_on"):
            return [tf.TensorShape([])]
        return [tf.TensorShape([argument.shape[0] if name == "coefficients" else len(self.head_names or ()) or None])]

    def is_of_kind(dtype: tf.DType) -> bool:
        is_number = dtype.is_floating or (dtype.is_integer and name == "coefficients")
        return bool(dtype.is_bool if name in ("active", "passed_on") else is_number)

    @no_autograph
    @functools.wraps(method)
    def checked(self: Method, *args: Any, **used: Any) -> Nested:
        result = method(self, *args, **used)
        if result is None and may_be_none:
            return None
        is_list = gives_list and isinstance(result, (list, tuple))
        parts = list(result) if is_list else [result]
        with suppress(ValueError, TypeError):
            parts = [tf.convert_to_tensor(part) for part in parts]
        wanted = shapes(self, args[0] if args else next(iter(used.values())))
        fits = is_list == gives_list and len(parts) == len(wanted) and all(map(tf.is_tensor, parts))
        if not fits or not all(is_of_kind(p.dtype) and w.is_compatible_with(p.shape) for p, w in zip(parts, wanted)):
            received = [f"{part.dtype.name} of shape {part.shape}" if tf.is_tensor(part) else repr(part) for part in parts]
            raise ValueError(
                f"`{name}` of {type(self).__name__} must return {_RESULTS[name]}. Received: "
                f"{', '.join(received) or 'an empty list'}. Correct its result; see docs/extending.md."
            )
        return result

    return checked


def _bound(function: Any) -> Function:
    """A method that is a `tf.function`, as a plain function."""
    return no_autograph(lambda self, *args, **kwargs: function.__get__(self, type(self))(*args, **kwargs))


def _as_plain(value: object) -> object:
    """Lists and dicts of a layer without the classes in which Keras wraps them."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, (list, tuple)) else value


def methods(base: type[Kind]) -> dict[str, type[Kind]]:
    """The package's methods of one kind, by name, in alphabetical order."""
    package = base.__module__.rpartition(".")[0] + "."
    registered = [value for value in keras.saving.get_custom_objects().values() if isinstance(value, type)]
    offered = [cls for cls in registered if issubclass(cls, base) and cls.__module__.startswith(package)]
    return {cls.__name__: cls for cls in sorted(offered, key=lambda cls: cls.__name__.lower())}


def find(argument: str, identifier: object, base: type[Kind]) -> Kind | None:
    """The method with the name of one of the package's classes, ignoring case; an instance or None is returned unchanged."""
    if isinstance(identifier, dict):
        try:
            identifier = keras.saving.deserialize_keras_object(identifier)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"`{argument}` must be from `keras.saving.serialize_keras_object` if it is a dict. Received: "
                f"{identifier!r}. Pass such a dict, or a {argument}. Keras says: {in_short(error)}"
            ) from error
    if identifier is None or isinstance(identifier, base):
        check_initialized(argument, identifier)
        return identifier
    classes = methods(base)
    if isinstance(identifier, str):
        by_plain_name: dict[str, type[Kind]] = {normalized(name): cls for name, cls in classes.items()}
        if normalized(identifier) in by_plain_name:
            return by_plain_name[normalized(identifier)]()  # type: ignore[call-arg]
        hint = did_you_mean([identifier], classes, "Pass one of these, or an instance.")
        raise ValueError(f"`{argument}` must be one of {quoted(sorted(classes))}. Received: {identifier!r}. {hint}")
    raise TypeError(
        f"`{argument}` must be a {argument}, its name, or None. Received: {identifier!r} of type "
        f"{type(identifier).__name__}. Pass, for example, {sorted(classes)[-1]!r}."
    )
