"""What the training steps of a trainer rely on."""

from __future__ import annotations

from multihead._update.spec import Plan


class _Recorder:
    def __init__(self):
        self.plans = []
        self._value = Plan()

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, plan):
        self._value = plan
        if plan != Plan():
            self.plans.append(plan)


def record_plans(trainer):
    """Lets a trainer record the plan of each call of its training step from now on; see `plans_of`."""
    trainer._plan = _Recorder()


def plans_of(trainer):
    """The plans of the calls so far, the latest one last."""
    return trainer._plan.plans
