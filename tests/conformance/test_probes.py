"""A head with `trains_encoder=False` learns from the representation as it is, and changes nothing else."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, schedules, weighting
from tests.helpers import tiny
from tests.helpers.balancers import ALL, make

pytestmark = [pytest.mark.usefixtures("eager_updates"), pytest.mark.first_cases(1)]  # the other cases are thorough

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 6)).astype("float32")
Y = {name: RNG.normal(size=(12, 1)).astype("float32") for name in ("a", "b", "probe")}
WEIGHTINGS = sorted(set(weighting.__all__) - {"Weighting", "get"})


def trained(names, fits=2, of_probe=None, module=None, **options):
    """A trainer of some heads after some updates."""
    keras.utils.set_random_seed(1)
    encoder = keras.Sequential([keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(4)])
    modules = {name: keras.layers.Dense(1) for name in Y}
    [each.build((None, size)) for each, size in [(encoder, 6), *((each, 4) for each in modules.values())]]
    modules["probe"] = module or modules["probe"]
    trainer = MultiHeadTrainer(encoder)
    for name in names:
        of_head = (of_probe or {"trains_encoder": False}) if name == "probe" else {}
        trainer.add_head(name, modules[name], "mse", **of_head)
    trainer.compile(keras.optimizers.Adam(0.1), **options)
    labels = {name: Y[name] for name in names}
    trainer.logged = [trainer.fit(X, labels, batch_size=12, verbose=0).history for _ in range(fits)]
    return trainer


def weights(trainer, names=("a", "b")):
    return [tiny.values(each.variables) for each in (trainer.encoder, *(trainer.heads[name].module for name in names))]


def check(make_options, place=2):
    names = ["a", "b"]
    names.insert(place, "probe")
    before, after, without = trained(names, 0), trained(names, **make_options()), trained(("a", "b"), **make_options())
    for found, expected in zip(weights(after), weights(without), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    for name in ("a_norm", "b_norm", "a_share", "b_share", "a_coefficient", "a_weight", "b_weight", "a_b_cosine"):
        for one, other in zip(after.logged, without.logged, strict=True):
            np.testing.assert_allclose(one.get(name, [0]), other.get(name, [0]), rtol=1e-4, atol=1e-5)
    (of_before,), (of_after,) = (weights(each, ["probe"])[1:] for each in (before, after))
    assert not np.array_equal(of_before[0], of_after[0])
    return after


ONLY_AT_PARAMETERS = ("DBMTL", "ExcessMTL", "MoCo")
LEVELS = itertools.cycle(["representation", "parameters"])
AT = [(name, "parameters" if name in ONLY_AT_PARAMETERS else level) for name, level in zip(ALL, LEVELS)]


@pytest.mark.parametrize(("name", "level"), AT)
def test_balancers(name, level):
    after = check(lambda: {"balancer": make(name), "balance_at": level})
    assert all(logs["probe_norm"] == logs["probe_share"] == logs["probe_coefficient"] == [0] for logs in after.logged)


@pytest.mark.parametrize("name", WEIGHTINGS)
def test_weightings(name):
    check(lambda: {"weighting": getattr(weighting, name)()})


OPTIONS = {
    "in a graph": lambda: {"run_eagerly": False},
    "all statistics": lambda: {"telemetry": "full", "balancer": "UPGrad", "balance_at": "parameters"},
    "micro-batches": lambda: {"micro_batches": 3, "balancer": "UPGrad", "run_eagerly": False},
    "micro-batches at the parameters": lambda: {"micro_batches": 3, "balancer": "UPGrad", "balance_at": "parameters"},
    "accumulated": lambda: {"gradient_accumulation_steps": 2, "weighting": "IMTLL", "run_eagerly": False},
    "a schedule": lambda: {"head_schedule": schedules.WhileConflicting()},
    "reused coefficients": lambda: {"balancer": "UPGrad", "balance_at": "parameters", "balance_every": 2},
    "a weighting and a balancer": lambda: {"weighting": "GradNorm", "balancer": "NormFloor"},
}


@pytest.mark.parametrize(("place", "name"), list(zip(itertools.cycle([0, 2]), OPTIONS)))
def test_options(place, name):
    after = check(OPTIONS[name], place)
    assert not any("probe" in name and name.endswith("cosine") and "update" not in name for name in after.logged[0])


def test_a_layer_of_the_encoder_is_not_trained_by_a_probe_that_contains_it():
    encoder = keras.layers.Dense(6, kernel_regularizer=None)
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("probe", keras.Sequential([encoder, keras.layers.Dense(1)]), "mse", trains_encoder=False)
    trainer.compile(keras.optimizers.SGD(0.1))
    trainer.compute_gradients((X, {"probe": Y["probe"]}))
    before = tiny.values(encoder.variables)
    trainer.fit(X, {"probe": Y["probe"]}, verbose=0)
    for one, other in zip(tiny.values(encoder.variables), before, strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_is_saved_and_loaded(tmp_path):
    trainer = trained(["a", "probe"], 1, balancer="UPGrad")
    trainer.save(tmp_path / "t.keras")
    loaded = keras.models.load_model(tmp_path / "t.keras")
    assert [head.trains_encoder for head in loaded.heads.values()] == [True, False]
    labels = {name: Y[name] for name in ("a", "probe")}
    for each in (trainer, loaded):
        each.fit(X, labels, batch_size=12, verbose=0)
    for found, expected in zip(weights(loaded, ["a", "probe"]), weights(trainer, ["a", "probe"]), strict=True):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("compiled", [{}, {"balancer": "UPGrad"}])
def test_diagnose_does_not_miss_its_gradient(compiled):
    trainer = trained(["a", "probe", "b"], 0, **compiled)
    found = trainer.diagnose(X, Y, batch_size=4)
    assert not [each for each in found.findings if "probe" in str(each)]
    assert found.norms["parameters"][1] == found.norms["representation"][1] == 0


class Stopped(keras.layers.Layer):
    """A dense layer behind a stop of one's own."""

    def __init__(self, by_zero):
        super().__init__()
        self.by_zero, self.dense = by_zero, keras.layers.Dense(1)

    def build(self, shape):
        self.dense.build(shape)
        self.built = True

    def call(self, inputs):
        return self.dense(tf.stop_gradient(inputs) + 0 * inputs if self.by_zero else tf.stop_gradient(inputs))


