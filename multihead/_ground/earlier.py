"""Deprecated declarations of custom methods: still supported for one release.

`needs`, `reads_losses`, `reads_norms`, `reads_losses_after` and `reads_gramian` are now names in `uses`, in which `"update"`
is now `"step"` and `"halves"` is `"folds"`; `observe(losses, active)`, `observe_after(...)` and `observe(gramian, made)` are
now `observe(update, applied)`; `_create_state` is now `create_state(num_heads)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from multihead._ground.keras import tensor_variable

NAMES = {"update": "step", "halves": "folds"}
"""Deprecated names in `uses`, with their new names."""

_FLAGS = {
    "reads_losses": "losses",
    "reads_norms": "norms",
    "reads_losses_after": "losses_after",
    "reads_gramian": "gramian",
}


def flags(uses: tuple[str, ...]) -> dict[str, Any]:
    """The deprecated attributes that are equivalent to `uses`."""
    return {"needs": "gradients" if "gradients" in uses else "gramian", **{flag: _FLAGS[flag] in uses for flag in _FLAGS}}


def uses_of(cls: type) -> tuple[str, ...]:
    """The needs of a class that is being defined, whether it declares them with new or deprecated names."""
    own, uses = cls.__dict__, list(cls.uses)  # type: ignore[attr-defined]
    declared = {_FLAGS[flag]: own[flag] for flag in _FLAGS if flag in own}
    if "needs" in own:
        declared["gradients"] = own["needs"] == "gradients"
    if "update" in own.get("uses", ()) and getattr(cls, "reads_losses", False):
        declared.setdefault("losses", True)
    for name, is_needed in declared.items():
        if is_needed and name not in uses:
            uses.append(name)
        elif not is_needed and name in uses:
            uses.remove(name)
    return tuple(uses)


def hook_of(cls: type) -> Callable[..., None] | None:
    """`observe(update, applied)` for a class that is being defined with deprecated hooks; None for any other class."""
    own: Any = cls.__dict__
    observe, observe_after = own.get("observe"), own.get("observe_after")
    arguments = list(inspect.signature(observe).parameters)[1:2] if observe is not None else []
    if observe_after is None and arguments not in (["losses"], ["gramian"]):
        return None

    def hook(self: Any, update: Any, applied: tf.Tensor) -> None:
        state = [tensor_variable(variable) for variable in self.non_trainable_variables]
        before = [tf.identity(variable.read_value()) for variable in state]
        if arguments == ["losses"]:
            observe(self, update.losses, update.active)
        elif arguments == ["gramian"]:
            observe(self, update.gramian, applied)
        # The deprecated hooks were called before the update was applied, and undone if it was skipped.
        for variable, value in zip(state, before):
            variable.assign(tf.where(applied, variable.read_value(), value))
        if observe_after is not None:
            observe_after(self, update.losses, update.losses_after, update.active, applied)

    return hook


def creator_of(cls: type) -> Callable[..., None] | None:
    """`create_state(num_heads)` for a class that is being defined with `_create_state`; None for any other."""
    own: Any = cls.__dict__.get("_create_state")
    if own is None:
        return None
    takes_sizes = len(inspect.signature(own).parameters) > 2

    def creator(self: Any, num_heads: int) -> None:
        own(self, num_heads, *([list(self.sizes)] if takes_sizes else []))

    return creator
