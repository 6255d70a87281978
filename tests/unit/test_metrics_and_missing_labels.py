"""Every metric, against the same metric of the labelled elements alone, which NumPy selects."""

from __future__ import annotations

import functools
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead.heads._named import new_head
from tests.helpers.addons import addons

pytestmark = pytest.mark.first_cases(3)  # the others are thorough

M = keras.metrics
KERAS_3 = keras.__version__.startswith("3")
C = 3
SHAPES = {2: (40, C), 3: (18, 4, C), 4: (8, 2, 4, C)}

ARGUMENTS = {
    "BinaryIoU": {"dtype": "float32"},
    "IoU": {"num_classes": C, "target_class_ids": [0, 2], "dtype": "float32"},
    "MeanIoU": {"num_classes": C, "dtype": "float32"},
    "OneHotIoU": {"num_classes": C, "target_class_ids": [0, 2], "dtype": "float32"},
    "OneHotMeanIoU": {"num_classes": C, "dtype": "float32"},
    "PrecisionAtRecall": {"recall": 0.5, "num_thresholds": 20},
    "RecallAtPrecision": {"precision": 0.5, "num_thresholds": 20},
    "SensitivityAtSpecificity": {"specificity": 0.5, "num_thresholds": 20},
    "SpecificityAtSensitivity": {"sensitivity": 0.5, "num_thresholds": 20},
    "AUC": {"num_thresholds": 20},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
NO_METRICS = ("Mean", "Sum", "MeanTensor", "GeometricMean", "HarmonicMean")
"""They average values; they compare nothing with targets."""

BASES = ("Metric", "MeanMetricWrapper")
ROWS = (
    "CategoricalAccuracy CategoricalCrossentropy CategoricalHinge TopKCategoricalAccuracy CosineSimilarity KLDivergence "
    "PearsonCorrelation ConcordanceCorrelation F1Score FBetaScore OneHotIoU OneHotMeanIoU"
).split()
CLASSES = "SparseCategoricalAccuracy SparseCategoricalCrossentropy SparseTopKCategoricalAccuracy".split()


class ColumnAUC(M.AUC):
    """Of one column, with weights."""

    def __init__(self, column, name="column_auc"):
        super().__init__(num_thresholds=20, name=name)
        self.column = self.reads = column

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true[..., self.column], y_pred[..., self.column], sample_weight)


class Plain(M.MeanAbsoluteError):
    """Which reads what Keras's class reads."""


class F1(M.Metric):
    """The snippet that is copied everywhere; it does not use its weights."""

    reads = "elements"

    def __init__(self, name="own_f1"):
        super().__init__(name=name)
        self.tp, self.fp, self.fn = (self.add_weight(name=n, initializer="zeros") for n in ("tp", "fp", "fn"))

    def update_state(self, y_true, y_pred, sample_weight=None):
        y, p = tf.cast(tf.reshape(y_true, [-1]), tf.float32), tf.cast(tf.reshape(y_pred, [-1]) > 0.5, tf.float32)
        self.tp.assign_add(tf.reduce_sum(y * p))
        self.fp.assign_add(tf.reduce_sum((1 - y) * p))
        self.fn.assign_add(tf.reduce_sum(y * (1 - p)))

    def result(self):
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn + 1e-7)


class F1WithoutWeights(F1):
    """It does not even take them."""

    def update_state(self, y_true, y_pred):
        super().update_state(y_true, y_pred)


class LargestError(M.Mean):
    """A mean over rows."""

    reads = "rows"

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = tf.reduce_max(tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred), axis=-1)
        return super().update_state(error, sample_weight)


class ScaledError(M.Mean):
    """Each column in units of its own."""

    reads = "rows"

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = tf.abs(tf.cast(y_true, y_pred.dtype) - y_pred) / tf.constant([1.0, 2.0, 5.0])
        return super().update_state(error, sample_weight)


