"""Labels that a module cannot reach are counted, and the suggested scaling fits labels, loss and module, in their units."""

from __future__ import annotations

import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, scaling
from tests.helpers.cases import quick

pytestmark = [pytest.mark.mathematics, pytest.mark.usefixtures("eagerly")]
L = keras.layers
ROWS = 96


class Own(keras.layers.Layer):
    """A module with code of its own."""

    def __init__(self, units, end):
        super().__init__()
        self.dense, self.end = L.Dense(units), end

    def call(self, x):
        return self.end(self.dense(x))


def diagnosed(module, loss, labels, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(L.Dense(8, "tanh"))
    trainer.add_head("a", module, loss, **options)
    trainer.add_head("b", L.Dense(1), "mse")
    trainer.compile("sgd")
    return trainer, trainer.diagnose(batches(labels))


def batches(labels):
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return [(x, {"a": np.asarray(labels, "float32"), "b": x[:, :1]})]


RNG = np.random.default_rng(0)
NORMAL, UNIFORM = RNG.normal(size=(ROWS, 1)), RNG.random((ROWS, 1))
TAGS = (RNG.random((ROWS, 4)) < 0.5).astype("float32")
ONE_HOT = np.eye(4)[RNG.integers(0, 4, ROWS)]
NEGATIVE = int((NORMAL < 0).sum())
SEVERAL = int((TAGS.sum(axis=1) != 1).sum())


def squared(y, p):
    return tf.square(y - p)


UNREACHABLE = {
    "relu": (lambda: L.Dense(1, "relu"), "mse", NORMAL, NEGATIVE),
    "sigmoid": (lambda: L.Dense(1, "sigmoid"), "mse", 5 * UNIFORM, int((5 * UNIFORM > 1).sum())),
    "own module with zeros": (lambda: Own(1, lambda z: tf.nn.relu(z) * 2.0), "mse", NORMAL, NEGATIVE),
    "several labels": (lambda: L.Dense(4, "softmax"), "binary_crossentropy", TAGS, SEVERAL),
    "own module in a graph": (lambda: Own(1, tf.nn.softplus), "mse", NORMAL, NEGATIVE),
    "softplus layer": (lambda: keras.Sequential([L.Dense(1), L.Activation("softplus")]), "mae", NORMAL, NEGATIVE),
    "exponential": (lambda: L.Dense(1, "exponential"), "huber", NORMAL, NEGATIVE),
    "tanh": (lambda: L.Dense(1, "tanh"), "mse", 3 * NORMAL, int((np.abs(3 * NORMAL) > 1).sum())),
    "recurrent": (lambda: keras.Sequential([L.Reshape((8, 1)), L.GRU(1)]), "mse", 3 * NORMAL, int((np.abs(3 * NORMAL) > 1).sum())),
    "own loss": (lambda: L.Dense(1, "relu"), squared, NORMAL, NEGATIVE),
    "hinge": (lambda: L.Dense(1, "sigmoid"), "hinge", np.sign(NORMAL), NEGATIVE),
    "several labels, by rows": (lambda: L.Dense(4, "softmax"), "categorical_crossentropy", TAGS, SEVERAL),
    "own softmax": (lambda: Own(4, tf.nn.softmax), "binary_crossentropy", TAGS, SEVERAL),
    "one column": (lambda: L.Dense(1, "softmax"), "binary_crossentropy", TAGS[:, :1], int((TAGS[:, 0] == 0).sum())),
}  # fmt: skip
REACHED = {
    "relu": (lambda: L.Dense(1, "relu"), "mse", np.abs(NORMAL)),
    "sigmoid": (lambda: L.Dense(4, "sigmoid"), "binary_crossentropy", TAGS),
    "probabilities": (lambda: L.Dense(1, "sigmoid"), "mse", UNIFORM),
    "one-hot": (lambda: L.Dense(4, "softmax"), "binary_crossentropy", ONE_HOT),
    "one-hot by rows": (lambda: L.Dense(4, "softmax"), "categorical_crossentropy", ONE_HOT),
    "linear": (lambda: L.Dense(1), "mse", NORMAL),
    "margins": (lambda: L.Dense(1, "tanh"), "hinge", np.sign(NORMAL)),
    "directions": (lambda: L.Dense(4, "sigmoid"), "cosine_similarity", 1 + 3 * TAGS),
    "log rates": (lambda: L.Dense(1, "tanh"), lambda y, p: tf.exp(p) - y * p, np.round(5 * UNIFORM)),
    "own module": (lambda: Own(1, lambda z: tf.abs(z) + 0.0), "mse", NORMAL),
}


@pytest.mark.filterwarnings("ignore:You are using a softmax over axis:UserWarning")
@pytest.mark.parametrize("name", quick(4, UNREACHABLE))
def test_labels_that_the_module_cannot_reach_are_counted(name):
    make, loss, labels, count = UNREACHABLE[name]
    _, report = diagnosed(make(), loss, labels)
    (finding,) = [each for each in report.findings if each.kind == "out of reach"]
    rows = len(labels) if np.shape(labels)[1] > 1 or "column" in name else np.size(labels)
    assert finding.heads == ("a",) and f"{count:,} of {rows:,}" in finding
    assert (report.labels[0].unreachable, report.labels[0].number) == (count, rows)
    assert "healthy" not in [each.kind for each in report.findings]


@pytest.mark.parametrize("name", quick(2, REACHED))
def test_labels_within_reach_are_none(name):
    make, loss, labels = REACHED[name]
    _, report = diagnosed(make(), loss, labels)
    assert "out of reach" not in [each.kind for each in report.findings] and report.labels[0].unreachable == 0


HEAVY = np.exp(5 + 3 * NORMAL)
SOME_ZEROS = np.where(UNIFORM < 0.1, 0.0, HEAVY)
COUNTS = np.round(np.exp(1 + 2 * np.abs(NORMAL)) - 2.5).clip(0)
SUGGESTED = {
    "powers of ten": (lambda: L.Dense(1), "mse", HEAVY, "log"),
    "zeros": (lambda: L.Dense(1), "mse", SOME_ZEROS, "Log(shift="),
    "mostly zeros": (lambda: L.Dense(1), "mse", np.where(UNIFORM < 0.6, 0.0, HEAVY), "standardize"),
    "positive module": (lambda: L.Dense(1, "softplus"), "mse", 600 * UNIFORM, "Standardize(mean=0.0, "),
    "fractions": (lambda: L.Dense(1, "sigmoid"), "mse", 600 * UNIFORM, "Standardize(mean=0.0, "),
    "percentage": (lambda: L.Dense(1), "mape", 300 + 20 * NORMAL, "Standardize(mean=0.0, "),
    "logarithmic": (lambda: L.Dense(1), "msle", 300 + 20 * NORMAL, None),
    "own loss of differences": (lambda: L.Dense(1), squared, 300 + 20 * NORMAL, "standardize"),
    "own loss of rates": (lambda: L.Dense(1), lambda y, p: tf.exp(p) - y * p, np.round(300 + 20 * NORMAL), None),
    "far away": (lambda: L.Dense(1), "mse", 300 + 20 * NORMAL, "standardize"),
    "uniform from 0": (lambda: L.Dense(1), "mse", 600 * UNIFORM, "standardize"),
    "powers of ten, mae": (lambda: L.Dense(2), "mae", np.concatenate([HEAVY, HEAVY[::-1]], axis=1), "log"),
    "counts": (lambda: L.Dense(1), "mse", COUNTS, "Log(shift=1.0)"),
    "of both signs": (lambda: L.Dense(1), "mse", HEAVY - 100, "standardize"),
    "positive module, powers of ten": (lambda: L.Dense(1, "relu"), "mse", HEAVY, "Standardize(mean=0.0, "),
    "own positive module in a graph": (lambda: Own(1, tf.exp), "mse", 600 * UNIFORM, "Standardize(mean=0.0, "),
    "both sides": (lambda: L.Dense(1, "tanh"), "mse", 600 * UNIFORM - 300, "Standardize(mean=0.0, "),
    "rates": (lambda: L.Dense(1, "softplus"), "poisson", np.round(300 + 20 * NORMAL), "Standardize(mean=0.0, "),
    "negative and positive module": (lambda: L.Dense(1, "relu"), "mse", 300 * NORMAL, None),
    "directions": (lambda: L.Dense(2), "cosine_similarity", 300 + 20 * np.concatenate([NORMAL, UNIFORM], axis=1), None),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(4, SUGGESTED))
def test_the_suggested_scaling_fits_labels_loss_and_module(name):
    make, loss, labels, expected = SUGGESTED[name]
    trainer, report = diagnosed(make(), loss, labels)
    suggested = report.suggestion.get("target_scaling", {}).get("a")
    assert (suggested is None) if expected is None else (expected in repr(suggested))
    text = " ".join(report.findings)
    if expected is not None and ("log" in expected or "Log" in expected):
        assert "geometric mean" in text
    if name == "mostly zeros":
        assert "are 0, which have no logarithm: train one head" in text
    if isinstance(suggested, scaling.Standardize) and suggested.only_divides:
        size = np.sqrt(np.mean(labels**2)) if "sigmoid" not in name else labels.max()
        ends = {"fractions": labels.max(), "both sides": np.abs(labels).max()}
        assert suggested.deviation == pytest.approx(ends.get(name, size), rel=6e-3)
        assert suggested.deviation >= ends.get(name, 0.0)
    if expected is not None:
        trainer.compile("sgd", **report.suggestion)  # which its module and its loss can take
        assert "out of reach" not in [each.kind for each in trainer.diagnose(batches(labels)).findings]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("size", "is_too_large"), [(300, True), (3000, True), (12, False)])
