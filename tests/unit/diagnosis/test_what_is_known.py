"""Advice is given where the library knows, on losses, labels and modules that are drawn; elsewhere it says what decides."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers.cases import quick

pytestmark = [pytest.mark.mathematics, pytest.mark.usefixtures("eagerly")]
L = keras.layers
ROWS = 64
INPUTS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")


def trainer_of(module, loss, **options):
    keras.utils.set_random_seed(0)
    trainer = MultiHeadTrainer(L.Dense(8, "tanh"))
    trainer.add_head("a", module, loss, **options)
    trainer.compile("sgd")
    return trainer


def diagnosed(module, loss, labels, **options):
    return trainer_of(module, loss, **options).diagnose([(INPUTS, {"a": labels})])


def kinds(report):
    return {finding.kind for finding in report.findings}


def text_of(report, kind):
    return " ".join(str(finding) for finding in report.findings if finding.kind == kind)


# ------------------------------------------------------------------------------------------------------------- ids


def same(y):
    y = tf.reshape(y, [-1, 1])
    return tf.cast(y == tf.transpose(y), tf.float32)


def distances(p):
    squares = tf.reduce_sum(p * p, axis=1, keepdims=True)
    return tf.maximum(squares + tf.transpose(squares) - 2 * p @ tf.transpose(p), 0.0)


def supervised_contrast(y, p):
    z = tf.math.l2_normalize(p, axis=1)
    others = same(y) - tf.eye(tf.shape(z)[0])
    scores = z @ tf.transpose(z) / 0.1 - 1e9 * tf.eye(tf.shape(z)[0])
    chances = scores - tf.reduce_logsumexp(scores, axis=1, keepdims=True)
    return -tf.reduce_sum(others * chances), tf.reduce_sum(others)


def triplets(y, p):
    z = tf.math.l2_normalize(p, axis=1)
    apart = 1 - z @ tf.transpose(z)
    hardest = tf.reduce_max(apart * same(y), axis=1) - tf.reduce_min(apart + 10 * same(y), axis=1)
    return tf.reduce_sum(tf.nn.softplus(hardest)), tf.cast(tf.shape(p)[0], tf.float32)


def margin(y, p):
    near = tf.maximum(1 - tf.sqrt(distances(p) + 1e-9), 0.0) ** 2
    return tf.reduce_sum(same(y) * distances(p) + (1 - same(y)) * near), tf.cast(tf.size(near), tf.float32)


def inner_products(y, p):
    return tf.reduce_mean(-same(y) * (p @ tf.transpose(p)), axis=1)


OF_IDS = (supervised_contrast, triplets, margin, inner_products)


def ids(seed):
    """A loss, ids around a number of any size, and the number of columns."""
    rng = np.random.default_rng(seed)
    known = rng.choice(10 ** rng.integers(1, 7), 6) + 10 ** rng.integers(0, 7)
    return OF_IDS[seed % len(OF_IDS)], known[rng.integers(0, 6, ROWS)], int(rng.integers(1, 9))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
@pytest.mark.parametrize("seed", quick(1, range(40)))
def test_ids_are_no_numbers(seed, dtype):
    loss, labels, columns = ids(seed)
    report = diagnosed(L.Dense(columns), loss, labels.astype(dtype), couples_rows=True)
    assert "target_scaling" not in report.suggestion
    assert "needs very many updates" not in text_of(report, "units")


def of_numbers(seed):
    """A loss of differences of each column, by a weight for each, and one whose last column is something else."""
    rng = np.random.default_rng(seed)
    weights = tf.constant(10 ** rng.uniform(-1, 1, 3), tf.float32)
    term = [tf.square, tf.abs, lambda e: tf.maximum(0.8 * e, -0.2 * e)][seed % 3]
    last = [
        lambda y, p: tf.nn.sigmoid_cross_entropy_with_logits(y, p),
        lambda y, p: tf.math.exp(tf.minimum(p, 5.0)) - y * p,
        lambda y, p: y * p,
        lambda y, p: 0.0 * y + tf.square(tf.sigmoid(p) - 0.5),
    ][seed % 4]
    share = float(10 ** rng.uniform(-4, 0))

    def loss(y, p):
        return tf.reduce_sum(weights * term(y - p), axis=1)

    def mixed(y, p):
        return tf.reduce_sum(weights[:2] * term(y - p)[:, :2], axis=1) + share * last(y[:, 2], p[:, 2])

    def by_size(y, p):  # the labels above their middle count more
        return tf.reduce_sum(tf.where(y > labels.mean(), 5.0, 0.5) * term(y - p), axis=1)

    labels = 10 ** rng.uniform(1.5, 3) * (3 + rng.normal(size=(ROWS, 3)))
    flagged = np.concatenate([labels[:, :2], rng.integers(0, 2, (ROWS, 1))], axis=1)
    return (loss, labels), (mixed, flagged), (by_size, labels)


@pytest.mark.parametrize("seed", quick(1, range(24)))
def test_numbers_are_scaled_if_the_loss_compares_each_of_them_with_its_prediction(seed):
    proven, *others = of_numbers(seed)
    loss, labels = proven
    report = diagnosed(L.Dense(3), loss, labels.astype("float32"), couples_rows=False)
    assert report.suggestion["target_scaling"] == {"a": "standardize"}
    for loss, labels in others:
        report = diagnosed(L.Dense(3), loss, labels.astype("float32"), couples_rows=False)
        assert "target_scaling" not in report.suggestion
        assert "If they are logarithms, risks, parameters or embeddings, leave it." in text_of(report, "units")


# ------------------------------------------------------------------------------------------------ unknown units


def log_poisson(y, p):
    return tf.nn.log_poisson_loss(y, p)


def tweedie(y, p):
    return tf.exp(0.5 * p) / 0.5 + y * tf.exp(-0.5 * p) / 0.5


def gamma(y, p):
    return p + y * tf.exp(-p)


def normal(y, p):
    middle, spread = p[:, :1], p[:, 1:]
    return 0.5 * tf.exp(-spread) * (y - middle) ** 2 + 0.5 * spread


def of_risks(y, p):
    risks = tf.gather(p[:, 0], tf.argsort(-y[:, 0]))
    return tf.reduce_sum(tf.math.log(tf.cumsum(tf.exp(risks))) - risks), tf.cast(tf.shape(p)[0], tf.float32)


UNKNOWN = {
    "log_poisson": (log_poisson, 1),
    "tweedie": (tweedie, 1),
    "gamma": (gamma, 1),
    "normal": (normal, 2),
    "risks": (of_risks, 1),
}


@pytest.mark.parametrize("seed", quick(1, range(8)))
@pytest.mark.parametrize("name", UNKNOWN)
def test_a_loss_of_ones_own_that_may_not_be_in_the_labels_units_is_left_to_the_user(name, seed):
    loss, columns = UNKNOWN[name]
    rng = np.random.default_rng(seed)
    labels = rng.poisson(np.exp(rng.uniform(3, 7) + 0.5 * INPUTS[:, :1])).astype("float32") + 1
    couples = name == "risks"
    report = diagnosed(L.Dense(columns), loss, labels, couples_rows=couples)
    assert "target_scaling" not in report.suggestion and report.progress[0] != "done"
    text = text_of(report, "units")
    assert "does not show what the module predicts. If these are numbers" in text and "very many updates" not in text
    if columns == 1 and not couples:  # the best constant is the logarithm of the mean
        best = np.full_like(labels, np.log(labels.mean()))
        least = float(tf.reduce_mean(loss(labels, best)))
        assert report.constant_losses[0] == pytest.approx(least, rel=1e-3)
    scaled = keras.Sequential([L.Dense(columns), L.Rescaling(1.0, 0.5)])
    assert "units" not in kinds(diagnosed(scaled, loss, labels, couples_rows=couples))


@pytest.mark.parametrize("seed", quick(1, range(8)))
def test_a_loss_far_below_all_constants_that_were_tried_means_nothing(seed):
    rng = np.random.default_rng(seed)
    power = rng.uniform(2, 4)
    labels = (rng.uniform(4, 9) + rng.random((ROWS, 1))).astype("float32")

    def of_powers(y, p):
        return tf.square(y - p**power / 1000)

    constant = float(1000 * labels.mean()) ** (1 / power)
    module = L.Dense(1, kernel_initializer="zeros", bias_initializer=keras.initializers.Constant(constant))
    report = diagnosed(module, of_powers, labels, couples_rows=False)
    assert np.isnan(report.constant_losses[0]) and report.progress[0] == "unknown"


# ---------------------------------------------------------------------------------------------------------- reach


@pytest.mark.parametrize("seed", quick(1, range(10)))
@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
def test_no_division_is_suggested_that_other_data_may_exceed(name, seed):
    rng = np.random.default_rng(seed)
    labels = np.sort(10 ** rng.uniform(1, 4) * rng.random((ROWS, 1)), axis=0).astype("float32")
    data = [(INPUTS[i : i + 16], {"a": labels[i : i + 16]}) for i in range(0, ROWS, 16)]
    for batches in (2, 5):
        trainer = trainer_of(L.Dense(1, name), "mse")
        report = trainer.diagnose(data, batches=batches)
        text = text_of(report, "out of reach")
        assert ("target_scaling" in report.suggestion) == (batches == 5)
        assert ("not all data were measured. Diagnose all, with a larger `batches`, or pass" in text) == (batches == 2)
        trainer.compile("sgd", **report.suggestion)
        trainer.compute_gradients((INPUTS, {"a": labels}))  # which checks them
    assert f"that of the largest of the {ROWS} labels measured" in text_of(report, "units") + report.labels[0].why


# --------------------------------------------------------------------------------------------------------- logits

ACTIVATIONS = sorted(
    {
        "relu",
        "softplus",
        "exponential",
        "sigmoid",
        "tanh",
        "elu",
        "selu",
        "gelu",
        "linear",
        "softsign",
        "leaky_relu",
        "relu6",
    }
    | {"hard_sigmoid", "silu", "mish", "log_sigmoid"}
)
LOSSES = {
    "crossentropy": keras.losses.BinaryCrossentropy(from_logits=True),
    "focal": keras.losses.BinaryFocalCrossentropy(from_logits=True),
}


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`, but:UserWarning")
@pytest.mark.first_cases(10)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_logits_must_be_able_to_say_both_classes(name, loss):
    try:
        activation = keras.activations.get(name)
    except ValueError:
        pytest.skip("Keras 3 has it.")
    values = np.array(activation(tf.linspace(-30.0, 30.0, 301)))
    labels = (INPUTS[:, :1] > 0.3).astype("float32")
    report = diagnosed(L.Dense(1, name), LOSSES[loss], labels)
    wrong = (labels == 0).sum() * (values.min() >= 0) + (labels == 1).sum() * (values.max() <= 0)
    if (name, loss) in (("sigmoid", "crossentropy"), ("hard_sigmoid", "crossentropy")):
        wrong = 0  # Keras takes the logits before the sigmoid; of the other nothing is said
    assert report.labels[0].unreachable == wrong
    assert ("below 0 for one class and above 0 for the other" in text_of(report, "out of reach")) == (wrong > 0)


# ----------------------------------------------------------------------------------------------------- rows of labels

OF_ROWS = {
    "crossentropy": keras.losses.CategoricalCrossentropy(),
    "logits": keras.losses.CategoricalCrossentropy(from_logits=True),
    "focal": keras.losses.CategoricalFocalCrossentropy(),
    "divergence": keras.losses.KLDivergence(),
}


@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`, but:UserWarning")
@pytest.mark.first_cases(5)
@pytest.mark.parametrize("end", ["softmax", "sigmoid", None])
@pytest.mark.parametrize("name", OF_ROWS)
@pytest.mark.parametrize("seed", quick(1, range(3)))
def test_the_advice_for_rows_of_labels_ends_if_it_is_taken(name, end, seed):
    rng = np.random.default_rng(seed)
    columns = int(rng.integers(3, 6))
    several = (rng.random((ROWS, columns)) < 0.5).astype("float32")
    soft = rng.uniform(0.1, 2, (ROWS, columns)).astype("float32")
    for labels in (several, soft):
        report = diagnosed(L.Dense(columns, end), OF_ROWS[name], labels)
        text = text_of(report, "out of reach")
        assert "end the module with a sigmoid and take the loss `binary_crossentropy`" in text
        assert "divide the rows by their sums" in text and "softmax." not in text_of(report, "no probabilities")
    taken = diagnosed(L.Dense(columns, "sigmoid"), "binary_crossentropy", several)
    divided = diagnosed(
        L.Dense(columns, None if name == "logits" else "softmax"), OF_ROWS[name], soft / soft.sum(axis=1, keepdims=True)
    )
    for report in (taken, divided):
        assert not kinds(report) & {"out of reach", "no probabilities"}


@pytest.mark.parametrize("seed", quick(1, range(12)))
def test_of_labels_that_are_all_equal_nothing_else_is_said(seed):
    rng = np.random.default_rng(seed)
    columns, value = int(rng.integers(1, 4)), float(rng.normal() * 10 ** rng.uniform(1, 5))
    labels = np.full((ROWS, columns), value, "float32")
    if seed % 2:
        labels[rng.random(ROWS) < 0.5] = np.nan
    report = diagnosed(L.Dense(columns), ["mse", "mae", "huber"][seed % 3], labels)
    assert "equal labels" in kinds(report) and "units" not in kinds(report) and "target_scaling" not in report.suggestion
