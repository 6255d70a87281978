"""Every page's code runs, top to bottom, and prints what the test expects of it."""

from __future__ import annotations

import contextlib
import doctest
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import matplotlib.pyplot
import numpy as np
import pytest
import tensorflow as tf

from multihead import clipping
from tests.helpers.ports import free_ports
from tests.helpers.sources import ROOT

WRITTEN = [ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPES = "recipes"  # whose code is parts of files: see test_recipes.py
PAGES = [page for page in WRITTEN if "```python" in page.read_text(encoding="utf-8") and page.stem != RECIPES]
pytestmark = pytest.mark.programs

LONG = (
    *("addons", "finetuning", "ranking", "serving", "sharing", "speed", "text"),
    "watching",
)
"""Pages whose programs take long."""


def code_alone(text: str) -> str:
    """A page whose lines are empty but for those of its blocks of Python."""
    blocks = re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    inside = {
        number
        for block in blocks
        for number in range(text.count("\n", 0, block.start(1)), text.count("\n", 0, block.end(1)))
    }
    return "".join(line if number in inside else "\n" for number, line in enumerate(text.splitlines(keepends=True)))


def shown_output(text: str) -> str:
    """The blocks of output that stand under a page's blocks of Python."""
    return "".join(re.findall(r"^```python\n(?:(?!^```).)*^```\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE))


OPTIONAL = ("keras_hub", "keras_tuner", "onnxruntime", "shap")
"""What sections of pages import that may not be installed."""


def of_what_is_installed(text: str) -> str:
    """A page whose sections that import something missing are empty lines."""
    missing = [f"import {name}\n" for name in OPTIONAL if importlib.util.find_spec(name) is None]
    sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    return "".join("\n" * each.count("\n") if any(line in each for line in missing) else each for each in sections)


@pytest.mark.filterwarnings("ignore:The structure of `inputs` doesn't match:UserWarning")  # SHAP passes a list
@pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning")  # Keras's export to ONNX
@pytest.mark.filterwarnings("ignore:(currentThread|getName):DeprecationWarning")  # of KerasTuner
@pytest.mark.filterwarnings("ignore:\\s*Warning. tf.lite.Interpreter is deprecated:UserWarning")  # docs/howto/serving.md
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.thorough] * (page.stem in LONG)) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], two_replicas: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    # A second strategy in a process would number its collective operations as the first did.
    monkeypatch.setattr(tf.distribute, "MirroredStrategy", lambda: two_replicas)
    text = of_what_is_installed(page.read_text(encoding="utf-8"))
    # A file of Python with the page's line numbers: AutoGraph reads the source of what it converts.
    program = tmp_path / f"page_{page.stem}.py"
    program.write_text(code_alone(text), encoding="utf-8")
    exec(compile(program.read_text(encoding="utf-8"), str(program), "exec"), {"__name__": page.stem})
    matplotlib.pyplot.close("all")
    printed = capsys.readouterr().out
    if shown := shown_output(text):
        assert doctest.OutputChecker().check_output(shown, printed, doctest.ELLIPSIS), printed


@pytest.mark.thorough
def test_two_processes_of_the_page_on_several_machines_make_the_update_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "howto" / "distributing.md").read_text(encoding="utf-8")
    (program,) = re.findall(r'^```python \{ title="train.py" \}\n(.*?)^```', text, re.DOTALL | re.MULTILINE)
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(2)]}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(2)]
    command = [sys.executable, "train.py"]
    processes = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, "TF_CONFIG": json.dumps(task)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in tasks
    ]
    monkeypatch.delenv("TF_CONFIG", raising=False)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            exec(compile(program, "train.py", "exec"), {"__name__": "__main__"})
        answers = [(*process.communicate(timeout=240), process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(code == 0 for _, _, code in answers), [errors[-2000:] for _, errors, _ in answers]
    alone, *workers = [printed.splitlines()[-1] for printed in (told.getvalue(), *(answer[0] for answer in answers))]
    assert workers == [alone, alone] and alone.startswith("updates 8 loss ")


def test_notebook_has_the_outputs_of_its_cells() -> None:
    """`python docs/run_notebook.py` stores them."""
    notebook = json.loads((ROOT / "docs" / "notebooks" / "first_steps.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            outputs = [output["output_type"] for output in cell["outputs"]]
            assert outputs == ["stream"] * ("print(" in source) + ["display_data"] * ("plt.show()" in source)


@pytest.mark.thorough
def test_notebook_runs_from_top_to_bottom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cells in one namespace, as a kernel runs them, with fewer orders and epochs."""
    notebook = json.loads((ROOT / "docs" / "notebooks" / "first_steps.ipynb").read_text(encoding="utf-8"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"]).replace("rows = 3500", "rows = 1500").replace("epochs = 8", "epochs = 2")
            exec(compile(code, "first_steps.ipynb", "exec"), namespace)
    shares = {name: values["reply_share"][-1] for name, values in namespace["history"].items()}
    assert abs(shares["balanced"] - 0.5) < abs(shares["plain sum"] - 0.5) and shares["plain sum"] < 0.5
    assert set(namespace["scores"]) == set(namespace["history"]) == {"plain sum", "balanced"}


def test_loop_of_the_page_is_short_and_trains_as_fit_does(tmp_path: Path) -> None:
    """With labels that are missing, so that batches and heads differ in their counts."""
    page = (ROOT / "docs" / "howto" / "own_loop.md").read_text(encoding="utf-8").replace('"adam"', '"sgd"')
    setting, _, _, loop, *_ = blocks_of(page)
    assert len(loop.splitlines()) <= 40
    found: list[dict[str, Any]] = [{"__name__": "own"}, {"__name__": "fitted"}]
    for code, namespace in zip((f"{setting}{loop}", setting), found):
        program = tmp_path / f"{namespace['__name__']}.py"
        program.write_text(code, encoding="utf-8")
        keras.utils.set_random_seed(0)
        exec(compile(code, str(program), "exec"), namespace)
    own, trainer = (namespace["trainer"] for namespace in found)
    initial = trainer.get_weights()
    options = {"gradient_accumulation_steps": 8, "balancer": "UPGrad", "balance_at": "parameters"}
    trainer.compile("sgd", clip=clipping.ByGlobalNorm(0.5), **options)
    trainer.fit(*found[1]["data"], batch_size=16, epochs=3, shuffle=False, verbose=0)
    assert int(own.update_count) == int(trainer.update_count) == 6
    assert max(np.abs(after - before).max() for after, before in zip(trainer.get_weights(), initial)) > 1e-3
    for one, other in zip(own.get_weights(), trainer.get_weights()):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


# Width


def blocks_of(text: str) -> list[str]:
    """The blocks between fences, without the indentation of their fences."""
    found = re.findall(r"^( *)```[^`\n]*\n(.*?)^\1```", text, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indentation}", "", block, flags=re.MULTILINE) for indentation, block in found]