def test_of_a_loss_in_percent_the_suggestion_knows_the_gradient_after_the_division(size, is_too_large):
    labels = size * (1 + 0.1 * NORMAL)
    weight = 1.0
    if not is_too_large:  # no gradient is small, before the division and after it
        percentage, other = diagnosed(L.Dense(1, kernel_initializer="ones"), "mape", labels)[1].norms["representation"]
        weight = 0.35 * other / percentage
    trainer, report = diagnosed(L.Dense(1, kernel_initializer="ones"), "mape", labels, weight=weight)
    ((head, how),) = report.suggestion["target_scaling"].items()
    assert head == "a" and how.deviation == pytest.approx(size, rel=0.02)
    assert (report.suggestion.get("balancer") == "NormFloor") is is_too_large
    finding = next(each for each in report.findings if each.kind == "units")
    factor = float(re.search("is then ([0-9.,]+) times as large", finding)[1].replace(",", ""))
    trainer.compile("sgd", target_scaling={"a": how})
    after = trainer.diagnose(batches(labels))
    norms, others = ([each.norms["representation"][k] for each in (report, after)] for k in (0, 1))
    assert norms[1] / norms[0] == pytest.approx(factor, rel=0.02) and others[1] == pytest.approx(others[0])
    assert ("scale" in {each.kind for each in after.findings}) is is_too_large


