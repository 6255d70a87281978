"""Promise 5 and skipped updates, for modules whose own state a training pass changes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, schedules
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

X = np.random.default_rng(0).normal(2.0, 1.5, (8, 4)).astype("float32")
Y = {"a": X[:, :1], "b": X[:, 1:2]}


class Recurrent(keras.layers.Layer):
    """A stateful layer on four time steps, for batches of 4."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.GRU(3, stateful=True)

    def build(self, shape):
        self.layer.build((4, 4, 1))
        super().build(shape)

    def call(self, inputs):
        return self.layer(tf.ensure_shape(inputs, [4, 4])[..., None] if tf.is_tensor(inputs) else inputs[..., None])


MODULES = {
    "batch normalization": lambda: keras.layers.BatchNormalization(),
    "spectral normalization": lambda: keras.layers.SpectralNormalization(keras.layers.Dense(3)),
    "dropout": lambda: keras.layers.Dropout(0.5),
}


def normalized(kind="batch normalization", **compiled):
    """A trainer with such state in the encoder and in both heads, and metrics."""
    keras.utils.set_random_seed(3)
    encoder = keras.Sequential([keras.layers.Dense(4), MODULES[kind](), keras.layers.Dense(4)])
    trainer = MultiHeadTrainer(encoder)
    for name in ("a", "b"):
        module = keras.Sequential([MODULES[kind](), keras.layers.Dense(1)])
        trainer.add_head(
            name, module, "mse", metrics=[keras.metrics.MeanAbsoluteError("mae")], weight=compiled.pop(f"weight_{name}", 1.0)
        )
    trainer.compile(keras.optimizers.Adam(0.1), **compiled)
    return trainer


def everything(trainer):
    """All variables: of modules, optimizer, methods and heads' metrics, on every replica."""
    modules = [trainer.encoder, *(head.module for head in trainer.heads.values())]
    optimizer = trainer.optimizer.variables
    metrics = [variable for head in trainer.heads.values() for metric in head.metrics for variable in metric.variables]
    found = [variable for module in modules for variable in module.variables]
    found += [*(optimizer() if callable(optimizer) else optimizer), *metrics, trainer.update_count]
    tensors = [tiny.tensor_variable(variable) for variable in found]
    return [np.array(copy) for variable in tensors for copy in getattr(variable, "values", (variable,))]


def head_state(trainer, name):
    return tiny.values(trainer.heads[name].module.variables)


def same(before, after):
    return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


IDLE = {
    "schedule": ({"head_schedule": lambda: schedules.Alternate({"a": 2, "b": 8})}, Y, {}),
    "labels": ({}, {"a": Y["a"], "b": np.full_like(Y["b"], np.nan)}, {}),
    "weight": ({"weight_b": lambda: 0.0}, Y, {}),
    "sample weights": ({}, Y, {"sample_weight": {"a": np.ones(8, "float32"), "b": np.zeros(8, "float32")}}),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("reason", IDLE)
def test_the_state_of_an_idle_head_stays(kind, reason):
    options, targets, extra = IDLE[reason]
    if kind == "dropout" and reason in ("labels", "sample weights"):
        pytest.skip("its seed is one of the cases that the others cover")
    trainer = normalized(kind, **{name: make() for name, make in options.items()})
    trainer.compute_gradients((X, Y))  # builds
    before, other = head_state(trainer, "b"), head_state(trainer, "a")
    trainer.fit(X, targets, batch_size=4, epochs=1, verbose=0, **extra)  # two updates
    assert tiny.values([trainer.update_count]) == [2]
    assert same(before, head_state(trainer, "b")) and not same(other, head_state(trainer, "a"))


def test_the_state_of_a_recurrent_head_stays():
    trainer = MultiHeadTrainer(keras.layers.Dense(4))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.add_head("b", keras.Sequential([Recurrent(), keras.layers.Dense(1)]), "mse")
    trainer.compile("adam")
    states = lambda: tiny.values(trainer.heads["b"].module.layers[0].layer.states)  # noqa: E731
    batch = X[:4], {name: target[:4] for name, target in Y.items()}
    trainer.apply_gradients(trainer.compute_gradients(batch))
    before = states()
    assert np.any(before[0])
    trainer.train_on_batch(batch[0], {**batch[1], "b": np.full_like(batch[1]["b"], np.nan)})
    assert same(before, states())
    trainer.train_on_batch(*batch)
    assert not same(before, states())


BROKEN = np.where(np.arange(8)[:, None] == 5, np.nan, X)


@pytest.mark.first_cases(1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, {}) for kind in MODULES if kind != "dropout"), ("dropout", {"balancer": "UPGrad", "micro_batches": 2})],
)
def test_a_skipped_update_leaves_every_variable(kind, options):
    trainer = normalized(kind, **options)
    trainer.compute_gradients((X, Y))
    trainer.apply_gradients(trainer.compute_gradients((X, Y)))
    trainer.reset_metrics()
    before = everything(trainer)
    with pytest.warns(RuntimeWarning, match="not finite"):
        logs = trainer.fit(BROKEN, Y, batch_size=8, verbose=0).history
    assert logs["skipped_updates"] == [1.0] and same(before, everything(trainer))
    assert np.isnan([*logs["loss"], *logs["a_loss"], *logs["b_mae"]]).all()
    trainer.fit(X, Y, batch_size=8, verbose=0)
    assert np.isfinite(trainer.predict(X, verbose=0)["a"]).all()


