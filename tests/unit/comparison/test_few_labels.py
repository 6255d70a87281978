"""Heads of two classes with few labels on the validation data: counted, left out of choices, and named."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import multihead
from multihead import Head, MultiHeadTrainer, comparison
from multihead.comparison._probe import FEW, few_labels
from tests.helpers.recorded import ALONE, TWICE, on_validation

N = 40
RARE = (np.arange(N) < 6).astype("int32")
X = np.random.default_rng(0).normal(size=(N, 3)).astype("float32")


def heads_of(targets, losses=None, ignored=None):
    """A head for each of some targets."""
    found = {}
    for name, values in targets.items():
        loss = (losses or {}).get(name, "binary_crossentropy")
        columns = values.shape[-1] if len(values.shape) > 1 else 1
        units = 3 if loss == "sparse_categorical_crossentropy" else columns
        found[name] = Head(keras.layers.Dense(units), loss, ignore_label=(ignored or {}).get(name))
    return found


def counted(targets, weights=None, ignored=None, as_dataset=False, losses=None):
    given = (X, targets) if weights is None else (X, targets, weights)
    given = tf.data.Dataset.from_tensor_slices(given).batch(16) if as_dataset else given
    return few_labels(heads_of(targets, losses, ignored), given)


@pytest.mark.parametrize("as_dataset", [False, True])
def test_labels_of_the_rarer_class_are_counted(as_dataset):
    targets = {
        "rare": RARE,
        "common": 1 - RARE[:, None].astype("float32"),
        "often": (np.arange(N) < FEW).astype("int32"),
        "one class": np.ones([N], "int32"),
        "three": RARE + (np.arange(N) > 20),
        "number": X[:, :1],
        "rows": np.eye(2, dtype="float32")[RARE],
        "truth": RARE == 1,
    }
    assert counted(targets, as_dataset=as_dataset) == {"rare": 6, "common": 6, "one class": 0, "truth": 6}


@pytest.mark.parametrize("as_dataset", [False, True])
def test_only_labels_that_count_are_counted(as_dataset):
    often = (np.arange(N) < 20).astype("float32")
    missing = np.where(np.arange(N) < 17, np.nan, often)[:, None]
    ignored, weights = np.where(np.arange(N) < 18, -1, often).astype("int32"), (np.arange(N) >= 16).astype("float32")
    targets = {"often": often, "missing": missing, "ignored": ignored, "weighted": often[:, None], "each": often[:, None]}
    by_head = {"weighted": weights, "each": weights[:, None]}
    found = counted(targets, by_head, {"ignored": -1}, as_dataset)
    assert found == {"missing": 3, "ignored": 2, "weighted": 4, "each": 4}


@pytest.mark.parametrize("as_dataset", [False, True])
def test_the_loss_says_what_a_label_is(as_dataset):
    targets = {
        "residual": np.zeros([N, 1], "float32"),
        "ones": np.ones([N, 1], "float32"),
        "raw": RARE[:, None].astype("float32"),
        "classes": RARE,
        "one class": np.ones([N], "int32"),
        "five": np.eye(5, dtype="float32")[np.arange(N) % 5],
        "two": np.eye(2, dtype="float32")[RARE],
        "hinge": 2.0 * RARE[:, None].astype("float32") - 1.0,
        "half": tf.cast(RARE[:, None], tf.bfloat16),
    }
    losses = {"residual": "mse", "ones": "mse", "raw": "mse", "hinge": "hinge"}
    losses |= dict.fromkeys(("classes", "one class"), "sparse_categorical_crossentropy")
    losses |= dict.fromkeys(("five", "two"), "categorical_crossentropy")
    assert counted(targets, losses=losses, as_dataset=as_dataset) == {
        "raw": 6,
        "classes": 6,
        "two": 6,
        "hinge": 6,
        "half": 6,
    }


def test_data_without_an_end_are_not_read():
    endless = tf.data.Dataset.from_tensor_slices((X, {"rare": RARE})).batch(8).repeat()
    heads = heads_of({"rare": RARE})
    assert few_labels(heads, endless) == {}
    unknown = endless.filter(lambda *_: True)  # whose length is not known
    often = unknown.map(lambda x, y: (x, {"rare": tf.cast(x[:, 0] > 0, tf.int32)}))
    assert few_labels(heads, often) == {}


def with_few(found, **numbers):
    found.few_labels = numbers
    return found


LUCKY = {"kind": [each + 0.1 for each in ALONE["kind"]], "size": ALONE["size"]}
VALUES = {"plain sum": LUCKY, "size 0.3": ALONE, "EqualNorms": ALONE, "EqualNorms, equal cost": TWICE}


def test_a_head_with_few_labels_is_ignored():
    assert on_validation(VALUES).choose(["plain sum", "size 0.3", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"
    assert on_validation(VALUES).choose(["plain sum", "size 0.3"]) == "plain sum"
    found = with_few(on_validation(VALUES), kind=6)
    assert found.choose(["plain sum", "size 0.3", "EqualNorms, equal cost"]) == "EqualNorms, equal cost"  # for `size`
    worse = {**VALUES, "plain sum": {"kind": LUCKY["kind"], "size": [each * 1.5 for each in ALONE["size"]]}}
    assert with_few(on_validation(worse), kind=6).choose(["plain sum", "size 0.3"]) == "size 0.3"
    said = "\n".join(found.findings)
    assert "too few labels of the rarer class for 'kind' (6) to choose rates or variants by." in said
    assert "The validation data favour 'EqualNorms, equal cost'." in said
    assert "too few labels" not in "\n".join(on_validation(VALUES).findings)


def build():
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("rare", keras.layers.Dense(1, activation="sigmoid"), "binary_crossentropy")
    trainer.add_head("size", keras.layers.Dense(1), "mse")
    return trainer


def compared(file, **options):
    part = X, {"rare": RARE[:, None], "size": X[:, :1]}
    parts = {"train": part, "validation": part, "test": part}
    options |= {"seeds": 1, "budget": 2, "equal_cost": False, "verbose": 0, "options": {"run_eagerly": True}}
    return multihead.compare(build, parts, {"plain sum": {}}, file=file, **options)


def test_a_comparison_counts_them_and_its_file_keeps_them(tmp_path):
    first = compared(tmp_path / "lines", rates=1e-2)
    assert first.few_labels == {"rare": 6} == comparison.read(tmp_path / "lines").few_labels
    assert "'rare' (6)" in str(first)
    text = (tmp_path / "lines").read_text()
    assert compared(tmp_path / "lines", rates=1e-2).few_labels == {"rare": 6} and (tmp_path / "lines").read_text() == text


@pytest.mark.thorough
def test_the_rate_of_the_joint_model_is_that_which_is_best_for_the_other_head(tmp_path):
    found = compared(tmp_path / "lines", rates=(1e-2, 1e-3))
    tuned = {
        line["rate"]: line["metrics"]["validation"]["size_loss"]
        for line in found.lines
        if line.get("run") == "tune" and not line["head"]
    }
    assert found.rates["plain sum"] == min(tuned, key=tuned.get)
