"""Does a floor under the heads' norms help where heads starve, and does it hurt where none does? 36 small problems.

    python -m benchmarks.norm_floor [--problems wine fraud ...] [--seeds 10] [--quick]
    python -m benchmarks.norm_floor --show [--picture docs/concepts/pace.png]

Every variant trains each problem from the same initial weights on the same batches. Twelve problems served to find the rule
and its default; fourteen were made after both were fixed, and have changed neither; ten were made last, six of them from the
data of `benchmarks.molecules`, `benchmarks.multimnist` and `benchmarks.restaurants`. A head's figure is R2, accuracy or, for
a rare yes, the area under the ROC curve on held-out examples. A head counts as better or hurt if the 95 % interval of its
paired differences from the plain sum does not contain 0; by chance, so does one in twenty of the heads that nothing affects.

All variants and seeds of a problem train at once, as one batch of networks, which is many times as fast as one after the
other; `tests/examples/test_benchmark_norm_floor.py` compares this with the trainer. A problem and a variant are a line of
JSON in `--output`; what is there is not repeated. `--show` prints the tables of a file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks._further_problems import FURTHER
from benchmarks._problems import CLASSES, FIRST, PIXELS, RARE, UNSEEN, Problem
from benchmarks._results import read_lines as read
from examples._command_line import InputError
from multihead.comparison._findings import difference_of

BATCH, BETA = 32, 0.98
GROUPS = {"first 12": FIRST, "unseen 14": UNSEEN, "further 10": FURTHER}
PROBLEMS = {make.__name__: make for group in GROUPS.values() for make in group}
LINES = Path(__file__).parent / "results" / "norm_floor.jsonl"
SEEDS = range(2, 11)
"""The numbers of seeds to choose from."""

Line = Mapping[str, Any]
State = tuple[tf.Tensor, tf.Tensor]
Rule = Callable[[tf.Tensor, State], tuple[tf.Tensor, State]]
"""From the squared norms `[networks, heads]` and a state to the coefficients and the next state."""


def plain_sum(squares: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
    """Ones."""
    return tf.ones_like(squares), state


def equal_norms(squares: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
    """As `balancing.EqualNorms`, for `[networks, heads]` squared norms."""
    norms, active = tf.sqrt(squares), tf.cast(squares > 0, tf.float32)
    mean = tf.reduce_sum(norms, axis=1, keepdims=True) / tf.reduce_sum(active, axis=1, keepdims=True)
    return tf.math.divide_no_nan(mean * active, norms), state


def norm_floor(floor: float) -> Rule:
    """As `balancing.NormFloor`; the state is the sums of squares and of the averaging weights."""

    def coefficients(squares: tf.Tensor, state: State) -> tuple[tf.Tensor, State]:
        sums = tf.where(squares > 0, BETA * state[0] + (1 - BETA) * squares, state[0])
        masses = tf.where(squares > 0, BETA * state[1] + 1 - BETA, state[1])
        norms = tf.sqrt(tf.math.divide_no_nan(sums, masses))
        targets = tf.where(norms > 0, tf.maximum(norms, floor * tf.reduce_max(norms, axis=1, keepdims=True)), 0.0)
        size = tf.norm(norms, axis=1, keepdims=True) / tf.norm(targets, axis=1, keepdims=True)
        found = size * tf.math.divide_no_nan(targets, norms)
        return tf.where(squares > 0, found, 0.0), (sums, masses)

    return coefficients


VARIANTS: dict[str, Rule] = {
    "plain sum": plain_sum,
    "EqualNorms": equal_norms,
    "floor 1": norm_floor(1.0),
    "floor 0.5": norm_floor(0.5),
    "floor 0.2": norm_floor(0.2),
}


class Networks:
    """One network per variant and seed, `[variants * seeds, ...]` each, with their data.

    Args:
        problems: The problem with the data of each seed.
        seeds: The seeds.
        variants: By name, what computes the coefficients of a variant.
    """

    def __init__(self, problems: Sequence[Problem], seeds: Sequence[int], variants: Mapping[str, Rule]) -> None:
        self.problem, self.variants, self.num_seeds = problems[0], variants, len(seeds)
        self.names = list(self.problem.heads)
        heads = [[problem.heads[name] for problem in problems] for name in self.names]
        self.kinds = [of_head[0].kind for of_head in heads]
        self.inputs = np.stack([problem.inputs for problem in problems]).astype("float32")
        labels = [np.stack([head.labels for head in of_head]) for of_head in heads]
        known = [~np.isnan(each if each.ndim == 2 else each[..., 0]) for each in labels]
        self.known = [each.astype("float32") for each in known]
        self.labels = [
            np.nan_to_num(each).astype("int32" if kind == CLASSES else "float32") for each, kind in zip(labels, self.kinds)
        ]
        sizes = [self.inputs.shape[-1], *self.problem.encoder]
        outputs = [max(head.outputs for head in of_head) for of_head in heads]
        shapes = [*zip(sizes, sizes[1:]), *((sizes[-1], count) for count in outputs)]
        self.start = [values for i, shape in enumerate(shapes) for values in self._layer(seeds, i, shape)]
        self.variables = [tf.Variable(np.tile(values, (len(variants), 1, 1))) for values in self.start]
        self.num_encoder = 2 * len(self.problem.encoder)

    @staticmethod
    def _layer(seeds: Sequence[int], layer: int, shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        """Keras's initial values of a dense layer for each seed: a kernel by Glorot's rule, and zeros."""
        limit = np.sqrt(6 / sum(shape))
        kernels = [np.random.default_rng([seed, layer]).uniform(-limit, limit, shape) for seed in seeds]
        return np.stack(kernels).astype("float32"), np.zeros((len(seeds), 1, shape[1]), "float32")

    def encode(self, x: tf.Tensor) -> tf.Tensor:
        """`[networks, examples, width]`."""
        for i in range(0, self.num_encoder, 2):
            x = tf.matmul(x, self.variables[i]) + self.variables[i + 1]
            is_number = i == self.num_encoder - 2 and x.shape[-1] == 1
            x = x if is_number else tf.nn.relu(x)
        return x

    def predict(self, k: int, z: tf.Tensor) -> tf.Tensor:
        """`[networks, examples, outputs]` of a head; logits of classes."""
        kernel, bias = self.variables[self.num_encoder + 2 * k :][:2]
        return tf.matmul(z, kernel) + bias

    def loss(self, k: int, z: tf.Tensor, y: tf.Tensor, known: tf.Tensor) -> tf.Tensor:
        """`[networks]`: the mean over the examples with a label, times the head's weight."""
        predicted = self.predict(k, z)
        if self.kinds[k] == CLASSES:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=predicted)
        elif self.kinds[k] == RARE:
            each = tf.nn.sigmoid_cross_entropy_with_logits(labels=y, logits=predicted[..., 0])
        else:
            each = tf.reduce_mean((predicted - y if self.kinds[k] == PIXELS else predicted - y[..., None]) ** 2, axis=-1)
        weight = self.problem.heads[self.names[k]].weight
        return weight * tf.math.divide_no_nan(tf.reduce_sum(each * known, axis=1), tf.reduce_sum(known, axis=1))

    def gradients(self, x: tf.Tensor, y: Sequence[tf.Tensor], known: Sequence[tf.Tensor], state: State) -> Any:
        """The gradients of all variables, balanced at the representation, and the balancers' next state."""
        with tf.GradientTape() as of_encoder:
            z = self.encode(x)
        at_z, of_heads = [], []
        for k in range(len(self.names)):
            with tf.GradientTape() as of_head:
                of_head.watch(z)
                loss = self.loss(k, z, y[k], known[k])
            own = self.variables[self.num_encoder + 2 * k :][:2]
            found, *others = of_head.gradient(loss, [z, *own])
            at_z.append(found)
            of_heads += others
        rows = tf.stack(at_z, axis=1)
        squares = tf.split(tf.reduce_sum(rows**2, axis=[2, 3]), len(self.variants))
        states = zip(*(tf.split(each, len(self.variants)) for each in state))
        found = [rule(*given) for rule, given in zip(self.variants.values(), zip(squares, states))]
        coefficients = tf.concat([each for each, _ in found], axis=0)
        state = tuple(tf.concat(parts, axis=0) for parts in zip(*(after for _, after in found)))
        combined = tf.einsum("nk,nkbd->nbd", coefficients, rows)
        of_shared = of_encoder.gradient(z, self.variables[: self.num_encoder], output_gradients=combined)
        return of_shared + of_heads, state

    def train(self, orders: np.ndarray, optimizer: str = "Adam", rates: np.ndarray | None = None) -> None:
        """Trains with a rate that decays to zero by a cosine, by an optimizer as Keras has it.

        Args:
            orders: `[updates, seeds, batch]`, the examples of each update.
            optimizer: `"Adam"`, `"AdamW"`, or `"SGD"` with a momentum of 0.9.
            rates: `[variants]`, the first rate of each variant, or `[variants, 1 + heads]`, that of its encoder and of each
                head's own variables; by default that of the problem.
        """
        num_networks, updates = len(self.variants) * self.num_seeds, len(orders)
        data = [tf.constant(each) for each in (self.inputs, *self.labels, *self.known)]
        orders = tf.constant(orders.astype("int32"))
        slots = [[tf.Variable(tf.zeros_like(each)) for each in self.variables] for _ in range(2)]
        chosen = np.full(len(self.variants), self.problem.rate) if rates is None else rates
        of_parts = np.broadcast_to(chosen.reshape(len(self.variants), -1), (len(self.variants), 1 + len(self.names)))
        parts = [tf.constant(np.repeat(each, self.num_seeds)[:, None, None].astype("float32")) for each in of_parts.T]
        places = [0] * self.num_encoder + [1 + k for k in range(len(self.names)) for _ in range(2)]

        @tf.function(autograph=False)
        def run() -> None:
            def update(step: tf.Tensor, *state: tf.Tensor) -> tuple[tf.Tensor, ...]:
                batch = [tf.gather(each, orders[step], axis=1, batch_dims=1) for each in data]
                x, *others = [tf.tile(each, [len(self.variants)] + [1] * (each.shape.rank - 1)) for each in batch]
                gradients, state = self.gradients(x, others[: len(self.names)], others[len(self.names) :], state)
                time = tf.cast(step, tf.float32)
                decay = 0.5 * (1 + tf.cos(np.pi * time / updates))
                correction = tf.sqrt(1 - 0.999 ** (time + 1)) / (1 - 0.9 ** (time + 1))
                for variable, gradient, place, mean, square in zip(self.variables, gradients, places, *slots):
                    rate = parts[place] * decay
                    if optimizer == "SGD":
                        mean.assign(0.9 * mean - rate * gradient)
                        variable.assign_add(mean)
                        continue
                    if optimizer == "AdamW":
                        variable.assign_sub(0.004 * rate * variable)
                    mean.assign_add(0.1 * (gradient - mean))
                    square.assign_add(0.001 * (gradient**2 - square))
                    variable.assign_sub(rate * correction * mean / (tf.sqrt(square) + 1e-7))
                return step + 1, *state

            zeros = tf.zeros([num_networks, len(self.names)])
            tf.while_loop(lambda step, *_: step < updates, update, [tf.constant(0), zeros, zeros], parallel_iterations=1)

        run()

    def figures(self) -> dict[str, np.ndarray]:
        """By head, `[variants, seeds]`: R2, accuracy or area under the ROC curve on the held-out examples."""
        held_out = slice(self.problem.train, None)
        z = self.encode(tf.constant(np.tile(self.inputs[:, held_out], (len(self.variants), 1, 1))))
        found = {}
        for k, name in enumerate(self.names):
            predicted = self.predict(k, z).numpy()
            seeds = np.arange(len(predicted)) % self.num_seeds
            labels, known = self.labels[k][:, held_out], self.known[k][:, held_out] > 0
            values = [figure(self.kinds[k], labels[s][known[s]], predicted[n][known[s]]) for n, s in enumerate(seeds)]
            found[name] = np.reshape(values, (len(self.variants), self.num_seeds))
        return found


