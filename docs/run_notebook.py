"""Runs the notebook and stores what its cells print and draw in it: `python docs/run_notebook.py`, on the newest TensorFlow.

The site shows the stored outputs; a build runs nothing. Cells run in one namespace, as in a kernel.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402 - after the backend is chosen

PATH = Path(__file__).resolve().parent / "notebooks" / "first_steps.ipynb"


def stored(cell: dict[str, Any], namespace: dict[str, Any]) -> list[dict[str, Any]]:
    """Runs a cell; returns its outputs in the notebook's format: text first, then figures."""
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(compile("".join(cell["source"]), PATH.name, "exec"), namespace)
    outputs: list[dict[str, Any]] = []
    if told.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": told.getvalue().splitlines(keepends=True)})
    for number in plt.get_fignums():
        file = io.BytesIO()
        plt.figure(number).savefig(file, format="png", dpi=80, metadata={"Software": None})
        data = {"image/png": base64.b64encode(file.getvalue()).decode("ascii") + "\n"}
        outputs.append({"data": data, "metadata": {}, "output_type": "display_data"})
    plt.close("all")
    return outputs


def main() -> None:
    """Rewrites the notebook."""
    notebook = json.loads(PATH.read_text(encoding="utf-8"))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = stored(cell, namespace)
    PATH.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
