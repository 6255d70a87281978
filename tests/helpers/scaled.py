"""Updates by hand whose steps and weight decay are scaled by part."""

from __future__ import annotations

import tensorflow as tf

from tests.helpers.reference import Reference
from tests.helpers.tiny import tensor_variable

DECAY = 0.1
"""The weight decay that is applied by hand."""


class ScaledReference(Reference):
    """A network trained by hand, each variable with a factor of its own.

    Args:
        factors: From the number of updates so far to one factor per variable.
        decays: One factor of the weight decay per variable, or None for no weight decay.
        **others: As for `Reference`; the optimizer must not have weight decay.
    """

    def __init__(self, *args, factors, decays=None, **others):
        super().__init__(*args, **others)
        self.factors, self.decays, self.count = factors, decays, 0

    def trained(self, gradients):
        # If nothing is trained, it is by a function of the step, and how the heads are combined changes nothing.
        return [gradient for gradient, factor in zip(gradients, self.factors(self.count)) if factor > 0] or gradients

    def update(self, batches, sample_weights=None, active=None):
        gradients, _ = self.gradients(batches, sample_weights, active)
        factors, variables = self.factors(self.count), [tensor_variable(v) for v in self.variables]
        old = [tf.identity(variable) for variable in variables]
        # What a factor of 0 freezes does not take part: the optimizer's slots must not change either.
        trained = [i for i, g in enumerate(gradients) if g is not None and factors[i] > 0]
        rate = tf.convert_to_tensor(self.optimizer.learning_rate)
        for i in trained if self.decays else []:
            variables[i].assign_sub(variables[i] * DECAY * self.decays[i] * rate)
        self.optimizer.apply_gradients([(gradients[i], self.variables[i]) for i in trained])
        for i in trained:
            variables[i].assign(old[i] + factors[i] * (variables[i] - old[i]))
        self.count += 1