class ByColumn(M.Metric):
    """The mean over columns of the share of correct labels."""

    reads = "rows"

    def __init__(self, name="by_column"):
        super().__init__(name=name)
        self.correct = self.add_weight(name="correct", shape=(C,), initializer="zeros")
        self.number = self.add_weight(name="number", shape=(C,), initializer="zeros")

    def update_state(self, y_true, y_pred):
        right = tf.cast((y_pred > 0.5) == (y_true > 0.5), tf.float32)
        right = tf.reshape(right, [-1, right.shape[-1]])
        self.correct.assign_add(tf.reduce_sum(right, axis=0))
        self.number.assign_add(tf.reduce_sum(tf.ones_like(right), axis=0))

    def result(self):
        return tf.sqrt(tf.reduce_mean(tf.square(self.correct / self.number)))

    def reset_state(self):
        for variable in (self.correct, self.number):
            variable.assign(tf.zeros([C]))


def of_columns(make, combine=np.mean):
    """By hand: the metric of each column by itself, combined."""

    def wanted(y, p, there):
        found = []
        for k in range(C):
            metric = make(1)
            metric.update_state(y[there[:, k], k : k + 1], p[there[:, k], k : k + 1])
            found.append(np.ravel(metric.result())[0])
        return combine(np.array(found))

    return wanted


def as_they_are(values):
    return values


def of_elements(make):
    def wanted(y, p, there):
        metric = make()
        metric.update_state(y[there][:, None], p[there][:, None])
        return np.array(metric.result())

    return wanted


def of_rows(make, columns=tuple(range(C))):
    def wanted(y, p, there):
        whole = there[:, list(columns)].all(axis=1)
        metric = make()
        metric.update_state(y[whole], p[whole])
        return np.array(metric.result()) if whole.any() else np.nan

    return wanted


def shipped(module):
    return {name: each for name, each in inspect.getmembers(module, inspect.isclass) if issubclass(each, M.Metric)}


def made(kind):
    return lambda: kind(**ARGUMENTS.get(kind.__name__, {}))


def cases():
    """By name: a metric, and the function of targets, predictions and a mask that gives what it should be."""
    found = {}
    for name, kind in shipped(M).items():
        if name not in (*BASES, *NO_METRICS, *CLASSES, "MeanRelativeError", "R2Score", "IoU", "MeanIoU"):
            make = made(kind)
            found[name] = make, of_rows(make) if name in ROWS else of_elements(make)
    for average, combine in ((None, as_they_are), ("macro", np.mean)):
        make = {"average": average, "threshold": 0.5}
        found[f"f1 {average}"] = lambda o=make: M.F1Score(**o), of_columns(lambda _: M.F1Score(threshold=0.5), combine)
    found["f1 micro"] = (
        lambda: M.F1Score(average="micro", threshold=0.5),
        of_elements(lambda: M.F1Score(average="micro", threshold=0.5)),
    )
    for aggregation, combine in ((None, as_they_are), ("uniform_average", np.mean)):
        make = {"class_aggregation": aggregation}
        found[f"r2 {aggregation}"] = lambda o=make: M.R2Score(**o), of_columns(lambda _: M.R2Score(), combine)
    found["adjusted r2"] = lambda: M.R2Score(num_regressors=1), of_rows(lambda: M.R2Score(num_regressors=1))
    found["class_id"] = lambda: M.Precision(class_id=1), of_rows(lambda: M.Precision(class_id=1), [1])
    found["multi_label"] = (
        lambda: M.AUC(num_thresholds=20, multi_label=True, num_labels=C),
        of_columns(lambda _: M.AUC(num_thresholds=20)),
    )
    if not KERAS_3:
        errors = M.MeanRelativeError
        found["relative"] = (
            lambda: errors([1.0, 2.0, 4.0]),
            lambda y, p, there: np.mean((np.abs(y - p) / np.array([1.0, 2.0, 4.0]))[there]),
        )
        found.update(of_addons())
    found.update(own())
    return found


