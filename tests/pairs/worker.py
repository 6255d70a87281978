"""What a process does that trains rows."""

from __future__ import annotations

import os
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any


def start() -> None:
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    # Optimizing a graph takes longer than its few runs here.
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def run_row(row: dict[str, str]) -> dict[str, Any]:
    """A row's result: `ok`, or the error of the first oracle that it does not meet."""
    import keras

    from tests.pairs import oracles

    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        try:
            trainer, history = oracles.trained(row, folder / "fit")
            actual = oracles.values(trainer)
        except Exception:  # noqa: BLE001 - any error is a result
            failed["fit"] = traceback.format_exc(limit=-3)
        checks: list[Any] = []
        if not failed and oracles.draws_alike(row):
            checks.append(("mode", lambda: oracles.check_other_mode(row, folder / "mode", actual)))
        if not failed and oracles.has_tape(row):
            checks.append(("tape", lambda: oracles.check_tape(row, actual)))
        if not failed and oracles.is_resumable(row):
            checks.append(("resume", lambda: oracles.check_resumed(row, folder / "resume", trainer, history)))
        for oracle, check in checks:
            try:
                check()
            except Exception:  # noqa: BLE001 - any error is a result
                failed[oracle] = traceback.format_exc(limit=-3)
    keras.backend.clear_session()
    return {"row": row, "checks": [name for name, _ in checks], "failed": failed}
