"""What is built from heads, options and shapes together: how updates are computed, and the metrics of the logs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tensorflow as tf

from multihead._ground.validation import as_python
from multihead._update.spec import UpdateSpec
from multihead._update.weights import head_weights_at
from multihead.telemetry._logs import LogMetrics


@dataclass(frozen=True)
class Built:
    """A trainer that is built and compiled.

    Attributes:
        spec: How updates are computed.
        logs: The metrics behind the logs.
    """

    spec: UpdateSpec
    logs: LogMetrics

    def check_trainable(self) -> None:
        """Checks that there is something to train.

        Raises:
            ValueError: There is not.
        """
        if not self.spec.network.variables.all:
            raise ValueError(
                "`encoder` or a head's `module` must have trainable variables. Received: none, so no update would change "
                "anything. Set `trainable = True` and call `compile` again; to measure only, use `evaluate`."
            )

    def with_idle_heads(self) -> Built:
        """The same for updates in which heads may become idle."""
        return self if self.spec.may_be_idle else replace(self, spec=replace(self.spec, may_be_idle=True))

    def in_custom_loop(self, period: int, step: tf.Tensor) -> tuple[UpdateSpec, list[Any]]:
        """How the next update of a custom training loop is computed, and what must hold before it in a graph.

        Args:
            period: The number of the present period.
            step: The number of updates applied so far.
        """
        spec = replace(self.spec, layers_every=0)
        following = spec.periods[period + 1 :]
        if not following or tf.executing_eagerly():
            return spec.in_period(period), []
        start, end = spec.periods[period].start, following[0].start
        message = (
            f"This function was traced for the updates from {start} to {end - 1}, because learning rates have `Stages`. "
            "Pass `trainer.stage` to it as an argument, so that it is traced again for each period"
        )
        check = tf.debugging.assert_less(step, tf.constant(end, tf.int64), message=message)
        return spec.in_period(period), [check]

    def training_logs(self, logs: dict[str, Any]) -> dict[str, Any]:
        """The logs of a training step, with statistics that are read again; statistics of others stay as they are."""
        # Where no update was counted, a `train_step` of the user's own logs by itself.
        return _read_again(logs, self.logs.training_logs() if self.logs.num_batches > 0 else {})

    def evaluation_logs(self, logs: dict[str, Any], step: Any) -> dict[str, Any]:
        """The same for the logs of an evaluation after `step` updates."""
        heads = self.spec.network.heads
        present = [head.name for head in heads if f"{head.name}_loss" in logs]
        present += [
            each.name for each in self.spec.network.measured if any(f"{each.name}_{name}" in logs for name in each.results())
        ]
        return _read_again(logs, self.logs.evaluation_logs(head_weights_at(heads, step), present, step))


def _read_again(logs: dict[str, Any], results: dict[str, Any]) -> dict[str, Any]:
    found = {name: results.get(name, value) for name, value in logs.items()}
    # Numbers are Python's, as in the logs of Keras.
    return {name: as_python(value.numpy() if hasattr(value, "numpy") else value) for name, value in found.items()}
