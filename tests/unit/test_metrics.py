"""Metrics: fed with labelled elements only, in the shapes that Keras's own metrics read, and named apart in the logs."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.heads._metric_names import resolve_metric
from multihead.heads._named import new_head

metrics = keras.metrics
ROWS, TIME, COLUMNS = 40, 3, 4
RNG = np.random.default_rng(0)


def results(made, loss, targets, predictions, sample_weight=None, ignore_label=-1, **options):
    """What a head's metrics, by name, give for targets and predictions."""
    made_for = {"metrics" if sample_weight is None else "weighted_metrics": list(made.values())}
    head = new_head("a", tf.identity, loss, ignore_label=ignore_label, **made_for, **options)
    spec = tf.TensorSpec([None, *predictions.shape[1:]], predictions.dtype)
    head.build(tf.TensorSpec([None, *targets.shape[1:]], targets.dtype), spec)
    half = len(targets) // 3
    for part in (slice(0, half), slice(half, None)):
        weight = None if sample_weight is None else tf.constant(sample_weight[part])
        clean, weights = head.mask_missing(tf.constant(targets[part]), weight, spec, None)
        head.update_metrics(clean, tf.constant(predictions[part]), weights, None)
    return {name: np.array(metric.result()) for name, metric in zip(made, head.metrics)}


def test_classes_do_not_weigh_in_metrics():
    y, p = RNG.integers(0, 2, (ROWS, 2)), RNG.random((ROWS, 2)).astype("float32")
    given = RNG.random(ROWS).astype("float32")
    found = results({"mae": metrics.MeanAbsoluteError()}, "binary_crossentropy", y, p, given, class_weight={0: 3.0, 1: 0.5})
    assert found["mae"] == pytest.approx(np.average(abs(y - p).mean(axis=1), weights=given), rel=1e-5)


@pytest.mark.parametrize(
    "options, rule",
    {
        "no list": (
            {"metrics": "mae"},
            r"`metrics` must be a list\. Received: metrics='mae' for head 'a'\. Put it into a list\.",
        ),
        "unknown": ({"metrics": ["mea"]}, r"`metrics` of head 'a' must be Keras metrics or their names\. Received: 'mea'"),
        "twice": ({"metrics": ["mae", "mae"]}, r"unique names.*Received: metrics named 'mae', 'mae'"),
        "loss": ({"metrics": [metrics.MeanSquaredError(name="loss")]}, r"none of 'loss', .*Give 'loss' another `name`"),
        "share": ({"metrics": ["mse", metrics.MeanSquaredError(name="share")]}, r"Give 'share' another `name`"),
    }.values(),
    ids=lambda value: "",
)
def test_metrics_of_a_head_are_named_apart(options, rule):
    with pytest.raises((ValueError, TypeError), match=rule):
        new_head("a", tf.identity, "mse", **options)


@pytest.mark.parametrize(
    "first, second, rule",
    [
        (
            ("a", ["b_loss"]),
            ("a_b", []),
            r"'a_b_loss' would stand for the metric 'b_loss' of head 'a' and for the loss of head",
        ),
        (("val", []), ("b", []), r"'val_loss' would stand for a value of no head and for the loss of head 'val'"),
        (("skipped", []), ("b", []), r"'skipped_updates' would stand for a value of no head and for the updates of head"),
        (("a", []), ("val_a", []), r"'val_a_loss' would stand for the loss of head 'a' and for the loss of head 'val_a'"),
        (("a", ["one"]), ("b", ["one"]), r"one object, 'one', for the heads 'a' and 'b': it would mix both"),
    ],
)
def test_heads_are_named_apart(first, second, rule):
    made = {}
    trainer = MultiHeadTrainer(tf.identity)
    with pytest.raises(ValueError, match=rule):
        for name, names in (first, second):
            given = [made.setdefault(each, metrics.MeanSquaredError(name=each)) for each in names]
            trainer.add_head(name, tf.identity, "mse", metrics=given)
    assert len(trainer.heads) < 2


OF_ROWS = [
    lambda: "mae",
    lambda: metrics.F1Score(name="of_classes"),
    lambda: metrics.F1Score("macro", name="of_classes"),
    lambda: metrics.FBetaScore("micro", threshold=0.5, name="of_classes"),
    *([lambda: metrics.PearsonCorrelation()] if hasattr(metrics, "PearsonCorrelation") else []),
]


@pytest.mark.parametrize("make", OF_ROWS)
def test_a_metric_must_fit_the_targets(make):
    head = new_head("a", tf.identity, "sparse_categorical_crossentropy", metrics=["accuracy", make()])
    with pytest.raises(ValueError, match=r"`metrics` of head 'a' must fit its targets, but '\w+' needs targets of shape"):
        head.build(tf.TensorSpec([None], tf.int64), tf.TensorSpec([None, 3]))


def test_metrics_are_made_when_targets_are_first_seen():
    trainer = MultiHeadTrainer(keras.layers.Dense(3))
    for name in "ab":
        trainer.add_head(name, keras.layers.Dense(1), "mse", metrics=["mae"])
    trainer.compile("sgd", run_eagerly=True)
    x = np.ones((4, 2), "float32")
    trainer.compute_gradients((x, {"a": np.zeros(4)}))
    assert {"a_mae", "b_mae"} <= trainer.evaluate(x, {"a": np.zeros(4), "b": np.ones(4)}, verbose=0, return_dict=True).keys()


