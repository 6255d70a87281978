"""The process of `peers` in which PyTorch trains, with TorchJD for UPGrad: a loop over batches, in eager mode.

It runs in an environment without TensorFlow. Layers get Keras's weights: kernels are transposed, and the gates of a GRU are
in another order. PyTorch's LSTM has two biases that are added; the second one is zero and not trained, as Keras has one.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.speed._peers_problem import (
    CLASSES,
    EMBEDDING,
    EPSILON,
    FEATURES,
    PLAIN,
    RATE,
    UNITS,
    VOCABULARY,
    Library,
    Problem,
    clocks,
    measured,
    serve,
)

torch = importlib.import_module("torch")
autojac, aggregation = importlib.import_module("torchjd.autojac"), importlib.import_module("torchjd.aggregation")
nn = torch.nn


class Recurrent(nn.Module):  # type: ignore[misc, name-defined]
    """An embedding and a recurrent layer, of which the last state is read."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.recurrent = getattr(nn, model)(EMBEDDING, UNITS[model], batch_first=True)

    def forward(self, tokens: Any) -> Any:
        _, state = self.recurrent(self.embedding(tokens))
        return (state[0] if isinstance(state, tuple) else state)[-1]


def encoder_of(model: str, weights: Sequence[np.ndarray]) -> Any:
    """The encoder with weights of Keras."""
    units, given = UNITS[model], [torch.tensor(each) for each in weights]
    if model == "dense":
        encoder = nn.Sequential(nn.Linear(FEATURES, units), nn.ReLU(), nn.Linear(units, units), nn.ReLU())
        values = [each.T if each.ndim == 2 else each for each in given]
    elif model == "convolutions":
        first, second = nn.Conv2d(3, units // 2, 3, padding=1), nn.Conv2d(units // 2, units, 3, padding=1)
        parts = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2)]
        encoder = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        values = [each.permute(3, 2, 0, 1) if each.ndim == 4 else each for each in given]
    else:
        encoder = Recurrent(model)
        embedding, kernel, recurrent, bias = given
        biases = list(bias) if model == "GRU" else [bias, torch.zeros_like(bias)]
        values = [embedding, *(_gates(model, each) for each in (kernel.T, recurrent.T, *biases))]
        encoder.recurrent.bias_hh_l0.requires_grad_(model == "GRU")
    with torch.no_grad():
        for parameter, value in zip(encoder.parameters(), values, strict=True):
            parameter.copy_(value)
    return encoder


def _gates(model: str, weight: Any) -> Any:
    """Weights `[gates x units, ...]` in PyTorch's order of gates."""
    if model == "LSTM":
        return weight
    update, reset, new = weight.chunk(3)
    return torch.cat([reset, update, new])


class Looped:
    """A model, its optimizer and the loop over batches.

    Args:
        problem: The problem.
        arrays: Its arrays.
        how: The plain sum, or UPGrad at the parameters.
    """

    def __init__(self, problem: Problem, arrays: Mapping[str, np.ndarray], how: str) -> None:
        self._batch, self._is_plain, self._at_once = problem.batch, how == PLAIN, None
        x = torch.tensor(arrays["x"])
        self._x = x.permute(0, 3, 1, 2).contiguous() if x.ndim == 4 else x if x.is_floating_point() else x.long()
        self._labels = [torch.tensor(arrays[f"y_{head}"]).long() for head in range(problem.heads)]
        weights = [arrays[f"encoder_{place}"] for place in range(len(problem.encoder_shapes()))]
        heads = []
        for head in range(problem.heads):
            heads.append(nn.Linear(UNITS[problem.model], CLASSES))
            with torch.no_grad():
                heads[-1].weight.copy_(torch.tensor(arrays[f"kernel_{head}"]).T)
                heads[-1].bias.zero_()
        modules = {"encoder": encoder_of(problem.model, weights), "heads": nn.ModuleList(heads)}
        self._start(nn.ModuleDict(modules))
        if not self._is_plain:
            self._at_once = self._faster_way()

    def _start(self, modules: Any) -> None:
        self._modules = modules
        self._shared = [each for each in modules["encoder"].parameters() if each.requires_grad]
        self._optimizer = torch.optim.Adam([each for each in modules.parameters() if each.requires_grad], RATE, eps=EPSILON)
        self._aggregator = aggregation.UPGrad()

    def _faster_way(self) -> int | None:
        """How many heads are differentiated at once: all of them (None) or one, whichever takes less time here."""
        start, seconds = self._modules, {}
        for self._at_once in (None, 1):
            self._start(copy.deepcopy(start))
            try:
                seconds[self._at_once] = self.train(min(3, len(self._x) // self._batch - 1))["seconds"]
            except (NotImplementedError, RuntimeError):  # not every operation can be vectorized
                if self._at_once == 1:
                    raise
        self._start(start)
        return min(seconds, key=lambda way: seconds[way])

    def parameters(self) -> int:
        return sum(each.numel() for each in self._modules.parameters() if each.requires_grad)

    def train(self, steps: int) -> dict[str, float]:
        total = self._step(0)
        start = clocks()
        for number in range(1, steps + 1):
            total += self._step(number)
        end = clocks()
        return measured(start, end, steps, float(total) / (steps + 1))

    def _step(self, number: int) -> Any:
        """One update; returns the loss before it."""
        rows = slice(number * self._batch, (number + 1) * self._batch)
        self._optimizer.zero_grad()
        features = self._modules["encoder"](self._x[rows])
        pairs = zip(self._modules["heads"], self._labels)
        losses = [nn.functional.cross_entropy(head(features), labels[rows]) for head, labels in pairs]
        total = sum(losses)
        if self._is_plain:
            total.backward()
        else:
            autojac.mtl_backward(losses, features=features, parallel_chunk_size=self._at_once)
            autojac.jac_to_grad(self._shared, self._aggregator)
        self._optimizer.step()
        return total.detach()


def main() -> None:
    metadata = importlib.import_module("importlib.metadata")
    versions = {"PyTorch": torch.__version__, "TorchJD": metadata.version("torchjd")}
    serve(Library(versions, lambda problem, arrays, _, how: Looped(problem, arrays, how), lambda: None))


if __name__ == "__main__":
    main()
