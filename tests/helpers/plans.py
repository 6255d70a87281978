"""What the training steps of a trainer rely on."""

from __future__ import annotations

from multihead._trainer.state import TrainerState
from multihead._update.spec import Plan


class _Recorder(TrainerState):
    """What a trainer knows, and the plans of its steps."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "plan" and value != Plan():
            self.plans.append(value)


def record_plans(trainer):
    """Lets a trainer record the plan of each call of its training step from now on; see `plans_of`."""
    trainer._state.plans = []
    trainer._state.__class__ = _Recorder


def plans_of(trainer):
    """The plans of the calls so far, the latest one last."""
    return trainer._state.plans
