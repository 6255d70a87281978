"""The updates of a row by a tape in float64, with NumPy for all that is not a layer, a loss or an optimizer.

Nothing here comes from the library: balancing is that of `tests.helpers.balancing_reference`, optimizers are Keras's.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.helpers import balancing_reference
from tests.helpers.tiny import tensor_variable
from tests.pairs.feed import batches_of, windows_of
from tests.pairs.model import (
    CLASS_WEIGHT,
    FIT_CLASS_WEIGHT,
    HEADS,
    LIMITS,
    RATES,
    WEIGHTS,
    modules_of,
    optimizer_of,
    predictions,
)

TURNS = ["kind", "flags", "flags", "size"]


def scaled(y: np.ndarray, row: dict[str, str]) -> np.ndarray:
    """Targets of the head `size` as its loss reads them."""
    if row["target_scaling"] == "given":
        return (np.log(y.astype("float64")) - 3.5) / 0.8
    if row["target_scaling"] == "learned":
        labels = np.concatenate([targets["size"] for _, targets, _ in batches_of(row)]).astype("float64")
        return (y - np.nanmean(labels)) / np.nanstd(labels)
    return y


def element_losses(name: str, y: np.ndarray, predicted: tf.Tensor, weights: Any, row: dict[str, str]) -> Any:
    """The losses of a head's elements, and how much each counts: 0 where there is no label."""
    if name == "kind":
        labelled = y >= 0
        values = -tf.math.log(tf.gather(predicted, np.maximum(y, 0), axis=1, batch_dims=1))
        by_class = dict.fromkeys(range(3), 1.0)
        if row["class_weight_of_head"] == "given":
            by_class = CLASS_WEIGHT
        if row["class_weight"] == "given":
            by_class = FIT_CLASS_WEIGHT
        counts = np.array([by_class[max(label, 0)] for label in y])
    else:
        y = scaled(y, row) if name == "size" else y
        labelled = ~np.isnan(y)
        clean, counts = np.nan_to_num(y).astype("float64"), np.ones(y.shape)
        if name == "size":
            values = tf.square(predicted - clean)
        else:
            values = -(clean * tf.math.log(predicted) + (1 - clean) * tf.math.log(1 - predicted))
    if weights is not None and name in weights:
        given = weights[name].astype("float64")
        counts = counts * given.reshape(given.shape + (1,) * (y.ndim - 1))
    return values, np.where(labelled, counts, 0.0)