# ------------------------------------------------------------------------------------------------------------- overlap


def opposed(share):
    """Two heads that want opposite signs of the same number, with labels for a common part of the rows."""
    x = np.random.default_rng(0).normal(size=(8 * ROWS, 4)).astype("float32")
    one, other = (sign * x[:, :1] + 1.2 * x[:, 1:2] for sign in (1, -1))
    place = np.arange(len(x)) % 100
    middle = 50 * (1 + share)  # of 100 rows, all of which have a label
    one = np.where((place < middle)[:, None], one, np.nan)
    other = np.where((place >= 100 - middle)[:, None], other, np.nan)
    start = keras.initializers.Constant(np.array([[0.0], [1.1], [0.0], [0.0]]))
    trainer = MultiHeadTrainer(L.Dense(1, use_bias=False, kernel_initializer=start))
    for name in ("up", "down"):
        trainer.add_head(name, L.Dense(1, use_bias=False, kernel_initializer="ones"), "mse")
    trainer.compile("sgd")
    parts = [slice(start, start + ROWS) for start in range(0, len(x), ROWS)]
    return trainer.diagnose([(x[part], {"up": one[part], "down": other[part]}) for part in parts])


@pytest.mark.parametrize("share", quick(2, [0.0, 0.5, 0.1, 0.25, 1.0]))
def test_no_conflict_is_stated_of_heads_with_few_rows_in_common(share):
    report = opposed(share)
    kinds = [each.kind for each in report.findings]
    assert report.overlaps[0, 1] == pytest.approx(share, abs=0.03)
    assert ("conflict" in kinds) == (share >= 0.3) and ("few common rows" in kinds) == (share < 0.3)
    noted = " ".join(each for each in report.findings if each.kind == "few common rows")
    assert ("orthogonal by construction" in noted) == (share == 0)
    if share == 0:
        assert report.cosines["representation"][0, 1] == 0 and "0% of rows in common" in str(report)


# ------------------------------------------------------------------------------------------- what is printed can be copied


