"""What balancers, weightings and schedules have in common: heads by name, needs, state, copies; and how one is found."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from multihead import _earlier
from multihead._keras import Untracked, keras
from multihead._validation import quoted


class Observation(NamedTuple):
    """What an update has shown, the same on every replica.

    Attributes:
        step: The number of updates applied before it, an int64 scalar.
        active: `[num_heads]` booleans: which heads it trains.
        losses: `[num_heads]` mean losses over the labelled elements of the whole update, times the heads' own weights; 0
            for idle heads. None where there is no weighting and no method that uses `"losses"`.
        norms: `[num_heads]` norms of the heads' weighted gradients where they are combined, or None.
        gramian: `[num_heads, num_heads]` inner products of the heads' weighted gradients at the representation; perhaps
            only the diagonal, or None, where no method uses `"gramian"`.
        losses_after: As `losses`, on the same examples after the update; None where no method uses it.
    """

    step: tf.Tensor
    active: tf.Tensor
    losses: tf.Tensor | None = None
    norms: tf.Tensor | None = None
    gramian: tf.Tensor | None = None
    losses_after: tf.Tensor | None = None


class Method(keras.layers.Layer):
    """A layer that the trainer binds to the heads' names and builds for their number.

    Attributes:
        uses: What the method needs of an update. `"step"` (the number of updates applied so far, an int64 scalar),
            `"losses"` and `"folds"` are handed over as keyword arguments where the kind of method says so; `"gradients"`,
            `"norms"`, `"gramian"` and `"losses_after"` are computed only where some method uses them.
        head_names: The heads' names, once `bind` has been called, else None.
    """

    uses: tuple[str, ...] = ()
    _may_use: tuple[str, ...] = ()

    def __init__(self, *, name: str | None, trainable: bool) -> None:
        super().__init__(name=name, dtype="float32", trainable=trainable, autocast=False)
        self.head_names: tuple[str, ...] | None = None
        self._built_for = Untracked(None)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.uses = _earlier.uses_of(cls)
        hook = _earlier.hook_of(cls)
        if hook is not None:
            cls.observe = hook  # type: ignore[method-assign]
        for flag, value in _earlier.flags(cls.uses).items():
            setattr(cls, flag, value)

    def _declare(self, uses: Iterable[str]) -> None:
        """Sets the needs of one instance."""
        self.uses = tuple(uses)
        for flag, value in _earlier.flags(self.uses).items():
            setattr(self, flag, value)

    def bind(self, head_names: Sequence[str]) -> None:
        """Tells the method the heads' names in their order, so that options may be given by name.

        Args:
            head_names: One name per head.

        Raises:
            ValueError: An option names a head that is not there, or `uses` names something that is not known.
        """
        unknown = {_earlier.NAMES.get(name, name) for name in self.uses} - set(self._may_use)
        if unknown:
            raise ValueError(
                f"`uses` of {type(self).__name__} may name {quoted(self._may_use)}. Received: {quoted(sorted(unknown))}. "
                "Leave it out."
            )
        self.head_names = tuple(head_names)

    def used(self, **known: Any) -> dict[str, Any]:
        """The keyword arguments that the method takes, out of what is known by name; functions are called for a value."""
        known = {_earlier.NAMES.get(name, name): value for name, value in known.items()}
        found = {name: known.get(_earlier.NAMES.get(name, name)) for name in self.uses}
        return {name: value() if callable(value) else value for name, value in found.items() if value is not None}

    def observe(self, update: Observation, applied: tf.Tensor) -> None:
        """Learns from an update; called once after each, on every replica with the same arguments.

        What is assigned here is kept: nothing may change where `applied` is False. By default nothing is learned.

        Args:
            update: What the update has shown.
            applied: Whether it was applied, a boolean scalar; it is skipped where a gradient is not finite.
        """

    def copy(self) -> Any:
        """One with the same configuration and heads, not built."""
        fresh = type(self).from_config(self.get_config())
        if self.head_names is not None:
            fresh.bind(self.head_names)
        return fresh

    def reset(self) -> None:
        """Sets the state back to how it was created."""
        if not self.built or not self.variables:
            return
        fresh = self.copy()
        fresh.build(self._built_for.value)
        for variable, first in zip(self.variables, fresh.variables):
            variable.assign(tf.convert_to_tensor(first))

    def get_build_config(self) -> None:
        """None, so that Keras does not take a copy for built."""

    def build_from_config(self, config: dict[str, Any]) -> None:
        """Leaves building to the trainer, or the first direct call, which know the heads."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"name": self.name}


def methods(base: type) -> dict[str, type]:
    """The methods of a kind that the package offers, by name, in alphabetical order."""
    package = base.__module__.rpartition(".")[0] + "."
    registered = [value for value in keras.saving.get_custom_objects().values() if isinstance(value, type)]
    offered = [cls for cls in registered if issubclass(cls, base) and cls.__module__.startswith(package)]
    return {cls.__name__: cls for cls in sorted(offered, key=lambda cls: cls.__name__.lower())}


def find(argument: str, identifier: Any, base: type) -> Any:
    """Returns a method.

    Args:
        argument: The argument that the user gave it by.
        identifier: An instance of `base`, the name of a class that the package offers, in any case, or None.
        base: The kind of method.

    Raises:
        ValueError: There is none of that name.
        TypeError: `identifier` is none of the three.
    """
    if identifier is None or isinstance(identifier, base):
        return identifier
    classes = methods(base)
    if isinstance(identifier, str):
        by_plain_name = {_plain(name): name for name in classes}
        if _plain(identifier) in by_plain_name:
            return classes[by_plain_name[_plain(identifier)]]()
        near = difflib.get_close_matches(_plain(identifier), list(by_plain_name), n=1)
        hint = f"Did you mean {by_plain_name[near[0]]!r}?" if near else "Pass one of these, or an instance."
        raise ValueError(f"`{argument}` must be one of {quoted(sorted(classes))}. Received: {identifier!r}. {hint}")
    raise TypeError(
        f"`{argument}` must be a {argument}, its name, or None. Received: {identifier!r} of type "
        f"{type(identifier).__name__}. Pass, say, {sorted(classes)[-1]!r}."
    )


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
