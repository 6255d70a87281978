"""Adam with moments of its own for each head, as an experiment: what it gains, and what it costs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from multihead import MultiHeadTrainer

ADATASK = "AdaTask"


class MomentsByHead(MultiHeadTrainer):
    """Updates the encoder by the sum of one Adam update for each head: `theta -= rate * sum_k m_k / (sqrt(v_k) + epsilon)`.

    The moments `m_k` and `v_k` are those of head `k`'s gradient. The heads' own variables have the usual moments. The
    encoder's gradients are not clipped. It takes a backward pass for each head, like `balance_at="parameters"`, and two more
    numbers for each parameter of the encoder and each head.

    Source: Yang et al., AdaTask: A Task-Aware Adaptive Learning Rate Approach to Multi-Task Learning, AAAI 2023,
    arXiv 2211.15055.
    """

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        """Trains on a batch; the logs are the norms of the heads' gradients."""
        gradients = self.head_gradients(data, at="parameters")
        encoder = self.encoder.trainable_variables
        with tf.init_scope():
            if not hasattr(self, "by_head"):
                config = self.optimizer.get_config()
                self.by_head = [type(self.optimizer).from_config(config) for _ in self.heads]
                for optimizer in self.by_head:
                    optimizer.build(encoder)
        for name, optimizer in zip(self.heads, self.by_head):
            optimizer.apply_gradients(
                (tf.zeros_like(variable) if gradient is None else gradient, variable)
                for gradient, variable in zip(gradients[name], encoder)
            )
        self.apply_gradients(gradients.own)
        return dict(zip(self.heads, tf.unstack(gradients.norms)))


def by_head(trainer: MultiHeadTrainer) -> MomentsByHead:
    """A trainer with the same encoder and heads and Adam's moments by head."""
    return MomentsByHead(trainer.encoder, trainer.heads)
