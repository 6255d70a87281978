"""A small trainer written by hand in NumPy, float64: what a `MultiHeadTrainer` promises, without any of its code."""

from __future__ import annotations

import numpy as np

from tests.helpers import balancing_reference

UNITS = {"tag": 4, "kind": 3, "size": 1, "flags": 2}
"""The kinds of heads, with the width of their predictions; a head's name begins with its kind."""


def kind_of(name):
    return name.partition("_")[0]


def softmax(values):
    values = np.exp(values - values.max(-1, keepdims=True))
    return values / values.sum(-1, keepdims=True)


def sigmoid(values):
    return 1 / (1 + np.exp(-values))


class Labels:
    """A head's targets, and the weight of each element: 0 where there is no label."""

    def __init__(self, name, targets, sample_weight, mask):
        kind = kind_of(name)
        elements = mask.shape + (UNITS[kind],) * (kind in ("size", "flags"))
        targets = np.asarray(targets).astype("float64").reshape(elements)
        missing = targets == {"tag": 0, "kind": -1}.get(kind, np.inf)
        weight = np.ones(elements)
        if sample_weight is not None:
            given = np.asarray(sample_weight).astype("float64")
            weight = weight * given.reshape(given.shape + (1,) * (len(elements) - given.ndim))
        is_counted = mask.reshape(mask.shape + (1,) * (len(elements) - mask.ndim)) & ~missing & ~np.isnan(targets)
        self.weight = np.where(is_counted, weight, 0.0)
        self.targets = np.where(self.weight > 0, targets, 0.0)
        self.is_broken = bool((np.abs(self.targets) > 1e30).any())


def loss_and_gradient(name, raw, labels):
    """The sum of a head's loss over its labels, and its gradient with respect to the module's output before activation."""
    kind, y, s = kind_of(name), labels.targets, labels.weight
    if kind in ("tag", "kind"):
        probabilities = softmax(raw)
        one_hot = np.eye(UNITS[kind])[y.astype(int)]
        values = -np.log((probabilities * one_hot).sum(-1))
        return (s * values).sum(), s[..., None] * (probabilities - one_hot)
    if kind == "size":
        return (s * (raw - y) ** 2).sum(), s * 2 * (raw - y)
    return (s * (np.logaddexp(0, raw) - y * raw)).sum(), s * (sigmoid(raw) - y)


class Head:
    """A head's weights and options."""

    def __init__(self, weight, learning_rate):
        self.weight, self.learning_rate = weight, learning_rate
        self.values = None