def test_the_suggestion_is_printed_as_code_that_runs():
    trainer, report = diagnosed(L.Dense(1), "mse", COUNTS * 50)
    names = {"scaling": scaling, "trainer": trainer, "optimizer": "sgd"}
    again = eval(str(report.suggestion), dict(names))
    assert repr(again) == repr(report.suggestion) and set(again) == {"target_scaling", "balancer"}
    lines = str(report).splitlines()
    calls = [line for line in lines if line.startswith("trainer.compile(")]
    assert len(calls) == 3 and list(report.parts) == ["target_scaling", "balancer"]
    for call in calls:
        assert lines[lines.index(call) - 1].startswith("# ")
        exec(call, dict(names))
    assert {name: value for part in report.parts.values() for name, value in part.items()} == report.suggestion


def test_the_printed_weights_make_the_norms_equal():
    trainer, report = diagnosed(L.Dense(1), "mse", 30 * NORMAL, weight=0.5)
    (line,) = [line for line in str(report).splitlines() if "trainer.set_weight" in line and "Its weight" not in line]
    assert "Xin et al." in str(report) and "drift" in str(report)
    exec(line, {"trainer": trainer})
    again = trainer.diagnose(batches(30 * NORMAL))
    before, after = (each.norms["representation"] for each in (report, again))
    assert max(before) > 3 * min(before) and max(after) < 1.05 * min(after)


def biased(module, value):
    """A module whose last bias starts at a value, as recipes for training recommend."""
    module.bias_initializer = keras.initializers.Constant(value)
    return module


def trained_before(labels):
    """A module that Keras has trained in the labels' units, though not beyond a constant."""
    module = L.Dense(1)
    model = keras.Sequential([keras.Input((8,)), module])
    model.compile(keras.optimizers.Adam(30.0), "mse")
    for _ in range(30):
        model.train_on_batch(np.zeros((ROWS, 8)), labels)
    return module


IN_UNITS = {
    "bias at the mean": (lambda y: biased(L.Dense(1), y.mean()), 300 + 100 * NORMAL),
    "softplus": (lambda y: biased(L.Dense(1, "softplus"), y.mean()), 300 + 50 * np.abs(NORMAL)),
    "powers of ten": (lambda y: biased(L.Dense(1), y.mean()), np.exp(5 + 1.2 * NORMAL)),
    "small deviation": (lambda y: biased(L.Dense(1, kernel_initializer="zeros"), y.mean()), 40 + 0.01 * NORMAL),
    "trained by Keras": (trained_before, 300 + 100 * NORMAL),
    "exponential": (lambda y: biased(L.Dense(1, "exponential"), np.log(y.mean())), 5000 + 100 * NORMAL),
    "a constant before the last layer": (lambda y: ending(L.Rescaling(1000.0), L.Reshape((1,))), 5000 + 140 * NORMAL),
    "a constant in the activation": (lambda y: L.Dense(1, lambda z: 1000 * z), 5000 + 140 * NORMAL),
    "a constant in a module of one's own": (lambda y: Own(1, lambda z: 2000 * z), 1500 * NORMAL),
    "an offset": (lambda y: ending(L.Rescaling(100.0, 5000.0), L.ReLU()), 5000 + 140 * NORMAL),
    "tiny units": (lambda y: ending(L.Rescaling(0.001), L.Reshape((1,))), 0.004 + 0.002 * NORMAL),
}


def ending(*layers):
    """A module of a dense layer and others."""
    return keras.Sequential([L.Dense(1), *layers])


@pytest.mark.parametrize("case", IN_UNITS)
def test_no_scaling_is_suggested_to_a_head_that_predicts_in_the_labels_units(case):
    make, labels = IN_UNITS[case]
    _, diagnosis = diagnosed(make(labels), "mse", labels)
    assert "target_scaling" not in diagnosis.suggestion
    text = next(str(finding) for finding in diagnosis.findings if finding.kind == "units")
    assert "the head predicts in these units already" in text and "starts near 0" not in text
    for same in (L.Dense(1, "softplus" if case == "softplus" else None), ending(L.Rescaling(3.0), L.Reshape((1,)))):
        _, diagnosis = diagnosed(same, "mse", labels)
        assert "a" in diagnosis.suggestion["target_scaling"]


def absolute(y, p):
    return tf.abs(y - p)


IS_FAR = np.arange(ROWS)[:, None] % 32 == 0
FAR = np.where(IS_FAR, -9999.0 + np.arange(ROWS)[:, None], 40 * NORMAL)


