"""Measures the heads' gradients without training, and suggests what to change."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from multihead import schedules
from multihead._gradients import deduplicate, norm
from multihead._keras import AUTOGRAPH
from multihead._update.backward import MicroBatchGradients
from multihead._update.batch import Batch
from multihead._update.combine import Combined, Combiner, HeadsAtStep, SumHeads, products_of, weighted
from multihead._update.labels import share_nothing
from multihead._update.network import Network
from multihead._update.pipeline import compute_update
from multihead._update.representation import RepresentationGradients
from multihead._update.spec import UpdateSpec

__all__ = ["Diagnosis"]

LEVELS = ("representation", "parameters")
_MUCH_LARGER, _OFTEN, _OPPOSED, _SELDOM_LABELLED, _MUCH_CLIPPED = 10.0, 0.5, -0.1, 0.1, 0.5


@dataclass(frozen=True)
class Diagnosis:
    """Measurements on a number of batches, and findings about them; `print` it.

    With `g_k` the gradient of head `k`'s weighted loss with respect to the `"representation"` or the encoder's
    `"parameters"`:

    Attributes:
        heads: The heads' names, in the order of all arrays below.
        batches: The number of batches measured.
        losses: `[heads]`: mean unweighted losses; NaN for a head without labels.
        weights: `[heads]`: mean weights of the losses.
        labelled: `[heads]`: the fraction of batches in which a head has labels.
        norms: By level, `[heads]`: the root mean square of `|g_k|` over batches that train the head.
        shares: By level, `[heads]`: `|g_k| / sum_j |g_j|`, from `norms`.
        cosines: By level, `[heads, heads]`: the mean cosine of `g_i` and `g_j`; NaN for heads without a common batch.
        conflicts: By level, `[heads, heads]`: the fraction of batches in which this cosine is negative.
        update_norm: The mean global norm of all gradients, of the encoder and the heads, before clipping.
        clipped: The fraction of this norm that remains after clipping; 1 without clipping.
        finite: `[heads]`: whether all losses and gradients were finite.
        findings: Sentences with findings, likely causes and suggestions.
    """

    heads: tuple[str, ...]
    batches: int
    losses: np.ndarray
    weights: np.ndarray
    labelled: np.ndarray
    norms: dict[str, np.ndarray]
    shares: dict[str, np.ndarray]
    cosines: dict[str, np.ndarray]
    conflicts: dict[str, np.ndarray]
    update_norm: float
    clipped: float
    finite: np.ndarray
    findings: tuple[str, ...]

    def __str__(self) -> str:
        width = max(4, *map(len, self.heads))
        columns = ["loss", "weight", "labelled", "norm (repr.)", "share", "norm (param.)", "share"]
        lines = [" ".join([f"{'head':{width}}", *(f"{column:>13}" for column in columns)])]
        for k, head in enumerate(self.heads):
            figures = [self.losses[k], self.weights[k], self.labelled[k]]
            figures += [values[k] for level in LEVELS for values in (self.norms[level], self.shares[level])]
            lines.append(" ".join([f"{head:{width}}", *(f"{figure:13.4g}" for figure in figures)]))
        for i, j in itertools.combinations(range(len(self.heads)), 2):
            cosines = ", ".join(
                f"{self.cosines[level][i, j]:.2f} at the {level} (negative in {self.conflicts[level][i, j]:.0%})"
                for level in LEVELS
            )
            lines.append(f"cosine of {self.heads[i]} and {self.heads[j]}: {cosines}")
        return "\n".join([*lines, *(f"- {finding}" for finding in self.findings)])


class Measure(Combiner):
    """The plain sum that also measures the inner products of the heads' gradients at the parameters.

    Args:
        network: The encoder and the heads.
        heads: The heads in this update.
    """

    measure = staticmethod(RepresentationGradients.gramian)

    def __init__(self, network: Network, heads: HeadsAtStep) -> None:
        self._sum = SumHeads(network, self.measure, heads)
        self._heads = heads

    def combine(self, gathered: MicroBatchGradients, folds: Sequence[MicroBatchGradients]) -> Combined:
        factors = self._heads.weights.factors(gathered.loss_sums)
        products = weighted(products_of(gathered.per_head), factors)
        return self._sum.combine(gathered, folds)._replace(gramian=products)


def measure(spec: UpdateSpec, batches: Iterable[Batch], step: tf.Tensor, loss_scale: tf.Tensor | None) -> Diagnosis:
    """Measures batches. Metrics and the modules' state change as in training, and the caller must restore them.

    Args:
        spec: How updates are computed.
        batches: At least one batch.
        step: The number of updates applied so far.
        loss_scale: The factor of loss scaling, or None.
    """
    together = schedules.Together()
    together.bind([head.name for head in spec.network.heads])
    measuring = replace(spec, schedule=together, num_micro_batches=1, combiner=partial(Measure, spec.network))

    def figures(batch: Batch) -> dict[str, tf.Tensor]:
        update = compute_update(measuring, [batch], step, loss_scale)
        gradients = update.gradients.of_losses
        return {
            "losses": update.loss_sums,
            "counts": update.counts,
            "weights": update.total.weights,
            "representation": update.combined.at_representation,
            "parameters": update.combined.gramian,
            "before": _global_norm(gradients),
            "after": _global_norm(gradients if spec.clip is None else spec.clip(gradients)),
        }

    traced = tf.function(figures, reduce_retracing=True, autograph=AUTOGRAPH)
    found = [{name: value.numpy() for name, value in traced(batch).items()} for batch in batches]
    return _conclude(spec, {name: np.array([each[name] for each in found]) for name in found[0]})


def _global_norm(gradients: Sequence[Any]) -> tf.Tensor:
    return norm(tf.stack([norm(deduplicate(gradient)) for gradient in gradients if gradient is not None]))


def _conclude(spec: UpdateSpec, found: dict[str, np.ndarray]) -> Diagnosis:
    heads = tuple(head.name for head in spec.network.heads)
    trained = (found["counts"] > 0) & (found["weights"] != 0)
    finite = np.isfinite(found["losses"]).all(axis=0)
    norms, shares, cosines, conflicts = {}, {}, {}, {}
    with np.errstate(all="ignore"):
        for level in LEVELS:
            squares = np.diagonal(found[level], axis1=1, axis2=2)
            finite &= np.isfinite(squares).all(axis=0)
            norms[level] = np.sqrt(np.where(trained, squares, 0).sum(axis=0) / trained.sum(axis=0))
            shares[level] = norms[level] / np.nansum(norms[level])
            roots = np.sqrt(squares)
            cosine = found[level] / (roots[:, :, None] * roots[:, None, :])
            met = np.isfinite(cosine)
            cosines[level] = np.where(met, cosine, 0).sum(axis=0) / met.sum(axis=0)
            conflicts[level] = (met & (cosine < 0)).sum(axis=0) / met.sum(axis=0)
        losses = found["losses"].sum(axis=0) / found["counts"].sum(axis=0)
        weights = np.where(trained, found["weights"], 0).sum(axis=0) / trained.sum(axis=0)
        ratios = found["after"] / found["before"]
        clipped = float(ratios[np.isfinite(ratios)].mean()) if np.isfinite(ratios).any() else float("nan")
    measured = Diagnosis(
        heads, len(trained), losses, weights, (found["counts"] > 0).mean(axis=0), norms, shares, cosines, conflicts,
        float(found["before"].mean()), clipped, finite, (),
    )  # fmt: skip
    return replace(measured, findings=tuple(_findings(measured, spec)))


def _findings(found: Diagnosis, spec: UpdateSpec) -> list[str]:
    """Interprets the measurements."""
    heads, said = found.heads, []
    for k, head in enumerate(heads):
        if not found.finite[k]:
            said.append(
                f"{head!r} has losses or gradients that are not finite, and such updates are skipped. Check its labels and "
                "inputs for invalid values."
            )
        elif found.labelled[k] > 0 and not found.weights[k] > 0:
            said.append(f"{head!r} is not trained, because its weight is 0. Give it a weight if it should learn.")
        elif found.labelled[k] > 0 and found.norms["representation"][k] == 0:
            said.append(
                f"The representation gradient of {head!r} is zero. Check for a constant loss, saturated outputs, or a "
                "weight that is too small."
            )
        elif found.labelled[k] < _SELDOM_LABELLED:
            said.append(
                f"{head!r} has labels in only {found.labelled[k]:.0%} of the batches, so it is rarely trained. Mix datasets "
                "(`multihead.mix_datasets`) or sample batches with more of its labels; a balancer cannot create labels."
            )
    apart = share_nothing(spec.predictions)
    level = "parameters" if apart else "representation"
    norms = found.norms[level]
    usable = np.flatnonzero(np.isfinite(norms) & (norms > 0) & found.finite)
    if len(usable) > 1:
        largest, smallest = usable[np.argmax(norms[usable])], usable[np.argmin(norms[usable])]
        if norms[largest] > _MUCH_LARGER * norms[smallest]:
            said.append(_of_norms(found, largest, smallest, spec, level))
    for i, j in itertools.combinations(range(len(heads)), 2):
        at_parameters, at_representation = (found.conflicts[level][i, j] for level in LEVELS[::-1])
        if at_parameters > _OFTEN and found.cosines["parameters"][i, j] < _OPPOSED:
            hidden = at_representation <= _OFTEN or found.cosines["representation"][i, j] >= _OPPOSED
            level = " with `balance_at='parameters'`, because the conflict does not show at the representation"
            said.append(
                f"The gradients of {heads[i]!r} and {heads[j]!r} conflict in {at_parameters:.0%} of the batches (mean "
                f"cosine {found.cosines['parameters'][i, j]:.2f} at the parameters): an update that improves one makes the "
                f"other worse. Try `balancer=balancing.UPGrad()`{level if hidden else ''}."
            )
    if spec.clip is not None and found.clipped < _MUCH_CLIPPED:
        said.append(
            f"On average, clipping reduces the gradient norm of {found.update_norm:.3g} to {found.clipped:.2g} of its size. "
            "This scales all heads by the same factor and leaves almost nothing of small gradients: bring the heads to "
            "similar norms first, or raise the limit."
        )
    if not said and len(usable) < 2:
        said.append("There is nothing to compare: fewer than two heads have an encoder gradient.")
    elif not said:
        said.append("The heads' gradients have similar norms and do not conflict: the plain sum is enough.")
    if apart:
        pairs = "; ".join(f"{heads[i]!r} and {heads[j]!r}" for i, j in apart)
        said.append(
            f"{pairs} read no common tensor of the representation, so their gradients cannot be compared there: norms are "
            "compared at the parameters. With a balancer, pass `balance_at='parameters'`."
        )
    if spec.balancer is not None:
        said.append(f"All measurements are taken before balancing with {type(spec.balancer).__name__}.")
    return said


def _of_norms(found: Diagnosis, largest: int, smallest: int, spec: UpdateSpec, level: str) -> str:
    """The finding about two heads whose gradient norms differ widely."""
    large, small = found.heads[largest], found.heads[smallest]
    kind = "encoder" if level == "parameters" else "representation"
    norms = found.norms[level]
    ratio = norms[largest] / norms[smallest]
    weighted = np.abs(found.losses * found.weights)
    by_losses = weighted[largest] / weighted[smallest] if weighted[smallest] > 0 else np.inf
    by_size = f"its weighted loss is {by_losses:.3g} times as large; it is summed over the batch, or in different units"
    by_module = "the sensitivity of its module to the representation"
    if by_losses > ratio**0.5:
        cause = by_size
    elif by_losses > ratio**0.25:
        cause = f"{by_size}. A second cause is {by_module}"
    else:
        cause = f"not the size of its loss, but {by_module}"
    clipped = (
        f" Clipping by a shared norm then leaves almost nothing of the gradient of {small!r}."
        if spec.clip is not None and found.clipped < _MUCH_CLIPPED
        else ""
    )
    constant = spec.weighting is None and not callable(spec.network.heads[largest].weight)
    instead = found.weights[largest] / ratio
    or_weight = f", or `weight={instead:.2g}` for {large!r} instead of {found.weights[largest]:.3g}" if constant else ""
    return (
        f"The {kind} gradient of {large!r} is {ratio:.3g} times as large as that of {small!r}, whose share of the encoder's "
        f"update is {found.shares[level][smallest]:.2g}. Cause: {cause}.{clipped} Try "
        f"`balancer=balancing.EqualNorms()` or `balancing.NormBudget({{{large!r}: 0.5}})`{or_weight}."
    )