class Twin:
    """The encoder, the heads and the optimizer.

    Args:
        has_tokens: Whether the inputs are ids, of which 0 is masked, or vectors.
    """

    def __init__(self, has_tokens):
        self.has_tokens = has_tokens
        self.encoder = None  # its weights: [embedding], kernel, bias
        self.heads = {}
        self.options = None
        self.slots, self.iterations, self.step = {}, 0, 0

    def compile(self, options):
        self.options, self.slots, self.iterations = options, {}, 0

    def read(self, trainer, values):
        """Takes the trainer's weights, which are compared before, so that rounding does not add up."""
        self.encoder = [np.asarray(v, "float64") for v in values(trainer.encoder.weights)]
        for name, head in self.heads.items():
            if trainer.heads[name].module.weights:
                head.values = [np.asarray(v, "float64") for v in values(trainer.heads[name].module.weights)]

    # ------------------------------------------------------------------------------------------------ forward, backward

    def mask(self, x):
        return np.asarray(x) != 0 if self.has_tokens else np.ones(len(x), bool)

    def encode(self, x):
        *table, kernel, bias = self.encoder
        inputs = table[0][np.asarray(x).astype(int)] if self.has_tokens else np.asarray(x, "float64")
        return inputs, np.tanh(inputs @ kernel + bias)

    def raw(self, name, hidden):
        kernel, bias = self.heads[name].values
        return hidden @ kernel + bias

    def predictions(self, x):
        found = {}
        for name in self.heads:
            raw = self.raw(name, self.encode(x)[1])
            found[name] = {"kind": softmax, "flags": sigmoid}.get(kind_of(name), lambda raw: raw)(raw)
        return found

    def encoder_gradient(self, x, inputs, hidden, of_hidden):
        of_sum = of_hidden * (1 - hidden**2)
        flat = of_sum.reshape(-1, of_sum.shape[-1])
        found = [inputs.reshape(-1, inputs.shape[-1]).T @ flat, flat.sum(0)]
        if self.has_tokens:
            table = np.zeros_like(self.encoder[0])
            np.add.at(table, np.asarray(x).astype(int).ravel(), flat @ self.encoder[1].T)
            found.insert(0, table)
        return found

    def losses(self, batches):
        """For each head its mean loss over the labels in some batches and their number."""
        found = {}
        for name in self.heads:
            total, count = 0.0, 0.0
            for x, targets, weights in batches:
                if name in targets:
                    labels = Labels(name, targets[name], weights.get(name), self.mask(x))
                    total += loss_and_gradient(name, self.raw(name, self.encode(x)[1]), labels)[0]
                    count += labels.weight.sum()
            found[name] = (total / count if count else None), count
        return found

    # ------------------------------------------------------------------------------------------------ one update

    def update(self, batches):
        """One update from some batches; whether it ended in an error."""
        labels = {
            name: [Labels(name, y[name], s.get(name), self.mask(x)) if name in y else None for x, y, s in batches]
            for name in self.heads
        }
        counts = {name: sum(each.weight.sum() for each in found if each) for name, found in labels.items()}
        active = self.active(counts)
        broken = [name for name in active if any(each and each.is_broken for each in labels[name])]
        if broken:
            return self.options["on_nonfinite"] == "raise"
        if active:
            self.apply(active, self.gradients(batches, labels, counts, active))
        return False

    def active(self, counts):
        can = [name for name, head in self.heads.items() if head.weight > 0]
        scheduled = list(self.heads)
        if self.options["alternates"]:
            turn = scheduled[self.step % len(scheduled)]
            scheduled = [turn] if turn in can else scheduled
        return [name for name in scheduled if name in can and counts[name] > 0]

    def gradients(self, batches, labels, counts, active):
        """For each active head the gradients of its weights, and under None those of the encoder."""
        passes = [(x, *self.encode(x)) for x, _, _ in batches]
        sums, own, of_hidden = {}, {}, {}
        for name in active:
            kernel, _ = self.heads[name].values
            sums[name], own[name], of_hidden[name] = 0.0, [0.0, 0.0], []
            for (_, _, hidden), found in zip(passes, labels[name]):
                if found is None:
                    of_hidden[name].append(np.zeros_like(hidden))
                    continue
                total, upstream = loss_and_gradient(name, self.raw(name, hidden), found)
                flat = upstream.reshape(-1, upstream.shape[-1])
                sums[name] += total
                own[name][0] += hidden.reshape(-1, hidden.shape[-1]).T @ flat
                own[name][1] += flat.sum(0)
                of_hidden[name].append(upstream @ kernel.T)
        for name in active:
            factor = self.heads[name].weight / counts[name]
            if self.options["weighting"] == "LogLoss":
                factor /= factor * sums[name] + 1e-8
            own[name] = [factor * each for each in own[name]]
            of_hidden[name] = [factor * each for each in of_hidden[name]]
        at_parameters = self.options["balance_at"] == "parameters"
        if at_parameters or not self.options["balancer"]:
            rows = {name: self.through(passes, of_hidden[name]) for name in active}
            return {**own, None: self.combined(rows)}
        return {**own, None: self.through(passes, self.combined(of_hidden))}

    def through(self, passes, of_hidden):
        found = [self.encoder_gradient(*each, of) for each, of in zip(passes, of_hidden)]
        return [sum(column) for column in zip(*found)]

    def combined(self, by_head):
        """The heads' gradients, each a list of arrays, combined by the balancer."""
        arrays = list(by_head.values())[0]
        rows = np.stack([np.concatenate([each.ravel() for each in found]) for found in by_head.values()])
        rows = rows[np.linalg.norm(rows, axis=1) > 0]
        combine = balancing_reference.METHODS[self.options["balancer"] or "Sum"]
        vector = combine(rows) if len(rows) else np.zeros(sum(each.size for each in arrays))
        ends = np.cumsum([each.size for each in arrays])[:-1]
        return [part.reshape(each.shape) for part, each in zip(np.split(vector, ends), arrays)]

    def apply(self, active, gradients):
        rates = {
            None: self.options["encoder_learning_rate_multiplier"],
            **{name: self.heads[name].learning_rate for name in active},
        }
        gradients = {name: found for name, found in gradients.items() if rates[name]}
        kind, limit = self.options["clip"] or (None, None)
        if kind == "ByGlobalNorm":
            norm = np.sqrt(sum((each**2).sum() for found in gradients.values() for each in found))
            scale = lambda each: each * limit / max(norm, limit)  # noqa: E731
        elif kind == "ByNorm":
            scale = lambda each: each * limit / max(np.linalg.norm(each), limit)  # noqa: E731
        else:
            scale = (lambda each: np.clip(each, -limit, limit)) if kind else (lambda each: each)
        self.iterations, self.step = self.iterations + 1, self.step + 1
        for name, found in gradients.items():
            weights = self.encoder if name is None else self.heads[name].values
            for place, gradient in enumerate(found):
                weights[place] = weights[place] + rates[name] * self.change((name, place), scale(gradient))

    def change(self, key, gradient):
        rate = self.options["rate"]
        if self.options["optimizer"] == "sgd":
            return -rate * gradient
        first, second = self.slots.get(key, (0.0, 0.0))
        if self.options["optimizer"] == "momentum":
            first = 0.9 * first - rate * gradient
            self.slots[key] = first, second
            return first
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        self.slots[key] = first, second
        corrected = rate * np.sqrt(1 - 0.999**self.iterations) / (1 - 0.9**self.iterations)
        return -corrected * first / (np.sqrt(second) + 1e-3)