OF_COLUMNS = [
    metrics.SparseCategoricalAccuracy,
    metrics.SparseTopKCategoricalAccuracy,
    metrics.CategoricalAccuracy,
    metrics.TopKCategoricalAccuracy,
    metrics.CategoricalCrossentropy,
    metrics.CosineSimilarity,
]


@pytest.mark.parametrize("kind", OF_COLUMNS)
def test_a_metric_that_is_constant_for_a_single_column(kind):
    """Keras's `"categorical_accuracy"`, for one, is 1 whatever such a head predicts."""
    head = new_head("a", tf.identity, "binary_crossentropy", metrics=[kind(name="wrong")])
    with pytest.raises(
        ValueError, match=r"`metrics` of head 'a' must fit its predictions, but 'wrong' compares several col"
    ):
        head.build(tf.TensorSpec([None, 1]), tf.TensorSpec([None, 1]))


@pytest.mark.parametrize(
    ("targets", "predictions", "form"),
    [
        ([None], [None], "Binary"),
        ([None, 1], [None, 1], "Binary"),
        ([None], [None, 3], "SparseCategorical"),
        ([None, 1], [None, 3], "SparseCategorical"),
        ([None, 3], [None, 3], "Categorical"),
        ([None, 5], [None, 5, 3], "SparseCategorical"),
        ([None, 5, 3], [None, 5, 3], "Categorical"),
    ],
)
def test_the_shapes_say_which_accuracy_and_crossentropy(targets, predictions, form):
    for name in ("accuracy", "crossentropy"):
        metric = resolve_metric(name, tf.TensorSpec(targets), tf.TensorSpec(predictions), "a")
        assert type(metric).__name__ == form + name.title() and metric.name == name


class Late(keras.metrics.Metric):
    """The mean of the targets; a variable is made in the first update, beside one that is there before."""

    reads = "rows"

    def __init__(self, name="late"):
        super().__init__(name=name)
        self.rows, self.sums = self.add_weight(name="rows", initializer="zeros", shape=()), None

    def update_state(self, y_true, y_pred, sample_weight=None):
        if self.sums is None:
            self.sums = self.add_weight(name="sums", initializer="zeros", shape=(y_true.shape[-1],))
        self.rows.assign_add(tf.cast(tf.shape(y_true)[0], tf.float32))
        self.sums.assign_add(tf.reduce_sum(tf.cast(y_true, tf.float32), axis=0))

    def result(self):
        return tf.reduce_sum(tf.convert_to_tensor(self.sums) / tf.convert_to_tensor(self.rows))

    def reset_state(self):
        for variable in self.variables:
            variable.assign(tf.zeros(variable.shape))


LATE = {
    "own": Late,
    "F1Score": lambda: keras.metrics.F1Score(average="macro", name="late"),
    "FBetaScore": lambda: keras.metrics.FBetaScore(average="micro", beta=2.0, name="late"),
    "R2Score": lambda: keras.metrics.R2Score(num_regressors=1, name="late"),
}


@pytest.mark.filterwarnings("ignore:.*independent predictors")
@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("kind", LATE)
def test_a_metric_may_make_variables_in_its_first_update(kind, run_eagerly):
    """Against the metric itself, updated by hand; in every epoch."""
    if kind == "R2Score" and not run_eagerly:
        pytest.skip("Keras itself cannot compute it in a graph")
    x = np.random.default_rng(0).normal(size=(12, 4)).astype("float32")
    y = np.eye(3, dtype="float32")[np.arange(12) % 3]
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("kind", keras.layers.Dense(3, "softmax"), "categorical_crossentropy", metrics=[LATE[kind]()])
    trainer.compile(keras.optimizers.SGD(0.0), run_eagerly=run_eagerly)
    found = trainer.fit(x, {"kind": y}, batch_size=12, epochs=2, verbose=0).history["kind_late"]
    metric = LATE[kind]()
    metric.update_state(y, trainer.heads["kind"].module(trainer.encoder(x)))
    np.testing.assert_allclose(found, [np.array(metric.result())] * 2, rtol=1e-5, atol=1e-6)


def test_a_function_of_one_number_without_a_trace_is_averaged_as_one_with_a_trace():
    """A batch counts as much as another one, whatever its weights."""

    def error(y_true, y_pred):
        return tf.reduce_mean(tf.abs(y_true - y_pred))

    def error_of_values(y_true, y_pred):
        return error(y_true, y_pred) if float(tf.reduce_sum(y_true)) > -1000.0 else 0.0

    x = np.random.default_rng(0).normal(size=(9, 3)).astype("float32")
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(1), "mse", weighted_metrics=[error, error_of_values])
    trainer.compile("sgd", run_eagerly=True)
    options = {"sample_weight": {"a": np.arange(9.0)}, "batch_size": 4, "verbose": 0, "return_dict": True}
    found = trainer.evaluate(x, {"a": x[:, :1]}, **options)
    assert found["a_error"] == found["a_error_of_values"]


def test_a_metric_that_fails_in_its_first_update_says_why():
    class Failing(Late):
        def update_state(self, y_true, y_pred, sample_weight=None):
            raise TypeError("no such thing as a mean")

    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("kind", keras.layers.Dense(3), "mse", metrics=[Failing()])
    trainer.compile("sgd")
    with pytest.raises(ValueError, match="`metrics` of head 'kind' must take its targets.*says: .*no such thing as a mean"):
        trainer.fit(np.zeros([4, 2]), {"kind": np.zeros([4, 3])}, verbose=0)
