"""Callbacks that write the statistics of single updates: to a file, and for TensorBoard (without importing it)."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from multihead._display.drawing import cosine_matrix, heat_map, new_figure, optional
from multihead._display.runs import read_ledger
from multihead._ground.replicas import is_chief
from multihead._ground.types import Config, Logs
from multihead._ground.validation import check_positive_whole
from multihead._runs.snapshot import free_path, replace_text


class PerUpdate(keras.callbacks.Callback):
    """Calls `_begin` before the first update of a `fit`, and `_write` with the statistics of updates and validations.

    An update that was skipped has the step that it would have reached.

    Args:
        every: Only updates whose step is a multiple of this are written.
    """

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = check_positive_whole("every", every)
        self._is_begun = False
        self._epoch = 0
        self._seen = 0  # the number of updates read, including skipped ones
        self._step = 0
        self._calls = 0  # the number of calls of the step function since the statistics were last read

    def _begin(self, place: int | None) -> None:
        """Opens the output; `place` is the file's length at the checkpoint from which the run continues, if there is one."""
        metrics = self.model.log_metrics
        self._is_begun, self._step, self._calls = True, self.model.num_updates, 0
        self._seen = 0 if metrics is None else int(tf.convert_to_tensor(metrics.recorded))

    def _write(self, line: Config) -> None:
        """Writes `step`, `epoch` and the statistics of an update or, without `applied`, of a validation."""
        raise NotImplementedError

    def get_run_state(self) -> Config:
        """Called by `Checkpoint`: writes all updates so far."""
        if not self._is_begun:
            return {}
        self._read()
        return {"step": self._step}

    def set_run_state(self, state: Config) -> None:
        """Called by `Checkpoint`: continues from the result of `get_run_state`, before any further update."""
        if state:
            self._begin(state.get("place"))

    def on_train_begin(self, logs: Logs = None) -> None:
        if self.model.options.telemetry is None:
            raise ValueError(
                f"`telemetry` must be 'norms' or 'full' for {type(self).__name__}. Received: telemetry=None. Pass one of "
                "them to `compile`."
            )
        if self.model.options.steps_per_execution == "auto":
            raise ValueError(
                f"`steps_per_execution` must be a number for {type(self).__name__}, which reads as many updates at once. "
                "Received: steps_per_execution='auto'. Pass a number to `compile`."
            )
        self._is_begun = False

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        if not self._is_begun:  # by now, callbacks that load weights have loaded them
            self._begin(None)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._calls += 1
        # Reading waits for the device, so it is done only after the step that may hold the next multiple.
        if self._calls * self.model.options.updates_at_once >= self.every - self._step % self.every:
            self._read()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if not self._is_begun:
            return
        self._read()
        validation = {name: float(value) for name, value in (logs or {}).items() if name.startswith("val_")}
        if validation:
            self._write({"step": self._step, "epoch": epoch, **validation})

    def _read(self) -> None:
        metrics, end = self.model.log_metrics, self.model.num_updates
        recorded = int(tf.convert_to_tensor(metrics.recorded))
        lines = metrics.latest(recorded - self._seen)
        step = end - sum(line["applied"] for line in lines)
        for line in lines:
            if (step + 1) % self.every == 0:
                self._write({"step": step + 1, "epoch": self._epoch, **line})
            step += line["applied"]
        self._seen, self._step, self._calls = recorded, end, 0


