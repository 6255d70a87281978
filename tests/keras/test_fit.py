"""`fit`: teacher forcing, what a module may have beside its call, and callbacks of Keras that see what heads log."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

from multihead import Head, MultiHeadTrainer, losses
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")


class Echo(keras.layers.Layer):
    """A decoder that reads its targets in training."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(tiny.VOCABULARY)

    def call(self, representation, targets, training=None):
        assert training is not None
        return self.dense(representation["outputs"]) + tf.one_hot(targets, tiny.VOCABULARY)

    def generate(self, representation):
        return tf.argmax(self.dense(representation["outputs"]), axis=-1)


def test_teacher_forcing_trains_on_targets_and_predicts_by_generating():
    inputs, targets = tiny.data(8, missing=False)
    encoder, heads = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("echo", Echo(), losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.add_head("price", heads["price"], "sparse_categorical_crossentropy", ignore_label=-1)
    trainer.compile("adam")
    tiny.fit_once(trainer, inputs, {"echo": targets["tag"], "price": targets["price"]})
    predictions = trainer.predict(inputs, verbose=0, batch_size=3)
    assert predictions["echo"].shape == (8, 6) and predictions["price"].shape == (8, 3)


class Looking(Echo):
    """A decoder that looks its targets up in a table, as embeddings do: those that mark a missing label are outside of it."""

    def call(self, representation, targets, training=None):
        return self.dense(representation["outputs"]) + tf.gather(tf.eye(tiny.VOCABULARY), targets)


@pytest.mark.parametrize("eagerly", [True, False], ids=["eager", "graph"])
def test_a_module_that_reads_its_targets_sees_no_missing_label(eagerly):
    inputs, targets = tiny.data(8, missing=False)
    encoder, _ = tiny.modules()
    trainer = MultiHeadTrainer(encoder)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.add_head("word", Looking(), loss, teacher_forcing=True, ignore_label=-100)
    trainer.compile("adam", run_eagerly=eagerly)
    labels = np.where(np.arange(6) < 4, targets["tag"], -100)
    history = trainer.fit(inputs, {"word": labels}, verbose=0)
    assert np.isfinite(history.history["word_loss"][0])


X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def times_step(signature, base=keras.layers.Dense):
    """A layer or model whose result is multiplied by the number of updates plus one; its `call` has some signature."""

    def times(layer, inputs, step=None):
        inner = layer.inner(inputs) if base is keras.Model else keras.layers.Dense.call(layer, inputs)
        return inner * (1.0 if step is None else tf.cast(step + 1, tf.float32))

    step = "step" if "step" in signature else "None"
    call = eval(f"lambda self, {signature}: times(self, h, {step})", {"times": times})
    made = type("TimesStep", (base,), {"call": call})
    if base is not keras.Model:
        return made(1, use_bias=False)
    model = made()
    model.inner = keras.layers.Dense(1, use_bias=False)
    return model


AFTER_INPUTS = [f"{before}{mode}" for before in ("", "*, ") for mode in ("step=None", "training=None, step=None")]
AFTER_INPUTS += ["step=None, training=None", "training=None, *, step=None", "step=None, **kwargs"]
SIGNATURES = [("encoder", f"h, {rest}", {}) for rest in AFTER_INPUTS]
SIGNATURES += [("head", f"h, {rest}", {}) for rest in AFTER_INPUTS]
SIGNATURES += [("reads targets", f"h, y, {rest}", {}) for rest in AFTER_INPUTS]
SIGNATURES += [
    ("model", "h, step=None", {"run_eagerly": True}),
    ("model", "h, training=None, step=None", {}),
    ("head", "h, step=None", {"gradient_accumulation_steps": 2}),
    ("encoder", "h, *, step=None", {"balancer": "UPGrad", "micro_batches": 2}),
]


@pytest.mark.first_cases(3)
@pytest.mark.parametrize(("role", "signature", "options"), SIGNATURES, ids=str)
def test_the_step_is_the_number_of_updates(role, signature, options):
    layer = times_step(signature, keras.Model if role == "model" else keras.layers.Dense)
    is_encoder, reads_targets = role == "encoder", role == "reads targets"
    trainer = MultiHeadTrainer(layer if is_encoder else keras.layers.Dense(2))
    head = keras.layers.Dense(1, use_bias=False) if is_encoder else layer
    trainer.add_head("a", head, "mae", teacher_forcing=reads_targets)
    trainer.add_head("b", keras.layers.Dense(1), "mae")
    trainer.compile(keras.optimizers.SGD(0.0), **{"micro_batches": 2, **options})
    y = {"a": np.zeros(8), "b": np.zeros(8)}
    history = trainer.fit(
        X, y, batch_size=8 // options.get("gradient_accumulation_steps", 1), epochs=3, shuffle=False, verbose=0
    )
    found = np.array(history.history["a_loss"])
    np.testing.assert_allclose(found / found[0], [1, 2, 3], rtol=1e-5)
    # Evaluation and prediction have no step.
    np.testing.assert_allclose(trainer.evaluate(X, y, return_dict=True, verbose=0)["a_loss"], found[0], rtol=1e-5)


@pytest.mark.parametrize("signature", ["h", "h, training=None", "h, **kwargs", "h, training=None, **kwargs"])
def test_a_module_without_a_step_gets_none(signature):
    """Not even one that takes any argument, which it may pass on to what takes no step."""
    trainer = MultiHeadTrainer(times_step(signature))
    trainer.add_head("a", times_step(signature), "mae")
    trainer.compile(keras.optimizers.SGD(0.0), micro_batches=2)
    losses = trainer.fit(X, np.zeros(8), epochs=2, shuffle=False, verbose=0).history["loss"]
    np.testing.assert_allclose(losses[1], losses[0])


@pytest.mark.parametrize(
    ("signature", "reads_targets"),
    [("h, step", False), ("h, step, training=None", False), ("h, *, step", False), ("h, step=None", True)],
)
def test_a_step_that_evaluation_would_lack_is_refused(signature, reads_targets):
    expected = r"`step` of a module's `call` must .* have a default.* Received: `call\(.*step.*\)` of TimesStep\. Write"
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", times_step(signature), "mae", teacher_forcing=reads_targets)
    trainer.compile("sgd")
    with pytest.raises(ValueError, match=expected):
        trainer.train_on_batch(X, np.zeros(8))


class Tokens(keras.layers.Layer):
    """Logits of two tokens for each row, whose targets must not fall."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(10)

    def call(self, inputs):
        return tf.reshape(self.dense(inputs), [-1, 2, 5])

    def target_problems(self, targets, present):
        falls = present[:, 0] & present[:, 1] & (targets[:, 1] < targets[:, 0])
        return [(falls, "not fall", "Sort them.")]


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("form", "jit_compile"), [("arrays", True), ("dataset", False), ("one batch", False)])
def test_rules_of_a_module(form, jit_compile):
    trainer = MultiHeadTrainer(keras.layers.Dense(2))
    trainer.add_head("a", Tokens(), losses.SequenceCrossentropy(padding_id=4), ignore_label=-1)
    trainer.compile("sgd", jit_compile=jit_compile)
    rows = np.array([[0, 3], [2, 2], [2, -1], [4, 1], [3, 0], [1, 1], [2, 1], [0, 0]])

    def fit(y, weights=None):
        if form == "arrays":
            return trainer.fit(X, {"a": y}, sample_weight=weights and {"a": np.array(weights)}, verbose=0)
        batch = (X, {"a": y}, {"a": np.array(weights or [1.0] * 8, "float32")})
        if form == "dataset":
            return trainer.fit(tf.data.Dataset.from_tensors(batch), verbose=0)
        return trainer.train_on_batch(*batch)

    with pytest.raises(
        ValueError, match=r"`targets\['a'\]` must not fall\. Received: \[*3 0\]* \(2 of 8 rows break this\)\. Sort"
    ):
        fit(rows)
    fit(np.where((rows[:, 1:] < rows[:, :1]) & (rows >= 0).all(axis=1, keepdims=True), 1, rows))
    fit(rows, [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    trainer.compile("sgd", check_labels=False, jit_compile=jit_compile)
    fit(rows)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("monitor", "is_better"), [("val_size_loss", "less"), ("val_price_accuracy", "greater"), ("price_loss", "less")]
)
def test_callbacks_know_whether_a_statistic_of_a_head_is_better_lower_or_higher(monitor, is_better, tmp_path):
    inputs, targets = tiny.data(8)
    callbacks = [
        keras.callbacks.EarlyStopping(monitor, patience=0),
        keras.callbacks.ReduceLROnPlateau(monitor),
        keras.callbacks.ModelCheckpoint(
            str(tmp_path / "best.weights.h5"), monitor, save_best_only=True, save_weights_only=True
        ),
    ]
    trainer = tiny.trainer("sgd", metrics=True, run_eagerly=True)
    trainer.fit(inputs, targets, verbose=0, validation_data=(inputs, targets), callbacks=callbacks)
    found = [callback.monitor_op for callback in callbacks]
    assert [bool(found[0](1.0, 2.0)), bool(found[2](1.0, 2.0))] == [is_better == "less"] * 2
    assert (tmp_path / "best.weights.h5").exists()


VALUES = {
    "val_b_auc": "greater", "val_b_precision": "greater", "val_b_f1": "greater", "val_b_mean_squared_error": "less",
    "val_account_loss": "less", "account_mean_squared_error": "less", "account_auc": "greater", "val_loss": "less",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:(lower|higher) values of")
@pytest.mark.first_cases(3)
@pytest.mark.parametrize("monitor", VALUES)
def test_callbacks_of_each_stack_choose_the_same_direction(monitor, tmp_path):
    """Also where Keras 2 goes by a part of the name."""

    def head():
        f1 = keras.metrics.F1Score(average="macro", threshold=0.5, name="f1")
        kinds = {
            "auc": keras.metrics.AUC,
            "precision": keras.metrics.Precision,
            "mean_squared_error": keras.metrics.MeanSquaredError,
        }
        metrics = [f1, *(kind(name=name) for name, kind in kinds.items())]
        return Head(keras.layers.Dense(1, "sigmoid"), "binary_crossentropy", metrics=metrics)

    trainer = MultiHeadTrainer(keras.layers.Dense(2), {"b": head(), "account": head()})
    trainer.compile("sgd")
    path = str(tmp_path / "best.weights.h5")
    stop = keras.callbacks.EarlyStopping(monitor, min_delta=0.1, patience=9, restore_best_weights=True)
    kept = keras.callbacks.ModelCheckpoint(path, monitor, save_best_only=True, save_weights_only=True)
    y = {name: (X[:, :1] > 0).astype("float32") for name in ("b", "account")}
    history = trainer.fit(X, y, validation_data=(X, y), epochs=3, verbose=0, callbacks=[stop, kept])
    best = (np.min if VALUES[monitor] == "less" else np.max)(history.history[monitor])
    np.testing.assert_allclose([kept.best, bool(stop.monitor_op(2.0, 1.0))], [best, VALUES[monitor] == "greater"], rtol=1e-6)
    assert (stop.min_delta > 0) == (VALUES[monitor] == "greater")


NAN = float("nan")


def without(targets, name):
    return {**targets, name: np.full_like(targets[name], -1 if name == "price" else NAN)}


def test_a_head_without_labels_logs_nan_in_training_and_evaluation():
    inputs, targets = tiny.data(8)
    trainer = tiny.trainer("adam", heads=("tag", "price"), metrics=True, run_eagerly=False)
    batch = inputs, without({name: targets[name] for name in ("tag", "price")}, "price")
    logs = trainer.fit(*batch, validation_data=batch, verbose=0).history
    for prefix in ("", "val_"):
        assert np.isnan([*logs[f"{prefix}price_loss"], *logs[f"{prefix}price_accuracy"]]).all()
        assert np.isfinite([*logs[f"{prefix}loss"], *logs[f"{prefix}tag_loss"]]).all()


def test_an_evaluation_without_any_label_logs_nan():
    inputs, targets = tiny.data(4)
    for weighting in (None, "Uncertainty"):
        trainer = tiny.trainer("adam", heads=("price",), weighting=weighting)
        logs = trainer.evaluate(inputs, without(targets, "price")["price"], return_dict=True, verbose=0)
        assert np.isnan(logs["loss"]) and np.isnan(logs["price_loss"])


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("broken", [0, 1])
def test_callbacks_do_not_take_a_skipped_epoch_for_the_best(tmp_path, broken):
    inputs, targets = tiny.data(4, missing=False)
    trainer = tiny.trainer("sgd", heads=("size",))
    targets = targets["size"].copy()

    class Break(keras.callbacks.Callback):
        """In one epoch nothing has a label."""

        def on_epoch_begin(self, epoch, logs=None):
            weight = NAN if epoch == broken else 0.1
            trainer.heads["size"].module.dense.bias.assign([weight])

    stop = keras.callbacks.EarlyStopping("loss", patience=3, mode="min")
    options = {"save_best_only": True, "save_weights_only": True, "mode": "min"}
    keep = keras.callbacks.ModelCheckpoint(str(tmp_path / "best.weights.h5"), "loss", **options)
    lower = keras.callbacks.ReduceLROnPlateau("loss", patience=3, mode="min")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Epoch .* skipped")
        logs = trainer.fit(
            inputs, targets, batch_size=4, epochs=3, verbose=0, shuffle=False, callbacks=[Break(), stop, keep, lower]
        ).history["loss"]
    assert [np.isnan(loss) for loss in logs] == [epoch == broken for epoch in range(3)]
    for callback in (stop, keep, lower):
        assert float(callback.best) == pytest.approx(np.nanmin(logs), rel=1e-6)


def test_validation_at_the_end_of_an_epoch_hides_no_skipped_update():
    inputs, targets = tiny.data(8, missing=False)
    broken = {**targets, "size": np.full_like(targets["size"], 1e30)}
    trainer = tiny.trainer("sgd")
    with pytest.warns(RuntimeWarning, match="1 of the epoch's updates was skipped.* from head 'size'"):
        history = trainer.fit(inputs, broken, batch_size=8, validation_data=(inputs, targets), verbose=0).history
    assert history["skipped_updates"] == [1] and np.isfinite(history["val_size_loss"][0])


@pytest.mark.thorough
def test_further_trainers_are_not_warned_of_retracing(caplog, monkeypatch):
    """TensorFlow counts the traces of all functions that were made by the same code, those of all trainers."""
    monkeypatch.setattr(polymorphic_function, "FREQUENT_TRACING_WARNING_THRESHOLD", 2)  # of 5
    x, y = np.ones([8, 4], "float32"), np.arange(8.0)[:, None]
    for _ in range(3):
        trainer = MultiHeadTrainer(keras.layers.Dense(3))
        trainer.add_head("a", keras.layers.Dense(1), "mse", target_scaling="standardize")
        trainer.compile("adam", run_eagerly=False)
        trainer.fit(x, y, validation_data=(x, y), verbose=0)
        trainer.predict(x, verbose=0)
        trainer.diagnose(x, y)
    assert "retracing" not in caplog.text


def test_data_of_other_lengths_trace_nothing_again():
    """Each of `fit`, `evaluate` and `predict` is traced for its first data; more rows, and a last batch of another size, are
    only other numbers."""
    traced = []

    class Counted(keras.layers.Dense):
        def call(self, inputs):
            traced.append(tf.executing_eagerly())
            return super().call(inputs)

    trainer = MultiHeadTrainer(Counted(3))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("adam", run_eagerly=False)
    counts = []
    for rows in (8, 8, 7, 12):
        x, y = np.ones([rows, 4], "float32"), np.arange(float(rows))[:, None]
        trainer.fit(x, y, batch_size=3, validation_data=(x, y), verbose=0)
        trainer.predict(x, batch_size=3, verbose=0)
        counts.append(len(traced))
    assert counts[0] > 0 and not any(traced) and counts == counts[:1] * 4