def test_without_any_targets_the_encoders_state_stays():
    trainer = normalized()
    trainer.compute_gradients((X, Y))
    before = everything(trainer)
    assert not trainer.apply_gradients(trainer.compute_gradients((X, {})))
    assert same(before, everything(trainer))


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("in_graph", [False, True])
def test_by_hand_a_skipped_update_leaves_every_variable(in_graph):
    trainer = normalized()
    trainer.compute_gradients((X, Y))
    trainer.reset_metrics()
    before = everything(trainer)

    def step(x, y):
        return trainer.apply_gradients(trainer.compute_gradients((x, y)))

    assert not (tf.function(step) if in_graph else step)(tf.constant(BROKEN), tf.nest.map_structure(tf.constant, Y))
    assert same(before, everything(trainer))


class Counting(keras.layers.Layer):
    """Counts its calls, in a condition of the graph."""

    def __init__(self, sums=False):
        super().__init__()
        self.supports_masking, self.sums = True, sums
        self.calls = self.add_weight(name="calls", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs):
        def count():
            tiny.tensor_variable(self.calls).assign_add(1.0)
            return True

        tf.cond(tf.reduce_sum(inputs) < 1e9, count, lambda: False)
        return tf.reduce_sum(inputs, axis=-1, keepdims=True) if self.sums else inputs


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_state_advances_once_per_batch_where_masks_are_needed_before_the_heads_run(eagerly):
    counters = Counting(), Counting(sums=True)
    trainer = MultiHeadTrainer(keras.Sequential([keras.layers.Embedding(9, 3, mask_zero=True), counters[0]]))
    trainer.add_head("a", counters[1], "mse")
    trainer.compile(keras.optimizers.SGD(0.0), run_eagerly=eagerly)
    tokens = np.array([[1, 2, 3, 0], [4, 5, 0, 0]])
    batch = tokens, {"a": np.where(tokens > 0, 1.0, 99.0).astype("float32")[..., None]}
    trainer.compute_gradients(batch)  # builds
    states = lambda: tiny.values([each.calls for each in counters])  # noqa: E731
    for step in (trainer.train_on_batch, trainer.train_on_batch, trainer.test_on_batch):
        before = states()
        found = step(*batch, return_dict=True)
        assert [new - old for old, new in zip(before, states())] == [1, 1]
    errors = (np.array(trainer.predict_on_batch(tokens)["a"]) - batch[1]["a"]) ** 2
    np.testing.assert_allclose(found["a_loss"], errors[tokens > 0].mean(), rtol=1e-5)  # the mask counts