class UpdateLogger(PerUpdate):
    """Writes the statistics of updates to a file, one line of JSON per update, during training.

    A line has `step`, the number of updates applied so far, including this one; `epoch`; `applied`; and the statistics of
    `compile(telemetry=)` of this update alone, by their names in the logs, with null for missing ones, such as the norm of
    an idle head. An update that was skipped has `"applied": false` and the step that it would have reached. After
    an epoch with validation, a line with the `val_...` metrics follows.

    Every line is written immediately, so that a crash loses none. A run that continues from a `Checkpoint` truncates the
    file to its length at the checkpoint and ends with the same lines as a run that was never stopped. Without a checkpoint,
    an existing file is continued as well, if the trainer has made all of its updates. A file with lines of later updates,
    which a run from step 0 may encounter, is renamed with a warning, and the new file starts with its lines up to the
    trainer's step: no line is lost.
    `python -m multihead plot run.jsonl` draws the statistics, and `multihead.plots.read` reads them.

    Args:
        path: The file. Its folder is created.
        every: Write a line once in this many updates. (Reading the statistics of an update waits for the device.)

    Raises:
        ValueError: `every` is below 1 or, in `fit`, the trainer has `telemetry=None` or `path` is not a file that this
            callback has written.

    Example:
        ```python
        trainer.compile("adam", telemetry="full")
        trainer.fit(batches, epochs=10, callbacks=[UpdateLogger("run.jsonl")])
        ```
    """

    def __init__(self, path: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(every)
        self.path = Path(path)
        self._writes = False

    def _begin(self, place: int | None) -> None:
        super()._begin(place)
        self._writes = is_chief(self.model)
        if not self._writes:
            return
        size = self.path.stat().st_size if self.path.is_file() else 0
        if place is not None and size < place:
            warnings.warn(
                f"The ledger of a resumed run must hold the lines before its checkpoint. Received: {self.path}, of fewer "
                f"than {place} bytes. Lines are missing: put the file back, or read what there is of it.",
                RuntimeWarning,
                stacklevel=2,
            )
        with _writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if place is not None and size >= place:
                os.truncate(self.path, place)
            elif self.path.exists():
                self._continue()
            self.path.touch()

    def _continue(self) -> None:
        """Continues a file of earlier updates; a file with updates of another run, or later ones, is renamed."""
        lines = read_ledger(self.path)
        kept = [line for line in lines if line["step"] <= self._step and self._step > 0]
        if len(kept) < len(lines):
            earlier = free_path(self.path)
            os.replace(self.path, earlier)
            warnings.warn(
                f"`path` must have no lines of updates after number {self._step}, where this run begins. Received: "
                f"{self.path}. It is called {earlier.name} from now on. Choose a file of its own for every run.",
                UserWarning,
                stacklevel=2,
            )
        replace_text(self.path, "".join(map(_as_text, kept)))

    def get_run_state(self) -> Config:
        """Called by `Checkpoint`: writes the file to the disk, and adds its length."""
        state, place = super().get_run_state(), None
        if state and self._writes:
            with _writing(self.path), open(self.path, "ab") as file:
                os.fsync(file.fileno())
                place = os.fstat(file.fileno()).st_size
        return {**state, "place": place} if state else {}

    def _write(self, line: Config) -> None:
        if self._writes:
            with _writing(self.path), open(self.path, "a", encoding="utf-8", newline="\n") as file:
                file.write(_as_text(line))


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A context in which disk errors name the file."""
    try:
        yield
    except OSError as error:
        raise RuntimeError(
            f"`path` must be a file that can be written. Received: {os.fspath(path)!r}, with {error}. Free space, or choose "
            "another file; with a `Checkpoint`, the same program then continues where it stopped."
        ) from error


def _as_text(line: Config) -> str:
    """A line of the file: non-finite numbers are null, and others have only the digits that float32 needs."""
    known = {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in line.items()}
    short = {name: float(str(np.float32(value))) if isinstance(value, float) else value for name, value in known.items()}
    return json.dumps(short, ensure_ascii=False) + "\n"


class HeadTensorBoard(PerUpdate):
    """Shows the statistics of updates in TensorBoard during training, grouped by head.

    Scalars are `{head}/loss`, `{head}/norm` and so on, `cosines/{head} and {other}`, and `update/...` for statistics that
    belong to no head; their step is the number of updates. At the end of every epoch an image, `cosines`, shows the mean
    cosines so far of the heads' gradients with one another and with the update; the image needs `telemetry="full"` and
    matplotlib. Keras's own `TensorBoard` can be used as well, with the same folder.

    Args:
        log_dir: The folder, for `tensorboard --logdir`.
        every: Write once in this many updates.

    Raises:
        ValueError: `every` is below 1 or, in `fit`, the trainer has `telemetry=None`.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(every)
        self.log_dir = Path(log_dir)
        self._writer: tf.summary.SummaryWriter | None = None

    def _begin(self, place: int | None) -> None:
        super()._begin(place)
        if is_chief(self.model):
            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def _write(self, line: Config) -> None:
        if self._writer is None:
            return
        with self._writer.as_default(step=line["step"]):
            for name, value in line.items():
                if isinstance(value, float):
                    _add_to_board(self._tag(name), tf.constant(value, tf.float32), "scalars")
        self._writer.flush()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        super().on_epoch_end(epoch, logs)
        names, values = cosine_matrix(logs or {}, list(self.model.heads))
        if self._writer is None or not np.isfinite(values).any() or optional("matplotlib") is None:
            return
        size = 2.2 + 0.7 * len(names)
        figure, axes = new_figure("The heat map", 1, 1, (size, size))
        heat_map(axes[0, 0], f"Which heads agree, until update {self._step:,}", names, values)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
        width, height = (str(int(round(side))) for side in figure.get_size_inches() * 100)
        with self._writer.as_default(step=self._step):
            _add_to_board("cosines", tf.constant([width.encode(), height.encode(), png.getvalue()]), "images")
        self._writer.flush()

    def on_train_end(self, logs: Logs = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _tag(self, name: str) -> str:
        """The name of a statistic in TensorBoard: its group (the head, if it belongs to one) and the rest."""
        if name.startswith("val_"):
            group, _, rest = self._tag(name.removeprefix("val_")).partition("/")
            return f"{group}/val_{rest}"
        for one, other in itertools.combinations(self.model.heads, 2):
            for suffix in ("", "_average"):
                if name == f"{one}_{other}_cosine{suffix}":
                    return f"cosines/{one} and {other}{suffix.replace('_', ' ')}"
        head = max((head for head in self.model.heads if name.startswith(f"{head}_")), key=len, default=None)
        return f"update/{name.removeprefix('update_')}" if head is None else f"{head}/{name.removeprefix(f'{head}_')}"


def _add_to_board(tag: str, value: tf.Tensor, plugin: str) -> None:
    """Writes a value in the form that a plugin of TensorBoard reads."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    tf.summary.write(tag, value, metadata=tf.compat.v1.SummaryMetadata(plugin_data=data))
