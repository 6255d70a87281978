"""Writes scalars and images that TensorBoard shows, without importing TensorBoard."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from multihead._display.drawing import heat_map, new_figure
from multihead._display.extras import optional


class Board:
    """A folder of TensorBoard's.

    Args:
        folder: The folder.
        heads: The heads' names.
    """

    def __init__(self, folder: Path, heads: Sequence[str]) -> None:
        self._writer = tf.summary.create_file_writer(str(folder))
        self._heads = heads

    def add_scalars(self, line: Mapping[str, Any]) -> None:
        """Writes the statistics of an update, or of a validation."""
        with self._writer.as_default(step=line["step"]):
            for name, value in line.items():
                if isinstance(value, float):
                    _write(self.tag(name), tf.constant(value, tf.float32), "scalars")
            for layer, statistics in line.get("layers", {}).items():
                for name, value in statistics.items():
                    if value is not None:
                        _write(f"layers/{layer}/{name}", tf.constant(value, tf.float32), "scalars")
        self._writer.flush()

    def add_cosines(self, statistics: Mapping[str, Any], step: int) -> None:
        """Writes the heat map of an epoch's mean cosines as an image, if there are any and matplotlib is installed."""
        names, values = cosines(statistics, self._heads)
        if not names or optional("matplotlib") is None:
            return
        size = 2.2 + 0.7 * len(names)
        figure, axes = new_figure("The heat map", 1, 1, (size, size))
        heat_map(axes[0, 0], f"Which heads agree, until update {step:,}", names, values)
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=100)
        width, height = (str(int(round(side))) for side in figure.get_size_inches() * 100)
        with self._writer.as_default(step=step):
            _write("cosines", tf.constant([width.encode(), height.encode(), png.getvalue()]), "images")
        self._writer.flush()

    def tag(self, name: str) -> str:
        """The name in TensorBoard of a statistic: its group (its head, if it has one) and the rest."""
        if name.startswith("val_"):
            group, _, rest = self.tag(name.removeprefix("val_")).partition("/")
            return f"{group}/val_{rest}"
        for one, other in itertools.combinations(self._heads, 2):
            for suffix in ("cosine", "cosine_average"):
                if name == f"{one}_{other}_{suffix}":
                    return f"cosines/{one} and {other}{suffix.removeprefix('cosine').replace('_', ' ')}"
        for head in sorted(self._heads, key=len, reverse=True):
            if name.startswith(f"{head}_"):
                return f"{head}/{name.removeprefix(f'{head}_')}"
        return f"update/{name.removeprefix('update_')}"

    def close(self) -> None:
        """Closes the file."""
        self._writer.close()


def cosines(statistics: Mapping[str, Any], heads: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The matrix of cosines between heads, and with the update, from statistics by name.

    Returns:
        The names of rows and columns, and the matrix; NaN for unknown cosines. Nothing if no cosine is known.
    """
    names = [*heads, "update"]
    values = np.full([len(names), len(names)], np.nan)
    np.fill_diagonal(values, 1.0)
    is_any = False
    for i, one in enumerate(heads):
        for j, name in [(len(heads), f"{one}_update_cosine")] + [
            (j, f"{one}_{heads[j]}_cosine") for j in range(i + 1, len(heads))
        ]:
            if statistics.get(name) is not None:
                values[i, j] = values[j, i] = float(statistics[name])
                is_any = True
    return (names, values) if is_any else ([], values)


def _write(tag: str, value: tf.Tensor, plugin: str) -> None:
    """Writes a value as the plugin of TensorBoard reads it."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    tf.summary.write(tag, value, metadata=tf.compat.v1.SummaryMetadata(plugin_data=data))