def of_addons():
    A = addons().metrics
    made = {
        **{name: (getattr(A, name), of_elements) for name in ("KendallsTauB", "KendallsTauC", "PearsonsCorrelation")},
        "SpearmansRank": (A.SpearmansRank, of_elements),
        "CohenKappa": (lambda: A.CohenKappa(C), of_rows),
        "MatthewsCorrelationCoefficient": (lambda: A.MatthewsCorrelationCoefficient(C), of_rows),
        "FBetaScore": (lambda: A.FBetaScore(C, average="macro"), of_rows),
        "HammingLoss": (lambda: A.HammingLoss("multilabel", threshold=0.5), of_elements),
        "HammingLoss of classes": (lambda: A.HammingLoss("multiclass"), of_rows),
        "RSquare": (A.RSquare, of_rows),
        "F1Score": (lambda: A.F1Score(C, threshold=0.5), of_rows),
        "MultiLabelConfusionMatrix": (lambda: A.MultiLabelConfusionMatrix(C), of_rows),
    }
    reads = {of_elements: "elements", of_rows: "rows"}
    return {f"addons {name}": (declared(make, reads[kind]), kind(make)) for name, (make, kind) in made.items()}


def declared(make, reads):
    """The same metric, which says what it reads."""

    def made():
        metric = make()
        metric.reads = reads
        return metric

    return made


def own():
    found = {}
    found["own column"] = lambda: ColumnAUC(1), of_rows(lambda: ColumnAUC(1), [1])
    found["own class without an update of its own"] = Plain, of_elements(M.MeanAbsoluteError)
    found["own f1"] = F1, of_elements(F1)
    found["own f1 without weights"] = F1WithoutWeights, of_elements(F1)
    found["own mean of rows"] = LargestError, of_rows(LargestError)
    found["own units of columns"] = ScaledError, of_rows(ScaledError)
    found["own by column"] = ByColumn, of_rows(ByColumn)
    functions = {
        "element": (lambda y, p: tf.abs(y - p), lambda y, p, there: np.abs(y - p)[there].mean()),
        "row": (
            lambda y, p: tf.reduce_max(tf.abs(y - p), axis=-1),
            lambda y, p, there: np.abs(y - p)[there.all(1)].max(1).mean() if there.all(1).any() else np.nan,
        ),
        "mean_of_row": (
            lambda y, p: tf.reduce_mean(tf.square(y - p), axis=-1),
            lambda y, p, there: np.square(y - p)[there].mean(),
        ),
        "column_0": (
            lambda y, p: tf.abs(y[..., 0] - p[..., 0]),
            lambda y, p, there: np.abs(y - p)[there[:, 0], 0].mean(),
        ),
        "two_columns": (
            lambda y, p: tf.abs(y[..., 0] - p[..., 2]),
            lambda y, p, there: np.abs(y[:, 0] - p[:, 2])[there[:, 0] & there[:, 2]].mean(),
        ),
        "prediction": (lambda y, p: p[..., 1], lambda y, p, there: p[there[:, 1], 1].mean()),
    }
    reads = {"element": "elements", "mean_of_row": "elements", "column_0": 0, "two_columns": [0, 2], "prediction": 1}
    for name, (function, wanted) in functions.items():
        function.__name__ = name
        function.reads = reads.get(name, "rows")
        found[f"function of {name}"] = lambda f=function: f, wanted
    return found


CASES = cases()


def labels_of(rank, how, rng):
    """Targets, predictions and where there are labels."""
    shape = SHAPES[rank]
    p = rng.random(shape).astype("float32")
    p /= p.sum(axis=-1, keepdims=True)
    y = np.eye(C, dtype="float32")[rng.integers(0, C, shape[:-1])]
    there = np.ones(shape, bool)
    if how == "rows":
        there[rng.random(shape[0]) < 0.4] = False
    elif how == "columns":
        there = rng.random(shape) > 0.3
    elif how == "steps":
        there[rng.random(shape[:-1]) < 0.4] = False
    elif how == "all of a column":
        there[..., 2] = False
        there[0, ..., 2] = True
    return y, p, there


def found_by_head(specs, loss, batches, *, xla=False, **options):
    """The results of a head's metrics, by name, for batches of targets with missing labels, and predictions."""
    head = new_head("a", tf.identity, loss, metrics=specs, **options)
    y, p = batches[0]
    spec = tf.TensorSpec([None, *p.shape[1:]], p.dtype)
    head.build(tf.TensorSpec([None, *y.shape[1:]], y.dtype), spec)

    def update(y, p):
        clean, weights = head.mask_missing(y, None, spec, None)
        head.update_metrics(clean, p, weights, None)

    if xla:
        update = tf.function(update, jit_compile=True)
    for y, p in batches:
        update(tf.constant(y), tf.constant(p))
    return {name: np.array(value) for name, value in head.results().items()}


