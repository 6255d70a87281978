"""Freezing within one `fit`: frozen parts keep every bit and cost no backward pass; a stage is traced once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import ByPath, LayerwiseDecay, MultiHeadTrainer, Stages
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
Y = {"a": X.sum(1, keepdims=True), "b": (X[:, 0] > 0).astype("int64")}


@keras.saving.register_keras_serializable(package="tests")
class Recorded(keras.layers.Layer):
    """A dense layer that records the passes through it that are traced in training, after its first call."""

    def __init__(self, units=3, **options):
        super().__init__(**options)
        self.dense = keras.layers.Dense(units, activation="tanh")
        self.passes = []

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, inputs, training=None):
        @tf.custom_gradient
        def identity(values):
            def backward(gradient):
                self.passes.append("backward")
                return gradient

            return tf.identity(values), backward

        if training:
            self.passes.append("forward")
        return identity(self.dense(inputs))


@keras.saving.register_keras_serializable(package="tests")
class Encoder(keras.layers.Layer):
    """Two recorded layers and normalization."""

    def __init__(self, normalized=False, **options):
        super().__init__(**options)
        self.low, self.high = Recorded(name="low"), Recorded(name="high")
        self.normalization = keras.layers.BatchNormalization() if normalized else None

    def build(self, shape):
        self.low.build((None, 3))
        self.high.build((None, 3))
        if self.normalization is not None:
            self.normalization.build((None, 3))
        self.built = True

    def call(self, inputs, training=None):
        values = self.low(inputs, training=training)
        values = values if self.normalization is None else self.normalization(values, training=training)
        return self.high(values, training=training)


def trainer_of(rate, optimizer=None, normalized=False, learning_rate=1.0, **options):
    keras.utils.set_random_seed(1)
    trainer = MultiHeadTrainer(Encoder(normalized))
    trainer.add_head("a", keras.layers.Dense(1), "mse", learning_rate_multiplier=learning_rate)
    trainer.add_head("b", keras.layers.Dense(2, activation="softmax"), "sparse_categorical_crossentropy")
    trainer.compile(
        optimizer or keras.optimizers.AdamW(0.01, weight_decay=0.1), encoder_learning_rate_multiplier=rate, **options
    )
    return trainer


def fit(trainer, epochs=1, **options):
    return trainer.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0, **options)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("options", [{}, {"balancer": "UPGrad", "micro_batches": 2}], ids=str)
def test_a_frozen_encoder_keeps_every_bit_and_has_no_backward_pass(options):
    trainer = trainer_of(Stages({0: 0, 4: ByPath({"low": 0}), 6: LayerwiseDecay(0.5)}), run_eagerly=False, **options)
    encoder, values, backward = trainer.encoder, [], []
    trainer.compute_gradients((X, Y))
    before = tiny.values(encoder.variables)
    encoder.low.passes.clear(), encoder.high.passes.clear()

    def note(batch, logs):
        values.append(tiny.values(encoder.variables))
        backward.append(["backward" in layer.passes for layer in (encoder.low, encoder.high)])

    history = fit(trainer, 4, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=note)]).history
    assert backward == [[step > 6, step > 4] for step in range(1, 9)]  # traced once for each stage
    for step, found in enumerate(values, start=1):
        same = [np.array_equal(a, b) for a, b in zip(before, found, strict=True)]
        assert same[:2] == [step <= 6] * 2 and same[2:] == [step <= 4] * len(same[2:])
    assert history["encoder_learning_rate_multiplier"] == pytest.approx([0, 0, 1, 1]) and trainer.stage == 2


def test_frozen_normalization_runs_in_inference_mode():
    trainer = trainer_of(ByPath({"low|normalization": 0}), normalized=True)
    trainer.compute_gradients((X, Y))
    normalization = trainer.encoder.normalization
    before = tiny.values(normalization.variables)
    fit(trainer)
    for a, b in zip(before, tiny.values(normalization.variables), strict=True):
        np.testing.assert_array_equal(a, b)
    assert normalization.trainable
    trained = trainer_of(1.0, normalized=True)
    fit(trained)
    assert not np.array_equal(before[2], tiny.values(trained.encoder.normalization.variables)[2])


@pytest.mark.thorough
def test_a_run_that_is_saved_in_one_stage_goes_on_in_the_next(tmp_path):
    def trainer():
        return trainer_of(Stages({0: 0, 3: 0.5}), learning_rate=Stages({0: 1, 3: 0.1}), encoder_weight_decay_multiplier=0.0)

    whole = trainer()
    fit(whole, 3)
    first = trainer()
    fit(first, 1)
    first.save(tmp_path / "trainer.keras")
    again = keras.models.load_model(tmp_path / "trainer.keras")
    assert again.stage == 0
    fit(again, 2)
    assert again.stage == 1
    for a, b in zip(tiny.weights_of(whole), tiny.weights_of(again), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


@pytest.mark.thorough
def test_a_custom_loop_is_traced_for_each_stage():
    trainer = trainer_of(Stages({0: 0, 2: 0.5}))
    trainer.compute_gradients((X, Y))
    encoder = tiny.values(trainer.encoder.variables)

    @tf.function
    def step(stage):
        return trainer.apply_gradients(trainer.compute_gradients((tf.constant(X), Y)))

    for number in range(4):
        assert step(trainer.stage)
        same = np.array_equal(encoder[0], tiny.values(trainer.encoder.variables)[0])
        assert same == (number < 2)
    assert step.experimental_get_tracing_count() == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="Pass `trainer.stage` to it as an argument"):
        step(0)
    pairs = trainer.compute_gradients((X, Y))
    assert all(gradient is not None for gradient, _ in pairs)


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("missing", ["key", "labels"])
@pytest.mark.parametrize("frozen", ["trainable", "multiplier"])
@pytest.mark.parametrize("by_hand", [True, False])
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_an_update_of_frozen_parts_counts_and_changes_nothing(missing, frozen, by_hand, run_eagerly):
    rate, trainer = 0.0 if frozen == "multiplier" else 1.0, MultiHeadTrainer(keras.layers.Dense(3))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.layers.Dense(2, "softmax"), "sparse_categorical_crossentropy", learning_rate_multiplier=rate)
    trainer.encoder.trainable = trainer.heads["b"].module.trainable = frozen == "multiplier"
    trainer.compile("adam", encoder_learning_rate_multiplier=rate, run_eagerly=run_eagerly)
    trainer.compute_gradients((X, Y))
    before = tiny.values(trainer.variables)
    targets = {"b": Y["b"]} if missing == "key" else {**Y, "a": np.full_like(Y["a"], np.nan)}
    if by_hand:
        step = lambda: trainer.apply_gradients(trainer.compute_gradients((X, targets)))  # noqa: E731
        assert step() if run_eagerly else tf.function(step)()
    else:
        trainer.train_on_batch(X, targets)
    assert trainer.num_updates == int(trainer.update_count) == int(tiny.values([trainer.optimizer.iterations])[0]) == 1
    changed = [old.shape for old, new in zip(before, tiny.values(trainer.variables)) if (old != new).any()]
    assert set(changed) <= {()}  # counts and statistics


@pytest.mark.first_cases(2)
@pytest.mark.parametrize("part", ["encoder", "head"])
@pytest.mark.parametrize("is_frozen_first", [True, False])
@pytest.mark.parametrize("rebuilt", [False, True])
def test_trainable_is_set_before_compile(part, is_frozen_first, rebuilt):
    """A change afterwards would have no effect, as in Keras; here `fit` says so, whatever was evaluated in between."""
    layer, head = keras.layers.Dense(3), keras.layers.Dense(1)
    trainer = MultiHeadTrainer(layer)
    trainer.add_head("a", head, "mse")
    changed = layer if part == "encoder" else head
    changed.trainable = not is_frozen_first
    trainer.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    x = np.ones((8, 2, 3), "float32")
    trainer.fit(x, {"a": x[..., :1]}, verbose=0)
    changed.trainable = is_frozen_first
    if rebuilt:
        trainer.evaluate(x[:, :1], {"a": x[:, :1, :1]}, verbose=0)
    before = tiny.values(trainer.variables)
    kept = "would not be trained" if is_frozen_first else "but would be trained"
    batch = x, {"a": x[..., :1]}
    for call in (
        lambda: trainer.fit(*batch, verbose=0),
        lambda: trainer.train_on_batch(*batch),
        lambda: trainer.compute_gradients(batch),
        lambda: trainer.head_gradients(batch, "parameters"),
        lambda: trainer.diagnose(*batch),
    ):
        with pytest.raises(
            ValueError, match=rf"`trainable` of layers must be set before `compile`.*kernel.*{kept}.*compile. again"
        ):
            call()
    for old, new in zip(before, tiny.values(trainer.variables)):
        np.testing.assert_array_equal(old, new)
    kernel = np.array(changed.get_weights()[0])
    trainer.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    trainer.fit(x, {"a": x[..., :1] + 1}, verbose=0)
    assert np.array_equal(kernel, changed.get_weights()[0]) is not is_frozen_first
