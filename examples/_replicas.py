"""Training on several replicas: the strategy, this worker's place among the others, and its part of the input."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from examples._command_line import InputError

REQUIRED_BY_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")


@tf.function
def _sum(strategy: tf.distribute.Strategy, own: tf.Tensor) -> tf.Tensor:
    return strategy.reduce("SUM", strategy.run(lambda: own), axis=None)


@dataclass(frozen=True)
class Worker:
    """This process among the workers of a job.

    Attributes:
        strategy: What the workers train under; TensorFlow's default for one device.
        index: Its number from 0; the first is the chief, which alone writes files.
        number: The number of workers.
    """

    strategy: tf.distribute.Strategy = field(default_factory=tf.distribute.get_strategy)
    index: int = 0
    number: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes the files."""
        return self.index == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is one device."""
        return self.strategy.num_replicas_in_sync == 1 and self.number == 1

    def __str__(self) -> str:
        return f"worker {self.index + 1} of {self.number}, process {os.getpid()} on {platform.node()}"

    def totals(self, values: Sequence[float]) -> np.ndarray:
        """Sums over all workers, float64 of the same shape; every worker must call it, and waits for the others."""
        if self.number == 1:
            return np.array(values, np.float64)
        own = tf.constant(values, tf.float64) * self.number / self.strategy.num_replicas_in_sync
        return _sum(self.strategy, own).numpy()

    def of_each(self, value: float) -> list[float]:
        """The values of all workers, in order; every worker must call it."""
        return self.totals([value if index == self.index else 0.0 for index in range(self.number)]).tolist()

    def wait(self) -> None:
        """Waits for all workers."""
        self.totals([0.0])

    def leave(self) -> None:
        """Waits for all workers before this process ends.

        A worker that gets its sum first must not be gone before the others have theirs, which it has to send. So all wait
        twice, and the second time it does not matter who has left already.
        """
        self.wait()
        with suppress(tf.errors.OpError):
            self.wait()

    @contextmanager
    def folder(self, path: Path) -> Iterator[Path]:
        """The folder where this worker writes what all of them must read: one that is removed, except for the chief."""
        if self.is_chief:
            yield path
            return
        with tempfile.TemporaryDirectory() as other:
            yield Path(other)

    def distributed(self, batches: tf.data.Dataset, *, whole: bool) -> Any:
        """Batches without end for `fit`, each replica with its part.

        Args:
            batches: Batches of one epoch, nested tensors whose first axis is the rows.
            whole: Whether they are those of all workers, of which each takes its rows, and not this worker's own.
        """

        def of_replicas(context: tf.distribute.InputContext) -> tf.data.Dataset:
            here = context.num_replicas_in_sync // context.num_input_pipelines
            first, parts = (self.index * here, context.num_replicas_in_sync) if whole else (0, here)
            endless = batches.repeat()
            if here == 1:
                return endless.map(lambda *batch: part(batch, first, parts))
            replicas = tf.data.Dataset.range(first, first + here)
            return endless.flat_map(lambda *batch: replicas.map(lambda replica: part(batch, replica, parts)))

        return self.strategy.distribute_datasets_from_function(of_replicas)

    def fed(self, batches: tf.data.Dataset, validation: tf.data.Dataset, *, by_row: bool) -> dict[str, Any]:
        """The arguments of `fit` for batches of known number, and batches for validation; `by_row` as in `--shard`."""
        if self.is_alone and by_row:
            return {"x": batches, "validation_data": validation}
        steps = int(batches.cardinality())
        if self.is_alone:  # in the same order as on workers
            return {"x": batches.repeat(), "steps_per_epoch": steps, "validation_data": validation}
        return {
            "x": self.distributed(batches, whole=by_row),
            "steps_per_epoch": steps,
            "validation_data": self.distributed(validation, whole=True),
            "validation_steps": int(validation.cardinality()),
        }

    def rows_of(self, batches: tf.data.Dataset, *, whole: bool) -> int:
        """The number of rows of an epoch that this worker trains on; the arguments are those of `distributed`."""
        sizes = np.array([len(tf.nest.flatten(batch)[0]) for batch in batches], np.int64)
        if whole:
            sizes = sizes * (self.index + 1) // self.number - sizes * self.index // self.number
        return int(sizes.sum())


def part(batch: Any, index: Any, parts: int) -> Any:
    """Part `index` of the rows of a batch; parts differ by at most one row, and may be empty."""
    rows = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
    index = tf.cast(index, tf.int64)
    return tf.nest.map_structure(lambda values: values[rows * index // parts : rows * (index + 1) // parts], batch)


def batches_of_files(
    worker: Worker, number: int, of_file: Callable[[int], tuple[tf.data.Dataset, int]]
) -> tuple[tf.data.Dataset, int]:
    """Batches that consist of a batch of each of a worker's files, and their number, which is that of the longest file.

    Of all workers together, a batch has rows of every file. So it does not depend on the number of workers.

    Args:
        worker: The worker. Its files are every so many, as there are workers.
        number: The number of files.
        of_file: The batches of a file, nested dense tensors whose first axis is the rows, and how many there are.
    """
    found = [of_file(file) for file in range(worker.index, number, worker.number)]
    steps = int(max(worker.of_each(max(own for _, own in found))))
    filled = []
    for batches, own in found:
        empty = tf.nest.map_structure(_empty, batches.element_spec)
        filled.append(batches.concatenate(tf.data.Dataset.from_tensors(empty).repeat(steps - own)))
    joined = tf.data.Dataset.zip(tuple(filled)).map(lambda *batches: tf.nest.map_structure(_joined, *batches))
    return joined.apply(tf.data.experimental.assert_cardinality(steps)), steps


def _empty(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([0, *(size or 1 for size in spec.shape[1:])], spec.dtype)


def _joined(*values: tf.Tensor) -> tf.Tensor:
    """The rows of tensors that may have different numbers of columns, filled with zeros."""
    if values[0].shape.rank < 2:
        return tf.concat(values, axis=0)
    width = tf.reduce_max([tf.shape(each)[1] for each in values])
    return tf.concat([tf.pad(each, [[0, 0], [0, width - tf.shape(each)[1]]]) for each in values], axis=0)


class Batches(keras.callbacks.Callback):
    """Counts the batches that are trained on, those before a checkpoint left out."""

    def __init__(self) -> None:
        super().__init__()
        self._number = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._number += 1

    def get_run_state(self) -> dict[str, Any]:
        """Nothing of it is resumed."""
        return {}

    def set_run_state(self, state: dict[str, Any]) -> None:
        """Nothing of it is resumed."""

    def number(self) -> int:
        """The number of batches in this process."""
        return self._number


def worker_of(options: Namespace) -> Worker:
    """The strategy of `--strategy`, and this process's place. To be called before anything else of TensorFlow.

    Raises:
        InputError: There is no cluster, or it cannot be used.
    """
    if options.strategy == "none":
        return Worker()
    if options.strategy == "mirrored":
        return Worker(tf.distribute.MirroredStrategy())
    resolver = _resolver(options.port)
    tasks = [
        (job, index) for job in ("chief", "worker") for index in range(len(resolver.cluster_spec().as_dict().get(job, ())))
    ]
    strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)
    return Worker(strategy, tasks.index((resolver.task_type, resolver.task_id)), len(tasks))


def _resolver(port: int) -> Any:
    """Where the workers are, from the environment."""
    if os.environ.get("TF_CONFIG"):
        _check_config(os.environ["TF_CONFIG"])
        return tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if "SLURM_JOB_ID" in os.environ:
        return _of_slurm(port)
    raise InputError(
        "`--strategy multi-worker` must find the workers' addresses. Received: neither TF_CONFIG nor SLURM_JOB_ID in the "
        "environment. Set TF_CONFIG, start it with srun, or add --ray-workers."
    )


def _check_config(text: str) -> None:
    try:
        config = json.loads(text)
        cluster, task = config["cluster"], config["task"]
        unknown = sorted(set(cluster) - {"chief", "worker"})
        if unknown:
            raise ValueError(f"tasks of type {unknown[0]!r}")
        cluster[task["type"]][task["index"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise InputError(
            "`TF_CONFIG` must be JSON with the addresses of all workers and this one's place among them. "
            f"Received: {text!r}: {type(error).__name__} {error}. Write, for example, "
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}, with another '
            "index on each worker."
        ) from error


def _of_slurm(port: int) -> Any:
    """The resolver of a SLURM step, with or without GPUs."""
    absent = [name for name in REQUIRED_BY_SLURM if name not in os.environ]
    if absent:
        raise InputError(
            f"`--strategy multi-worker` must run in a step of SLURM. Received: a job without {', '.join(absent)}. Start it "
            "with srun in the file that sbatch takes."
        )
    gpus = int(os.environ.get("SLURM_GPUS_ON_NODE", "0"))
    resolvers = tf.distribute.cluster_resolver
    # Without GPUs TensorFlow's resolver cannot count (`range() arg 3 must not be zero`): a slot per task stands for them.
    slots = {} if gpus else {"gpus_per_node": int(os.environ["SLURM_STEP_NUM_TASKS"]), "gpus_per_task": 1}
    try:
        found = resolvers.SlurmClusterResolver(port_base=port, **(slots or {"gpus_per_node": gpus}), auto_set_gpu=bool(gpus))
        cluster = found.cluster_spec()
    except (RuntimeError, ValueError) as error:
        received = {name: os.environ[name] for name in REQUIRED_BY_SLURM}
        raise InputError(
            "`--strategy multi-worker` must find its workers in SLURM's environment. Received: "
            f"{received}: {str(error).rstrip('.')}. Ask for the same number of tasks on each node."
        ) from error
    job, index = found.get_task_info()
    accelerators = found.num_accelerators() if gpus else {}
    return resolvers.SimpleClusterResolver(
        cluster, task_type=job, task_id=index, num_accelerators=accelerators, rpc_layer="grpc"
    )
