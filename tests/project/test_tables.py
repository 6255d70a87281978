"""Tables of facts in the pages, against the library."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest

from multihead import MultiHeadTrainer, balancing, clipping, weighting
from tests.helpers.sources import ROOT

X = np.random.default_rng(0).normal(size=(12, 3)).astype("float32")
TARGETS = {"one": X[:, :1], "two": X[:, 1:2]}
LEVELS = (None, "norms", "full")
EVERY_OPTION = {
    "weighting": weighting.Uncertainty,
    "balancer": balancing.UPGrad,
    "clip": lambda: clipping.ByGlobalNorm(1.0),
    "encoder_learning_rate_multiplier": lambda: lambda step: 1.0,
}
CONDITIONAL = {
    "added_loss": "if any does",
    "{head}_weight": "if it can change",
    "regularizer": "of a weighting",
    "{head}_learning_rate_multiplier": "if it can change",
    "encoder_learning_rate_multiplier": "if it can change",
    "{head}_coefficient": "with a balancer",
    "update_norm_clipped": "after clipping",
    "clipped_updates": "clipping",
}
"""The statistics of the table that need an option, and the words that say so."""


def table_of(page: str, first_cell: str) -> list[list[str]]:
    """The rows of the table whose header begins with a cell."""
    text = (ROOT / page).read_text(encoding="utf-8")
    table = text.partition(f"| {first_cell} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def documented(level: str | None, *, with_options: bool) -> list[str]:
    """Patterns of the statistics that the table of watching.md promises for a level."""
    found = []
    shown = ["None", '`"norms"`', '`"full"`'][: LEVELS.index(level) + 1]
    for names, first, meaning, _ in table_of("docs/watching.md", "statistic"):
        assert first in ("None", '`"norms"`', '`"full"`')
        for name in re.findall(r"`([^`]+)`", names):
            if name in CONDITIONAL:
                assert CONDITIONAL[name] in meaning, name
            if first in shown and (with_options or name not in CONDITIONAL):
                found.append(name)
    return found


def matches(pattern: str, names: list[str]) -> set[str]:
    """The names in the logs that a pattern of the table stands for."""
    if pattern == "val_...":
        return {name for name in names if re.fullmatch(r"val_(loss|added_loss|(one|two)_(loss|mae))", name)}
    text = re.escape(pattern).replace(r"\{metric\}", "mae").replace(r"\{statistic\}", ".*")
    text = text.replace(r"\{other\}", "two").replace(r"\{head\}", "(one|two)")
    return {name for name in names if re.fullmatch(text, name)}


@pytest.mark.first_cases(4)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("with_options", [False, True], ids=["plain", "options"])
def test_the_logs_hold_what_the_table_of_statistics_says_and_nothing_else(level: str | None, with_options: bool) -> None:
    trainer = MultiHeadTrainer(keras.layers.Dense(4, kernel_regularizer="l2" if with_options else None))
    for name in TARGETS:
        trainer.add_head(name, keras.layers.Dense(1), "mse", metrics=["mae"])
    options = {name: make() for name, make in EVERY_OPTION.items()} if with_options else {}
    trainer.compile("sgd", telemetry=level, run_eagerly=True, **options)
    logs = trainer.fit(X, TARGETS, validation_data=(X, TARGETS), verbose=0).history
    found = {pattern: matches(pattern, list(logs)) for pattern in documented(level, with_options=with_options)}
    assert [pattern for pattern, names in found.items() if not names] == []
    assert set(logs) - set().union(*found.values()) == set()


def test_the_arguments_of_keras_become_those_that_the_table_says() -> None:
    """What `compile` of Keras takes for its outputs is rejected, and belongs to `add_head`."""
    (row, *_) = table_of("docs/migration/keras.md", "Keras")
    of_keras = re.findall(r"(\w+)=\{", row[0])
    ours = set(re.findall(r"(\w+)=", row[1])) | {"loss"}  # the loss comes by position
    assert of_keras == ["loss", "metrics", "loss_weights"] and ours == {"loss", "metrics", "weight"}
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("one", keras.layers.Dense(1), "mse", metrics=["mae"], weight=0.5)
    for name in of_keras:
        with pytest.raises(TypeError, match=f"`{name}` must not be passed to `compile`"):
            trainer.compile("sgd", **{name: {"one": "mse"}})
