"""What a user can combine, and the rows of a covering array over it.

Every pair of values stands in at least one row, and every three values of the factors that touch the update. Pairs that
cannot be combined are in `EXCLUDED`; no row has one.
"""

from __future__ import annotations

from typing import Any

from covertable import make

FACTORS: dict[str, list[str]] = {
    # The model.
    "encoder": ["dense", "batch_normalization", "dropout", "tokens", "several_outputs"],
    "weight": ["ones", "different", "function"],
    "metrics": ["none", "accuracy"],
    "class_weight_of_head": ["none", "given"],
    "head_rate": ["one", "half", "frozen"],
    # `compile`.
    "optimizer": ["momentum", "adamw", "ema", "schedule", "loss_scaling"],
    "weighting": ["none", "Uncertainty", "LogLoss"],
    "balancer": ["none", "EqualNorms", "UPGrad", "MGDA"],
    "balance_at": ["representation", "parameters"],
    "balance_every": ["1", "2"],
    "schedule": ["none", "alternate"],
    "clip": ["none", "value", "norm", "global_norm"],
    "micro_batches": ["1", "3"],
    "accumulate_steps": ["1", "2"],
    "encoder_rate": ["one", "half", "frozen", "stages"],
    "encoder_decay": ["one", "none"],
    "telemetry": ["none", "norms", "full"],
    "layers_every": ["1", "100"],
    "on_nonfinite": ["skip", "raise", "drop_head"],
    "check_labels": ["yes", "no"],
    "mode": ["graph", "eager", "xla"],
    "steps_per_execution": ["1", "2"],
    # `fit` and `evaluate`.
    "data": ["arrays", "dataset", "generator", "sequence", "dataframe"],
    "validation": ["none", "split", "given"],
    "sample_weight": ["none", "given"],
    "class_weight": ["none", "given"],
    "labels": ["all", "missing", "none_of_one_head"],
    "last_batch": ["equal", "smaller"],
    "callbacks": ["none", "checkpoint", "ledger", "per_head", "keras"],
    "devices": ["one", "two"],
}

OF_THE_UPDATE = [
    "encoder",
    "optimizer",
    "weighting",
    "balancer",
    "balance_at",
    "balance_every",
    "schedule",
    "clip",
    "micro_batches",
    "accumulate_steps",
    "encoder_rate",
    "labels",
]
"""The factors of which every three values stand together in a row."""

EXCLUDED: dict[tuple[tuple[str, str], tuple[str, str]], str] = {
    (("data", "dataset"), ("validation", "split")): "`validation_split` needs arrays, as in Keras",
    (("data", "generator"), ("validation", "split")): "`validation_split` needs arrays, as in Keras",
    (("data", "sequence"), ("validation", "split")): "`validation_split` needs arrays, as in Keras",
    (("mode", "eager"), ("steps_per_execution", "2")): "an eager step is executed by itself, as in Keras",
    (("mode", "xla"), ("devices", "two")): "TensorFlow does not compile a step of several replicas on CPUs",
    (("steps_per_execution", "2"), ("devices", "two")): "Keras 3 fails in the graph of several steps of several replicas",
}
"""Pairs of values that cannot be combined, and why."""


def rows(salt: str = "0") -> list[dict[str, str]]:
    """The covering array.

    Args:
        salt: Another text makes other rows that cover the same.
    """
    excluded = [
        {
            "operator": "not",
            "condition": {
                "operator": "and",
                "conditions": [{"operator": "eq", "left": name, "value": value} for name, value in pair],
            },
        }
        for pair in EXCLUDED
    ]
    found: Any = make(
        FACTORS,
        strength=2,
        salt=salt,
        sub_models=[{"fields": OF_THE_UPDATE, "strength": 3}],
        constraints=excluded,
    )
    return [dict(row) for row in found]


def as_text(row: dict[str, str]) -> str:
    """A row without the values that are the first of their factor."""
    return ", ".join(f"{name}={value}" for name, value in row.items() if value != FACTORS[name][0]) or "all defaults"