def with_all_missing(y, p, there):
    """Three batches; no element of the second has a label."""
    marked, half = np.where(there, y, np.nan), len(y) // 2
    return [(marked[:half], p[:half]), (np.full_like(y[:3], np.nan), p[:3]), (marked[half:], p[half:])]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "rank, how",
    [(2, "columns"), (3, "columns"), (4, "steps"), *((2, how) for how in ("nothing", "rows", "all of a column"))],
)
def test_a_metric_is_that_of_the_labelled_elements(rank, how):
    y, p, there = labels_of(rank, how, np.random.default_rng(rank))
    batches = with_all_missing(y, p, there)
    wrong = []
    for name, (make, wanted) in CASES.items():
        flat = [each.reshape(-1, C) for each in (y, p, there)]
        (found,) = found_by_head([make()], "binary_crossentropy", batches).values()
        with np.errstate(all="ignore"):
            right = wanted(*flat)
        if not np.allclose(found, right, rtol=1e-4, atol=1e-5, equal_nan=True):
            wrong.append(f"{name}: {found} instead of {right}")
    assert not wrong, "\n".join(wrong)


def of_batches(function):
    """By hand: the mean over batches of a function of their labelled elements."""

    def wanted(batches):
        values = [np.ravel(function(y, p)) for y, p in batches]
        values = np.concatenate(values)
        return values[~np.isnan(values)].mean()

    return wanted


def column_errors(y, p):
    errors = np.square(y - p)[~np.isnan(y).any(axis=1)]
    return np.sqrt(errors.mean(axis=0)) if len(errors) else np.full(C, np.nan)


OF_BATCHES = {
    "number": (
        lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p))),
        lambda y, p: np.sqrt(np.nanmean(np.square(y - p))) if not np.isnan(y).all() else np.nan,
    ),
    "numbers_of_columns": (lambda y, p: tf.sqrt(tf.reduce_mean(tf.square(y - p), axis=0)), column_errors),
}


@pytest.mark.parametrize("how", ["nothing", "rows", "columns", "all of a column"])
def test_a_function_may_return_what_belongs_to_the_batch(how):
    """As in Keras, its values of all batches are averaged; a batch without labels has none."""
    batches = with_all_missing(*labels_of(2, how, np.random.default_rng(0)))
    for name, (function, by_hand) in OF_BATCHES.items():
        function.__name__ = name
        function.reads = {"number": "elements", "numbers_of_columns": "rows"}[name]
        with np.errstate(all="ignore"):
            right = of_batches(by_hand)(batches)
        assert found_by_head([function], "mse", batches)[name] == pytest.approx(right, rel=1e-5), name