def orders_of(problem: Problem, seeds: Sequence[int], updates: int, batch: int = BATCH) -> np.ndarray:
    """`[updates, seeds, batch]`: whole batches, at most of all examples, of a new order in each epoch."""
    batch = min(batch, problem.train)
    per_epoch = problem.train // batch
    by_seed = []
    for seed in seeds:
        rng = np.random.default_rng([seed, 9])
        epochs = [rng.permutation(problem.train)[: per_epoch * batch] for _ in range(-(-updates // per_epoch))]
        by_seed.append(np.concatenate(epochs).reshape(-1, batch)[:updates])
    return np.stack(by_seed, axis=1)


def figure(kind: str, labels: np.ndarray, predicted: np.ndarray) -> float:
    """R2, accuracy, or the area under the ROC curve."""
    if kind == CLASSES:
        return float((predicted.argmax(axis=-1) == labels).mean())
    if kind == PIXELS:
        return float(1 - ((predicted - labels) ** 2).sum() / ((labels - labels.mean(axis=0)) ** 2).sum())
    if kind == RARE:
        yes, no = predicted[labels == 1, 0], np.sort(predicted[labels == 0, 0])
        ranks = np.searchsorted(no, yes, "left") + np.searchsorted(no, yes, "right")
        return float(ranks.mean() / (2 * len(no)))
    return float(1 - ((predicted[:, 0] - labels) ** 2).mean() / labels.var())


def measure(name: str, seeds: Sequence[int], variants: Sequence[str], updates: int) -> dict[str, np.ndarray]:
    """Trains a problem by all variants and seeds, and returns the figures by head, `[variants, seeds]`."""
    problems = [PROBLEMS[name](seed) for seed in seeds]
    networks = Networks(problems, seeds, {variant: VARIANTS[variant] for variant in variants})
    networks.train(orders_of(problems[0], seeds, min(updates, problems[0].updates)))
    return networks.figures()


def differences(lines: Sequence[Line], problem: str, variant: str) -> list[tuple[str, float, float, float]]:
    """By head: the mean of the plain sum, the mean difference of a variant from it, and half of its 95 % interval."""
    by_variant = {line["variant"]: line["heads"] for line in lines if line["problem"] == problem}
    if not {"plain sum", variant} <= set(by_variant):
        return []
    found = []
    for head, values in by_variant[variant].items():
        plain = np.array(by_variant["plain sum"][head], float)  # None becomes NaN
        change = np.array(values, float) - plain
        if np.isnan(change).any():  # a rare yes that does not occur in a seed's held-out examples
            continue
        of_head = difference_of(change, 0.95)
        found.append((head, float(plain.mean()), of_head.mean, of_head.high - of_head.mean))
    return found


def counts(lines: Sequence[Line], problems: Sequence[str], variant: str) -> dict[str, Any]:
    """How many heads a variant makes better, how many it hurts, and the largest loss of one that is hurt."""
    found = [each for problem in problems for each in differences(lines, problem, variant)]
    hurt = [change for _, _, change, half in found if change < -half]
    better = [change for _, _, change, half in found if change > half]
    return {"heads": len(found), "better": len(better), "hurt": len(hurt), "worst": min(hurt, default=0.0)}


def compared_variants(lines: Sequence[Line]) -> list[str]:
    """The variants of a file, without the plain sum."""
    return [variant for variant in VARIANTS if variant != "plain sum" and any(line["variant"] == variant for line in lines)]


def summary(lines: Sequence[Line]) -> str:
    """The table of counts, in Markdown."""
    groups = [[make.__name__ for make in group] for group in GROUPS.values()]
    titles = [f"{name}: better | hurt | worst" for name in GROUPS]
    rows = [f"| variant | {' | '.join(titles)} |", "| --- |" + " ---: |" * (3 * len(GROUPS))]
    for variant in compared_variants(lines):
        cells = []
        for group in groups:
            found = counts(lines, group, variant)
            cells += [f"{found['better']} of {found['heads']}", str(found["hurt"]), f"{found['worst']:+.3f}"]
        rows.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def by_head(lines: Sequence[Line], problems: Sequence[str]) -> str:
    """The table of heads, in Markdown: the plain sum, and by variant the difference and half of its 95 % interval."""
    variants = compared_variants(lines)
    rows = [f"| problem | head | plain sum | {' | '.join(variants)} |", "| --- | --- |" + " ---: |" * (1 + len(variants))]
    for problem in problems:
        for of_head in zip(*(differences(lines, problem, variant) for variant in variants)):
            cells = []
            for _, _, change, half in of_head:
                mark = " ↑" if change > half else " ↓" if change < -half else ""
                cells.append(f"{change:+.3f} ± {half:.3f}{mark}")
            rows.append(f"| `{problem}` | {of_head[0][0]} | {of_head[0][1]:.3f} | {' | '.join(cells)} |")
    return "\n".join(rows)


def draw(lines: Sequence[Line], path: Path) -> None:
    """Draws the law of the pace for two heads, and two problems of two heads as measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    law, *measured = figure.subplots(1, 3)
    angles = np.linspace(0, np.pi / 2)
    law.plot(np.cos(angles), np.sin(angles), color="0.7")
    for floor in (0.0, 0.1, 0.2, 0.5, 1.0):
        pace = np.array([1.0, floor]) / np.hypot(1.0, floor)
        law.plot(*pace, "o", color="C0")
        law.annotate(f"floor {floor:g}", pace, xytext=(-5, -4), textcoords="offset points", ha="right", va="top")
    law.set(title="The law, one head starved", xlabel="pace of the larger head", ylabel="pace of the smaller head", aspect=1)
    law.set_ylim(-0.12, 1.08)
    for axes, (problem, larger, smaller) in zip(
        measured, (("digit_pictures", "digit", "picture"), ("two_labels", "fine", "coarse"))
    ):
        for line in lines:
            if line["problem"] == problem:
                values = [np.array(line["heads"][head]) for head in (larger, smaller)]
                errors = [each.std(ddof=1) / np.sqrt(len(each)) for each in values]
                means = [each.mean() for each in values]
                axes.errorbar(*means, xerr=errors[0], yerr=errors[1], fmt="o", color="C0", elinewidth=0.8)
                left = line["variant"] in ("plain sum", "EqualNorms")
                place = {"xytext": (-5, -13), "ha": "right"} if left else {"xytext": (5, 4)}
                axes.annotate(line["variant"], means, textcoords="offset points", **place)
        axes.set(title=f"{problem}, as measured", xlabel=larger, ylabel=smaller)
        axes.margins(0.7, 0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=10, choices=SEEDS, help="number of seeds")
    parser.add_argument("--quick", action="store_true", help="a few updates each, to see that it runs")
    parser.add_argument("--show", action="store_true", help="print the tables of the file, without training")
    parser.add_argument("--picture", type=Path, help="file for a picture of the law and of what was measured")
    parser.add_argument("--output", type=Path, default=LINES, help="file with a line for each problem and variant")
    options = parser.parse_args(arguments)
    done = {line["problem"] for line in read(options.output)}
    for problem in () if options.show else [each for each in options.problems if each not in done]:
        try:
            found = measure(problem, range(options.seeds), list(VARIANTS), 4 if options.quick else sys.maxsize)
        except InputError as error:
            parser.error(str(error))
        options.output.parent.mkdir(parents=True, exist_ok=True)
        with options.output.open("a", encoding="utf-8") as file:
            for i, variant in enumerate(VARIANTS):
                rounded = {head: np.round(values[i], 4).tolist() for head, values in found.items()}
                heads = {head: [None if np.isnan(each) else each for each in row] for head, row in rounded.items()}
                file.write(json.dumps({"problem": problem, "variant": variant, "heads": heads}) + "\n")
        print(f"{problem}: done", flush=True)
    lines = read(options.output)
    if options.picture:
        draw(lines, options.picture)
    print(summary(lines), by_head(lines, list(PROBLEMS)), sep="\n\n")


if __name__ == "__main__":
    sys.exit(main())
