"""An update that trains only probes leaves the encoder, the methods and all that belongs to them as they are, to the bit."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, balancing, clipping, schedules, weighting
from tests.helpers import tiny

pytestmark = pytest.mark.usefixtures("eager_updates")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 4)).astype("float32")
Y = {name: RNG.normal(size=(12, 1)).astype("float32") for name in ("a", "b", "probe")}
ONLY = {**Y, "a": np.full([12, 1], np.nan, "float32"), "b": np.full([12, 1], np.nan, "float32")}


class Learned(weighting.Weighting):
    """A weighting with one variable that all heads train."""

    uses = ()

    def create_state(self, num_heads):
        self.power = self.add_weight(name="power", shape=(), initializer="ones")

    def total(self, losses, active):
        return tf.reduce_sum(losses) * tf.convert_to_tensor(self.power)


class Seen(balancing.Balancer):
    """The plain sum, which counts the updates that it sees, in two ways."""

    def create_state(self, num_heads):
        self.combined, self.observed = self.add_state("combined", ()), self.add_state("observed", ())

    def coefficients(self, gramian):
        self.combined.assign(tf.convert_to_tensor(self.combined) + 1.0)
        return tf.ones_like(tf.linalg.diag_part(gramian))

    def observe(self, update, applied):
        self.observed.assign(tf.convert_to_tensor(self.observed) + tf.cast(applied, tf.float32))


def made(optimizer="adamw", units=5, encoder=(), **options):
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(units, kernel_regularizer="l2"), *encoder]
    trainer = MultiHeadTrainer(keras.Sequential(layers))
    for name in Y:
        trainer.add_head(name, keras.layers.Dense(1), "mse", trains_encoder=name != "probe")
    trainer.compile(OPTIMIZERS[optimizer](), **options)
    return trainer


OPTIMIZERS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adamw": lambda: keras.optimizers.AdamW(0.1, weight_decay=0.5),
    "averages": lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
}


def kept(trainer):
    """What an update of a probe alone must not change: everything except what belongs to the probe, and what counts."""
    spec = trainer.update_spec
    probe = list(trainer.heads).index("probe")
    groups = [group for group in spec.groups if group.heads != (probe,)]
    return tiny.values([each for group in groups for each in (*group.variables, *group.state)])


def unchanged(before, after):
    return [np.array_equal(one, other) for one, other in zip(before, after, strict=True)]


KINDS = {
    "weight decay": {"run_eagerly": False},
    "momentum": {"optimizer": "momentum"},
    "averages": {"optimizer": "averages"},
    "moving averages of layers": {"encoder": [keras.layers.BatchNormalization]},
    "losses that the encoder adds": {"encoder": [lambda: keras.layers.ActivityRegularization(l2=0.1)]},
    "a large encoder": {"units": 20_000},
    "micro-batches": {"micro_batches": 3, "balancer": "UPGrad"},
    "at the parameters": {"balancer": "UPGrad", "balance_at": "parameters", "balance_every": 2},
    "a balancer that counts": {"balancer": Seen},
    "a balancer with running averages": {"balancer": balancing.MetaBalance},
    "a weighting that learns": {"weighting": Learned},
    "a weighting that observes": {"weighting": weighting.DWA},
    "clipped by the global norm": {"clip": lambda: clipping.ByGlobalNorm(1e-3)},
    "in XLA": {"jit_compile": True},
}


def options_of(kind):
    options = {name: value() if isinstance(value, type) or callable(value) else value for name, value in KINDS[kind].items()}
    return {**options, "encoder": [layer() for layer in KINDS[kind].get("encoder", ())]}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("kind", KINDS)
def test_by_missing_labels(kind):
    trainer = made(**options_of(kind))
    for _ in range(2):
        trainer.train_on_batch(X, Y)
    before, probe = kept(trainer), tiny.values(trainer.heads["probe"].module.variables)
    logs = trainer.train_on_batch(X, ONLY, return_dict=True)
    assert all(unchanged(before, kept(trainer)))
    assert not any(unchanged(probe, tiny.values(trainer.heads["probe"].module.variables)))
    np.testing.assert_allclose(logs["skipped_updates"], 0)
    assert int(trainer.update_count) == 3
    trainer.train_on_batch(X, Y)  # and it goes on
    spec = trainer.update_spec
    encoder = [each for each in spec.groups[0].variables if each.shape.rank]
    assert not all(unchanged(before[: len(encoder)], kept(trainer)[: len(encoder)]))


WAYS = {
    "a schedule": lambda: ({"head_schedule": schedules.Alternate({"a": 1, "probe": 1, "b": 1})}, lambda t: None),
    "idle": lambda: ({}, lambda t: t.set_idle(["a", "b"])),
    "weights of 0": lambda: ({}, lambda t: [t.set_weight(name, 0.0) for name in ("a", "b")]),
}


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("way", WAYS)
def test_by_other_reasons_in_fit(way):
    options, action = WAYS[way]()
    states = []

    class At(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            states.append(kept(self.model))
            if batch == 0:
                action(self.model)

    trainer = made(encoder=[keras.layers.BatchNormalization()], **options)
    trainer.fit(X, Y, batch_size=6, shuffle=False, verbose=0, callbacks=[At()])
    assert all(unchanged(*states))
    assert trainer.num_updates == 2


@pytest.mark.first_cases(1)
@pytest.mark.parametrize("form", ["its own list", "a list of one's own", "in a graph"])
def test_in_a_custom_loop(form):
    trainer = made()
    trainer.train_on_batch(X, Y)
    before = kept(trainer)

    def step(targets):
        pairs = trainer.compute_gradients((X, targets))
        if form != "its own list":
            pairs = [(None if gradient is None else 0.5 * tf.convert_to_tensor(gradient), v) for gradient, v in pairs]
        return trainer.apply_gradients(pairs)

    run = tf.function(step) if form == "in a graph" else step
    if form != "in a graph":
        pairs = trainer.compute_gradients((X, ONLY))
        probe = {id(variable) for variable in trainer.heads["probe"].module.trainable_variables}
        assert [gradient is not None for gradient, _ in pairs] == [id(variable) in probe for _, variable in pairs]
    assert run(tf.nest.map_structure(tf.constant, ONLY))
    assert all(unchanged(before, kept(trainer)))


def test_the_others_train_as_if_such_updates_had_not_been():
    """Without a clock in the optimizer; a twin never sees the probe."""

    def trained(with_probe):
        trainer = made("momentum", encoder=[keras.layers.BatchNormalization()], balancer=balancing.MetaBalance())
        for _ in range(3):
            trainer.train_on_batch(X, {**Y, "probe": Y["probe"] if with_probe else np.full([12, 1], np.nan, "float32")})
            if with_probe:
                trainer.train_on_batch(X, ONLY)
        return kept(trainer)

    for one, other in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


def test_regularizers_of_an_encoder_that_no_head_trains_do_not_move_it():
    encoder = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("probe", keras.layers.Dense(1), "mse", trains_encoder=False)
    trainer.compile(keras.optimizers.AdamW(0.1, weight_decay=0.5))
    trainer.evaluate(X, {"probe": Y["probe"]}, verbose=0)
    before = tiny.values(encoder.variables)
    logs = trainer.fit(X, {"probe": Y["probe"]}, verbose=0).history
    assert all(unchanged(before, tiny.values(encoder.variables)))
    np.testing.assert_allclose(logs["loss"], logs["probe_loss"], rtol=1e-6)