class Tape:
    """The network of a row in float64.

    Attributes:
        updates: The number of updates applied.
    """

    def __init__(self, row: dict[str, str]) -> None:
        self.row = row
        narrow = modules_of(row)
        self.encoder, self.heads = modules_of(row, "float64")
        for one, other in ((narrow[0], self.encoder), *((narrow[1][name], self.heads[name]) for name in HEADS)):
            other.set_weights([np.asarray(value, "float64") for value in one.get_weights()])
        self.log_variances = [tf.Variable(0.0, dtype=tf.float64, name=f"s_{name}") for name in HEADS]
        if row["weighting"] == "Uncertainty" and hasattr(keras, "ops"):
            self.log_variances = [keras.Variable(0.0, dtype="float64", name=f"s_{name}") for name in HEADS]
        optimizer = optimizer_of(row)
        self.optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        kept = [self.encoder] * (row["encoder_decay"] == "none") + [self.heads["size"]] * (row["head_decay"] == "none")
        if kept and row["optimizer"] == "adamw":
            self.optimizer.exclude_from_weight_decay(
                [variable for module in kept for variable in module.trainable_variables]
            )
        learned = self.log_variances if row["weighting"] == "Uncertainty" else []
        self.by_part = {
            "encoder": list(self.encoder.trainable_variables),
            **{name: list(self.heads[name].trainable_variables) for name in HEADS},
            **{f"weighting of {name}": [variable] for name, variable in zip(HEADS, learned)},
        }
        # Averages of the weights are taken here, after the factors of the learning rates.
        self.averages, self.optimizer.use_ema = ({} if self.optimizer.use_ema else None), False
        self.optimizer.build([variable for part in self.by_part.values() for variable in part])
        self.updates, self.cached, self.solved = 0, None, set()

    def rate(self, part: str) -> float:
        """The factor of a part's steps in the next update."""
        if part == "encoder":
            kind = self.row["encoder_rate"]
            return (0.0 if self.updates < 2 else 1.0) if kind == "stages" else RATES[kind]
        return RATES[self.row["head_rate"]] if part == "size" else 1.0

    def pieces(self, window: list[Any]) -> list[Any]:
        """The micro-batches of the batches of an update."""
        number, found = int(self.row["micro_batches"]), []
        for batch in window:
            size = len(batch[0])
            for i in range(number):
                rows = slice(size * i // number, size * (i + 1) // number)
                found.append(tf.nest.map_structure(lambda a, rows=rows: None if a is None else a[rows], batch))
        return found

    def update(self, window: list[Any]) -> None:
        """One update from the batches of a window."""
        pieces, row = self.pieces(window), self.row
        turn = TURNS[self.updates % len(TURNS)]
        scheduled = [name for name in HEADS if row["schedule"] == "none" or name == turn]
        is_frozen = self.rate("encoder") == 0
        state = [(tensor_variable(v), np.array(tensor_variable(v))) for v in self.encoder.non_trainable_variables]
        with tf.GradientTape(persistent=True) as tape:
            sums, counts, leaves = dict.fromkeys(HEADS, 0.0), dict.fromkeys(HEADS, 0.0), []
            for x, y, weights in pieces:
                inputs = tf.constant(x if row["encoder"] == "tokens" else np.asarray(x, "float64"))
                representation = self.encoder(inputs, training=not (is_frozen and row["encoder"] == "batch_normalization"))
                leaves.append(tf.nest.flatten(representation))
                for name in scheduled:
                    predicted = predictions(row, name, self.heads[name], representation, y[name])
                    values, counted = element_losses(name, y[name], predicted, weights, row)
                    sums[name] += tf.reduce_sum(tf.where(counted > 0, values, 0.0) * counted)
                    counts[name] += counted.sum()
            active = [name for name in scheduled if counts[name] > 0]
            losses = {name: self.weight(name) * sums[name] / counts[name] for name in active}
            total = self.total(losses)
        if not active:  # the update is skipped, and changes nothing
            for variable, value in state:
                variable.assign(value)
            return
        # What is frozen has no gradients, nor does it count for the clipping.
        trained = [name for name in active if self.rate(name) > 0]
        gradients: dict[str, Any] = {name: tape.gradient(total, self.tensors(name)) for name in trained}
        for name in active:
            if f"weighting of {name}" in self.by_part:
                gradients[f"weighting of {name}"] = tape.gradient(total, self.tensors(f"weighting of {name}"))
        if not is_frozen:
            factors = {name: float(tf.convert_to_tensor(self.factor(name, losses[name]))) for name in active}
            gradients["encoder"] = self.combined(tape, losses, factors, active, leaves)
        self.apply(self.clipped(gradients))

    def weight(self, name: str) -> float:
        given = WEIGHTS[self.row["weight"]][name]
        return 1.0 / (1.0 + 0.25 * self.updates) if callable(given) else given

    def total(self, losses: dict[str, Any]) -> Any:
        if not losses:
            return None
        if self.row["weighting"] == "LogLoss":
            return tf.add_n([tf.math.log(loss) for loss in losses.values()])
        if self.row["weighting"] == "Uncertainty":
            variances = dict(zip(HEADS, map(tensor_variable, self.log_variances)))
            return tf.add_n([0.5 * (tf.exp(-variances[name]) * loss + variances[name]) for name, loss in losses.items()])
        return tf.add_n(list(losses.values()))

    def factor(self, name: str, loss: tf.Tensor) -> Any:
        """The derivative of the total with respect to a head's loss."""
        if self.row["weighting"] == "LogLoss":
            return 1.0 / loss
        if self.row["weighting"] == "Uncertainty":
            return 0.5 * tf.exp(-tensor_variable(self.log_variances[HEADS.index(name)]))
        return 1.0

    def tensors(self, part: str) -> list[Any]:
        return [tensor_variable(variable) for variable in self.by_part[part]]

    def combined(self, tape: Any, losses: Any, factors: Any, active: list[str], leaves: list[Any]) -> list[np.ndarray]:
        """The encoder's gradient, one array per variable."""
        variables = self.tensors("encoder")
        per_head = {
            name: [factors[name] * _dense(g, v) for g, v in zip(tape.gradient(losses[name], variables), variables)]
            for name in active
        }
        coefficients = dict.fromkeys(active, 1.0)
        if self.row["balancer"] != "none":
            if self.row["balance_at"] == "parameters":
                rows = [np.concatenate([g.ravel() for g in per_head[name]]) for name in active]
            else:
                flat = [leaf for of_piece in leaves for leaf in of_piece]
                rows = [
                    np.concatenate(
                        [
                            (factors[name] * _dense(g, leaf)).ravel()
                            for g, leaf in zip(tape.gradient(losses[name], flat), flat)
                        ]
                    )
                    for name in active
                ]
            coefficients = self.coefficients(dict(zip(active, rows)))
        return [sum(coefficients[name] * per_head[name][i] for name in active) for i in range(len(variables))]

    def coefficients(self, rows: dict[str, np.ndarray]) -> dict[str, float]:
        every = int(self.row["balance_every"])
        present = {name for name, vector in rows.items() if np.linalg.norm(vector) > 0}
        if every > 1 and self.updates % every and self.cached is not None and present <= self.solved:
            return {name: self.cached.get(name, 0.0) for name in rows}
        matrix = np.stack([rows[name] for name in rows if name in present])
        combined = balancing_reference.METHODS[self.row["balancer"]](matrix)
        found = np.linalg.lstsq(matrix.T, combined, rcond=None)[0]
        self.cached, self.solved = dict(zip([name for name in rows if name in present], found)), present
        return {name: self.cached.get(name, 0.0) for name in rows}

    def clipped(self, gradients: dict[str, Any]) -> dict[str, Any]:
        dense = {part: [_dense(g, v) for g, v in zip(found, self.tensors(part))] for part, found in gradients.items()}
        kind = self.row["clip"]
        limit = LIMITS.get(kind)
        of_losses = [part for part in dense if not part.startswith("weighting")]
        if kind == "global_norm":
            norm = np.sqrt(sum((g**2).sum() for part in of_losses for g in dense[part]))
            factor = limit / max(norm, limit)
        for part in of_losses:
            if kind == "value":
                dense[part] = [np.clip(g, -limit, limit) for g in dense[part]]
            elif kind == "norm":
                dense[part] = [g * limit / max(np.linalg.norm(g), limit) for g in dense[part]]
            elif kind == "global_norm":
                dense[part] = [g * factor for g in dense[part]]
        return dense

    def apply(self, gradients: dict[str, Any]) -> None:
        """Applies the gradients, and goes back by what the factors of the learning rates leave out."""
        moved = {part: found for part, found in gradients.items() if self.rate(part) > 0}
        pairs = [(tf.constant(g), v) for part, found in moved.items() for g, v in zip(found, self.by_part[part])]
        before = {part: [np.array(tensor_variable(v)) for v in self.by_part[part]] for part in moved}
        self.optimizer.apply_gradients(pairs)
        for part, old in before.items():
            for i, (variable, value) in enumerate(zip(self.tensors(part), old)):
                if self.rate(part) != 1:
                    variable.assign(value + self.rate(part) * (variable.numpy() - value))
                if self.averages is not None:
                    average = self.averages.get((part, i), value)
                    # Keras 3 begins with the values after the first update.
                    momentum = 0.0 if self.updates == 0 and hasattr(keras, "ops") else self.optimizer.ema_momentum
                    self.averages[part, i] = average + (1 - momentum) * (variable.numpy() - average)
        self.updates += 1

    def train(self) -> None:
        """All updates of the row's `fit`."""
        for window in windows_of(self.row):
            self.update(window)
        # As `fit` does at its end: with `use_ema`, the variables become their averages.
        for (part, i), average in (self.averages or {}).items():
            self.tensors(part)[i].assign(average)

    def values(self) -> list[np.ndarray]:
        """All weights of the modules, in the order of encoder and heads."""
        return [np.asarray(value) for module in (self.encoder, *self.heads.values()) for value in module.get_weights()]


def _dense(gradient: Any, like: Any) -> np.ndarray:
    if gradient is None:
        return np.zeros(like.shape)
    return np.asarray(tf.convert_to_tensor(gradient), "float64")