@pytest.mark.parametrize("loss", ["mae", "huber", "log_cosh", absolute])
def test_a_few_labels_far_off_do_not_decide_the_scaling_of_a_loss_that_hardly_follows_them(loss):
    _, diagnosis = diagnosed(L.Dense(1), loss, FAR)
    assert "target_scaling" not in diagnosis.suggestion
    text = next(str(finding) for finding in diagnosis.findings if finding.kind == "units")
    middle = FAR[np.arange(ROWS) % 32 != 0]
    spread = float(re.search(r"lie within about ([\d.]+) of it", text)[1])
    assert 0.8 * middle.std() < spread < 1.2 * middle.std()
    assert "A few labels lie far from the others" in text and "pass NaN" in text
    suggested = eval(re.search(r"`target_scaling=(scaling\.Standardize\(.*?\))`", text)[1])
    assert abs(suggested.deviation - spread) < 0.1 * spread
    _, diagnosis = diagnosed(L.Dense(1), loss, FAR / 40)  # the others are in unit scale
    assert [finding.kind for finding in diagnosis.findings if "a" in finding.heads and finding.kind == "units"] == []


def test_a_few_labels_far_off_count_for_the_squared_error():
    _, diagnosis = diagnosed(L.Dense(1), "mse", FAR)
    assert diagnosis.suggestion["target_scaling"] == {"a": "standardize"}


@pytest.mark.parametrize("loss", ["mse", "mae"])
@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_a_number_that_stands_for_missing_values_is_named_and_no_scaling_is_taken_from_it(loss, scale):
    labels = np.where(IS_FAR, -999.0, scale * NORMAL)
    _, diagnosis = diagnosed(L.Dense(1), loss, labels)
    (text,) = [str(finding) for finding in diagnosis.findings if finding.kind == "placeholder"]
    assert text.startswith(f"{IS_FAR.sum()} labels of 'a' are -999, far from all others.") and "NaN in its place" in text
    assert "a" not in diagnosis.suggestion.get("target_scaling", {})
    _, diagnosis = diagnosed(L.Dense(1), loss, np.where(IS_FAR, np.nan, labels))
    assert "placeholder" not in [finding.kind for finding in diagnosis.findings]
    assert ("a" in diagnosis.suggestion.get("target_scaling", {})) == (scale > 1)
    for zeros in (np.where(IS_FAR, 0.0, 100 + 20 * UNIFORM), np.where(UNIFORM > 0.4, 0.0, 100 * UNIFORM)):
        _, diagnosis = diagnosed(L.Dense(1), loss, zeros)  # the second: mostly 0
        found = "placeholder" in [finding.kind for finding in diagnosis.findings]
        assert found == (zeros.mean() > 50)


