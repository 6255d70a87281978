"""Several devices and machines, on the command line: the options, and workers that Ray starts. It imports nothing slow."""

from __future__ import annotations

import argparse
import glob
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from examples._command_line import InputError, whole


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options to a program's parser."""
    add = parser.add_argument_group("several devices or machines").add_argument
    add(
        "--strategy",
        choices=("none", "mirrored", "multi-worker"),
        default="none",
        help="train on all devices of this machine, or on several workers, whose addresses are taken from TF_CONFIG, from "
        "SLURM (start it with srun) or from Ray (--ray-workers)",
    )
    add(
        "--shard",
        choices=("row", "file"),
        default="row",
        help="row: each worker takes its part of every batch; file: each worker takes whole files, of which --train names "
        "several by a quoted pattern, and each batch has rows of every file",
    )
    add(
        "--ray-workers",
        metavar="N",
        type=whole(1),
        help="start N workers by Ray Train, on the cluster of RAY_ADDRESS or on this machine",
    )
    add(
        "--ray-restarts",
        metavar="N",
        type=whole(0),
        default=3,
        help="how often Ray is to start all workers again after a failure",
    )
    add("--port", metavar="N", type=whole(1, below=65536), default=8888, help="first port of the workers on a node of SLURM")


def check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Exits with an error for options that do not fit each other."""
    if options.ray_workers is not None and options.strategy != "multi-worker":
        parser.error(
            f"--ray-workers requires --strategy multi-worker. Received: --strategy {options.strategy}. Add it, or omit "
            "--ray-workers."
        )
    pattern = options.train is not None and "*" in options.train
    if options.shard == "file" and not pattern:
        received = "none" if options.train is None else options.train
        parser.error(
            "--shard file requires --train with a pattern for several tables, in quotes. "
            f"Received: {received}. Write, for example, --train 'orders-*.csv', or omit --shard."
        )
    if options.load is not None and options.strategy != "none":
        parser.error(f"--strategy is for training. Received: --strategy {options.strategy} with --load. Omit one of them.")


def files_of(pattern: str) -> list[str]:
    """The files of a pattern with `*`, by name; a path without it stands for itself.

    Raises:
        InputError: No file matches.
    """
    paths = sorted(glob.glob(pattern)) if "*" in pattern else [pattern]
    if not paths:
        raise InputError(f"`{pattern}` must match a file. Received: a pattern that no file matches. Correct the path.")
    return paths


def check_files(files: int, workers: int, batch_size: int) -> None:
    """Checks that every worker has a file, and every batch rows of each.

    Raises:
        InputError: It does not.
    """
    if not workers <= files <= batch_size:
        raise InputError(
            "`--shard file` needs a file for each worker, and a row of each file in every batch. "
            f"Received: {files} files with {workers} workers and --batch-size {batch_size}. Divide the rows into other "
            "files, or omit --shard."
        )


def run_by_ray(work: Callable[[dict[str, Any]], None], options: dict[str, Any], workers: int, restarts: int) -> None:
    """Runs a function in workers that Ray Train starts, and all of them again whenever one fails.

    Ray's `TensorflowTrainer` sets `TF_CONFIG` in each worker. Without the environment variable `RAY_ADDRESS`, a small
    cluster is started on this machine. All machines need this folder, under the same path.

    Args:
        work: A function of a module, called in each worker in the folder of this process.
        options: Its argument.
        workers: The number of workers.
        restarts: How often all workers are started again.

    Raises:
        InputError: Ray is not installed or does not work with what is installed, or the workers fail.
    """
    ray, train, tensorflow = _ray()
    here = str(Path.cwd())
    started = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": max(workers, os.cpu_count() or 1), **_SMALL}
    ray.init(runtime_env={"env_vars": {"PYTHONPATH": here}}, **started)
    trainer = tensorflow.TensorflowTrainer(
        _in_worker,
        train_loop_config={"work": work, "options": options, "folder": here},
        scaling_config=train.ScalingConfig(num_workers=workers, use_gpu=ray.cluster_resources().get("GPU", 0) >= workers),
        run_config=train.RunConfig(
            storage_path=str(Path(options["output"]).absolute() / "ray"),
            failure_config=train.FailureConfig(max_failures=restarts),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # noqa: BLE001 Ray's own class differs between versions
        lines = [line for line in f"{error}".splitlines() if line.strip()]
        raise InputError(
            f"`--ray-workers` needs workers that end without an error. Received: {lines[-1] if lines else repr(error)} "
            f"(after at most {restarts} restarts). The workers' output is above, and in Ray's logs."
        ) from error
    finally:
        ray.shutdown()


_SMALL = {"include_dashboard": False, "object_store_memory": 100 * 2**20}
"""No data pass through Ray's object store."""


def _in_worker(config: dict[str, Any]) -> None:
    """What a worker of Ray runs."""
    # Ray chooses Keras 2 for `tf.keras`; the program imports `keras` itself, and TensorFlow must follow it.
    os.environ.pop("TF_USE_LEGACY_KERAS", None)
    os.chdir(config["folder"])
    config["work"](config["options"])


def _ray() -> tuple[Any, Any, Any]:
    """The modules `ray`, `ray.train` and `ray.train.tensorflow`."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Ray's own limit of 60 seconds starts the workers again and again where importing TensorFlow takes longer.
    os.environ.setdefault("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600")
    # Ray's own 15 leaves its workers hardly any time on a machine that does anything else.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        return tuple(importlib.import_module(name) for name in ("ray", "ray.train", "ray.train.tensorflow"))
    except ImportError as error:
        cause = error.__cause__ or error.__context__ or error
        raise InputError(
            f"`--ray-workers` needs Ray Train. Received: {cause}. Install the extra, which has versions that work with this "
            "TensorFlow and NumPy: pip install -e '.[ray]'"
        ) from error
