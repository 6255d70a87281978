"""Time until a trainer has made its first steps: the import, and the first `fit` of four steps, beside Keras.

Each number is processor time in a process of its own, since only the first `fit` of a process shows what a user waits for.
One process runs at a time; each ratio is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed._record import Line, Row, Table, finish, relative_table, rows_of, table
from benchmarks.speed._shared import ROOT, parsed, parser_of

HEADS = ("a", "b", "c")
VARIANTS: dict[str, dict[str, Any] | None] = {"Keras": None, "plain sum": {}, "UPGrad": {"balancer": "UPGrad"}}
"""By name the options of `compile`; None for a model of Keras with three outputs."""
FIT, IMPORT = "First `fit` of 4 steps, three heads", "percent of the import of TensorFlow and Keras"


def model_of_keras() -> Any:
    import keras

    inputs = keras.Input([16])
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    model = keras.Model(inputs, {name: keras.layers.Dense(1, name=name)(hidden) for name in HEADS})
    model.compile("adam", loss=dict.fromkeys(HEADS, "mse"))
    return model


def trainer(**options: Any) -> Any:
    import keras

    from multihead import MultiHeadTrainer

    made = MultiHeadTrainer(keras.Sequential([keras.layers.Dense(32, activation="relu")]))
    for name in HEADS:
        made.add_head(name, keras.layers.Dense(1), "mse")
    made.compile("adam", **options)
    return made


def seconds(action: Callable[[], Any]) -> float:
    """The processor time of an action."""
    start = time.process_time()
    action()
    return time.process_time() - start


def child(name: str) -> dict[str, float]:
    """What a process of one variant needs: to import TensorFlow and Keras, to import `multihead`, for the first `fit`."""

    def libraries() -> None:
        import keras
        import tensorflow as tf

        tf.constant(0.0)
        keras.Model  # noqa: B018 - Keras 2 imports itself at the first use

    def package() -> None:
        import multihead  # noqa: F401

    times = {"libraries": seconds(libraries), "package": seconds(package)}
    import numpy as np

    x, y = np.ones([128, 16], "float32"), {head: np.ones([128, 1], "float32") for head in HEADS}
    options = VARIANTS[name]
    model = model_of_keras() if options is None else trainer(**options)
    times["fit"] = seconds(lambda: model.fit(x, y, batch_size=32, verbose=0))
    return times


def run(name: str) -> dict[str, float]:
    """`child` in a process of its own, which imports compiled files, as those of an installed package are."""
    command = [sys.executable, "-m", "benchmarks", "start", "--child", name]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def tables(lines: Sequence[Line]) -> list[Table]:
    return [relative_table(lines, FIT, measured=FIT), table(lines, "", ["import of"], [IMPORT], ".1f")]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = parser_of("start", __doc__, rounds=7)
    parser.add_argument("--child", choices=list(VARIANTS), help=argparse.SUPPRESS)
    options = parsed(parser, arguments)
    if options.child:
        print(json.dumps(child(options.child)))
        return
    names = [*VARIANTS][:2] if options.quick else [*VARIANTS]
    if not options.quick:
        run("plain sum")  # writes the compiled files of the package, which a first import makes
    rounds = [{name: run(name) for name in names} for _ in range(options.rounds)]
    imports = [found["package"] / found["libraries"] for each in rounds for found in each.values()]
    rows: list[Row] = rows_of({name: [each[name]["fit"] for each in rounds] for name in names}, measured=FIT)
    rows.append({"import of": "`multihead`", IMPORT: round(100 * statistics.median(imports), 2)})
    finish(options, rows, tables)
