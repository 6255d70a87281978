"""One of two workers of `examples.seq2seq_price`, which may kill itself (SIGKILL) before an update; only trains and saves."""

from __future__ import annotations

import os
import signal
from functools import partial

import tensorflow as tf

from examples._replicas import Batches
from examples.seq2seq_price import command, run

HEADS = ("price", "legs")
"""The heads of runs on files: without the reply, whose decoder takes most of the time of tracing."""


class _Kill(Batches):
    """Kills this process before an update."""

    update = 0

    def on_train_batch_begin(self, batch, logs=None):
        if self.number() + 1 == self.update:
            os.kill(os.getpid(), signal.SIGKILL)


def main(index, arguments, killed_at=0, port=None):
    """Runs the command.

    Args:
        index: The worker's number.
        arguments: The command's arguments.
        killed_at: The update before which the second worker is killed, 0 for never.
        port: The first of two ports on this machine, where the cluster is one of SLURM and not that of TF_CONFIG.
    """
    if port is not None:
        del os.environ["TF_CONFIG"]
        step = {"NUM_TASKS": "2", "NODELIST": "localhost", "TASKS_PER_NODE": "2"}
        os.environ.update({f"SLURM_STEP_{name}": value for name, value in step.items()})
        os.environ.update(SLURM_JOB_ID="7", SLURM_PROCID=str(index))
        arguments = [*arguments, "--port", str(port)]
    prepare(killed_at if index else 0, without_reply="--train" in arguments)
    code = command.main(arguments)
    if code:
        raise SystemExit(code)


def prepare(killed_at, *, without_reply):
    """Makes the command train and save only, without the reply, and kill this process before an update, 0 for never."""
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    run._report = lambda *args: None
    if without_reply:
        run.build_model = partial(run.build_model, heads=HEADS)
    if killed_at:
        _Kill.update = killed_at
        run.Batches = _Kill
