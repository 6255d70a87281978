"""What a user can combine, and the rows of a covering array over it.

Every pair of values stands in at least one row, and every three values of the factors that touch the update. Pairs that
cannot be combined are in `EXCLUDED`; no row has one.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from covertable import make

FACTORS: dict[str, list[str]] = {
    # The model.
    "encoder": ["dense", "batch_normalization", "dropout", "tokens", "several_outputs"],
    "weight": ["ones", "different", "function"],
    "metrics": ["none", "accuracy"],
    "class_weight_of_head": ["none", "given"],
    "teacher_forcing": ["no", "yes"],
    "target_scaling": ["none", "given", "learned"],
    "head_rate": ["one", "half", "frozen"],
    "head_decay": ["one", "none"],
    # `compile`.
    "optimizer": ["momentum", "adamw", "ema", "schedule", "loss_scaling"],
    "weighting": ["none", "Uncertainty", "LogLoss"],
    "balancer": ["none", "EqualNorms", "UPGrad", "MGDA"],
    "balance_at": ["representation", "parameters"],
    "balance_every": ["1", "2"],
    "schedule": ["none", "alternate"],
    "clip": ["none", "value", "norm", "global_norm"],
    "micro_batches": ["1", "3"],
    "gradient_accumulation_steps": ["1", "2"],
    "encoder_rate": ["one", "half", "frozen", "stages"],
    "encoder_decay": ["one", "none"],
    "telemetry": ["none", "norms", "full"],
    "on_nonfinite": ["skip", "raise"],
    "max_skipped_updates": ["25", "none"],
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
    "initial_epoch": ["0", "1"],
    "steps_per_epoch": ["all", "half"],
    "validation_freq": ["1", "2"],
    "validation_steps": ["all", "1"],
}

OF_THE_UPDATE = (
    "encoder optimizer weighting balancer balance_at balance_every schedule clip micro_batches gradient_accumulation_steps "
    "encoder_rate labels"
).split()
"""The factors of which every three values stand together in a row."""


OF_THE_LOOP = ["initial_epoch", "steps_per_epoch", "validation_freq", "validation_steps"]
"""The factors of how many steps `fit` makes, whose second values have rows of their own."""

# The factor that varies an argument, where it has another name.
VARIED_BY = {
    "module": "teacher_forcing", "ignore_label": "labels", "class_weight": "class_weight_of_head", "reads": "encoder",
    "learning_rate_multiplier": "head_rate", "weight_decay_multiplier": "head_decay", "head_schedule": "schedule",
    "encoder_learning_rate_multiplier": "encoder_rate", "encoder_weight_decay_multiplier": "encoder_decay",
    "run_eagerly": "mode", "jit_compile": "mode", "x": "data", "y": "labels", "batch_size": "last_batch",
    "validation_split": "validation", "validation_data": "validation",
}  # fmt: skip
SAME = (
    "heads name loss trains_encoder couples_rows weighted_metrics others options_of_heads epochs verbose shuffle validation_batch_size "
    "max_queue_size workers use_multiprocessing"
).split()
"""Arguments that have the same value in every row, or change no number; the shuffling of `fit` is that of `killed.py`."""


class Refusal(NamedTuple):
    """Two values that cannot be combined.

    Attributes:
        options: Both, as users write them.
        argument: The one that the error names.
        reason: Why.
        keras: The major version of Keras that cannot; None for both.
    """

    options: str
    argument: str
    reason: str
    keras: int | None = None

    def is_refused_by(self, version: str) -> bool:
        return self.keras in (None, int(version.partition(".")[0]))


_SEVERAL_STEPS = "Keras 3 fails in the graph of several steps of several replicas; Keras 2 can"
_LEARNED = "mean and deviation are learned before the first update; give them: `scaling.Standardize(mean=, deviation=)`"
_SPLIT = "the examples to leave out are the last ones of an array, as in Keras; pass `validation_data`"
_EXCHANGE = "TensorFlow cannot compile the exchange between replicas there"
_KINDS = {"dataset": "`tf.data.Dataset`", "generator": "generator", "sequence": "`PyDataset` or `Sequence`"}
_WITHOUT_MEAN = "`add_head(target_scaling=)` without a mean, "
EXCLUDED: dict[tuple[tuple[str, str], tuple[str, str]], Refusal] = {
    **{
        (("data", kind), ("validation", "split")): Refusal(
            f"`fit(validation_split=)` with a {name}", "validation_split", _SPLIT
        )
        for kind, name in _KINDS.items()
    },
    (("mode", "xla"), ("devices", "two")): Refusal(
        "`compile(jit_compile=True)` with several replicas on CPUs", "jit_compile", _EXCHANGE
    ),
    (("steps_per_execution", "2"), ("devices", "two")): Refusal(
        "`compile(steps_per_execution=)` above 1 with several replicas", "steps_per_execution", _SEVERAL_STEPS, keras=3
    ),
    (("target_scaling", "learned"), ("data", "generator")): Refusal(
        _WITHOUT_MEAN + "with a generator", "target_scaling", _LEARNED
    ),
    (("target_scaling", "learned"), ("labels", "none_of_one_head")): Refusal(
        _WITHOUT_MEAN + "for a head without labels", "target_scaling", _LEARNED
    ),
}
"""Pairs of values that cannot be combined, and why."""


def table_of_refusals() -> str:
    """The table of docs/reliability.md."""
    by_reason: dict[str, list[str]] = {}
    for each in EXCLUDED.values():
        by_reason.setdefault(each.reason, []).append(each.options)
    lines = [f"| {'; '.join(options)} | {reason} |" for reason, options in by_reason.items()]
    return "\n".join(["| combination | reason |", "| --- | --- |", *lines])


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
    usual = {name: FACTORS[name][:1] for name in OF_THE_LOOP}
    base: Any = make(
        {**FACTORS, **usual},
        strength=2,
        salt=salt,
        sub_models=[{"fields": OF_THE_UPDATE, "strength": 3}],
        constraints=excluded,
    )
    of_the_loop: Any = make(
        FACTORS,
        strength=1,
        salt=salt,
        sub_models=[{"fields": [name, other], "strength": 2} for name in OF_THE_LOOP for other in FACTORS if other != name],
        constraints=excluded,
    )
    found = [*base, *of_the_loop]
    return [dict(row) for row in found]


def any_row(seed: int) -> dict[str, str]:
    """A row that may stand in a covering array: values at random, none of which exclude each other."""
    draw = random.Random(seed)
    while True:
        row = {name: draw.choice(values) for name, values in FACTORS.items()}
        if not any(set(pair) <= set(row.items()) for pair in EXCLUDED):
            return row


def as_text(row: dict[str, str]) -> str:
    """A row without the values that are the first of their factor."""
    return ", ".join(f"{name}={value}" for name, value in row.items() if value != FACTORS[name][0]) or "all defaults"
