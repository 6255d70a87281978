"""`HeadTensorBoard`: scalars and images that TensorBoard shows, written without importing TensorBoard."""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path
from typing import Any

import tensorflow as tf

from multihead._display.drawing import cosine_matrix, heat_map, new_figure
from multihead._display.tables import optional
from multihead._ground.replicas import is_chief
from multihead._ground.types import Config, Logs
from multihead.callbacks._logger import PerUpdate


class HeadTensorBoard(PerUpdate):
    """Shows the statistics of updates in TensorBoard during training, grouped by head.

    Scalars are `{head}/loss`, `{head}/norm` and so on, `cosines/{head} and {other}`, and `update/...` for statistics of no
    head; their step is the number of updates. At the end of each epoch an image, `cosines`, shows the mean cosines between
    the heads' gradients so far, and of each with the update; it needs `telemetry="full"` and matplotlib. Keras's own
    `TensorBoard` can be used as well, with the same folder.

    Args:
        log_dir: The folder, for `tensorboard --logdir`.
        every: Write once in this many updates.

    Raises:
        ValueError: `every` is below 1 or, in `fit`, the trainer has `telemetry=None`.
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, every: int = 1) -> None:
        super().__init__(every)
        self.log_dir = Path(log_dir)
        self._writer: Any = None

    def _begin(self, place: int | None) -> None:
        if is_chief(self.model):
            self._writer = tf.summary.create_file_writer(str(self.log_dir))

    def _write(self, line: Config) -> None:
        if self._writer is None:
            return
        with self._writer.as_default(step=line["step"]):
            for name, value in line.items():
                if isinstance(value, float):
                    _add(self._tag(name), tf.constant(value, tf.float32), "scalars")
            for layer, statistics in line.get("layers", {}).items():
                for name, value in statistics.items():
                    if value is not None:
                        _add(f"layers/{layer}/{name}", tf.constant(value, tf.float32), "scalars")
        self._writer.flush()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        names, values = cosine_matrix(logs or {}, list(self.model.heads))
        if self._writer is None or not names or optional("matplotlib") is None:
            return
        size = 2.2 + 0.7 * len(names)
        figure, axes = new_figure("The heat map", 1, 1, (size, size))
        heat_map(axes[0, 0], f"Which heads agree, until update {self._step:,}", names, values)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
        width, height = (str(int(round(side))) for side in figure.get_size_inches() * 100)
        with self._writer.as_default(step=self._step):
            _add("cosines", tf.constant([width.encode(), height.encode(), png.getvalue()]), "images")
        self._writer.flush()

    def on_train_end(self, logs: Logs = None) -> None:
        """Called by Keras."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _tag(self, name: str) -> str:
        """The name in TensorBoard of a statistic: its group (its head, if it has one) and the rest."""
        if name.startswith("val_"):
            group, _, rest = self._tag(name.removeprefix("val_")).partition("/")
            return f"{group}/val_{rest}"
        for one, other in itertools.combinations(self.model.heads, 2):
            for suffix in ("", "_average"):
                if name == f"{one}_{other}_cosine{suffix}":
                    return f"cosines/{one} and {other}{suffix.replace('_', ' ')}"
        head = max((head for head in self.model.heads if name.startswith(f"{head}_")), key=len, default=None)
        return f"update/{name.removeprefix('update_')}" if head is None else f"{head}/{name.removeprefix(f'{head}_')}"


def _add(tag: str, value: tf.Tensor, plugin: str) -> None:
    """Writes a value as the plugin of TensorBoard reads it."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    tf.summary.write(tag, value, metadata=tf.compat.v1.SummaryMetadata(plugin_data=data))
