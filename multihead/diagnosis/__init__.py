"""Measures the heads' gradients without training, and suggests what to change."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from multihead._display.drawing import bars, heat_map, new_figure, table_as_text
from multihead._ground.types import Config, Figure
from multihead.diagnosis._reached import HeadLabels
from multihead.diagnosis._statistics import Cosines, as_json, interval

__all__ = ["Diagnosis", "Finding"]

LEVELS = ("representation", "parameters")
FEW_IN_COMMON = 0.3
"""Of the rows with a label of either head, the fraction with labels of both below which cosines say nothing."""


class Finding(str):
    """A sentence that states a finding and its remedy, with a short `kind`, such as `"scale"`, and the `heads` concerned.

    `docs/choosing.md` has a table of the kinds.
    """

    kind: str
    heads: tuple[str, ...]

    def __new__(cls, sentence: str, kind: str = "", heads: Sequence[str] = ()) -> Finding:
        finding = super().__new__(cls, sentence)
        finding.kind, finding.heads = kind, tuple(heads)
        return finding


@dataclass(frozen=True)
class Diagnosis:
    """What `MultiHeadTrainer.diagnose` returns: findings, a suggestion, and the measurements behind them.

    `print` shows all of it, `plot` draws it. `findings`, `suggestion` and `parts` are what most programs need. In the
    measurements, `g_k` is the gradient of head `k`'s weighted loss with respect to the `"representation"` or the encoder's
    `"parameters"`.

    Attributes:
        findings: Sentences with findings, likely causes and what to do. A finding has a `kind` and the `heads` concerned.
        suggestion: Keyword arguments for `compile`: `trainer.compile("adam", **diagnosis.suggestion)`. A `balancer`,
            `"NormFloor"`, if it would act on these gradients, and a `target_scaling` for heads in raw units. Empty if there
            is neither; the findings also say what `compile` cannot repair. `parts` has them one by one.
        equal_weights: By head name, the `weight` with which the measured norms would be equal; empty if fewer than two heads
            have one.
        heads: The heads' names, in the order of all arrays below.
        batches: The number of batches measured.
        losses: `[heads]`: mean unweighted losses; NaN for a head without labels.
        constant_losses: `[heads]`: the same losses, with the same class and sample weights, of the best of several constant
            predictions, such as the mean for `"mse"` and the class frequencies for a cross-entropy; NaN if unknown.
        progress: By head, `"untrained"` (no better than a constant prediction), `"learning"`, `"noisy"` (better than a
            constant, but its gradient is mostly noise in these batches: done, or learning slowly), `"done"` (almost nothing
            is left of the loss), or `"unknown"`.
        weights: `[heads]`: mean weights of the losses.
        labelled: `[heads]`: the fraction of elements that have a label, padding left out.
        label_means: `[heads]`: for heads that predict numbers, the mean of the labels, as the loss sees them; otherwise NaN.
        label_deviations: `[heads]`: their standard deviation; otherwise NaN.
        labels: By head, what its labels require: among others, how many (`unreachable`) of their `number` its module
            cannot predict, and the `scaling` that fits labels, loss and module, or None.
        reads: By head, whether it reads the floating-point tensors of the representation, one boolean per tensor.
        norms: By level, `[heads]`: the root mean square of `|g_k|` over batches that train the head.
        spreads: By level, the cosines of `g_i` and `g_j`, `[heads, heads]`: over batches, their `mean`, standard
            `deviation`, the ends `low` and `high` of a 95 % confidence interval of the mean, and the fraction `negative` of
            batches in which they are below 0. NaN for heads without a common batch; with a single batch, all are NaN except
            `mean` and `negative`.
        mean_cosines: `[heads, heads]`: the cosines of the means of `g_i` and `g_j` over all batches, at the parameters.
        signal_to_noise: `[heads]`: the squared norm of the mean of `g_k` over the variance of `g_k` of one batch, at the
            parameters; NaN for a single batch.
        has_signal: `[heads]`: whether this mean is larger than what noise alone would leave.
        layer_norms: By encoder layer, `[heads]`: as `norms`.
        layer_cosines: By encoder layer, as `spreads`.
        update_norm: The mean global norm of all gradients, of the encoder and the heads, before clipping.
        clipped: The fraction of this norm that remains after clipping; 1 without clipping.
        predicted: `[heads, 4]`: the smallest and the largest prediction, and the smallest and the largest sum of a row.
        representation_sizes: `[heads]`: the root mean square of the tensor that the head reads; of several, the smallest.
        overlaps: `[heads, heads]`: of the rows with a label of either head, the fraction with labels of both.
        finite: `[heads]`: whether all losses and gradients were finite.

    Example:
        >>> import keras
        >>> from multihead import MultiHeadTrainer
        >>> trainer = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
        >>> trainer.add_head("price", keras.layers.Dense(1), "mse")
        >>> trainer.add_head("size", keras.layers.Dense(1), "mae")
        >>> trainer.compile("adam")
        >>> x = np.arange(24, dtype="float32").reshape(8, 3) / 24
        >>> y = {"price": 1000 + 100 * x[:, :1], "size": x[:, 1:2]}
        >>> diagnosis = trainer.diagnose(x, y)
        >>> [(finding.kind, finding.heads) for finding in diagnosis.findings][0]
        ('units', ('price',))
        >>> diagnosis.parts["target_scaling"]
        {'target_scaling': {'price': 'standardize'}}
        >>> trainer.compile("adam", **diagnosis.suggestion)
    """

    heads: tuple[str, ...]
    batches: int
    losses: np.ndarray
    constant_losses: np.ndarray
    progress: tuple[str, ...]
    weights: np.ndarray
    labelled: np.ndarray
    label_means: np.ndarray
    label_deviations: np.ndarray
    labels: tuple[HeadLabels, ...]
    reads: tuple[tuple[bool, ...], ...]
    norms: dict[str, np.ndarray]
    spreads: dict[str, Cosines]
    mean_cosines: np.ndarray
    signal_to_noise: np.ndarray
    has_signal: np.ndarray
    layer_norms: dict[str, np.ndarray]
    layer_cosines: dict[str, Cosines]
    update_norm: float
    clipped: float
    predicted: np.ndarray
    representation_sizes: np.ndarray
    overlaps: np.ndarray
    finite: np.ndarray
    findings: tuple[Finding, ...] = ()
    suggestion: Config = field(default_factory=dict)
    equal_weights: dict[str, float] = field(default_factory=dict)

    @property
    def shares(self) -> dict[str, np.ndarray]:
        """By level, `[heads]`: `|g_k| / sum_j |g_j|`, from `norms`."""
        with np.errstate(all="ignore"):
            return {level: norms / np.nansum(norms) for level, norms in self.norms.items()}

    @property
    def cosines(self) -> dict[str, np.ndarray]:
        """By level, `[heads, heads]`: the mean cosines, from `spreads`."""
        return {level: spread.mean for level, spread in self.spreads.items()}

    @property
    def conflicts(self) -> dict[str, np.ndarray]:
        """By level, `[heads, heads]`: the fraction of batches in which the cosine is negative, from `spreads`."""
        return {level: spread.negative for level, spread in self.spreads.items()}

    @property
    def parts(self) -> dict[str, Config]:
        """The parts of the `suggestion`, each as keyword arguments for `compile`: variants of `multihead.compare`."""
        main_arguments = {"balance_at": "balancer"}  # of arguments that mean nothing alone
        parts: dict[str, Config] = {}
        for name, value in self.suggestion.items():
            parts.setdefault(main_arguments.get(name, name), {})[name] = value
        return parts

    def __str__(self) -> str:
        tables = [table_as_text(title, columns, rows) for title, columns, rows in self.tables()]
        sections = ["\n".join(f"- {finding}" for finding in self.findings)]
        if self.suggestion:
            sections.append("\n".join(["Suggestion", *_suggestion_lines(self.parts, self.suggestion)]))
        if self.equal_weights:
            tables.append(_weights_as_text(self.equal_weights, list(self.suggestion.get("target_scaling", ()))))
        return "\n\n".join([*sections, *tables])

    def tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, columns and rows of the tables that `print` shows; all fit a terminal of 80 columns."""
        losses, gradients = [], []
        for k, head in enumerate(self.heads):
            loss, constant, weight = (f"{values[k]:.4g}" for values in (self.losses, self.constant_losses, self.weights))
            losses.append([head, loss, constant, self.progress[k], weight, f"{self.labelled[k]:.0%}"])
            measurements = [values[k] for level in LEVELS for values in (self.norms[level], self.shares[level])]
            gradients.append([head, *(f"{measurement:.3g}" for measurement in (*measurements, self.signal_to_noise[k]))])
        loss_columns = ["head", "loss", "constant", "progress", "weight", "labelled"]
        gradient_columns = ["head", "norm (repr.)", "share", "norm (param.)", "share", "signal/noise"]
        tables = [
            (f"Losses of the heads over {self.batches} batches", loss_columns, losses),
            ("Gradients of the heads", gradient_columns, gradients),
        ]
        pairs = list(itertools.combinations(range(len(self.heads)), 2))
        if pairs:
            rows = []
            for i, j in pairs:
                spreads = [[values[i, j] for values in self.spreads[level]] for level in LEVELS]
                cells = [interval((mean, low, high), "+.2f") for mean, _, low, high, _ in spreads]
                if self.overlaps[i, j] < FEW_IN_COMMON:
                    cells = [f"{self.overlaps[i, j]:.0%} of rows in common"] * 2
                rows.append([f"{self.heads[i]} and {self.heads[j]}", *cells])
            tables.append(("Cosines of gradients: mean, 95 % interval", ["heads", *(f"at the {x}" for x in LEVELS)], rows))
        return tables

    def plot(self) -> Figure:
        """Draws shares and norms of the heads, losses against constant predictions, and cosines.

        Raises:
            ImportError: matplotlib is not installed.
        """
        figure, axes = new_figure("`Diagnosis.plot`", 1, 3, (12, 1.8 + 0.5 * len(self.heads)))
        level = "parameters" if np.nansum(self.norms["parameters"]) > 0 else "representation"
        shares = self.shares[level]
        bars(axes[0, 0], "Who moves the encoder: share of its gradient", self.heads, shares, [f"{s:.1%}" for s in shares])
        with np.errstate(all="ignore"):
            ratios = self.losses / self.constant_losses
        texts = [f"{ratio:.2f}, {progress}" for ratio, progress in zip(ratios, self.progress)]
        bars(axes[0, 1], "How far heads have come: loss / loss of a constant", self.heads, ratios, texts)
        axes[0, 1].axvline(1, color="grey", lw=0.8, ls=":")
        heat_map(axes[0, 2], "Which heads agree: cosines of gradients", self.heads, self.cosines[level])
        return figure

    def to_dict(self) -> Config:
        """All measurements, findings and the suggestion, as JSON takes them; non-finite numbers are None."""
        measured = {**vars(self), "shares": self.shares, "cosines": self.cosines, "conflicts": self.conflicts}
        plain = {name: as_json(value) for name, value in measured.items() if name not in ("findings", "suggestion")}
        findings = [
            {"kind": finding.kind, "heads": list(finding.heads), "sentence": str(finding)} for finding in self.findings
        ]
        suggestion = {name: as_json(value) for name, value in self.suggestion.items()}
        return {**plain, "findings": findings, "suggestion": suggestion}


