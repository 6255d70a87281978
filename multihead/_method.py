"""What balancers and weightings have in common: heads by name, a state of their own, copies; and how one is found."""

from __future__ import annotations

import difflib
from types import ModuleType
from typing import Any

import tensorflow as tf

from multihead._keras import Untracked, keras
from multihead._validation import quoted


class Method(keras.layers.Layer):
    """A layer that the trainer binds to the heads' names and builds for their number.

    Attributes:
        head_names: The heads' names, once `bind` has been called, else None.
    """

    def __init__(self, *, name: str | None, trainable: bool) -> None:
        super().__init__(name=name, dtype="float32", trainable=trainable, autocast=False)
        self.head_names: tuple[str, ...] | None = None
        self._built_for = Untracked(None)

    def copy(self) -> Any:
        """One that is configured and bound alike, not built."""
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
        """Leaves building to whoever knows the heads' names: the trainer, or the first call by hand."""

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"name": self.name}


def methods(package: ModuleType, base: type) -> dict[str, type]:
    """The methods that a package offers, by name, in the order of the alphabet."""
    offered = {name: getattr(package, name) for name in sorted(package.__all__, key=str.lower)}
    return {
        name: value
        for name, value in offered.items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }


def find(argument: str, identifier: Any, base: type, package: ModuleType) -> Any:
    """Returns a method.

    Args:
        argument: The argument that the user gave it by.
        identifier: An instance of `base`, its class's name in whatever case, or None.
        base: What methods are.
        package: What offers them.

    Raises:
        ValueError: There is none of that name.
        TypeError: `identifier` is none of the three.
    """
    if identifier is None or isinstance(identifier, base):
        return identifier
    classes = methods(package, base)
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
