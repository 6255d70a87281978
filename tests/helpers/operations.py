"""The operations of a trainer's step, by the stage of the update that makes them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import tensorflow as tf

import multihead

ROOT = Path(multihead.__file__).parent

STAGES = {
    "labels": ("_update/labels", "heads/_label", "losses/_known", "_data/batch", "_ground/validation"),
    "passes": ("_update/passes", "_ground/tape", "_update/network", "_ground/keras", "_ground/calls", "heads/", "losses/"),
    "weights": ("_update/weights", "schedules", "_update/pipeline", "_update/participation"),
    "combine": ("_update/strategies", "_update/representation", "balancing/", "_ground/tensors"),
    "optimizer": ("_ground/optimizers",),
    "apply": ("_update/apply", "_update/update", "_ground/replicas"),
    "faults": ("_update/faults",),
    "statistics": ("telemetry/",),
}
"""The beginnings of the paths of each stage's files, the first that fits counts; the rest is `"others"`."""

CONDITIONS = ("If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase")
ASSIGNMENTS = ("Assign", "ResourceApply", "ResourceScatter", "ResourceSparseApply")


def operations(step: tf.types.experimental.ConcreteFunction) -> list[tf.Operation]:
    """The operations of a traced step, those of all its branches, loops and functions included."""
    found: dict[str, tf.Graph] = {}

    def visit(graph: tf.Graph) -> None:
        for operation in graph.get_operations():
            for value in (operation.get_attr(name) for name in operation.node_def.attr):
                name = getattr(value, "name", None)
                if isinstance(name, str) and name not in found and (function := graph._get_function(name)) is not None:
                    if getattr(function, "graph", None) is not None:
                        found[name] = function.graph
                        visit(function.graph)

    visit(step.graph)
    return [operation for graph in (step.graph, *found.values()) for operation in graph.get_operations()]


def stage_of(operation: tf.Operation) -> str:
    """The stage whose code made an operation: that of the innermost of the package's files."""
    for frame in reversed(operation.traceback or ()):  # none in the bodies of some loops
        path = Path(frame.filename)
        if ROOT in path.parents and frame.name not in ("where", "<genexpr>"):
            name = path.relative_to(ROOT).as_posix()
            return next((stage for stage, files in STAGES.items() if name.startswith(files)), "others")
    return "others"


def by_stage(step: tf.types.experimental.ConcreteFunction) -> Counter[str]:
    """The number of operations of each stage; among all, of conditions and loops, and of assignments of variables."""
    found = operations(step)
    conditions = sum(each.type in CONDITIONS for each in found)
    assignments = sum(each.type.startswith(ASSIGNMENTS) for each in found)
    return Counter(map(stage_of, found)) + Counter(conditions=conditions, assignments=assignments)
