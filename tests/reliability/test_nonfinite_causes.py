"""The report on an update that is not finite begins with the most likely cause."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer

pytestmark = pytest.mark.first_cases(5)  # the others are thorough

X = np.random.default_rng(0).normal(size=(16, 3)).astype("float32")
Y = {"a": X[:, :1].copy(), "b": X[:, 1:2].copy()}


class LogarithmOf(keras.layers.Layer):
    """A head whose predictions are logarithms of negative numbers."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, inputs):
        return tf.math.log(-1.0 - tf.square(self.dense(inputs)))


def infinite(y_true, y_pred):
    return tf.square(y_true[:, 0] - y_pred[:, 0]) * np.inf


def trainer(module=None, loss="mse", check_labels=True, names="ab", **options):
    made = MultiHeadTrainer(keras.layers.Dense(4, activation="tanh", name="first"))
    if "a" in names:
        made.add_head("a", keras.layers.Dense(1), "mse")
    made.add_head("b", module or keras.layers.Dense(1), loss, couples_rows=False)
    made.compile("sgd", check_labels=check_labels, **options)
    made.compute_gradients([(X, {name: Y[name] for name in names})])  # builds
    return made


def fit(trainer, x=X, y=Y, **options):
    y = {name: y[name] for name in trainer.heads}
    trainer.fit(x, y, batch_size=4, shuffle=False, verbose=0, **options)


def with_one(array, value):
    """A copy with a value in batch 2."""
    changed = array.copy()
    changed[9] = value
    return changed


def in_inputs(value, **options):
    fit(trainer(**options), with_one(X, value))


def in_one_of_several_inputs(value, **options):
    class Both(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4)

        def build(self, shape):
            self.dense.build((None, 3))
            self.built = True

        def call(self, inputs):
            return self.dense(inputs["x"]) + tf.cast(inputs["count"], "float32")[:, None]

    made = MultiHeadTrainer(Both())
    made.add_head("b", keras.layers.Dense(1), "mse")
    made.compile("sgd", **options)
    fit(made, {"count": np.arange(16), "x": with_one(X, value)})


def in_targets(value, **options):
    fit(trainer(check_labels=False, **options), y={**Y, "b": with_one(Y["b"], np.inf)})


def in_sample_weights(value, **options):
    fit(trainer(check_labels=False, **options), sample_weight={"b": with_one(np.ones(16, "float32"), np.inf)})


def in_weights(value, **options):
    made = trainer(**options)
    made.encoder.kernel.assign(np.full([3, 4], value))
    fit(made)


def of_a_loss(value, **options):
    fit(trainer(loss=infinite, **options))


def of_a_module(value, **options):
    fit(trainer(LogarithmOf(), **options))


def of_the_encoder(value, **options):
    made = trainer(**options)
    made.encoder.activation = lambda x: tf.math.log(-1.0 - tf.square(x))
    fit(made)


def of_one_head(value, **options):
    fit(trainer(LogarithmOf(), names="b", **options))


CAUSES = {
    in_inputs: "The inputs must be finite",
    in_one_of_several_inputs: "The inputs must be finite",
    in_targets: "The labels and sample weights must be valid.* head 'b'",
    in_sample_weights: "The labels and sample weights must be valid.* head 'b'",
    in_weights: "The weights must be finite.*'[^']*kernel'",
    of_a_loss: "The encoder, the modules and the losses must give finite values",
    of_a_module: "The encoder, the modules and the losses must give finite values",
    of_the_encoder: "The encoder, the modules and the losses must give finite values",
    of_one_head: "The encoder, the modules and the losses must give finite values",
}
MODES = {"eager": {"run_eagerly": True}, "graph": {}, "xla": {"jit_compile": True}}
VALUES = (np.nan, np.inf)
ENDS = ["raise", "limit", None, "raise", None, "limit", "limit", "raise", None]


def described(case):
    return getattr(case, "__name__", str(case))


@pytest.mark.first_cases(2)
@pytest.mark.parametrize(
    ("spoil", "mode", "value", "ends"), list(zip(*map(itertools.cycle, (CAUSES, MODES, VALUES)), ENDS)), ids=described
)
def test_the_report_begins_with_the_cause(spoil, mode, value, ends):
    begins = CAUSES[spoil]
    options = {"raise": {"on_nonfinite": "raise"}, "limit": {"max_skipped_updates": 1}, None: {}}[ends]
    if ends:
        with pytest.raises(ValueError, match=f"^{begins}") as caught:
            spoil(value, **options, **MODES[mode])
        message = str(caught.value)
    else:
        with pytest.warns(RuntimeWarning, match=f"^Epoch 1: {begins}") as caught:
            spoil(value, **options, **MODES[mode])
        (message,) = (str(each.message) for each in caught if each.category is RuntimeWarning)
    assert "at update " in message and message.count("kernel") <= 4
    if spoil in (in_inputs, in_one_of_several_inputs):
        assert "at update 3, batch 2 of the epoch" in message and "kernel" not in message and "learning rate" not in message


def test_the_inputs_of_any_replica_are_seen(two_replicas):
    with two_replicas.scope(), pytest.raises(ValueError, match="^The inputs must be finite.* batch 2 "):
        in_one_of_several_inputs(np.nan, on_nonfinite="raise")


def test_inputs_are_found_in_windows_and_custom_loops():
    with pytest.raises(ValueError, match="^The inputs must be finite.*batches 2 to 3"):
        in_inputs(np.nan, on_nonfinite="raise", gradient_accumulation_steps=2)
    made = trainer(on_nonfinite="raise")
    with pytest.raises(ValueError, match="^The inputs must be finite"):
        made.apply_gradients(made.compute_gradients((with_one(X, np.nan), Y)))


def test_large_inputs_are_finite():
    with pytest.raises(ValueError, match="^The encoder, the modules and the losses"):
        made = MultiHeadTrainer(keras.layers.Dense(4))
        made.add_head("b", keras.layers.Dense(1), "mse")
        made.compile("sgd", on_nonfinite="raise")
        fit(made, X * 1e30)
