"""A trainer of linear modules in NumPy, float64, with the whole state of a `MultiHeadTrainer` and none of its code.

Modules are chains of dense layers without activation, losses are mean squared errors. Variables are `(layer, part)`, their
values stand in one dict. Optimizers are written down as the Keras of this stack has them.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PARTS = ("kernel", "bias")
RATES: dict[str, Any] = {
    "one": lambda step: 1.0,
    "third": lambda step: 1 / 3,
    "frozen": lambda step: 0.0,
    "every_other": lambda step: float(step % 2),
    "staged": lambda step: 0.0 if step < 3 else 1 / 3,
}
"""Factors of learning rates by their names, as functions of the number of updates."""
FROZEN = {"frozen": lambda step: True, "staged": lambda step: step < 3}
"""Of those: at which steps the variables are left out of the update, their gradients too."""
WEIGHTS: dict[str, Any] = {"falling": lambda step: 1 / (1 + step % 4), "at_times": lambda step: float(step % 3 != 1)}
"""Weights of heads that are functions of the number of updates."""
PIECES = (2, 5), (1 / 16, 1 / 32, 1 / 64)
"""The boundaries and values of the learning-rate schedule."""


@dataclass
class Head:
    """A head: the layers of its module, and its options."""

    layers: tuple[str, ...]
    weight: float | str = 1.0
    rate: str = "one"
    decay: float = 1.0
    trains_encoder: bool = True
    is_trained: bool = True


@dataclass
class Optimizer:
    """SGD, or AdamW as Keras computes it, with its slots by variable."""

    kind: str
    rate: float | str
    momentum: float = 0.0
    decay: float = 0.0
    iterations: int = 0
    slots: dict[Any, list[np.ndarray]] = field(default_factory=dict)
    built_for: list[Any] | None = None

    BETAS = 0.875, 0.96875
    EPSILON = 2.0**-10

    @property
    def num_slots(self) -> int:
        return 2 if self.kind == "adamw" else int(self.momentum > 0)

    def learning_rate(self) -> float:
        if self.rate != "pieces":
            return float(self.rate)
        return PIECES[1][sum(self.iterations > end for end in PIECES[0])]

    def step(self, variable: Any, value: np.ndarray, gradient: np.ndarray, decay_factor: float) -> np.ndarray:
        """The value of a variable after an update; its slots change, too."""
        rate, slots = self.learning_rate(), self.slots[variable]
        value = value - value * self.decay * decay_factor * rate
        if self.kind == "adamw":
            first, second = self.BETAS
            slots[0] = slots[0] + (gradient - slots[0]) * (1 - first)
            slots[1] = slots[1] + (gradient**2 - slots[1]) * (1 - second)
            number = self.iterations + 1
            scaled = rate * np.sqrt(1 - second**number) / (1 - first**number)
            return value - scaled * slots[0] / (np.sqrt(slots[1]) + self.EPSILON)
        if not slots:
            return value - rate * gradient
        slots[0] = self.momentum * slots[0] - rate * gradient
        return value + slots[0]


@dataclass
class Options:
    """What `compile` was given; `schedule` is None, or has functions of the step."""

    encoder_rate: str = "one"
    encoder_decay: float = 1.0
    accumulates: int = 1
    schedule: Any = None
    clip: tuple[str, float] | None = None
    balancer: str | None = None
    balance_at: str = "representation"
    others: tuple[tuple[str, Any], ...] = ()


class Logs:
    """The sums behind the logs of an epoch."""

    def __init__(self) -> None:
        self.sums: dict[str, np.ndarray] = {}  # by head: its weighted loss sums, loss sums, counts, number of updates
        self.applied = self.skipped = 0

    def add(self, name: str, weight: float, loss_sum: float, count: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + np.array([weight * loss_sum, loss_sum, count, 1.0])

    def training(self, names: list[str], with_updates: bool) -> dict[str, float]:
        found = {name: self.sums.get(name, np.zeros(4)) for name in names}
        means = {name: (each[:2] / each[2] if each[2] > 0 else np.array([0.0, np.nan])) for name, each in found.items()}
        logs = {"loss": sum(mean[0] for mean in means.values()) if self.applied else np.nan}
        logs |= {f"{name}_loss": mean[1] for name, mean in means.items()}
        logs |= {f"{name}_updates": found[name][3] for name in names} if with_updates else {}
        return {**logs, "skipped_updates": float(self.skipped)}


class Twin:
    """The trainer."""

    def __init__(self, encoder: tuple[str, ...]) -> None:
        self.values: dict[Any, np.ndarray] = {}
        self.encoder = encoder
        self.untrainable: set[str] = set()  # layers with `trainable = False`
        self.heads: dict[str, Head] = {}
        self.optimizer: Optimizer | None = None
        self.options: Options | None = None
        self.variables: list[Any] | None = None  # those that are trained, once they are built
        self.count = 0
        self.idle: set[str] = set()
        self.logs = Logs()

    def add_layer(self, key: str, kernel: np.ndarray, bias: np.ndarray) -> None:
        self.values[key, "kernel"], self.values[key, "bias"] = kernel.copy(), bias.copy()

    # ------------------------------------------------------------------------------------------- state

    def state(self) -> Any:
        """A copy of everything that training changes."""
        weights = {name: head.weight for name, head in self.heads.items()}
        return copy.deepcopy((self.values, self.optimizer, self.variables, self.count, weights, self.idle, self.logs))

    def restore(self, state: Any) -> None:
        """Restores a copy; the optimizer stays the same object."""
        values, optimizer, variables, self.count, weights, self.idle, self.logs = copy.deepcopy(state)
        self.values.update({key: value for key, value in values.items() if key in self.values})
        if self.optimizer is not None and optimizer is not None:
            vars(self.optimizer).update(vars(optimizer))
        self.variables = variables
        for name, weight in weights.items():
            self.heads[name].weight = weight

    @property
    def trained(self) -> dict[str, Head]:
        return {name: head for name, head in self.heads.items() if head.is_trained}

    def trainable(self) -> list[Any]:
        """The variables of modules that are trained, in order, without those that `trainable = False` leaves out."""
        layers = [*self.encoder, *(layer for head in self.trained.values() for layer in head.layers)]
        return [(key, part) for key in dict.fromkeys(layers) if key not in self.untrainable for part in PARTS]

    def build(self) -> None:
        """What the first data after `compile` do."""
        if self.variables is None:
            self.variables, optimizer = self.trainable(), self.optimizer
            if optimizer.built_for is None:
                optimizer.built_for = list(self.variables)
                zeros = {variable: np.zeros_like(self.values[variable]) for variable in self.variables}
                optimizer.slots = {
                    variable: [zero.copy() for _ in range(optimizer.num_slots)] for variable, zero in zeros.items()
                }

    def forget(self) -> None:
        self.options, self.variables, self.idle = None, None, set()

    # ------------------------------------------------------------------------------------------- modules

    def forward(self, layers: tuple[str, ...], x: np.ndarray) -> list[np.ndarray]:
        """The input of each layer, and then the output of the last one."""
        found = [x]
        for key in layers:
            found.append(found[-1] @ self.values[key, "kernel"] + self.values[key, "bias"])
        return found

    def backward(self, layers: tuple[str, ...], inputs: list[np.ndarray], gradient: np.ndarray) -> tuple[dict, np.ndarray]:
        """The gradients of the layers' variables, and that of the input."""
        gradients: dict[Any, np.ndarray] = {}
        for key, x in reversed(list(zip(layers, inputs))):
            add(gradients, {(key, "kernel"): x.T @ gradient, (key, "bias"): gradient.sum(0)})
            gradient = gradient @ self.values[key, "kernel"].T
        return gradients, gradient

    def predict(self, x: np.ndarray) -> dict[str, np.ndarray]:
        hidden = self.forward(self.encoder, x)[-1]
        return {name: self.forward(head.layers, hidden)[-1] for name, head in self.heads.items()}

    # ------------------------------------------------------------------------------------------- an update

    def weight_of(self, name: str) -> float:
        weight = self.heads[name].weight
        return WEIGHTS[weight](self.count) if isinstance(weight, str) else float(weight)

    def active(self, window: list[Any]) -> list[str]:
        """The names of the heads that train."""
        counts = {name: sum(elements(batch, name)[1].sum() for batch in window) for name in self.trained}
        able = [name for name in self.trained if self.weight_of(name) > 0 and name not in self.idle]
        labelled = [name for name in able if counts[name] > 0]
        if self.options.schedule is None:
            return labelled
        chosen = [name for name in labelled if name in self.options.schedule["active"](self.count)]
        return chosen or self.options.schedule["passed_on"](labelled, self.count)

    def rows(self, window: list[Any], name: str) -> tuple[float, float, dict, list[np.ndarray], dict]:
        """Of a head's weighted mean loss: sum, count, gradients of its own variables, of the representation, of the encoder."""
        head = self.heads[name]
        count = sum(elements(batch, name)[1].sum() for batch in window)
        loss_sum, own, leaves, of_encoder = 0.0, {}, [], {}
        for batch in window:
            y, s = elements(batch, name)
            hidden = self.forward(self.encoder, batch[0])
            outputs = self.forward(head.layers, hidden[-1])
            error = outputs[-1] - y
            loss_sum += (s * error**2).sum()
            gradients, leaf = self.backward(head.layers, outputs, self.weight_of(name) / count * 2 * s * error)
            add(own, gradients)
            leaves.append(leaf)
            add(of_encoder, self.backward(self.encoder, hidden, leaf)[0])
        return loss_sum, count, own, leaves, of_encoder

    def update(self, window: list[Any]) -> bool:
        """One update from some batches; whether it was applied."""
        self.build()
        active = self.active(window)
        if not active:
            self.logs.skipped += 1
            return False
        gradients, of_heads = self.gradients(window, active)
        for name, (loss_sum, count, *_) in of_heads.items():
            self.logs.add(name, self.weight_of(name), loss_sum, count)
        rates = self.rates()
        self.apply(self.clipped(gradients), rates)
        self.optimizer.iterations += 1
        self.count += 1
        self.logs.applied += 1
        return True

    def gradients(self, window: list[Any], active: list[str]) -> tuple[dict[Any, np.ndarray], dict[str, Any]]:
        """The gradients of all variables that are trained, before clipping, and what `rows` returns by head."""
        self.build()
        of_heads = {name: self.rows(window, name) for name in active}
        gradients: dict[Any, np.ndarray] = {}
        for _, _, own, _, _ in of_heads.values():
            add(gradients, own)
        meeting = [name for name in active if self.heads[name].trains_encoder]
        for name, coefficient in zip(meeting, self.coefficients([of_heads[name] for name in meeting])):
            add(gradients, {key: coefficient * value for key, value in of_heads[name][4].items()})
        rates = self.rates()
        trained = [key for key in self.variables if key in gradients and not self.is_frozen(rates[key][0])]
        return {key: gradients[key] for key in trained}, of_heads

    def rates(self) -> dict[Any, tuple[list[str], float]]:
        """By variable: the names of the rates that it has, of which the largest counts, and the factor of weight decay."""
        found: dict[Any, tuple[list[str], float]] = {}
        for head in self.trained.values():
            for key in dict.fromkeys(head.layers):
                for part in PARTS:
                    names, decay = found.get((key, part), ([], 0.0))
                    found[key, part] = [*names, head.rate], max(decay, head.decay)
        for key in self.encoder:
            for part in PARTS:
                found[key, part] = [self.options.encoder_rate], self.options.encoder_decay
        return found

    def is_frozen(self, names: list[str]) -> bool:
        return all(name in FROZEN and FROZEN[name](self.count) for name in names)

    def coefficients(self, rows: list[Any]) -> np.ndarray:
        """The balancer's coefficients of some heads."""
        if self.options.balancer is None or not rows:
            return np.ones(len(rows))
        norms = []
        for _, _, _, leaves, of_encoder in rows:
            if self.options.balance_at == "representation":
                parts = leaves
            else:
                parts = [value for key, value in of_encoder.items() if key in self.variables]
            norms.append(np.sqrt(sum((part**2).sum() for part in parts)))
        preference = np.array([PREFERENCE.get(self.options.balancer, 1.0)] * len(rows))
        if self.options.balancer.startswith("sum"):
            return preference
        norms = np.array(norms)
        known = norms > 0
        mean = norms.sum() / known.sum() if known.any() else 0.0
        return np.where(known, mean / np.where(known, norms, 1.0), 0.0)

    def clipped(self, gradients: dict[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        if self.options.clip is None:
            return gradients
        kind, limit = self.options.clip
        if kind == "value":
            return {key: np.clip(value, -limit, limit) for key, value in gradients.items()}
        norms = {key: np.sqrt((value**2).sum()) for key, value in gradients.items()}
        if kind == "global_norm":
            norms = dict.fromkeys(norms, np.sqrt(sum(norm**2 for norm in norms.values())))
        return {key: value * (limit / max(norms[key], limit)) for key, value in gradients.items()}

    def apply(self, gradients: dict[Any, np.ndarray], rates: dict[Any, tuple[list[str], float]]) -> None:
        for key, gradient in gradients.items():
            names, decay = rates[key]
            factor = max(RATES[name](self.count) for name in names)
            if factor > 0:
                old = self.values[key]
                self.values[key] = old + factor * (self.optimizer.step(key, old, gradient, decay) - old)

    # ------------------------------------------------------------------------------------------- an evaluation

    def weights_of_evaluation(self) -> dict[str, float]:
        """The heads' weights in the total loss of an evaluation: 1 for a function of the number of updates."""
        return {name: 1.0 if isinstance(head.weight, str) else head.weight for name, head in self.trained.items()}

    def evaluate(self, batches: list[Any], weights: dict[str, float]) -> dict[str, float]:
        """The losses of the heads that have targets in the data, and their sum with some weights."""
        present = [name for name in self.trained if any(name in batch[1] for batch in batches)]
        total, logs, counts = 0.0, {}, False
        for name in present:
            loss_sum = count = 0.0
            for batch in batches:
                y, s = elements(batch, name)
                loss_sum += (s * (self.predict(batch[0])[name] - y) ** 2).sum()
                count += s.sum()
            logs[f"{name}_loss"] = loss_sum / count if count else np.nan
            if count and weights[name] > 0:
                total, counts = total + weights[name] * loss_sum / count, True
        return {"loss": total if counts else np.nan, **logs}


PREFERENCE = {"sum": 1.0, "sum_of_thirds": 1 / 3}


def add(sums: dict[Any, np.ndarray], gradients: dict[Any, np.ndarray]) -> None:
    for key, value in gradients.items():
        sums[key] = sums.get(key, 0.0) + value


def elements(batch: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The targets of a head in a batch, 0 where there are none, and the weight of each element."""
    x, targets, weights = batch
    if name not in targets:
        return np.zeros((len(x), 1)), np.zeros((len(x), 1))
    y = np.asarray(targets[name], "float64")
    s = np.where(np.isnan(y), 0.0, 1.0)
    if weights is not None and name in weights:
        s = s * np.asarray(weights[name], "float64")[:, np.newaxis]
    return np.where(s > 0, y, 0.0), s
