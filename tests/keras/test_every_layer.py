"""Every layer that Keras ships, in the encoder, in a head, and shared by two heads: trained as Keras itself trains it.

The oracle is Keras's own `fit` of the same layers as one model with several outputs.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer
from tests.helpers import every_layer

BATCH = every_layer.BATCH
CASES = every_layer.cases()
WRAPPED = ("SpectralNormalization(Conv2D)", "TimeDistributed(BatchNormalization)")
KEEPS = ("BatchNormalization", "SpectralNormalization", "TextVectorization", "Dropout")
"""Layers that keep more than weights: in every run, these go through all that can happen to a layer."""


@pytest.fixture(scope="module", autouse=True)
def _seeds_are_variables():
    """Layers of Keras 2 draw random numbers from variables, as those of Keras 3 do."""
    if every_layer.KERAS_3:
        yield
        return
    keras.backend.experimental.enable_tf_random_generator()
    yield
    keras.backend.experimental.disable_tf_random_generator()


def rotating(start):
    """Each case in one place, so that every place has a third of them."""
    return lambda i: every_layer.PLACES[(i + start) % 3]


def built(cases, places=every_layer.PLACES, like=None):
    """A network whose layers are built, with the values of another, if any."""
    net = every_layer.network(cases, places)
    net.as_one_model()(data(net)[0])
    if like is not None:
        for module, other in zip((net.encoder, *net.heads.values()), (like.encoder, *like.heads.values())):
            for variable, value in zip(every_layer.variables_of(module), every_layer.values_of(other), strict=True):
                variable.assign(value)
    return net


def data(net, batches=1):
    """Inputs, and labels for both heads."""
    inputs = net.inputs(BATCH * batches)
    labels = np.random.default_rng(5).normal(size=(2, BATCH * batches, 1)).astype("float32")
    return {k: tf.constant(v) if v.dtype == object else v for k, v in inputs.items()}, dict(zip("ab", labels))


def trainer_of(net, rate=1.0, learning_rate=1.0, **options):
    trainer = MultiHeadTrainer(net.encoder)
    trainer.add_head("a", net.heads["a"], "mse", learning_rate_multiplier=learning_rate)
    trainer.add_head("b", net.heads["b"], "mse")
    trainer.compile(keras.optimizers.SGD(0.01), encoder_learning_rate_multiplier=rate, **options)
    return trainer


def fit(model, net, batches=2, **options):
    """The losses of some updates, which draw the same random numbers wherever they run."""
    keras.utils.set_random_seed(3)
    x, y = data(net, batches)
    y = {name: options.pop(name, target) for name, target in y.items()}
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **options).history


def differing(values, others, exactly=False):
    """The layers of which something differs."""
    same = np.array_equal if exactly else lambda a, b: np.allclose(a, b, rtol=1e-3, atol=1e-5)
    assert values.keys() == others.keys()
    return [key for key in values if not all(map(same, values[key], others[key]))]


def check_as_in_keras(net, trainer, batches=2):
    """Trains a network, and its twin by Keras, which runs eagerly: in graphs, Keras 2 cannot run all of its layers."""
    twin = built(net.cases, net.places, like=net)
    assert differing(net.values, twin.values, exactly=True) == []
    model = twin.as_one_model()
    model.compile(keras.optimizers.SGD(0.01), {"a": "mse", "b": "mse"}, run_eagerly=True)
    before = net.values
    history, expected = fit(trainer, net, batches), fit(model, twin, batches)
    assert differing(net.values, twin.values) == []
    for name in ("loss", "a_loss", "b_loss"):
        np.testing.assert_allclose(history[name], expected[name], rtol=1e-4)
    trained = {key for key, layer in net.layers.items() if layer.trainable_variables}
    assert trained - set(differing(before, net.values, exactly=True)) <= set(differing(before, twin.values, exactly=True))


# ------------------------------------------------------------------------------------------------------ the table


def test_the_table_covers_every_layer_and_wrapper():
    shipped = every_layer.shipped()
    assert set(shipped) == set(CASES) | (set(every_layer.NOT_TRAINED) & set(shipped))
    wrappers = {name for name, layer in shipped.items() if issubclass(layer, keras.layers.Wrapper)} - {"Wrapper"}
    assert wrappers | {"Bidirectional"} == set(every_layer.WRAPPERS)


# ------------------------------------------------------------------------------------------------------ training


@pytest.mark.thorough
@pytest.mark.parametrize(("start", "batches"), [(0, 1), (1, 2), (2, 2)])
def test_all_layers_train_as_in_keras(start, batches):
    cases = [*CASES.values(), *map(every_layer.find, WRAPPED)]
    net = built(cases, rotating(start))
    check_as_in_keras(net, trainer_of(net, run_eagerly=True), batches=batches)


def groups(names, size=8):
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]


OTHERS = groups([name for name in CASES if name not in {*KEEPS, *every_layer.DRAWS_IN_PYTHON}])
LIVES = [pytest.param(KEEPS, id="kept")]
LIVES += [pytest.param(names, id=f"{names[0]} to {names[-1]}", marks=pytest.mark.thorough) for names in OTHERS]


@pytest.fixture(scope="module", params=LIVES)
def trained(request):
    """A network in all places, and its trainer, after some updates in a graph, compared with those of Keras."""
    net = built([CASES[name] for name in request.param])
    trainer = trainer_of(net, run_eagerly=False)
    check_as_in_keras(net, trainer)
    return net, trainer


def test_layers_of_an_idle_head_stay(trained):
    net, trainer = trained
    before, other = net.values, every_layer.values_of(net.heads["b"].dense)
    fit(trainer, net, a=np.full([2 * BATCH, 1], np.nan, "float32"))
    changed = differing(before, net.values, exactly=True)
    assert [key for key in changed if key[0] == "head"] == []
    assert not np.array_equal(other[0], every_layer.values_of(net.heads["b"].dense)[0])


def test_layers_are_exported(trained, tmp_path):
    net, trainer = trained
    inputs, _ = data(net)
    trainer.export(str(tmp_path / "export"))
    served = tf.saved_model.load(str(tmp_path / "export")).signatures["serving_default"]
    answers = served(**{name: tf.constant(each) for name, each in inputs.items()})
    hidden = net.encoder(inputs, training=False)
    for name, module in net.heads.items():
        np.testing.assert_allclose(answers[name], module(hidden, training=False), rtol=1e-4, atol=1e-6)


def test_layers_are_saved_and_loaded(trained, tmp_path):
    net = built(trained[0].cases)
    trainer = trainer_of(net, run_eagerly=True)
    fit(trainer, net)
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    modules = loaded.heads["a"].module, loaded.heads["b"].module
    assert modules[0].shared is modules[1].shared
    branches = {"encoder": loaded.encoder.branches, "head": modules[0].own, "shared": modules[0].shared}
    again = every_layer.Net(loaded.encoder, dict(zip("ab", modules)), branches)
    assert differing(net.values, again.values, exactly=True) == []
    assert fit(trainer, net)["loss"] == fit(loaded, again)["loss"]
    assert differing(net.values, again.values, exactly=True) == []


@pytest.mark.parametrize("name", ["GRU", "IntegerLookup"] if every_layer.KERAS_3 else ["GRU"])
def test_a_layer_in_a_sequential_encoder_is_saved_and_loaded(name, tmp_path):
    """There, Keras restores layers in another way."""
    case = CASES[name]
    x = tf.constant(every_layer.data(case.kind))
    trainer = MultiHeadTrainer(keras.Sequential([case.make(), keras.layers.Flatten(), keras.layers.Dense(2)]))
    trainer.add_head("a", keras.layers.Dense(1), "mse")
    trainer.compile("sgd", run_eagerly=True)
    trainer.fit(x, {"a": np.ones([BATCH, 1], "float32")}, verbose=0)
    trainer.save(str(tmp_path / "trainer.keras"))
    loaded = keras.models.load_model(str(tmp_path / "trainer.keras"))
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)["a"], trainer.predict(x, verbose=0)["a"])


def test_frozen_layers_keep_every_bit(trained):
    net = built(trained[0].cases)
    before = {key: every_layer.values_of(layer, seeds=False) for key, layer in net.layers.items()}
    fit(trainer_of(net, rate=0, learning_rate=0, run_eagerly=True), net)
    after = {key: every_layer.values_of(layer, seeds=False) for key, layer in net.layers.items()}
    assert {place for place, _ in differing(before, after, exactly=True)} <= {"shared"}


# ------------------------------------------------------------------------------------------------------ wrappers
