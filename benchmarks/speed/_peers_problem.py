"""What is the same for all libraries in `peers`: data, initial weights, and how a library's process is asked.

This file needs NumPy alone, since PyTorch is in an environment of its own. Weights have the shapes and the order of Keras's
layers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

CLASSES, FEATURES, VOCABULARY, EMBEDDING, TIME, SIDE = 10, 64, 500, 64, 25, 32
RATE, EPSILON = 1e-3, 1e-7
"""Adam's learning rate and epsilon."""
UNITS = {"dense": 256, "convolutions": 64, "GRU": 128, "LSTM": 128}
"""The size of the representation by model."""
BATCH = {"dense": 128, "convolutions": 64, "GRU": 128, "LSTM": 128}
STEPS = {"dense": 50, "convolutions": 6, "GRU": 8, "LSTM": 8}
"""Timed steps of a turn."""
PLAIN, REPRESENTATION, PARAMETERS = "plain sum", "UPGrad, representation", "UPGrad, parameters"
VARIANTS = {"ours": (PLAIN, REPRESENTATION, PARAMETERS), "Keras": (PLAIN,), "PyTorch": (PLAIN, PARAMETERS)}
"""How each library trains; that of PyTorch is TorchJD's at the parameters."""


class Problem(NamedTuple):
    """One model with a number of heads.

    Attributes:
        model: `"dense"`, `"convolutions"`, `"GRU"` or `"LSTM"`.
        heads: The number of heads, each a dense layer with cross-entropy.
        steps: The number of timed steps; the data have one batch more.
    """

    model: str
    heads: int
    steps: int

    @property
    def batch(self) -> int:
        """Examples in a batch."""
        return BATCH[self.model]

    @property
    def names(self) -> list[str]:
        """The names of the heads."""
        return [f"head_{number}" for number in range(self.heads)]

    def encoder_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the encoder's weights, in Keras's order."""
        units = UNITS[self.model]
        if self.model == "dense":
            return [(FEATURES, units), (units,), (units, units), (units,)]
        if self.model == "convolutions":
            return [(3, 3, 3, units // 2), (units // 2,), (3, 3, units // 2, units), (units,)]
        gates, biases = (3, (2, 3 * units)) if self.model == "GRU" else (4, (4 * units,))
        return [(VOCABULARY, EMBEDDING), (EMBEDDING, gates * units), (units, gates * units), biases]

    def arrays(self) -> dict[str, np.ndarray]:
        """Inputs `x`, classes `y_{k}`, and the initial weights `encoder_{n}` and `kernel_{k}`; biases are zero."""
        rng, rows = np.random.default_rng(self.heads), (self.steps + 1) * self.batch
        if self.model == "dense":
            x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
        elif self.model == "convolutions":
            x = rng.normal(size=(rows, SIDE, SIDE, 3)).astype(np.float32)
        else:
            x = rng.integers(1, VOCABULARY, (rows, TIME), dtype=np.int32)
        found = {"x": x}
        for place, shape in enumerate(self.encoder_shapes()):
            is_bias = len(shape) == 1 or shape[0] == 2
            found[f"encoder_{place}"] = np.zeros(shape, np.float32) if is_bias else glorot(rng, shape)
        for head in range(self.heads):
            found[f"y_{head}"] = rng.integers(0, CLASSES, rows, dtype=np.int32)
            found[f"kernel_{head}"] = glorot(rng, (UNITS[self.model], CLASSES))
        return found


def glorot(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Glorot's uniform initial values of a kernel whose last two axes are inputs and outputs."""
    limit = np.sqrt(6.0 / (np.prod(shape[:-2]) * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


class Model(Protocol):
    """A model of one library that is trained in one way."""

    def parameters(self) -> int:
        """The number of trainable parameters."""

    def train(self, steps: int) -> dict[str, float]:
        """Trains one step, and then some more whose time is taken, on the first batches in order.

        Args:
            steps: The number of timed steps; with 0, nothing is timed.

        Returns:
            `seconds` and `processor`, the time and the processor time of the process per timed step; and `loss`, the mean
            over all steps of the sum of the heads' losses before each update.
        """


@dataclass(frozen=True)
class Library:
    """What a library's process does.

    Attributes:
        versions: The versions of the library and of what it needs.
        make: Makes the model of a problem, trained in the given way, from its arrays.
        forget: Frees what earlier models leave behind.
    """

    versions: Mapping[str, str]
    make: Callable[[Problem, Mapping[str, np.ndarray], str, str], Model]
    forget: Callable[[], None]


def clocks() -> np.ndarray:
    """Seconds of a clock and of the processors in this process, `[2]`."""
    return np.array([time.perf_counter(), time.process_time()])


def measured(start: np.ndarray, end: np.ndarray, steps: int, loss: float) -> dict[str, float]:
    """What `Model.train` returns, from `clocks` before and after the timed steps."""
    seconds, processor = (end - start) / max(steps, 1)
    return {"seconds": float(seconds), "processor": float(processor), "loss": loss}


def serve(library: Library) -> None:
    """Answers requests, a JSON object in a line of the standard input each, until it ends.

    What libraries print goes to the standard error.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    models: dict[str, Model] = {}

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        if "problem" in request:
            models.clear()
            library.forget()
            problem, own = Problem(*request["problem"]), {}
            with np.load(request["path"]) as arrays:
                own.update(arrays)
            for who, how in request["variants"]:
                models[f"{who}, {how}"] = library.make(problem, own, who, how)
            return {name: model.parameters() for name, model in models.items()}
        return models[request["train"]].train(request["steps"])

    print(json.dumps(dict(library.versions)), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=replies, flush=True)