_PURPOSES = {
    "target_scaling": "trains {heads} on scaled targets; predictions and metrics keep their units",
    "balancer": "lifts gradients below a fifth of the largest to it{after}",
}


def _suggestion_lines(parts: Mapping[str, Config], suggestion: Config) -> list[str]:
    """A line of code per part of a suggestion, and one for the whole, below comments that say what they do."""
    after = ""
    if "target_scaling" in parts:
        after = "; scaled, they may need no more; without the scaling, it can make heads in other units worse"
    lines = []
    for name, part in parts.items():
        heads = ", ".join(map(repr, part[name])) if isinstance(part[name], Mapping) else ""
        lines += [f"# {_PURPOSES[name].format(heads=heads, after=after)}", _call(part)]
    if "scaling." in repr(suggestion.get("target_scaling")):
        lines.insert(0, "from multihead import scaling")
    if len(parts) > 1:
        lines += ["# all of it; `multihead.compare` tells which part helps which head", _call(suggestion)]
    return lines


def _call(arguments: Config) -> str:
    return f"trainer.compile(optimizer, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _weights_as_text(weights: Mapping[str, float], scaled_heads: Sequence[str]) -> str:
    """What fixed weights would do, and where they are not enough."""
    before = ""
    if scaled_heads:
        before = f" They are for the targets as they are: scale those of {', '.join(map(repr, scaled_heads))} first."
    return (
        f"`weight=` by head that would make these norms equal: {weights!r}\n"
        f"for name, weight in {weights!r}.items(): trainer.set_weight(name, weight)\n"
        "Fixed weights that are tuned are often as good as any method (Xin et al., 2022, arXiv:2209.11379), but not where "
        f"the sizes of gradients drift while the heads train: `NormFloor` follows them.{before}"
    )
