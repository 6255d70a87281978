"""What exists only while a trainer is fitted."""

from __future__ import annotations

from dataclasses import dataclass

from multihead._runs.resuming import Replay, Saving
from multihead._update.spec import UpdateSpec


@dataclass(frozen=True)
class FitSession:
    """A call of `fit`, or of `train_on_batch` with weights of classes.

    Attributes:
        requires_every_head: Whether each batch must have targets for all heads.
        spec: How updates are computed with the weights of classes of this call; None without such weights.
        run: The callbacks of a run that is saved; None without a `Checkpoint`.
        is_evaluating: Whether `evaluate` was called meanwhile, for the validation data.
    """

    requires_every_head: bool = True
    spec: UpdateSpec | None = None
    run: Saving | None = None
    is_evaluating: bool = False

    @property
    def replay(self) -> Replay | None:
        """The run, as long as it has not reached the place of the checkpoint that it was resumed from."""
        return self.run if isinstance(self.run, Replay) and self.run.is_replaying else None
