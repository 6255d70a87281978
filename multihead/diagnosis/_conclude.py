"""From raw measurements to the report: statistics, then findings, then the suggestion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import tensorflow as tf

from multihead._ground.layers import ends_in_scaling
from multihead._update.batch import Batch
from multihead._update.spec import UpdateSpec
from multihead.diagnosis._constant import Targets, targets_of
from multihead.diagnosis._measure import Measured, measure
from multihead.diagnosis._probabilities import over_batches
from multihead.diagnosis._report import Diagnosis
from multihead.diagnosis._rules import find
from multihead.diagnosis._statistics import Signal, cosines_of, cosines_of_means, root_mean_squares, signal_of
from multihead.diagnosis._suggestion import suggest

_LEARNED, _ALMOST_ALL = 0.05, 0.95
"""The fraction of the constant prediction's loss that a head must have removed to count as learning, and as done."""


def diagnose(spec: UpdateSpec, batches: Iterable[Batch], step: tf.Tensor, loss_scale: tf.Tensor | None) -> Diagnosis:
    """Measures batches and draws conclusions; see `_measure.measure` for the arguments and side effects."""
    raw = measure(spec, batches, step, loss_scale)
    predicted = over_batches(raw.ranges)
    heads = zip(spec.network.heads, spec.predictions, raw.labels, predicted)
    targets = [targets_of(head, each.spec, labels, of_head) for head, each, labels, of_head in heads]
    measured = _measurements(spec, raw, targets, predicted)
    return replace(measured, findings=find(measured, spec), suggestion=suggest(measured, spec))


def _measurements(spec: UpdateSpec, raw: Measured, targets: Sequence[Targets], predicted: np.ndarray) -> Diagnosis:
    trained = (raw.counts > 0) & (raw.weights != 0)
    gramians = {"representation": raw.representation, "parameters": raw.layers.sum(axis=1)}
    spreads = {level: cosines_of(products) for level, products in gramians.items()}
    norms = {level: root_mean_squares(products, trained) for level, products in gramians.items()}
    signal = signal_of(gramians["parameters"], raw.of_sums.sum(axis=0), trained)
    by_layer = {name: raw.layers[:, i] for i, name in enumerate(raw.names)}
    finite = np.isfinite(raw.losses).all(axis=0)
    for products in gramians.values():
        finite &= np.isfinite(np.diagonal(products, axis1=1, axis2=2)).all(axis=0)
    with np.errstate(all="ignore"):
        losses = raw.losses.sum(axis=0) / raw.counts.sum(axis=0)
        shares = {level: values / np.nansum(values) for level, values in norms.items()}
        ratios = raw.after / raw.before
        weights = np.where(trained, raw.weights, 0).sum(axis=0) / trained.sum(axis=0)
    constant_losses = np.array([each.constant_loss for each in targets])
    return Diagnosis(
        heads=tuple(head.name for head in spec.network.heads),
        batches=len(trained),
        losses=losses,
        constant_losses=constant_losses,
        progress=tuple(_progress(losses[k], constant_losses[k], signal, k) for k in range(len(targets))),
        weights=weights,
        labelled=(raw.labelled * raw.examples[:, None]).sum(axis=0) / max(raw.examples.sum(), 1),
        label_means=np.array([each.mean for each in targets]),
        label_deviations=np.array([each.deviation for each in targets]),
        rescales=tuple(ends_in_scaling(head.module) for head in spec.network.heads),
        scalable=tuple(each.is_scalable for each in targets),
        reads=tuple(tuple(each.leaves) for each in spec.predictions),
        norms=norms,
        shares=shares,
        cosines={level: spread.mean for level, spread in spreads.items()},
        spreads=spreads,
        conflicts={level: spread.negative for level, spread in spreads.items()},
        mean_cosines=cosines_of_means(raw.of_sums.sum(axis=0)),
        signal_to_noise=signal.to_noise,
        has_signal=signal.is_clear,
        layer_norms={name: root_mean_squares(products, trained) for name, products in by_layer.items()},
        layer_cosines={name: cosines_of(products) for name, products in by_layer.items()},
        update_norm=float(raw.before.mean()),
        clipped=float(ratios[np.isfinite(ratios)].mean()) if np.isfinite(ratios).any() else float("nan"),
        predicted=predicted,
        finite=finite,
    )


def _progress(loss: float, constant: float, signal: Signal, k: int) -> str:
    """How far a head has come; see `Diagnosis`."""
    if not np.isfinite(loss) or not np.isfinite(constant) or not constant > 0 or loss < 0:
        return "unknown"
    explained = 1 - loss / constant
    if explained > _ALMOST_ALL:
        return "done"
    if explained < _LEARNED:
        return "untrained"
    return "learning" if signal.is_clear[k] or np.isnan(signal.to_noise[k]) else "noisy"
