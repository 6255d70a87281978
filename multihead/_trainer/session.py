"""What exists only while a trainer is fitted."""

from __future__ import annotations

from dataclasses import dataclass

from multihead._runs.resuming import Replay, Saving


@dataclass(frozen=True)
class FitSession:
    """A call of `fit`.

    Attributes:
        run: The callbacks of a run that is saved; None without a `Checkpoint`.
        is_evaluating: Whether `evaluate` was called meanwhile, for the validation data.
    """

    run: Saving | None = None
    is_evaluating: bool = False

    @property
    def replay(self) -> Replay | None:
        """The run, as long as it has not reached the place of the checkpoint that it was resumed from."""
        return self.run if isinstance(self.run, Replay) and self.run.is_replaying else None