@pytest.mark.parametrize("options", [{}, {"balancer": "UPGrad"}, {"micro_batches": 2, "run_eagerly": False}])
def test_a_module_that_stops_gradients_itself_is_trained_with_a_warning(options):
    expected = weights(trained(["a", "probe"], **options), ["a", "probe"])
    start = trained(["a", "probe"], 0).heads["probe"].module.get_weights()
    module = Stopped(by_zero=False)
    module.build((None, 4))
    module.set_weights(start)
    with pytest.warns(UserWarning, match="(?s)learns nothing from head 'probe'.*`trains_encoder=False`"):
        trainer = trained(["a", "probe"], of_probe={"trains_encoder": True}, module=module, **options)
    for found, wanted in zip(weights(trainer, ["a", "probe"]), expected, strict=True):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_it_is_that_of_keras():
    trainer = trained(["probe"], 0)
    hidden = trainer.encoder(X)
    oracle = keras.Sequential([keras.layers.Dense(1)])
    oracle.build((None, 4))
    oracle.set_weights(trainer.heads["probe"].module.get_weights())
    oracle.compile(keras.optimizers.Adam(0.1), "mse", run_eagerly=True)
    before = tiny.values(trainer.encoder.variables)
    found = trainer.fit(X, {"probe": Y["probe"]}, epochs=3, batch_size=12, verbose=0).history
    expected = oracle.fit(np.array(hidden), Y["probe"], epochs=3, batch_size=12, verbose=0).history
    np.testing.assert_allclose(found["probe_loss"], expected["loss"], rtol=1e-5)
    for one, other in zip(tiny.values(trainer.encoder.variables), before, strict=True):
        np.testing.assert_array_equal(one, other)
