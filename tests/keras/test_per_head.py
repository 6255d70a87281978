"""`HeadEarlyStopping`: beside Keras's own callbacks, metrics computed by hand, and runs that were not interrupted."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from multihead._ground.keras import KERAS_3
from multihead.callbacks import HeadEarlyStopping
from multihead.heads._metric_names import log_name
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X, DEV = RNG.normal(size=(2, 16, 3)).astype("float32")
TARGETS = {"price": X[:, :1] + RNG.normal(size=(16, 1)).astype("float32"), "size": X[:, 1:2]}
DEV_TARGETS = {"price": DEV[:, :1] + RNG.normal(size=(16, 1)).astype("float32"), "size": DEV[:, 1:2]}


class Counted(keras.layers.Dense):
    """A dense layer that counts how often Python calls it."""

    calls = 0

    def call(self, inputs):
        self.calls += 1
        return super().call(inputs)


def trainer(heads=("price", "size"), rate=0.05, **options):
    keras.utils.set_random_seed(0)
    result = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh"))
    for name in heads:
        result.add_head(name, Counted(1), "mse", metrics=["mae"])
    result.compile(keras.optimizers.Adam(rate), **options)
    return result


@pytest.fixture(scope="module")
def shared():
    """A trainer whose steps all runs share, and its variables as they were when it was built."""
    model = trainer()
    model.compute_gradients((X[:2], {name: targets[:2] for name, targets in TARGETS.items()}))
    variables = list({id(v): v for v in (*model.variables, *model.optimizer.variables)}.values())
    return model, list(zip(variables, tiny.values(variables), strict=True))


@pytest.fixture
def fresh(shared):
    """Gives that trainer as it was when it was built, with a learning rate."""
    model, start = shared

    def started(rate):
        for variable, value in start:
            variable.assign(value)
        model.optimizer.learning_rate.assign(rate)
        return model

    return started


def fit(model, callbacks, epochs=40, **options):
    data = {"x": X, "y": TARGETS, "validation_data": (DEV, DEV_TARGETS)}
    return model.fit(**{**data, **options}, batch_size=8, epochs=epochs, verbose=0, shuffle=False, callbacks=callbacks)


def told(callback, model, metrics):
    """Calls the callback as `fit` does, with logs that are given; the epochs that it lets run, and the scores."""
    callback.set_model(model)
    model.stop_training = False
    callback.on_train_begin()
    scores = []
    for epoch, logs in enumerate(metrics):
        callback.on_epoch_begin(epoch)
        callback.on_epoch_end(epoch, logs)
        scores.append(logs.get("val_score"))
        if model.stop_training:
            break
    model.set_idle([])
    return scores


@pytest.fixture(scope="module")
def one():
    return trainer(["price"])


@pytest.fixture(scope="module")
def two():
    return trainer()


@pytest.mark.parametrize("options", [{}, {"patience": 2}, {"patience": 3, "min_delta": 0.2}, {"start_from_epoch": 4}])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_with_one_head_it_stops_where_early_stopping_stops(options, mode, one):
    for seed in range(20):
        metrics = np.random.default_rng(seed).normal(size=30).cumsum().astype("float32")
        logs = [{"val_price_mae": float(metric)} for metric in metrics]
        ours = HeadEarlyStopping({"price": "val_price_mae"}, mode=mode, restore_best_weights=False, **options)
        keras_own = keras.callbacks.EarlyStopping("val_price_mae", mode=mode, **options)
        told(keras_own, one, [dict(row) for row in logs])
        told(ours, one, [dict(row) for row in logs])
        assert ours.stopped_epoch == keras_own.stopped_epoch and ours.best["price"] == keras_own.best


METRICS = [{"val_price_accuracy": a, "val_size_loss": b} for a, b in ((0.5, 2.0), (0.9, 2.2), (0.6, 1.0), (0.6, 1.5))]


@pytest.mark.parametrize(
    ("single_task", "expected"),
    [
        (None, [(0.5 - 2) / 2, (0.9 - 2.2) / 2, (0.6 - 1) / 2, (0.6 - 1.5) / 2]),
        # (0.5 - 0.8) / 0.8 = -0.375 and -(2 - 1.25) / 1.25 = -0.6, and so on
        ({"price": 0.8, "size": 1.25}, [(-0.375 - 0.6) / 2, (0.125 - 0.76) / 2, (-0.25 + 0.2) / 2, (-0.25 - 0.2) / 2]),
    ],
)
def test_the_score_is_the_mean_of_the_statistics_or_of_the_gains_over_single_tasks(single_task, expected, two):
    monitor, options = {"price": "val_price_accuracy", "size": "val_size_loss"}, {"single_task": single_task}
    callback = HeadEarlyStopping(monitor, mode={"price": "max"}, patience=9, restore_best_weights=False, **options)
    assert told(callback, two, [dict(row) for row in METRICS]) == pytest.approx(expected)
    assert callback.best_epoch == {"price": 1, "size": 2} and callback.best_score_epoch == 2


def test_it_goes_on_while_a_head_improves(two):
    rows = [{"val_price_loss": 1.0 + epoch, "val_size_loss": abs(5.0 - epoch)} for epoch in range(12)]
    callback = HeadEarlyStopping(patience=2, restore_best_weights=False)
    told(callback, two, [dict(row) for row in rows])
    assert callback.idle_heads == ["price", "size"] and callback.stopped_epoch == 7
    rows[6]["val_price_loss"] = 0.5  # improves again after it became idle
    callback = HeadEarlyStopping(patience=2, restore_best_weights=False)
    told(callback, two, [dict(row) for row in rows])
    assert callback.stopped_epoch == 7 and callback.best["price"] == 0.5
    trained_on = HeadEarlyStopping(patience=2, idle=False, restore_best_weights=False)
    told(trained_on, two, [dict(row) for row in rows])
    assert trained_on.stopped_epoch == 8 and trained_on.idle_heads == []


def test_nan_is_never_the_best_and_epochs_without_validation_do_not_count(two):
    rows = [{"val_price_loss": np.nan, "val_size_loss": 1.0}, {"loss": 1.0}, {"val_price_loss": 2.0, "val_size_loss": 1.5}]
    rows.append({"val_price_loss": np.nan, "val_size_loss": 0.1})
    callback = HeadEarlyStopping(patience=5, restore_best_weights=False)
    with pytest.warns(RuntimeWarning, match="HeadEarlyStopping finds no value of head 'price': the data have no labels"):
        scores = told(callback, two, rows)
    assert scores[:3] == [-1.0, None, -1.75] and np.isnan(scores[3])
    assert callback.best == {"price": 2.0, "size": 0.1} and (callback.best_score, callback.best_score_epoch) == (-1.75, 2)


@pytest.mark.thorough
def test_a_head_without_labels_does_not_keep_the_others_from_being_restored(fresh):
    model = fresh(0.05)
    unlabelled = {**DEV_TARGETS, "size": np.full([16, 1], np.nan, "float32")}
    callback = HeadEarlyStopping(patience=1)
    with pytest.warns(RuntimeWarning, match="no value of head 'size'.*it neither counts nor becomes idle"):
        history = fit(model, [callback], validation_data=(DEV, unlabelled))
    assert history.history["val_score"] == pytest.approx([-loss for loss in history.history["val_price_loss"]])
    assert callback.idle_heads == ["price"] and callback.best_score == max(history.history["val_score"])
    evaluated = model.evaluate(DEV, {"price": DEV_TARGETS["price"]}, verbose=0, return_dict=True)["price_loss"]
    assert evaluated == pytest.approx(min(history.history["val_price_loss"]))


def test_nothing_to_monitor_is_said_before_training(one):
    data = {"x": X, "y": {"price": TARGETS["price"]}, "verbose": 0}
    with pytest.raises(ValueError, match="`validation_data` must be given if HeadEarlyStopping has no `monitor`"):
        one.fit(**data, callbacks=[HeadEarlyStopping()])
    assert int(one.update_count) == 0
    with pytest.raises(
        ValueError, match="`monitor` must have names in the logs. Received: 'val_price_mae'.*pass `validation_"
    ):
        one.fit(**data, callbacks=[HeadEarlyStopping({"price": "val_price_mae"})])


@pytest.mark.parametrize(
    ("options", "fitted", "message"),
    [
        ({}, {"validation_freq": 5}, "restores nothing: no epoch from epoch 0 on had validation"),
        ({"start_from_epoch": 9}, {}, "no epoch from epoch 9 on had"),
        ({"monitor": {"price": "val_price_loss"}}, {"missing": True}, "a value other than NaN of 'val_price_loss'"),
    ],
)
@pytest.mark.filterwarnings("ignore:HeadEarlyStopping finds no value")
def test_what_is_not_restored_is_said(options, fitted, message, one):
    missing = {"price": np.full([16, 1], np.nan, "float32")} if fitted.pop("missing", False) else DEV_TARGETS
    targets = {"y": {"price": TARGETS["price"]}, "validation_data": (DEV, {"price": missing["price"]})}
    with pytest.warns(RuntimeWarning, match=message):
        fit(one, [HeadEarlyStopping(**options)], epochs=2, **targets, **fitted)


@pytest.mark.filterwarnings("ignore:higher values of 'val_score' are better")  # which Keras 2 does not tell from "min"
def test_later_callbacks_see_the_score_and_know_that_higher_is_better(fresh, tmp_path):
    model = fresh(0.02)
    log = tmp_path / "log.csv"
    keras_callbacks = [
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.weights.h5"), "val_score", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ReduceLROnPlateau("val_score", patience=1, factor=0.5, min_delta=100.0),
        keras.callbacks.EarlyStopping("val_score", patience=3, min_delta=100.0),
        keras.callbacks.CSVLogger(str(log)),
    ]
    callback = HeadEarlyStopping(patience=50)
    history = fit(model, [callback, *keras_callbacks])
    assert keras_callbacks[0].monitor_op(2.0, 1.0) and keras_callbacks[1].mode == "max" and keras_callbacks[2].min_delta > 0
    assert len(history.epoch) == 4 and float(np.array(model.optimizer.learning_rate)) == pytest.approx(0.02 / 8)
    losses = zip(history.history["val_price_loss"], history.history["val_size_loss"])
    assert history.history["val_score"] == pytest.approx([-(a + b) / 2 for a, b in losses])
    with log.open() as rows:
        assert [float(row["val_score"]) for row in csv.DictReader(rows)] == pytest.approx(history.history["val_score"])
    restored = tiny.weights_of(model)
    model.load_weights(str(tmp_path / "best.weights.h5"))
    for a, b in zip(restored, tiny.weights_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


class Watch(keras.callbacks.Callback):
    """The weights of each head after each epoch, and how often modules were called."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.stop_after, self.weights, self.calls = stop_after, [], []

    def on_epoch_end(self, epoch, logs=None):
        modules = [self.model.encoder, *(head.module for head in self.model.heads.values())]
        optimizer = self.model.optimizer.variables
        of_optimizer = optimizer() if callable(optimizer) else optimizer
        slots = [v for v in of_optimizer if tuple(v.shape) != ()]
        self.weights.append([tiny.values(module.variables) for module in modules] + [tiny.values(slots)])
        self.calls.append(sum(module.calls for module in modules[1:]))
        if epoch == self.stop_after:
            raise InterruptedError


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.thorough
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path):
    def run(folder, stop_after=None):
        model, watch = trainer(rate=0.1), Watch(stop_after)
        model.compute_gradients((X[:2], {name: targets[:2] for name, targets in TARGETS.items()}))  # builds
        callback = HeadEarlyStopping(patience=3)
        backup = keras.callbacks.BackupAndRestore(str(tmp_path / folder / "keras"))
        try:
            history = fit(model, [callback, watch, backup])
        except InterruptedError:
            return None
        return history, callback, tiny.weights_of(model)

    history, callback, weights = run("whole")
    assert callback.stopped_epoch > 7
    assert run("cut", stop_after=4) is None  # HeadEarlyStopping has counted this epoch, BackupAndRestore has not
    again, resumed, restored = run("cut")
    assert again.epoch == history.epoch and again.history["loss"] == history.history["loss"]
    for name in ("best", "best_epoch", "best_score", "best_score_epoch", "idle_heads", "stopped_epoch"):
        assert getattr(resumed, name) == getattr(callback, name), name
    for a, b in zip(weights, restored, strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_heads_best_can_be_restored(fresh):
    model, watch = fresh(0.1), Watch()
    callback = HeadEarlyStopping(patience=3)
    fit(model, [callback, watch])
    assert callback.best_epoch["price"] != callback.best_epoch["size"]
    for k, head in enumerate(("price", "size"), start=1):
        callback.restore(head)
        kept = watch.weights[callback.best_epoch[head]]
        assert equal(tiny.values(model.encoder.variables), kept[0])
        assert equal(tiny.values(model.heads[head].module.variables), kept[k])
        found = model.evaluate(DEV, DEV_TARGETS, verbose=0, return_dict=True)
        assert found[f"{head}_loss"] == pytest.approx(callback.best[head], rel=1e-5)
    callback.restore()
    for k, module in enumerate([model.encoder, *(head.module for head in model.heads.values())]):
        assert equal(tiny.values(module.variables), watch.weights[callback.best_score_epoch][k])
    with pytest.raises(
        ValueError, match=r"`head` must be None or a head with kept weights\. Received: head='prize'; .*'price', 'size'"
    ):
        callback.restore("prize")


@pytest.mark.parametrize("kind", ["EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint"])
def test_other_callbacks_must_see_the_score_and_take_higher_for_better(kind, two):
    where = ("x.weights.h5",) if kind == "ModelCheckpoint" else ()
    early = getattr(keras.callbacks, kind)(*where, monitor="val_score", mode="max")
    rule = "`callbacks` that monitor 'val_score' must"
    with pytest.raises(ValueError, match=f"{rule} come after HeadEarlyStopping. Received: {kind} before it"):
        fit(two, [early, HeadEarlyStopping()])
    for_lower = getattr(keras.callbacks, kind)(*where, monitor="val_score", mode="min")
    if KERAS_3 or kind == "ReduceLROnPlateau":
        with pytest.raises(ValueError, match=f"{rule} be for higher values. Received: {kind} for lower ones"):
            fit(two, [HeadEarlyStopping(), for_lower])
    else:  # Keras 2 does not keep the mode
        with pytest.warns(UserWarning, match=f"higher values of 'val_score' are better, and are for {kind}"):
            (first := HeadEarlyStopping()).check_fit([first, for_lower], validates=True)


def test_a_callback_of_ones_own_that_takes_lower_for_better_is_refused(two):
    own = keras.callbacks.Callback()
    own.monitor, own.monitor_op = "val_score", np.less
    with pytest.raises(ValueError, match="must be for higher values. Received: Callback for lower ones"):
        fit(two, [HeadEarlyStopping(), own])


WRONG = [
    ({"monitor": "val_loss"}, r"`monitor` must be a dict from head names .*Received: monitor='val_loss'"),
    ({"monitor": {"prize": "val_price_loss"}}, r"`monitor` must name only heads: 'prize' is not a head"),
    (
        {"monitor": {"price": "val_price_mea"}},
        "`mode` must say whether 'val_price_mea' is better.*Did you mean 'val_price_mae'",
    ),
    ({"patience": -1}, r"`patience` must be a whole number of at least 0\. Received: patience=-1"),
    ({"min_delta": {"price": "much"}}, r"`min_delta` must be a finite number of at least 0, or a dict of these by head"),
    ({"min_delta": -0.1}, r"`min_delta` must be .* Received: min_delta=-0.1"),
    ({"mode": "up"}, r"`mode` must be one of 'auto', 'min', 'max'.*Received: mode='up'"),
    ({"single_task": {"price": 0.9}}, r"`single_task` must name every head.* 'size' is missing"),
    ({"single_task": {"price": 0.9, "size": 0}}, r"`single_task` must be a dict of numbers other than 0"),
    (
        {"monitor": {"price": "val_price_f2"}},
        r"`mode` must say whether 'val_price_f2' is better if it is higher or lower.*`mode=\{'price': 'max'\}`",
    ),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_cannot_be_watched(options, message, two):
    with pytest.raises(ValueError, match=message):
        told(HeadEarlyStopping(**options), two, [])


def closeness(targets, predictions):
    return -tf.abs(targets - predictions)


class Closeness(keras.metrics.Mean):
    """A metric of one's own, of which no direction is known."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(closeness(y_true, y_pred), sample_weight)


@pytest.mark.parametrize(("metric", "log"), [(closeness, "val_price_{}"), (Closeness(name="close"), "price_{}")])
def test_the_mode_of_a_metric_of_ones_own_is_asked_for(metric, log):
    """The message does not suggest the name that was given."""
    model = MultiHeadTrainer(keras.layers.Dense(4))
    model.add_head("price", keras.layers.Dense(1), "mse", metrics=[metric])
    model.compile("sgd")
    name = log.format(log_name(metric))
    data = X, {"price": TARGETS["price"]}
    with pytest.raises(ValueError, match=rf"^`mode` must say whether '{name}' is .*Pass `mode=\{{'price': 'max'\}}`"):
        model.fit(*data, verbose=0, validation_data=data, callbacks=[HeadEarlyStopping({"price": name})])
