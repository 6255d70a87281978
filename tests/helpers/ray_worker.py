"""The example on two workers of Ray, the second of which kills itself once: `python -m tests.helpers.ray_worker ARGUMENTS`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from examples.seq2seq_price import command

train = command.as_worker


def work(options):
    """What each worker runs."""
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    been = Path(options["output"]) / f"been-{index}"
    been.parent.mkdir(parents=True, exist_ok=True)
    from tests.helpers import example_worker  # and TensorFlow

    example_worker.prepare(0 if been.exists() or not index else 6, without_reply=True)
    been.touch()
    train(options)


if __name__ == "__main__":
    from tests.helpers import ray_worker

    command.as_worker = ray_worker.work
    sys.exit(command.main(sys.argv[1:]))
