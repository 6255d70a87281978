"""Every way from inputs to predictions gives what the modules give by hand, under every dtype policy."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from multihead import MultiHeadTrainer, losses
from multihead.models import Seq2SeqDecoder, Seq2SeqEncoder, TransformerDecoder, TransformerEncoder

pytestmark = pytest.mark.first_cases(3)  # the others are thorough

POLICIES = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16", "float64", "float32")
MODES = {"graph": {}, "eager": {"run_eagerly": True}, "xla": {"jit_compile": True}}
# The digits that a graph may round differently than eager mode.
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 1e-5, "float64": 1e-5}
NEAR_170_000 = 170_000 + 1_000 * np.random.default_rng(0).normal(size=(6, 2))
DTYPE_WARNING = "ignore:Layer .* is casting an input tensor:UserWarning"


@keras.saving.register_keras_serializable(package="test_ways")
class Own(keras.layers.Layer):
    """A module with a `generate`, which reads a variable that half precision cannot hold."""

    def build(self, shape):
        self.kernel = self.add_weight(name="kernel", shape=(shape[-1], 1), initializer="ones")
        self.offset = self.add_weight(name="offset", shape=(1,), initializer=keras.initializers.Constant(2049.25))
        self.built = True

    def call(self, representation, targets):
        return self.generate(representation)

    def generate(self, representation):
        offset = tf.convert_to_tensor(self.offset)
        return tf.matmul(tf.cast(representation, offset.dtype), tf.convert_to_tensor(self.kernel)) + offset


@keras.saving.register_keras_serializable(package="test_ways")
class NotCast(keras.layers.Layer):
    """A layer that reads its inputs and variables as they are, and does not take `training`."""

    def __init__(self, autocast=False, **options):
        super().__init__(autocast=autocast, **options)

    def build(self, shape):
        self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer=keras.initializers.Constant(1e-3))
        self.built = True

    def call(self, inputs):
        scale = tf.convert_to_tensor(self.scale)
        return (tf.cast(inputs, "float64") - 170_000) * tf.cast(scale, "float64")


def rescaling():
    return keras.layers.Rescaling(1e-3, offset=-170.0, dtype="float32")


def functional():
    inputs = keras.Input((2,))
    return keras.Model(inputs, keras.layers.Dense(4)(rescaling()(inputs)))


def of_strings():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b"])
    return keras.Sequential([lookup, keras.layers.Embedding(4, 4)])


def embedded():
    return keras.Sequential([keras.layers.Embedding(9, 4), keras.layers.GlobalAveragePooling1D()])


ENCODERS = {
    "floats near 170,000": lambda: keras.Sequential([rescaling(), keras.layers.Dense(4)]),
    "strings": of_strings,
    "integers": embedded,
    "a functional model": functional,
    "a layer that is not cast": NotCast,
    "a function": lambda: lambda inputs: (inputs - 170_000) / 1_000,
    "small floats": lambda: keras.layers.Dense(4, activation="tanh"),
}
INPUTS = {
    "strings": np.array(["a", "b", "c", "a", "b", "b"]),
    "integers": np.arange(18).reshape(6, 3) % 9,
    "small floats": (NEAR_170_000 / 170_000).astype("float32"),
}


def agree(actual, wanted, dtype, way):
    """Checks predictions by head name, their dtypes included."""
    assert actual.keys() == wanted.keys(), way
    for name, value in wanted.items():
        assert tf.as_dtype(actual[name].dtype) == value.dtype, (way, name)
        digits = TOLERANCES[dtype]
        pair = tf.cast(actual[name], "float64"), tf.cast(value, "float64")
        np.testing.assert_allclose(*pair, rtol=digits, atol=digits, err_msg=f"{way}, {name}")


def ways(trainer, inputs, tensors, folder):
    """Predictions by the way that leads to them."""
    yield "call of tensors", trainer(tensors)
    yield "call in a graph", tf.function(trainer)(tensors)
    yield "predict from a dataset", trainer.predict(tf.data.Dataset.from_tensors(tensors), verbose=0)
    yield "predict_on_batch", trainer.predict_on_batch(inputs)
    yield from main_ways(trainer, inputs, folder)


def main_ways(trainer, inputs, folder):
    """The ways on which the replies of decoders are tested, too."""
    path = folder / "trainer.keras"
    yield "call", trainer(inputs)
    yield "predict", trainer.predict(inputs, batch_size=4, verbose=0)
    trainer.export(folder / "exported")
    yield "export", tf.saved_model.load(str(folder / "exported")).signatures["serving_default"](inputs=tf.constant(inputs))
    cannot_load = keras.__version__ < "3" and any(each.dtype == "bfloat16" for each in (trainer, *trainer.weights))
    if isinstance(trainer.encoder, keras.layers.Layer) and not cannot_load:
        trainer.save(path)
        yield "predict after loading", keras.models.load_model(path).predict(inputs, verbose=0)


def check_every_way(trainer, inputs, folder, dtype):
    is_float = np.issubdtype(inputs.dtype, np.floating)
    tensors = tf.constant(inputs.astype("float32") if is_float else inputs)
    zeros = {"plain": np.zeros((6, 1), "float32"), "own": np.zeros((6, 1), "float32")}
    found = trainer.evaluate(inputs, zeros, verbose=0, return_dict=True)
    representation = trainer.encoder(tensors)
    modules = {name: head.module for name, head in trainer.heads.items()}
    wanted = {"plain": modules["plain"](representation), "own": modules["own"].generate(representation)}
    for way, actual in ways(trainer, inputs, tensors, folder):
        agree(actual, wanted, dtype, way)
    forced = modules["own"](representation, tf.constant(zeros["own"]))
    for name, value in {"plain": wanted["plain"], "own": forced}.items():
        mean = np.abs(tf.cast(value, "float64")).mean()
        np.testing.assert_allclose(found[f"{name}_mae"], mean, rtol=TOLERANCES[dtype])


def trainer_of(encoder, plain, own, **options):
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("plain", plain, "mse", metrics=["mae"])
    trainer.add_head("own", own, "mse", metrics=["mae"], teacher_forcing=True)
    trainer.compile("sgd", **options)
    return trainer


def least(policy):
    """The dtype in which layers of a policy compute."""
    return policy.removeprefix("mixed_")


@pytest.mark.filterwarnings(DTYPE_WARNING)
@pytest.mark.first_cases(1)
@pytest.mark.parametrize(("policy", "kind", "mode"), list(zip(itertools.cycle(POLICIES), ENCODERS, itertools.cycle(MODES))))
def test_every_way_gives_the_same_predictions(policy, kind, mode, tmp_path):
    keras.mixed_precision.set_global_policy(policy)
    mode = "graph" if kind == "strings" and mode == "xla" else mode  # XLA has no strings
    trainer = trainer_of(ENCODERS[kind](), keras.layers.Dense(1), Own(), **MODES[mode])
    check_every_way(trainer, INPUTS.get(kind, NEAR_170_000.astype("float32")), tmp_path, least(policy))


DECODERS = {
    "recurrent": lambda: (Seq2SeqEncoder(9, 8, 8), Seq2SeqDecoder(9, 8, 8, maximum_length=4)),
    "transformer": lambda: (
        TransformerEncoder(9, 8, 8, num_layers=1),
        TransformerDecoder(9, 8, 8, num_layers=1, maximum_length=4),
    ),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings(DTYPE_WARNING)
@pytest.mark.parametrize(
    ("policy", "kind", "mode"), list(zip(POLICIES, itertools.cycle(DECODERS), itertools.cycle(["eager", "graph"])))
)
def test_decoders_generate_the_same_in_every_way(policy, kind, mode, tmp_path):
    if (policy, kind) == ("bfloat16", "recurrent"):
        policy = "mixed_bfloat16"  # TensorFlow has no orthogonal initial values in bfloat16
    keras.mixed_precision.set_global_policy(policy)
    ids = np.array([[4, 5, 3, 0], [6, 3, 0, 0]])
    encoder, decoder = DECODERS[kind]()
    trainer = MultiHeadTrainer(encoder)
    trainer.add_head("reply", decoder, losses.SequenceCrossentropy(), teacher_forcing=True)
    trainer.compile("sgd", **MODES[mode])
    trainer.evaluate(ids, {"reply": ids}, verbose=0)
    representation = encoder(tf.constant(ids))
    wanted = decoder.generate(representation)
    np.testing.assert_array_equal(decoder.decode(representation).ids[:, 0], wanted)
    for way, actual in main_ways(trainer, ids, tmp_path):
        np.testing.assert_array_equal(actual["reply"], wanted, err_msg=way)
