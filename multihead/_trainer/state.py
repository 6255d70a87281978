"""What a trainer knows: what the user has decided, what data have shown, and what is built from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from multihead._data.batch import Batch
from multihead._data.data import Data
from multihead._ground.types import Layer, Optimizer, Variable
from multihead._ground.validation import quoted
from multihead._trainer.modules import Shapes
from multihead._trainer.options import CompileOptions
from multihead._update.spec import Plan, UpdateSpec
from multihead.heads._named import NamedHead
from multihead.heads._value import is_zero
from multihead.telemetry._logs import LogMetrics


@dataclass(frozen=True)
class Setup:
    """What a user has decided about a trainer: its heads in order, and the options of `compile`."""

    heads: tuple[NamedHead, ...] = ()
    options: CompileOptions | None = None  # none before `compile`, and again after `add_head` and `remove_head`
    optimizer: Optimizer = None  # the one that Keras has compiled; as the options

    @property
    def trained(self) -> tuple[NamedHead, ...]:
        return tuple(head for head in self.heads if head.is_trained)

    def head(self, name: str) -> NamedHead:
        return next(head for head in self.heads if head.name == name)

    def without_targets(self, specs: Batch) -> frozenset[str]:
        """The heads without targets in the data of a `fit`; a `ValueError` if one of them is to be trained."""
        absent = [head for head in self.trained if head.name not in specs.targets]
        needed = [head.name for head in absent if not is_zero(head.weight)]
        if needed:
            raise ValueError(
                f"The targets must have a key for every head, but the head {quoted(needed)} has none in the data and would "
                f"never be trained. Received: targets for {quoted(specs.targets)}; the heads are "
                f"{quoted(self.names)}. Correct the key, or add targets that are `ignore_label` or NaN where the "
                "label is missing; with a weight of 0, a head needs none."
            )
        return frozenset(head.name for head in absent)

    @property
    def all_names(self) -> list[str]:
        return [head.name for head in self.heads]

    @property
    def names(self) -> list[str]:
        return [head.name for head in self.trained]


@dataclass(frozen=True)
class Built:
    """A trainer that is built and compiled: how updates are computed, and the metrics behind the logs."""

    spec: UpdateSpec
    logs: LogMetrics
    switches: tuple[tuple[Layer | Variable, bool], ...]  # what has a `trainable`, and its value when it was built


class Checked(NamedTuple):
    """Data whose labels were checked as far as possible before the first step, and the plan of the steps."""

    data: Data
    plan: Plan

    def for_loop(self, run: object | None) -> Data:
        """The data as Keras's loop reads them for validation: a generator, and during a run all of Python, is a dataset.

        Keras 3 reads a generator ahead in a thread, and validates on different batches in different runs of a program.
        """
        if self.data.batches is None or (run is None and self.data.length is not None):
            return self.data
        return Data(self.data.as_dataset(None, None, False, "`validation_data`"), specs=self.data.specs)


class Origin(NamedTuple):
    """The Keras model from which `from_model` made a trainer: its name, and what it was compiled with; empty for others."""

    name: str = ""
    optimizer: Optimizer | None = None
    runs_eagerly: bool = False


class TrainerState:
    """What a trainer knows, in an object in which Keras looks for nothing to save."""

    def __init__(self) -> None:
        self.setup = Setup()  # what the user has decided
        self.added: dict[str, int] = {}  # by head name, the number of updates that had been made when the head was added
        self.shapes = Shapes()  # what data have shown
        # What is made of both; None before the first data, and after `compile`, `add_head` and `remove_head`
        self.built: Built | None = None
        self.idle: tuple[str, ...] = ()  # the heads that are idle
        self.idle_until_fit: tuple[str, ...] = ()  # those of them that were made idle outside of `fit`
        self.phase: str | None = None  # `"fit"`, or `"validation"` while `fit` runs; None outside of `fit`
        self.evaluates = False  # whether the step that was traced last is one of an evaluation
        self.plan = Plan()  # what the step that runs now was made with; nothing where a step is called by hand
        self.validation: Checked | None = None  # the validation data of a `fit` that is running
        self.origin = Origin()

    def require_options(self, method: str) -> CompileOptions:
        """The options of `compile`, which a method needs."""
        if self.setup.options is None:
            raise ValueError(
                f"`{method}` requires a compiled trainer. Received: a trainer that was not compiled since the last "
                "`add_head` or `remove_head`. Call `compile(optimizer, ...)` first."
            )
        return self.setup.options

    def require_built(self, *, trains: bool = False) -> Built:
        """What is built; with `trains`, it must have variables to train."""
        if self.built is None:
            raise ValueError("The trainer is not built. Received: no data yet. Call `compute_gradients(batch)` first.")
        if trains and not self.built.spec.network.variables.all:
            raise ValueError(
                "`encoder` or a head's `module` must have trainable variables. Received: none, so no update would change "
                "anything. Set `trainable = True` and call `compile` again; to measure only, use `evaluate`."
            )
        return self.built

    def refuse_in_fit(self, method: str) -> None:
        """Raises `ValueError` for a method that must not be called while `fit` runs."""
        if self.phase is not None:
            raise ValueError(
                f"`{method}` must not be called during `fit`, for example by a callback. Received: a call during `fit`. "
                "Call it before or after `fit`; `set_weight`, `set_idle`, schedules and rates can change training meanwhile."
            )

    def set_idle(self, heads: Sequence[str]) -> None:
        """Makes some of the heads idle, and no others, in a variable that steps read."""
        self.idle = tuple(heads)
        if self.built is not None:
            self.built.spec.running.enabled.assign([float(name not in heads) for name in self.setup.names])