COLUMNS = {
    "coordinates": np.concatenate([-26.2 + 0.15 * NORMAL, 28 + 0.15 * NORMAL[::-1]], axis=1),
    "one of three": np.concatenate([NORMAL / 2 + 0.5, UNIFORM, 25 + NORMAL], axis=1),
    "kilometres": np.concatenate([48 + 0.02 * NORMAL, -2e6 + 1.4e5 * NORMAL[::-1]], axis=1),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_columns_are_judged_one_by_one(case):
    labels = COLUMNS[case]
    number, largest = labels.shape[1], np.argmax(np.abs(labels).mean(axis=0))
    _, diagnosis = diagnosed(L.Dense(number), "mse", labels)
    assert diagnosis.suggestion["target_scaling"] == {"a": "standardize"}
    text = next(str(finding) for finding in diagnosis.findings if finding.kind == "units")
    said = re.search(r"in column (\d), the largest of (\d), have mean (\S+) and standard deviation (\S+)\. ", text)
    assert [int(said[1]), int(said[2])] == [largest, number]
    column = labels[:, largest]
    for value, expected in zip(said.groups()[2:], (column.mean(), column.std())):
        assert float(value.replace(",", "")) == pytest.approx(expected, rel=0.01)


def overlap(y, p):
    """One minus the generalized intersection over union of boxes `[x1, y1, x2, y2]`."""
    low, high = tf.minimum(p[:, :2], p[:, 2:]), tf.maximum(p[:, :2], p[:, 2:])
    common = tf.reduce_prod(tf.maximum(tf.minimum(high, y[:, 2:]) - tf.maximum(low, y[:, :2]), 0.0), axis=1)
    either = tf.reduce_prod(high - low, axis=1) + tf.reduce_prod(y[:, 2:] - y[:, :2], axis=1) - common
    hull = tf.reduce_prod(tf.maximum(high, y[:, 2:]) - tf.minimum(low, y[:, :2]), axis=1)
    return 1 - common / (either + 1e-9) + (hull - either) / (hull + 1e-9)


def rows_of_squares(y, p):
    return tf.reduce_sum(tf.square(y - p), axis=1)


def distance(y, p):
    return tf.sqrt(tf.reduce_sum(tf.square(y - p), axis=1) + 1e-12)


@pytest.mark.parametrize(("loss", "is_sum"), [(overlap, False), (distance, False), (rows_of_squares, True)])
def test_columns_that_a_loss_relates_are_scaled_by_the_same_numbers(loss, is_sum):
    corners = 60 + 14 * np.random.default_rng(1).normal(size=(ROWS, 2))
    boxes = np.concatenate([corners, corners + 10 + 30 * np.random.default_rng(2).random((ROWS, 2))], axis=1)
    _, diagnosis = diagnosed(L.Dense(4), loss, boxes, reads=None)
    suggested = diagnosis.suggestion["target_scaling"]["a"]
    if is_sum:
        assert suggested == "standardize"
        return
    assert [suggested.mean, suggested.deviation] == pytest.approx([boxes.mean(), boxes.std()], rel=0.01)
    assert "moved and divided by the same numbers" in str(diagnosis)
    lines = str(diagnosis).splitlines()
    assert lines[lines.index("Suggestion") + 1] == "from multihead import scaling"


def pinball(y, p):
    errors = y - p
    return tf.reduce_mean(tf.maximum(tf.constant([0.1, 0.5, 0.9]) * errors, (tf.constant([0.1, 0.5, 0.9]) - 1) * errors), -1)


def test_several_quantiles_of_one_label_are_scaled():
    _, diagnosis = diagnosed(L.Dense(3), pinball, 300 + 60 * NORMAL)
    assert diagnosis.suggestion["target_scaling"] == {"a": "standardize"}


def test_a_delta_of_its_own_is_named_beside_the_scaling_to_compare():
    _, diagnosis = diagnosed(L.Dense(1), keras.losses.Huber(delta=10.0), FAR)
    text = next(str(finding) for finding in diagnosis.findings if finding.kind == "units")
    assert re.search(r"compare `target_scaling=.*` with none\. The loss's delta=10 then counts in scaled units", text)


def test_years_are_not_rounded():
    _, diagnosis = diagnosed(L.Dense(1), "mse", 2000.0 + np.arange(ROWS)[:, None] % 27)
    text = next(str(finding) for finding in diagnosis.findings if finding.kind == "units")
    assert "have mean 2,012 and standard deviation 7.67" in text
    _, diagnosis = diagnosed(L.Dense(1, "sigmoid"), "mse", 2000.0 + np.arange(ROWS)[:, None] % 27)
    assert "they lie between 2,000 and 2,026" in str(diagnosis)


def test_labels_that_are_all_equal_are_named():
    for module, loss, labels, value in (
        (L.Dense(1), "mse", np.full((ROWS, 1), 3.5), "3.5"),
        (L.Dense(1, "sigmoid"), "binary_crossentropy", np.zeros((ROWS, 1)), "0"),
        (L.Dense(3, "softmax"), "sparse_categorical_crossentropy", np.full((ROWS, 1), 2.0), "2"),
    ):
        _, diagnosis = diagnosed(module, loss, labels)
        assert [str(f) for f in diagnosis.findings if f.kind == "equal labels"] == [
            f"All labels of 'a' in these batches are {value}, so there is nothing to learn. Check where they come from."
        ]
        assert "few labels" not in [finding.kind for finding in diagnosis.findings]


def test_negative_predictions_under_a_logarithm_are_named():
    _, diagnosis = diagnosed(L.Dense(1), "poisson", np.floor(9 * UNIFORM))
    (text,) = [str(finding) for finding in diagnosis.findings if finding.kind == "not finite"]
    assert "end the module with `softplus` or `exponential`" in text


def test_inputs_that_are_not_scaled_are_named_before_the_units_of_labels():
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(L.Dense(8, "relu"))
    trainer.add_head("a", L.Dense(1), "mse")
    trainer.add_head("b", L.Dense(2), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    trainer.compile("sgd")
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    y = {"a": 3000 + 1000 * x[:, :1], "b": (x[:, 1] > 0).astype("int32")}
    for factor in (1.0, 5000.0):
        diagnosis = trainer.diagnose([(x * [factor, 1, 1, 1], y)])
        texts = {finding.kind: str(finding) for finding in diagnosis.findings}
        assert ("inputs" in texts) == (factor > 1) == ("the inputs come first" in texts["units"])
        assert ("target_scaling" in diagnosis.suggestion) == (factor == 1)
    assert "`keras.layers.Normalization` in front" in texts["inputs"] and texts["inputs"].startswith(
        "The representation that 'a', 'b' read has values of about"
    )


RESCALED = {
    "inverse": (L.Rescaling(1 / 255), 255 * UNIFORM, False),
    "too small": (L.Rescaling(10.0), 9450 + 300 * NORMAL, False),
    "right": (L.Rescaling(300.0, 9450.0), 9450 + 300 * NORMAL, True),
    "factor alone": (L.Rescaling(255.0), 255 * UNIFORM, True),
}


@pytest.mark.parametrize("case", RESCALED)
def test_a_last_layer_that_rescales_is_believed_if_predictions_begin_near_the_labels(case):
    layer, labels, is_right = RESCALED[case]
    _, diagnosis = diagnosed(ending(layer), "mse", labels)
    assert "target_scaling" not in diagnosis.suggestion
    texts = [str(finding) for finding in diagnosis.findings if finding.kind == "units"]
    assert len(texts) == (not is_right)
    assert all("ends in a layer that rescales, but begins with predictions between" in text for text in texts)


@pytest.mark.parametrize(("loss", "labels", "number"), [("mape", np.floor(3 * UNIFORM), 1), ("mape", 1 + UNIFORM, 0)])
def test_labels_of_0_under_a_loss_that_divides_by_them_are_counted(loss, labels, number):
    _, diagnosis = diagnosed(L.Dense(1, "softplus"), loss, labels)
    texts = [str(finding) for finding in diagnosis.findings if finding.kind == "zero labels"]
    assert len(texts) == number and all(text.startswith(f"{(labels == 0).sum()} labels of 'a' are 0") for text in texts)


WEIGHED = {
    "inverse deviation": (lambda: L.Dense(1), "mse", 30 * NORMAL, 1 / 30),
    "inverse variance": (lambda: L.Dense(1), "mse", 30 * NORMAL, 1 / 900),
    "own loss": (lambda: L.Dense(1), squared, 100 * NORMAL, 1 / 100),
    "softplus": (lambda: L.Dense(1, "softplus"), "mse", 60 * UNIFORM, 1 / 30),
    "powers of ten": (lambda: L.Dense(1), "mse", np.exp(3 + 1.5 * NORMAL), 1 / 100),
}


@pytest.mark.parametrize("case", WEIGHED)
def test_no_scaling_is_suggested_to_a_head_whose_weight_suits_its_units(case):
    make, loss, labels, weight = WEIGHED[case]
    trainer, report = diagnosed(make(), loss, labels, weight=weight)
    text = next(str(finding) for finding in report.findings if finding.kind == "units")
    is_starved = case == "inverse variance"  # it is already, and no worse with scaled labels
    assert ("target_scaling" in report.suggestion) == is_starved
    assert ("suits these units" in text) == (not is_starved) and "trainer.set_weight('a', 1.0)" in text
    trainer.set_weight("a", 1.0)
    assert "a" in trainer.diagnose(batches(labels)).suggestion["target_scaling"]


@pytest.mark.parametrize(("loss", "weight"), [("mse", 0.5), ("mae", 0.5), ("mse", 3.0)])
def test_another_weight_does_not_keep_a_scaling_from_being_suggested(loss, weight):
    _, report = diagnosed(L.Dense(1), loss, 3000 + 1000 * NORMAL, weight=weight)
    assert report.suggestion["target_scaling"] == {"a": "standardize"}
    text = next(str(finding) for finding in report.findings if finding.kind == "units")
    assert f"Its weight, {weight:g}, is then that of the scaled loss" in text


PRICES = 500 + 100 * NORMAL


def near_ties(y, p):
    """Pairs whose labels differ by less than 50 are no pairs."""
    sure = tf.cast(y - tf.transpose(y) > 50.0, tf.float32)
    return tf.reduce_sum(sure * tf.nn.softplus(tf.transpose(p) - p)), tf.reduce_sum(sure)


def ranking(y, p):
    """Depends on the sign of differences of labels, and on differences of predictions."""
    return tf.reduce_mean(tf.cast(y > tf.transpose(y), tf.float32) * tf.nn.softplus(tf.transpose(p) - p), axis=1)


def alike(y, p):
    """Embeddings of labels that differ by less than 20 are pulled together."""
    z = tf.math.l2_normalize(p, axis=-1)
    pairs = tf.cast(tf.abs(y - tf.transpose(y)) < 20.0, tf.float32) * (1 - tf.eye(tf.shape(z)[0]))
    return tf.reduce_sum(pairs * tf.reduce_sum((z[:, None] - z) ** 2, axis=-1)), tf.reduce_sum(pairs)


def large_errors(y, p):
    error = tf.abs(y - p)
    return tf.reduce_sum(tf.where(error > 20.0, error, 0.0), axis=-1)


def negative_correlation(y, p):
    y, p = y - tf.reduce_mean(y), p - tf.reduce_mean(p)
    return -tf.reduce_sum(y * p) / (tf.norm(y) * tf.norm(p) + 1e-3) * tf.ones([tf.shape(y)[0]])


IN_ITS_UNITS = {"near ties": (near_ties, 1), "ranking": (ranking, 1), "alike": (alike, 4), "large errors": (large_errors, 1)}
IN_ITS_UNITS |= {"hinge": (lambda y, p: tf.nn.relu(tf.abs(y - p) - 5.0), 1), "exponent": (lambda y, p: tf.exp(-p / y), 1)}
OF_ERRORS = {
    "squares": squared,
    "pairs": lambda y, p: tf.reduce_mean(((y - tf.transpose(y)) - (p - tf.transpose(p))) ** 2, axis=1),
    "distribution": lambda y, p: tf.abs(tf.sort(y, axis=0) - tf.sort(p, axis=0)),
    "sum and count": lambda y, p: (tf.reduce_sum(tf.abs(y - p)), tf.cast(tf.size(y), tf.float32)),
}


@pytest.mark.parametrize("case", IN_ITS_UNITS)
def test_no_scaling_is_suggested_for_a_loss_that_would_be_another_of_scaled_labels(case):
    """Also if predictions that are the same for all rows do not tell."""
    loss, units = IN_ITS_UNITS[case]
    _, found = diagnosed(L.Dense(units), loss, PRICES, couples_rows=True)
    assert "target_scaling" not in found.suggestion


@pytest.mark.parametrize("case", OF_ERRORS)
def test_a_loss_of_errors_that_compares_rows_is_scaled(case):
    _, found = diagnosed(L.Dense(1), OF_ERRORS[case], PRICES, couples_rows=True)
    assert found.suggestion["target_scaling"] == {"a": "standardize"}


WHOLE = {"negative": (10 * NORMAL, 1), "prices": (PRICES, 1), "times": (1.6e9 + 1e6 * NORMAL, 10**4)}


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("columns", [0, 1])
@pytest.mark.parametrize("case", WHOLE)
def test_whole_labels_with_several_predictions_are_numbers_unless_they_are_classes(case, columns, dtype):
    """Labels of one's own loss are class numbers only if each is the number of a predicted column."""
    values, unit = WHOLE[case]
    labels = (unit * np.round(values / unit)).astype(dtype)
    labels = labels if columns else labels[:, 0]

    def pinball(y, p):
        error = tf.cast(tf.reshape(y, [-1, 1]), tf.float32) - p
        return tf.reduce_mean(tf.maximum([0.1, 0.5, 0.9] * error, [-0.9, -0.5, -0.1] * error), axis=-1)

    trainer = MultiHeadTrainer(L.Dense(8, "tanh"))
    trainer.add_head("a", L.Dense(3), pinball, couples_rows=False)
    trainer.compile("sgd")
    found = trainer.diagnose([(np.ones([ROWS, 2], "float32"), {"a": labels})])
    assert np.isfinite(found.constant_losses[0]) and found.constant_losses[0] < 3 * labels.std()


def test_labels_that_a_loss_leaves_out_itself_are_no_trouble():
    classes = RNG.integers(0, 4, ROWS)
    classes[:9] = -100

    def masked(y, p):
        y = tf.reshape(tf.cast(y, tf.int32), [-1])  # Keras 2 adds an axis
        known, y = tf.cast(y >= 0, tf.float32), tf.maximum(y, 0)
        return known * tf.nn.sparse_softmax_cross_entropy_with_logits(y, p), known

    trainer = MultiHeadTrainer(L.Dense(8, "tanh"))
    trainer.add_head("a", L.Dense(4), masked, couples_rows=False)
    trainer.compile("sgd")
    assert trainer.diagnose([(np.ones([ROWS, 2], "float32"), {"a": classes})]).suggestion == {}