@pytest.mark.thorough
@pytest.mark.parametrize("rank, how", [(2, "rows"), (3, "rows"), (3, "steps"), (4, "steps")])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_metric_of_classes_is_that_of_the_labelled_rows(rank, how, sparse):
    y, p, there = labels_of(rank, how, np.random.default_rng(rank))
    if sparse:
        batches = [(np.where(there[..., 0], np.argmax(y, -1), -1), p)]

        def hits(y, p):  # without `reads`: all labels of an example are there, or none
            y = tf.reshape(y, tf.shape(p)[:-1])  # Keras 2 hands it a column
            return tf.cast(tf.equal(tf.cast(y, tf.int64), tf.argmax(p, axis=-1)), tf.float32)

        if how == "steps":  # and here, of one step at a time
            hits.reads = "elements"
        makers = {name: made(getattr(M, name)) for name in CLASSES}
        makers["hits"] = lambda: M.MeanMetricWrapper(hits, name="hits")
        seen = np.argmax(y, -1)[there[..., 0]], p[there[..., 0]]
    else:
        batches = with_all_missing(y, p, there)
        makers = {name: make for name, (make, _) in CASES.items() if name in ROWS or name.startswith(("own", "addons"))}
        for name in ("addons RSquare",):  # it keeps the first shape that it sees
            makers.pop(name, None)
        seen = y[there[..., 0]], p[there[..., 0]]
    loss = "sparse_categorical_crossentropy" if sparse else "categorical_crossentropy"
    for name, make in makers.items():
        metric = make()
        metric.update_state(*seen)
        (found,) = found_by_head([make()], loss, batches, ignore_label=-1 if sparse else None).values()
        np.testing.assert_allclose(found, np.array(metric.result()), rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_metric_of_keras_and_addons_is_among_the_cases():
    modules = [M]
    if not KERAS_3:
        modules.append(addons().metrics)
    others = {"R2Score": "r2 None", "IoU": "BinaryIoU", "MeanIoU": "BinaryIoU", "MeanRelativeError": "relative"}
    for module in modules:
        for name in shipped(module):
            if name not in (*BASES, *NO_METRICS, *CLASSES):
                assert {name, f"addons {name}", others.get(name)} & CASES.keys(), name


def test_what_compares_nothing_with_targets_is_refused():
    modules = [M]
    if not KERAS_3:
        modules.append(addons().metrics)
    refused = [each for module in modules for name, each in shipped(module).items() if name in NO_METRICS]
    assert len(refused) == (2 if KERAS_3 else 5)
    for kind in refused:
        for spec in (kind, kind()):
            with pytest.raises(
                ValueError, match="`metrics` of head 'a' must compare targets with predictions: update_state"
            ):
                new_head("a", tf.identity, "mse", metrics=[spec])
    with pytest.raises(ValueError, match=r"a function of \(y_true, y_pred\)\. Received: 'one', which takes 'x'"):

        def one(x):
            return x

        new_head("a", tf.identity, "mse", metrics=[one])


def test_without_a_complete_row_a_metric_of_rows_is_nan():
    y, p, there = labels_of(2, "nothing", np.random.default_rng(0))
    there[::2, 0], there[1::2, 1] = False, False
    specs = [M.CosineSimilarity(name="cosine"), LargestError(name="largest"), M.MeanSquaredError(name="error")]
    found = found_by_head(specs, "mse", with_all_missing(y, p, there))
    assert np.isnan(found["cosine"]) and np.isnan(found["largest"]) and np.isfinite(found["error"])


def test_xla_takes_metrics_of_keras():
    y, p, there = labels_of(2, "columns", np.random.default_rng(2))
    batches = with_all_missing(y, p, there)[1:]
    for make in (M.MeanAbsoluteError, M.R2Score):
        (found,), (other,) = (found_by_head([make()], "mse", batches, xla=xla).values() for xla in (True, False))
        np.testing.assert_allclose(found, other, rtol=1e-5, err_msg=make.__name__)


def test_xla_refuses_others():
    y, p, there = labels_of(2, "rows", np.random.default_rng(2))
    with pytest.raises(ValueError, match=r"`jit_compile` must not be True for the metric 'own_f1' of head 'a'"):
        found_by_head([F1()], "binary_crossentropy", with_all_missing(y, p, there), xla=True)


# What nothing says is asked for.
# ---------------------------------------------------------------------------------------------------------------------


class Silent(M.Metric):
    """The largest label that it has seen, in a Python list."""

    def __init__(self, name="silent"):
        super().__init__(name=name)
        self.seen = []

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen += np.ravel(y_true).tolist()

    def result(self):
        return max(self.seen, default=0.0)


def silent_function(y, p):
    return tf.abs(y[..., 0] - p[..., 0])


@functools.wraps(keras.losses.mean_absolute_error)
def named_like_keras(y, p):
    return silent_function(y, p)


class SilentAUC(M.AUC):
    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(y_true[..., 0], y_pred[..., 0], sample_weight)


UNDECLARED = {
    "named like Keras's": lambda: named_like_keras,
    "metric": Silent,
    "function": lambda: silent_function,
    "subclass": SilentAUC,
}


@pytest.mark.parametrize("how", ["columns", "steps", "mask", "weights"])
@pytest.mark.parametrize("name", UNDECLARED)
def test_a_metric_of_which_nothing_is_known_refuses_parts_of_examples(name, how):
    rank = 2 if how == "columns" else 3
    y, p, there = labels_of(rank, how if how in ("columns", "steps") else "nothing", np.random.default_rng(rank))
    head = new_head("a", tf.identity, "binary_crossentropy", metrics=[UNDECLARED[name]()])
    spec = tf.TensorSpec([None, *p.shape[1:]], p.dtype)
    head.build(tf.TensorSpec([None, *y.shape[1:]], y.dtype), spec)
    weights, mask = None, None
    if how in ("mask", "weights"):
        elements = (np.arange(y[..., 0].size) != 5).reshape(y.shape[:-1])
        weights, mask = (tf.cast(elements, "float32"), None) if how == "weights" else (None, tf.constant(elements))
    message = (
        r"`targets\['a'\]` must be missing for a whole row or not at all, since nothing says which labels of a row the "
        r"metric '.*' reads\. Received: .* rows break this\)\. Set the attribute `reads`.*'elements', 'rows', or the numbers"
    )
    with pytest.raises(ValueError, match=message):
        head.mask_missing(tf.constant(np.where(there, y, np.nan)), weights, spec, mask)
    clean, weights = head.mask_missing(tf.constant(y), None, spec, None)  # all labels are there
    head.update_metrics(clean, tf.constant(p), weights, None)
    assert np.isfinite(list(head.results().values())).all()


def test_a_metric_sees_nothing_but_labelled_rows():
    """No trial leaves rows of its own in it, and nothing resets it."""
    y, p, there = labels_of(2, "rows", np.random.default_rng(5))
    metric = Silent()
    found_by_head([metric], "mse", [(np.where(there, y, np.nan), p)])
    np.testing.assert_array_equal(metric.seen, y[there])
    x = np.random.default_rng(7).normal(size=(len(y), 5)).astype("float32")
    for steps in ({}, {"micro_batches": 3}):
        metric = Silent()
        trainer = tiny_trainer([metric], "mse")
        trainer.compile("sgd", run_eagerly=True, **steps)
        trainer.evaluate(x, {"a": np.where(there, y, np.nan)}, batch_size=16, verbose=0)
        np.testing.assert_array_equal(metric.seen, y[there])


@pytest.mark.parametrize("reads", ["columns", 1.0, [], [True], {"a": 1}, 7, [-4]], ids=repr)
def test_what_a_metric_cannot_read(reads):
    message = "must name columns of its predictions" if reads in (7, [-4]) else "must be 'elements', 'rows', the number of"
    y, p, there = labels_of(2, "rows", np.random.default_rng(5))
    with pytest.raises(ValueError, match=f"`reads` of the metric 'silent' of head 'a' {message}"):
        found_by_head([declared(Silent, reads)()], "mse", [(y, p)])


def training(metrics, y, *, loss="binary_crossentropy", **options):
    """A trainer with one head of three columns, trained for an epoch; what `evaluate` says, and what it should say."""
    x = np.random.default_rng(7).normal(size=(len(y), 5)).astype("float32")
    trainer = tiny_trainer(metrics, loss)
    trainer.compile("sgd", **options)
    history = trainer.fit(x, {"a": y}, batch_size=16, verbose=0, validation_data=(x, {"a": y})).history
    return trainer, history, x


def tiny_trainer(metrics, loss):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(keras.layers.Dense(6, activation="tanh"))
    trainer.add_head("a", keras.layers.Dense(C, activation="sigmoid"), loss, metrics=metrics)
    return trainer


def check_training(trainer, history, x, y, makers):
    p = trainer.predict(x, verbose=0)["a"]
    for name in makers:
        right = CASES[name][1](np.nan_to_num(y), p, ~np.isnan(y))
        np.testing.assert_allclose(history[f"val_a_{trainer_name(name)}"][-1], right, rtol=2e-3, atol=1e-4, err_msg=name)


def trainer_name(name):
    spec = CASES[name][0]()
    return getattr(spec, "name", None) or spec.__name__


USED = ("own column", "own f1 without weights", "function of row", "f1 None", "r2 uniform_average", "own by column")


@pytest.fixture
def y():
    y, _, there = labels_of(2, "columns", np.random.default_rng(4))
    return np.where(there, y, np.nan).astype("float32")


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"micro_batches": 3}, {"gradient_accumulation_steps": 2}], ids=str
)
def test_fit_and_evaluate(options, y):
    trainer, history, x = training([CASES[name][0]() for name in USED], y, **options)
    check_training(trainer, history, x, y, USED)
