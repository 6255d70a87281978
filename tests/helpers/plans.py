"""What the training steps of a trainer rely on."""

from __future__ import annotations


def record_plans(trainer):
    """Lets a trainer record the plan of each call of its training step from now on; see `plans_of`."""
    made = trainer._made_by_keras

    def make(name, plan):
        step = made(name, plan)

        def recorded(iterator):
            make.plans.append(plan)
            return step(iterator)

        return recorded if name == "train_function" else step

    make.plans = []
    trainer._made_by_keras, trainer.train_function = make, None


def plans_of(trainer):
    """The plans of the calls so far, the latest one last."""
    return trainer._made_by_keras.plans
